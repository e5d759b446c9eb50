"""`onward show`: summarise a model as text, as JSON or as an HTML page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

if TYPE_CHECKING:
    from onward.model.training_model import TrainingModel


def show(
    file: Annotated[
        Path,
        Argument(metavar="FILE|DIR", help="The ONNX model to show, or the directory of a run.", show_default=False),
    ],
    graph: Annotated[bool, Option("--graph", help="Print the nodes of every graph as text.")] = False,
    html: Annotated[
        Path | None, Option("--html", metavar="OUT.html", help="Write a page that draws the graphs.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print the summary as JSON.")] = False,
    everything: Annotated[bool, Option("--all", help="List every weight and binding.")] = False,
) -> None:
    """Show what a model is: inputs, weights, loss, optimizer, bindings, operators.

    Examples:
        onward show net.train.onnx
        onward show net.onnx --html net.html
    """
    from onward.cli.console import stderr_console, stdout_console
    from onward.model import serde
    from onward.show.page import fill_in_shapes, render_page
    from onward.show.report import print_summary
    from onward.show.summary import summarize

    model = serde.load(file)
    console = stdout_console(soft_wrap=graph)
    if html is not None:
        _write(html, render_page(model, title=file.stem))
        stderr_console().print(f"wrote `{html}`")
        if not (graph or as_json):
            return
    if as_json:
        print(json.dumps(summarize(model), indent=2, ensure_ascii=False))
        return
    if graph:
        fill_in_shapes(model)
        for text in _texts(model):
            console.print(text, end="\n\n")
        return
    print_summary(summarize(model), console, all_rows=everything)


def _texts(model: TrainingModel) -> list[str]:
    from onward.model.text import render_function, render_graph

    roles = {**dict.fromkeys(model.frozen, "frozen"), **dict.fromkeys(model.state, "state")}
    roles.update(dict.fromkeys(model.parameters, "parameter"))
    texts = ["forward: " + render_graph(model.graph, roles=roles)]
    for entry in model.entries:
        if entry.algorithm is not None:
            bindings = "".join(f"\n  update  {key} ← {value}" for key, value in entry.update_binding.items())
            texts.append("training: " + render_graph(entry.algorithm, roles=roles) + bindings)
        if entry.initialization is not None:
            bindings = "".join(f"\n  set     {key} ← {value}" for key, value in entry.initialization_binding.items())
            texts.append("reset: " + render_graph(entry.initialization) + bindings)
    return [*texts, *(render_function(f) for f in model.ir.functions.values())]


def _write(path: Path, text: str) -> None:
    from onward.errors import Diagnostic, ModelError
    from onward.model.files import M111
    from onward.storage.atomic import write_atomic

    try:
        write_atomic(path, [text.encode("utf-8")])
    except OSError as error:
        raise ModelError(Diagnostic(M111, f"cannot write `{path}`: {error.strerror or error}")) from error
