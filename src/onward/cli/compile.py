"""`onward compile FILE -o DIR`, or `--explain`."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from onward.cli.options import LossScaleOption

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

    from onward.compiler.program import Program
    from onward.compiler.tuning import Tuned
    from onward.passes.base import Trace


def compile_command(
    file: Annotated[
        Path,
        Argument(metavar="FILE|DIR", help="A training model (.onnx), or the directory of a run.", show_default=False),
    ],
    output: Annotated[
        Path | None, Option("-o", "--output", metavar="DIR", help="The directory to write.", show_default=False)
    ] = None,
    target_opset: Annotated[int | None, Option(help="The opset of the graphs (default: the lowest they need).")] = None,
    target_ir: Annotated[int | None, Option(help="The IR version of the graphs (default: the lowest).")] = None,
    seed: Annotated[int, Option(help="The initial random key.")] = 0,
    split: Annotated[
        bool, Option("--split", help="Also write gradient and update as two graphs (accumulation, federation).")
    ] = False,
    core: Annotated[
        bool, Option("--core", help="Use only the core operators, for small backends (larger and slower graphs).")
    ] = False,
    profile: Annotated[
        str,
        Option(
            metavar="PROFILE",
            help="`default`: fast on ONNX Runtime's CPU kernels. `portable`: avoids what other runtimes get wrong.",
        ),
    ] = "default",
    recompute: Annotated[
        list[str],
        Option(
            metavar="auto|2GB|GLOB",
            help="Compute values again for the backward pass instead of keeping them: cheap ones, as many as an amount "
            "of memory needs, or those of these names.",
            show_default=False,
        ),
    ] = [],  # noqa: B006  # typer copies it
    store: Annotated[
        str | None,
        Option(
            metavar="float16|bfloat16",
            help="Keep what waits for the backward pass in 16 bits: less memory, approximate gradients.",
            show_default=False,
        ),
    ] = None,
    loss_scale: LossScaleOption = None,
    self_test: Annotated[
        Path | None,
        Option("--self-test", metavar="FILE", help="Data for the self-test (default: made up).", show_default=False),
    ] = None,
    no_self_test: Annotated[bool, Option("--no-self-test", help="Leave the self-test out.")] = False,
    tune: Annotated[
        bool,
        Option(
            "--tune",
            help="Where a gradient has several forms, time them on this machine and take the fastest (docs/tuning.md).",
            rich_help_panel="Tuning",
        ),
    ] = False,
    threads: Annotated[
        int | None,
        Option(
            metavar="N",
            help="The threads of ONNX Runtime (default: all).",
            show_default=False,
            rich_help_panel="Tuning",
        ),
    ] = None,
    target: Annotated[
        str | None,
        Option(
            metavar="TARGET",
            help="Also write native binaries: iree, iree:cpu, iree:android-arm64, iree:riscv64, iree:cortex-m, "
            "iree:vulkan:NAME. Needs --batch.",
            show_default=False,
            rich_help_panel="Native",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        Option(metavar="N", help="The samples in a batch.", show_default=False, rich_help_panel="Native and tuning"),
    ] = None,
    size: Annotated[
        list[str],
        Option(
            metavar="NAME=N",
            help="A free size of the inputs (--target, --tune, --recompute, --store).",
            show_default=False,
            rich_help_panel="Native and tuning",
        ),
    ] = [],  # noqa: B006  # typer copies it
    int32: Annotated[
        bool, Option("--int32", help="Compute int64 in 32 bits, for devices without it.", rich_help_panel="Native")
    ] = False,
    runner: Annotated[
        str,
        Option(
            metavar="COMMAND",
            help="A command that does what iree-run-module does on the target, for the self-test.",
            show_default=False,
            rich_help_panel="Native",
        ),
    ] = "",
    seconds: Annotated[float, Option(help="The limit of one compilation.", rich_help_panel="Native")] = 900,
    gigabytes: Annotated[float, Option(help="The memory that it may take.", rich_help_panel="Native")] = 8,
    explain: Annotated[
        bool, Option("--explain", help="Print each pass with the nodes before and after it, and its time.")
    ] = False,
) -> None:
    """Compile a training model to plain ONNX graphs that any runtime can train with.

    Examples:
        onward compile net.train.onnx --profile portable -o program/
        onward compile net.train.onnx --target iree:cpu --batch 32 -o native/
    """
    from onward.cli.console import print_diagnostics, stderr_console, stdout_console
    from onward.cli.options import memory_options
    from onward.compiler.compile import compile_model
    from onward.errors import A101, ArgumentError, Diagnostic, counted

    if output is None and not explain:
        raise ArgumentError(
            Diagnostic(A101, "there is no directory to write to", place="--output", hint="pass -o DIR, or --explain")
        )
    if self_test is not None and no_self_test:
        raise ArgumentError(Diagnostic(A101, "--self-test and --no-self-test exclude each other"))
    if target is not None:
        from onward.cli.native import NativeOptions, compile_native

        chosen = {"seed": seed, "core": core, "target_opset": target_opset, "target_ir": target_ir}
        given = None if self_test is None else functools.partial(_batch, self_test)
        wanted = NativeOptions(target, batch, size, int32, runner, seconds, gigabytes, given)
        if output is None or explain or split or no_self_test or tune or recompute or store or loss_scale:
            others = "--explain, --split, --no-self-test, --tune, --recompute, --store nor --loss-scale"
            raise ArgumentError(Diagnostic(A101, f"--target needs -o DIR, and goes with neither {others}"))
        compile_native(file, output, chosen, wanted)
        return
    if int32 or runner:
        raise ArgumentError(Diagnostic(A101, "--int32 and --runner belong to --target"))
    if (batch is not None or threads is not None) and not tune:
        raise ArgumentError(Diagnostic(A101, "--batch belongs to --target or --tune, --threads to --tune"))
    if size and not (tune or recompute or store):
        raise ArgumentError(Diagnostic(A101, "--size belongs to --target, --tune, --recompute or --store"))
    tuner = None
    if tune:
        from onward.cli.options import read_size
        from onward.compiler.tuning import BATCH, Tuner

        tuner = Tuner(BATCH if batch is None else batch, sizes=dict(map(read_size, size)), threads=threads)
    trace: list[Trace] | None = [] if explain else None
    program = compile_model(
        file,
        target_opset=target_opset,
        target_ir=target_ir,
        seed=seed,
        split=split,
        core=core,
        profile=profile,
        **memory_options(recompute, store, size),
        loss_scale=loss_scale,
        tune=tuner or False,
        trace=trace,
    )
    console = stdout_console()
    if trace is not None:
        console.print(_explained(trace))
        total = sum(t.seconds for t in trace)
        console.print(f"passes run: {len(trace)}, in {total * 1e3:.1f} ms; docs/how_it_compiles.md describes them\n")
        if tuner is not None:
            console.print(_forms(tuner.found))
            console.print("* the form that was taken; docs/tuning.md describes them\n")
    if tuner is not None:
        console.print(tuner.described())
    if output is not None:
        program.save(output, self_test=not no_self_test if self_test is None else _batch(self_test, program))
    table = _table(f"{file.name} → {output}/" if output else file.name, "graph", "nodes", "opset", "inputs", "outputs")
    for graph in program.graphs():
        counts = (len(graph.model.graph), graph.opset, len(graph.input_names), len(graph.output_names))
        table.add_row(graph.name, *(str(c) for c in counts))
    console.print(table)
    print_diagnostics(program.warnings, stderr_console())
    if not program.entries:
        console.print(
            f"inference only: `{file.name}` has no training information, so there is nothing to step; "
            "`onward make-trainable` adds it"
        )
        return
    taken = sum(v.nbytes for v in program.state.values())
    state = f"state: {counted(len(program.state), 'tensor')}, {counted(taken, 'byte')}"
    for name, estimate in program.estimates.items():
        console.print(f"{name}: {estimate.told()}")
    for name, stored in program.stored.items():
        console.print(f"{name}: {stored.told(store or '')}")
    line = f"profile: {program.profile}; {state}"
    console.print(f"{line}; see {output}/README.md for the loop" if output else line)


def _batch(file: Path, program: Program) -> dict[str, np.ndarray]:
    """Return the first samples of a file, prepared as for training, as the batch of the self-test."""
    from onward.train.data.files import open_data
    from onward.train.data.lengths import Lengths
    from onward.train.data.matching import fixed_batch, match
    from onward.train.data.preparation import Preparation
    from onward.train.data.source import BatchRequest, no_batches
    from onward.train.stored_model import stored_preparation

    preparation = stored_preparation(program) or Preparation()
    source = open_data(file, program.inputs, program.targets, preparation=preparation)
    matching = match(source, program.inputs, program.targets, preparation, lengths=Lengths.of(program))
    size = fixed_batch((*program.inputs, *program.targets)) or 4
    for batch in source.batches(BatchRequest(size)):
        return matching.make(batch)
    raise no_batches("the self-test")


def _explained(trace: list[Trace]) -> Table:
    """Return a row for each pass; a graph is named where its passes begin."""
    table = _table("", "graph", "pass", "nodes before", "after", "ms")
    table.columns[1].justify = "left"
    last = None
    for row in trace:
        counts = (str(row.before), str(row.after) if row.after != row.before else "·")
        table.add_row(row.unit if row.unit != last else "", row.name, *counts, f"{row.seconds * 1e3:.1f}")
        last = row.unit
    return table


def _forms(found: Sequence[Tuned]) -> Table:
    """Return a row for each gradient that has several forms, with the time of each."""
    table = _table("", "gradient", "forms, in ms", "gain", "")
    table.columns[1].justify = table.columns[3].justify = "left"
    for each in found:
        times = [
            f"{form}{'*' * (form == each.form)} {seconds * 1e3:.3f}"
            for form, seconds in sorted(each.seconds.items(), key=lambda item: item[1])
        ]
        gain = f"{each.gain:.2f}" if each.form != each.question.usual else "·"
        how = each.reason or ("kept" if each.kept else "measured") + ", disturbed" * each.disturbed
        table.add_row(each.question.key, ", ".join(times) or f"{each.form}*", gain, how)
    return table


def _table(title: str, *headings: str) -> Table:
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index else "left")
    return table
