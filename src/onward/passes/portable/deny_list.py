"""The deny-list: what some runtime gets wrong, and where a graph has it.

`deny_list.json` holds the evidence. For each of its entries there is one function here that finds it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onward.graph import shapes, walk

MOST_TENSORS = 7
"""How many tensors a Concat reads or a Split writes: WebGPU guarantees 8 buffers per shader, one for the other side."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One entry of the list: an operator under a condition, and what runtimes do with it."""

    name: str
    what: str
    """The operator and the condition, in words."""
    remedy: str
    """`rewritten`: the portable profile never has it. `warned`: it may be in the model itself, and stays there."""
    instead: str
    runtimes: tuple[dict[str, str], ...]
    """For each runtime its name, the versions that were tried, and what happens."""
    reproduction: str
    """A model in ONNX's text form; feed it standard normal numbers, and compare with ONNX Runtime's CPU kernels."""

    @property
    def runtime_names(self) -> tuple[str, ...]:
        """The runtimes, each with the versions."""
        return tuple(f"{r['runtime']} {r['versions']}" for r in self.runtimes)


@dataclasses.dataclass(frozen=True)
class Denied:
    """A node that an entry of the list names."""

    entry: Entry
    node: ir.Node


@functools.cache
def entries() -> dict[str, Entry]:
    """Return the deny-list by name."""
    content: dict[str, Any] = json.loads(Path(__file__).with_name("deny_list.json").read_text(encoding="utf-8"))
    found = {}
    for name, fields in content.items():
        found[name] = Entry(name, **{**fields, "runtimes": tuple(fields["runtimes"])})
    assert found.keys() == _PATTERNS.keys(), "each entry of the deny-list needs one function that finds it"
    return found


def denied(graph: walk.GraphLike) -> list[Denied]:
    """Return the nodes of `graph`, bodies included, that the deny-list names."""
    listed = entries()
    return [
        Denied(listed[name], node)
        for node in walk.all_nodes(graph)
        if node.domain in ("", "ai.onnx")
        for name, (operators, matches) in _PATTERNS.items()
        if node.op_type in operators and matches(node)
    ]


def _has_indices(node: ir.Node) -> bool:
    return len(node.outputs) > 1 and bool(node.outputs[1].name)


def _is_dilated(node: ir.Node) -> bool:
    return any(d != 1 for d in node.attributes.get_ints("dilations", ())) and not _has_indices(node)


def _rounds_up(node: ir.Node) -> bool:
    return node.attributes.get_int("ceil_mode", 0) != 0


def _has_three_axes(node: ir.Node) -> bool:
    return len(node.attributes.get_ints("kernel_shape", ())) > 2


def _has_many_inputs(node: ir.Node) -> bool:
    return len(node.inputs) > MOST_TENSORS


def _has_many_outputs(node: ir.Node) -> bool:
    return len(node.outputs) > MOST_TENSORS


def _goes_backwards(node: ir.Node) -> bool:
    steps = walk.constant_of(node.inputs[4]) if len(node.inputs) > 4 else None
    return steps is not None and bool((steps < 0).any())


def _kernel(node: ir.Node) -> tuple[int | None, ...]:
    """Return the shape of the kernel of a Conv, None for what is not known before the run."""
    known = None if node.inputs[1] is None else shapes.dims(node.inputs[1])
    return () if known is None else tuple(d if isinstance(d, int) else None for d in known)


def _has_odd_groups(node: ir.Node) -> bool:
    """Return whether a group of a Conv has more than 4 outputs, and no multiple of 4; also if it may have."""
    group = node.attributes.get_int("group", 1)
    if group == 1:
        return False
    outputs = (*_kernel(node), None)[0]
    return outputs is None or (outputs // group > 4 and outputs // group % 4 != 0)


def _has_channels_by_three(node: ir.Node) -> bool:
    """Return whether a Conv without groups has a multiple of 3 channels and of 4 outputs, as far as that is known."""
    outputs, channels, *sizes = _kernel(node) or (None, None)
    if node.attributes.get_int("group", 1) != 1 or outputs is None or channels is None or all(s == 1 for s in sizes):
        return False
    return channels > 3 and channels % 3 == 0 and channels % 4 != 0 and outputs % 4 == 0


def _says_too_little(node: ir.Node) -> bool:
    given = node.attributes
    return "kernel_shape" not in given and ("strides" not in given or "dilations" not in given)


_PATTERNS: dict[str, tuple[tuple[str, ...], Callable[[ir.Node], bool]]] = {
    "max-pool-indices": (("MaxPool",), _has_indices),
    "dilated-max-pool": (("MaxPool",), _is_dilated),
    "grouped-conv": (("Conv",), _has_odd_groups),
    "conv-channels": (("Conv",), _has_channels_by_three),
    "bare-conv": (("Conv",), _says_too_little),
    "wide-concat": (("Concat",), _has_many_inputs),
    "wide-split": (("Split",), _has_many_outputs),
    "reversed-slice": (("Slice",), _goes_backwards),
    "size": (("Size",), lambda node: True),
    "ceil-pool": (("MaxPool", "AveragePool"), _rounds_up),
    "pool-3d": (("MaxPool", "AveragePool"), _has_three_axes),
}
