"""`onward ops`: list every operator and its gradient."""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated

import typer
from typer import Argument, Option


def ops(
    name: Annotated[str | None, Argument(help="Show only operators whose name contains this.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """List every operator of the standard with the condition of each input and what its tests cover.

    The operators of ai.onnx.ml and com.microsoft that are decomposed follow.

    Examples:
        onward ops
        onward ops Conv --json
    """
    from rich.table import Table

    from onward.cli.console import stdout_console
    from onward.compiler.coverage import coverage, decomposed
    from onward.errors import counted

    known = coverage()
    operators = [o for o in known if name is None or name.lower() in o.name.lower()]
    others = [o for o in decomposed() if name is None or name.lower() in o.name.lower()]
    if name is not None and not operators and not others:
        from onward.arguments import unknown_name

        raise unknown_name("operator", name, [o.name for o in known])
    if as_json:
        typer.echo(json.dumps([*(o.as_dict() for o in operators), *(o.as_dict() for o in others)], indent=1))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("operator", "versions", "inputs", "types", "unknown dims", "2nd order", "cost"):
        table.add_column(column, justify="right" if column == "cost" else "left")
    for operator in operators:
        inputs = ", ".join(
            name if c.kind == "GRADIENT" else f"{name}: {_WORDS[c.kind]}" for name, c in operator.inputs.items()
        )
        table.add_row(
            operator.name + (" (deprecated)" if operator.deprecated else ""),
            " ".join(map(str, operator.versions)),
            inputs or "none",
            " ".join(_SHORT.get(t, t) for t in operator.dtypes),
            "yes" if operator.dynamic else "",
            "yes" if operator.second_order else "",
            "" if operator.cost is None else str(operator.cost),
        )
    console = stdout_console()
    console.print(table)
    if others:
        console.print("\nOf ai.onnx.ml and com.microsoft, written as plain operators before gradients are taken:")
        console.print("\n".join(f"  {o.name}: {o.formula}" for o in others))
    counts = Counter(o.condition for o in operators)
    parts = [f"{counts[k]} {_WORDS[k]}" for k in _WORDS if counts[k]]
    console.print(f"\n{counted(len(operators), 'operator')} of the standard: {', '.join(parts) or 'none'}")


_WORDS = {
    "GRADIENT": "gradient",
    "ZERO": "zero",
    "NON_DIFFERENTIABLE": "not differentiable",
    "UNSUPPORTED": "unsupported",
}
_SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}
