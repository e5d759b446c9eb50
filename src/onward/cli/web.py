"""`onward web FILE -o site/`: a website that trains the model in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option


def web(
    file: Annotated[
        Path,
        Argument(
            metavar="FILE|DIR",
            help="A training model (.onnx), the directory of a run or program; with --serve also a site.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None, Option("-o", "--output", metavar="DIR", help="The directory to write.", show_default=False)
    ] = None,
    title: Annotated[str, Option(help="The heading of the page (default: the name of the model).")] = "",
    data: Annotated[
        str | None, Option("--data", "-d", metavar="FILE", help="Data, of which some samples come with the page.")
    ] = None,
    examples: Annotated[int, Option(metavar="N", min=1, help="How many samples of --data at most.")] = 1000,
    classes: Annotated[
        str | None, Option(metavar="NAMES", help="Names of the classes: a,b,c or a text file with one per line.")
    ] = None,
    scale: Annotated[str | None, Option(metavar="NUMBER", help="Multiply inputs by this number, e.g. 1/255.")] = None,
    mean: Annotated[str | None, Option(metavar="NUMBERS", help="Subtract this: a number, or one per channel.")] = None,
    std: Annotated[str | None, Option(metavar="NUMBERS", help="Divide by this: a number, or one per channel.")] = None,
    runtime: Annotated[
        Path | None,
        Option(metavar="DIR", help="The folder node_modules/onnxruntime-web, instead of asking npm for it."),
    ] = None,
    serve: Annotated[bool, Option("--serve", help="Serve the site on this machine until Ctrl-C.")] = False,
    port: Annotated[int, Option(metavar="PORT", help="The port of --serve.")] = 8000,
) -> None:
    """Write a website on which the model trains: draw, use the camera, or fill in a form. Nothing leaves the page.

    The site is static and needs no other server. It contains onnxruntime-web, which npm fetches once.

    Examples:
        onward web net.train.onnx -o site/ --serve
        onward web net.train.onnx --data digits.npz --title 'My digits' -o site/
    """
    from onward.cli.console import stdout_console
    from onward.errors import A101, ArgumentError, Diagnostic, counted
    from onward.web import is_site

    console = stdout_console(soft_wrap=True)
    built = output is not None
    if output is None:
        if not serve or not is_site(file):
            hint = "pass -o DIR" + ("; --serve alone takes the directory of a site" if serve else "")
            raise ArgumentError(Diagnostic(A101, "there is no directory to write to", place="--output", hint=hint))
        output = file
    if built:
        from onward.cli.options import DataOptions
        from onward.surgery.class_list import read_classes
        from onward.web import build_site, fetch_runtime, read_runtime, write_site

        site = build_site(
            file,
            fetch_runtime() if runtime is None else read_runtime(runtime),
            title=title,
            data=data,
            examples=examples,
            change=DataOptions(data=[], scale=scale, mean=mean, std=std).preparation,
            classes=read_classes(classes).names if classes else (),
        )
        write_site(site, output)
        for note in site.notes:
            typer.echo(f"note: {note}", err=True)
        console.print(f"wrote {output}/: {counted(len(site.files), 'file')}, {site.size / 1e6:.1f} MB")
    if serve:
        from onward.web import serve as start

        server = start(output, port)
        console.print(f"http://127.0.0.1:{server.server_address[1]}/ shows it; Ctrl-C ends")
        with server:
            server.serve_forever()
    else:
        console.print(f"put it on any https server, or look at it here: onward web {output} --serve")
