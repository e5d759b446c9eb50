"""`onward profile FILE`: where the time of a training step goes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from onward.cli.options import DataOptions, data_option, open_data, read_size, takes, with_columns

if TYPE_CHECKING:
    from rich.console import Console

    from onward.train import Profile


@dataclasses.dataclass(kw_only=True)
class ProfileOptions(DataOptions):
    """The options of `onward profile`."""

    file: Annotated[Path, Argument(metavar="FILE|DIR", help="A training model (.onnx), a program, or a run.")]
    data: Annotated[
        list[str],
        data_option(
            "--data",
            "-d",
            metavar="FILE",
            help="Measure with this data (default: a made-up batch).",
            show_default=False,
        ),
    ] = dataclasses.field(default_factory=list)
    size: Annotated[
        list[str],
        Option(metavar="NAME=N", help="A free size of the made-up batch; may be repeated.", show_default=False),
    ] = dataclasses.field(default_factory=list)
    batch_size: Annotated[int, Option("--batch-size", "-b", help="Samples of a step.")] = 32
    steps: Annotated[int, Option(help="Steps that are measured.")] = 20
    backend: Annotated[str, Option(help="What runs the model.")] = "onnxruntime"
    threads: Annotated[int | None, Option(help="Number of threads (default: all).", show_default=False)] = None
    entry: Annotated[str | None, Option(help="The training entry (default: the first).", show_default=False)] = None
    operators: Annotated[bool, Option("--operators", help="List the kinds of operators instead of layers.")] = False
    top: Annotated[int, Option(help="Layers, or kinds, that are listed, the slowest first.")] = 15
    html: Annotated[Path | None, Option(metavar="FILE", help="Write a page with a flame chart.")] = None
    trace: Annotated[
        Path | None, Option(metavar="FILE", help="Write a trace for Perfetto or chrome://tracing (.trace.json).")
    ] = None
    as_json: Annotated[bool, Option("--json", help="Print all numbers as JSON.")] = False


@takes(ProfileOptions)
def profile(options: ProfileOptions) -> None:
    """Say where the time of a training step goes: by phase, and by layer with its backward.

    Examples:
        onward profile net.train.onnx --batch-size 64
        onward profile net.train.onnx --data digits.npz --html profile.html --trace step.trace.json
    """
    from onward.cli.console import stdout_console
    from onward.errors import A101, ArgumentError, Diagnostic
    from onward.train import Trainer

    problems = []
    for option, path, ending in (("--html", options.html, ".html"), ("--trace", options.trace, ".trace.json")):
        if path is not None and not path.name.endswith(ending):
            problems.append(Diagnostic(A101, f"{option} is `{path}`", needed=f"a name that ends in {ending}"))
    if problems:
        raise ArgumentError(problems)
    trainer = Trainer(options.file, options.backend, **_given(threads=options.threads))
    source, preparation = None, options.preparation(trainer.preparation)
    if options.data:
        preparation = with_columns(options, trainer, preparation, options.entry or trainer.first_entry)
        source = open_data(options.data, trainer, preparation, "train", options.entry or trainer.first_entry)
    sizes = dict(map(read_size, options.size))
    found = trainer.profile(
        source, batch_size=options.batch_size, steps=options.steps, entry=options.entry, preparation=preparation,
        sizes=sizes,
    )  # fmt: skip
    found = dataclasses.replace(found, title=options.file.name)
    for path in (options.html, options.trace):
        if path is not None:
            found.save(path)
    if options.as_json:
        typer.echo(json.dumps(found.to_dict()))
        return
    console = stdout_console()
    _print(found, console, options.top, kinds=options.operators)
    inner = {str(d): None for s in trainer.program.inputs for d in s.shape[1:] if isinstance(d, str)}
    open_ = [name for name in inner if name not in sizes and not options.data]
    if open_:
        console.print(f"free sizes were small: {', '.join(open_)}; give them (--size '{open_[0]}=64') or --data")
    for path in (options.html, options.trace):
        if path is not None:
            console.print(f"wrote `{path}`")


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _print(found: Profile, console: Console, top: int, *, kinds: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    from onward.train.profile import DATA
    from onward.train.profile_table import table_head, table_row

    low, median, high = found.step_seconds
    unit = found.unit
    batch = ", ".join(f"{n} {'×'.join(map(str, s)) or 'scalar'}" for n, s in found.batch.items())
    threads = f", {found.measured.threads} threads" if found.measured.threads else ""
    console.print(Text.assemble((found.title, "bold"), f" on {found.backend}{threads}; {batch}"))
    console.print(
        f"{unit.text(median)} per step (half of {found.steps} steps: {unit.text(low)} to {unit.text(high)}), "
        f"{found.samples / median:,.0f} samples/s\n"
    )
    phases = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("phase", unit.name, "share", ""):
        phases.add_column(name, justify="right" if name in (unit.name, "share") else "left")
    for p in found.phases:
        bar = "in another thread, for a later step" if p.name == DATA else "█" * round(30 * min(1.0, p.share))
        phases.add_row(p.name, unit.number(p.seconds), f"{p.share:.0%}", bar)
    console.print(phases)
    if not found.layers:
        console.print("\nno times of operators: only the backend onnxruntime gives them, and not for inputs of text")
        return
    console.print()
    slowest = found.kinds if kinds else sorted(found.layers, key=lambda e: -e.seconds)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in table_head(found, kinds=kinds):
        table.add_column(name, justify="left" if name in ("layer", "operator") else "right", overflow="fold")
    for each in slowest[:top]:
        table.add_row(*table_row(each, unit))
    console.print(table)
    if len(slowest) > top:
        rest = sum(e.seconds for e in slowest[top:])
        console.print(f"and {len(slowest) - top} more {'kinds' if kinds else 'layers'} with {unit.text(rest)} (--top)")
    console.print()
    _print_machine(found, console)


def _print_machine(found: Profile, console: Console) -> None:
    from onward.train.profile_units import amount, memory

    measured = found.measured
    if measured.peak_operations and measured.peak_bytes and found.of_gemm_peak is not None:
        console.print(
            f"products: {amount(found.operations, 'FLOP')} per step, {found.of_gemm_peak:.0%} of this machine's "
            f"{measured.peak_operations / 1e9:,.0f} GFLOP/s; memory: {measured.peak_bytes / 1e9:,.1f} GB/s"
        )
    if measured.memory and measured.allocated:
        console.print(f"values: {memory(measured.allocated)} made per step, at most {memory(measured.memory)} at once")
    if found.about_profiler:
        console.print(f"operators: {found.about_profiler}")
    if found.warning:
        console.print(f"careful: {found.warning}")
