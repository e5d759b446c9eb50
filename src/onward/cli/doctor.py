"""`onward doctor FILE`: what can be done with a file, what stands in the way, and what to run next."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from onward.errors import counted

if TYPE_CHECKING:
    from rich.console import Console

    from onward.diagnosis import Diagnosis

_LISTED = 8


def doctor(
    file: Annotated[Path, Argument(help="An ONNX model.", show_default=False)],
    as_json: Annotated[bool, Option("--json", help="Print the diagnosis as JSON.")] = False,
    everything: Annotated[bool, Option("--all", help="List every weight, output and operator.")] = False,
) -> None:
    """Say what can be done with a file: whether it runs, where its weights are, what would be trained, what blocks it.

    Exit code 0: something can be trained. 1: nothing can. 2: not a model.

    Examples:
        onward doctor net.onnx
        onward doctor net.onnx --json
    """
    from onward.cli.console import stdout_console
    from onward.diagnosis import doctor as run

    found = run(file)
    if as_json:
        print(json.dumps(found.as_dict(), indent=2, ensure_ascii=False))
    else:
        _print(found, stdout_console(soft_wrap=True), None if everything else _LISTED)
    if not found.ok:
        raise typer.Exit(1)


def _print(found: Diagnosis, console: Console, limit: int | None) -> None:
    from onward.cli.console import print_diagnostics
    from onward.diagnosis.weights import QUANTISED

    used = {op.rpartition("::")[0] or "ai.onnx" for op in found.operators}
    opsets = ", ".join(f"{domain} {version}" for domain, version in found.opsets.items() if domain in used)
    _line(console, "file", f"{found.source}, IR {found.ir_version}, {opsets}" + _by(found.producer))
    _line(console, "runs", *_runtime(found))
    report = found.report
    if report.findings:
        counts = f"{counted(len(report.errors), 'error')}, {counted(len(report.warnings), 'warning')}"
        counts += f" (`onward check {shlex.quote(found.source)}`)"
        _line(console, "check", counts, "bold red" if report.errors else "yellow")
    else:
        _line(console, "check", "no findings", "green")
    _line(console, "operators", _list([f"{n} {op}" for op, n in found.operators.items()], limit))
    if found.unknown:
        _line(console, "", f"not defined by the ONNX standard: {', '.join(found.unknown)}", "yellow")
    stores = [f"{s.numbers:,} numbers in {s.tensors} {place}" for place, s in found.weights.items()]
    _line(console, "weights", "; ".join(stores) or "none of more than one number")
    for index, advice in enumerate(found.outputs if limit is None else found.outputs[:limit]):
        _line(console, "" if index else "outputs", *_output(advice))
    if limit is not None and len(found.outputs) > limit:
        _line(console, "", f"and {len(found.outputs) - limit} more (--all)")
    if found.parameters:
        total = sum(found.parameters.values())
        names = _list([f"`{name}`" for name in found.parameters], limit)
        _line(console, "trains", f"{len(found.parameters)} weights ({total:,} numbers): {names}", "green")
    else:
        _line(console, "trains", "nothing", "bold red")
    by_reason: dict[str, list[str]] = {}
    for name, reason in found.left.items():
        by_reason.setdefault(reason, []).append(f"`{name}`")
    for index, (reason, left) in enumerate(by_reason.items()):
        few = None if limit is None else 3
        _line(console, "" if index else "leaves", f"{counted(len(left), 'weight')} ({reason}): {_list(left, few)}")
    if QUANTISED in found.weights:
        numbers = f"{found.weights[QUANTISED].numbers:,} numbers"
        _line(console, "", f"{numbers} are stored as integers and stay so; make-trainable --dequantize trains them too")
    if found.overflowing:
        _line(
            console,
            "",
            "on this processor ONNX Runtime adds products of 8-bit integers in 16 bits, so they can overflow: "
            f"{_list([f'`{name}`' for name in found.overflowing], limit)}; its outputs differ from those on processors "
            "with VNNI. Quantize with reduce_range=True (7 bits) or with weights of uint8",
            "yellow",
        )
    if found.obstacles:
        console.print()
        print_diagnostics(found.obstacles if limit is None else found.obstacles[:limit], console)
    if found.commands:
        console.print()
        for index, command in enumerate(found.commands):
            _line(console, "" if index else "next", command, "bold")
    if any(o.trains and o.loss == "cross_entropy" and len(o.shape or ()) == 2 for o in found.outputs) and found.source:
        file = shlex.quote(found.source)
        command = f"onward train {file} --data DATA --classes auto --inference tuned.onnx"
        _line(console, "or", f"{command}  # a new head for classes of your own", "bold")


def _by(producer: str) -> str:
    return f", made by {producer}" if producer else ""


def _runtime(found: Diagnosis) -> tuple[str, str]:
    runtime = found.runtime
    name = f"ONNX Runtime {runtime.version}".strip()
    if runtime.runs:
        shapes = ", ".join(f"`{n}` {shape}" for n, shape in runtime.inputs.items())
        return f"yes, in {name} with made-up {shapes}", "green"
    if runtime.loads:
        return f"{name} loads it; with made-up inputs it does not run: {_short(runtime.reason)}", "yellow"
    return f"{name} does not load it: {_short(runtime.reason)}", "bold red"


def _output(advice: object) -> tuple[str, str]:
    from onward.diagnosis.examination import OutputAdvice
    from onward.surgery.splice import shape_text

    assert isinstance(advice, OutputAdvice)
    shape = "of unknown rank" if advice.shape is None else shape_text(advice.shape)
    head = f"`{advice.name}` {advice.kind} {shape}: "
    if not advice.readable:
        return head + f"no loss can read it, {advice.reason}", "yellow"
    if advice.trains is False:
        return head + "a loss may read it, but it cannot be trained: see below", "yellow"
    on = f" of `{advice.on}`" if advice.on != advice.name else ""
    on += f" with axis={advice.axis}" if advice.axis is not None else ""
    return head + f"a loss may read it; {advice.loss}{on} suits it", ""


def _line(console: Console, label: str, text: str, style: str = "") -> None:
    from rich.text import Text

    console.print(Text.assemble((f"{label:<10}", "bold cyan"), (text, style)))


def _list(items: list[str], limit: int | None) -> str:
    if limit is None or len(items) <= limit:
        return ", ".join(items)
    return ", ".join(items[:limit]) + f" and {len(items) - limit} more"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:300] + "…"
