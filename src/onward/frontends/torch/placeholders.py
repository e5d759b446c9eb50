"""Export what needs a subgraph: a placeholder node during the export, replaced by plain operators afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from onward.graph import edit, walk
from onward.graph.builder import Builder, Names, Value

DOMAIN = "onward.torch"
Writer = Callable[[Builder, ir.Node], Sequence[Value]]
_WRITERS: dict[str, Writer] = {}


def writer(op_type: str) -> Callable[[Writer], Writer]:
    """Register the function that writes a placeholder's outputs with the builder it gets."""

    def register(function: Writer) -> Writer:
        _WRITERS[op_type] = function
        return function

    return register


def placeholder(op_type: str, inputs: Sequence[Any], attributes: Mapping[str, Any], *, shape: Sequence[Any]) -> Any:
    """Return the output of a placeholder, in the type of the first input."""
    return torch.onnx.ops.symbolic(
        f"{DOMAIN}::{op_type}", inputs, dict(attributes), dtype=inputs[0].dtype, shape=shape, version=1
    )


def placeholders(
    op_type: str, inputs: Sequence[Any], attributes: Mapping[str, Any], *, shapes: Sequence[Sequence[Any]]
) -> Sequence[Any]:
    """Return several outputs of a placeholder, in the type of the first input."""
    found: Sequence[Any] = torch.onnx.ops.symbolic_multi_out(
        f"{DOMAIN}::{op_type}",
        inputs,
        dict(attributes),
        dtypes=[inputs[0].dtype] * len(shapes),
        shapes=shapes,
        version=1,
    )
    return found


def write_placeholders(model: ir.Model) -> None:
    """Replace every placeholder by the operators that it stands for; changes `model`."""
    found = [n for n in walk.all_nodes(model.graph) if n.domain == DOMAIN]
    if not found:
        return
    names = Names(walk.all_names(model.graph))
    for node in found:
        op = Builder(model.graph.opset_imports[""], names, prefix=f"{node.name}/")
        edit.replace_node(node, op, _WRITERS[node.op_type](op, node))
    model.graph.opset_imports.pop(DOMAIN, None)
