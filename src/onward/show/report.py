"""The summary of a model for a terminal, readable with and without colour."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onward.author.loss_scale import LossScale
from onward.errors import counted

Rows = list[tuple[str, list[RenderableType]]]

_MOST_BINDINGS = 4  # listed at most


def print_summary(facts: Mapping[str, Any], console: Console, *, all_rows: bool = False) -> None:
    """Print the result of `summarize`, the most important facts first; `all_rows` lists every weight and binding."""
    console.print(Text(facts["name"] or "(unnamed model)", style="bold"))
    if facts["description"]:
        console.print(Text(facts["description"], style="dim"))
    opsets = ", ".join(f"{d or 'ai.onnx'} {v}" for d, v in facts["opsets"].items())
    made = f", by {facts['producer']}" if facts["producer"] else ""
    rows: Rows = [
        ("inputs", [_value(v) for v in facts["inputs"]]),
        ("outputs", [_value(v) for v in facts["outputs"]]),
        ("nodes", [_operators(facts["nodes"])]),
        ("functions", [_function(f) for f in facts["functions"]]),
        ("opsets", [Text(opsets)]),
        ("file", [Text(f"IR version {facts['ir_version']}{made}")]),
        ("metadata", [Text(f"{k} = {v}") for k, v in facts["metadata"].items()]),
    ]
    console.print(_grid(rows))
    for entry in facts["entries"]:
        console.print()
        _print_entry(entry, console, all_rows)
    for role, title, most in (("parameters", "trained", 12), ("frozen", "frozen", 6), ("state", "state", 4)):
        if facts[role]["count"]:
            console.print()
            _print_tensors(facts[role], role, title, console, facts[role]["count"] if all_rows else most)
    if not facts["entries"]:
        console.print()
        console.print(Text("no training information: `onward make-trainable` adds it", style="dim"))


def size_text(count: int) -> str:
    """Return a number of bytes with a unit.

    >>> size_text(61_706 * 4)
    '246.8 kB'
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def _grid(rows: Rows) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for label, lines in rows:
        if lines:
            table.add_row(label, Group(*lines))
    return Padding.indent(table, 2)


def _value(value: Mapping[str, str]) -> Text:
    return Text.assemble((value["name"], "bold"), f"  {value['type']}{value['shape']}")


def _operators(nodes: Mapping[str, Any]) -> Text:
    most = list(nodes["operators"].items())
    listed = ", ".join(f"{n} {name}" for name, n in most[:10])
    more = f" and {len(most) - 10} more kinds" if len(most) > 10 else ""
    return Text(f"{nodes['count']:,}" + (f": {listed}{more}" if listed else ""))


def _function(function: Mapping[str, Any]) -> Text:
    name = f"{function['domain']}.{function['name']}" + (f":{function['overload']}" if function["overload"] else "")
    return Text(f"{name}({', '.join(function['inputs'])}), {counted(function['nodes'], 'node')}")


def _print_tensors(group: Mapping[str, Any], role: str, title: str, console: Console, most: int) -> None:
    head = f"{group['count']:,} {title}, {counted(group['elements'], 'element')}, {size_text(group['bytes'])}"
    console.print(Text.assemble((role, "bold"), f"  {head}"))
    table = Table.grid(padding=(0, 3))
    table.add_column(overflow="fold")
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    shown = group["tensors"][:most]
    for tensor in shown:
        shape = "×".join(str(d) for d in tensor["shape"]) or "scalar"
        table.add_row(
            tensor["name"], f"{tensor['type']} {shape}", f"{tensor['elements']:,}", size_text(tensor["bytes"])
        )
    console.print(Padding.indent(table, 4))
    if len(shown) < group["count"]:
        console.print(Text(f"    and {group['count'] - len(shown):,} more (--all lists them)", style="dim"))


def _print_entry(entry: Mapping[str, Any], console: Console, all_rows: bool) -> None:
    console.print(Text.assemble(("training", "bold"), f"  {entry['name']}, {counted(entry['nodes']['count'], 'node')}"))
    loss = entry["loss"]
    rows: list[tuple[str, list[RenderableType]]] = [("feeds", [_value(v) for v in entry["targets"]])]
    for setting in entry["settings"]:
        default = "" if setting["default"] is None else f" = {setting['default']}"
        rows.append(
            ("setting", [Text.assemble((setting["name"], "bold"), f"  {setting['type']}{setting['shape']}{default}")])
        )
    if loss is not None:
        how = re.sub(r",? ?\w+=None", "", loss["described"]).replace("(, ", "(") or loss["operator"]
        rows.append(("loss", [Text.assemble((loss["name"], "bold"), f"  {how}" if how else "")]))
    for optimizer in entry["optimizer"]:
        shown = {k: v for k, v in optimizer["settings"].items() if v is not False}
        settings = ", ".join(f"{k} {v}" for k, v in shown.items())
        rows.append(("optimizer", [Text.assemble((optimizer["name"], "bold"), f"  {settings}" if settings else "")]))
    if "loss_scale" in entry:
        rows.append(("loss scale", [Text(LossScale(**entry["loss_scale"]).told())]))
    for gradient in entry["gradients"]:
        rows.append(("gradient", [Text(f"of {gradient['y']} with respect to {_names(gradient['xs'])}")]))
    rows.append(("each step", _bindings(entry["update_binding"], all_rows)))
    if entry["initialization"] is not None:
        rows.append(("reset", _bindings(entry["initialization_binding"], all_rows)))
    console.print(_grid(rows))


def _names(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _bindings(bindings: Mapping[str, str], all_rows: bool) -> list[RenderableType]:
    lines: list[RenderableType] = [Text(f"{key} ← {value}") for key, value in bindings.items()]
    if all_rows or len(lines) <= _MOST_BINDINGS:
        return lines
    more = Text(f"and {len(lines) - _MOST_BINDINGS:,} more (--all lists them)", style="dim")
    return [*lines[:_MOST_BINDINGS], more]
