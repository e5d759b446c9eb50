"""Cases written as ONNX text: operators that only make sense in a graph."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx

from cases import Case
from onward.testing import OneNodeModel

_HEADER = '<ir_version: 10, opset_import: ["" : {opset}]>\n'
_TYPES = {"float64": ("double", 11), "float32": ("float", 1), "float16": ("float16", 10)}

CASES: list[Case] = []


@dataclasses.dataclass(frozen=True)
class TextCase(Case):
    """A graph in ONNX text, in double precision, with values for its inputs in `arguments`."""

    text: str = ""

    def model(self, *, dynamic: bool = False, dtype: Any = None) -> OneNodeModel:
        name, number = _TYPES[np.dtype(dtype or np.float64).name]
        text = self.text.replace("double", name).replace("=11>", f"={number}>")
        proto = onnx.parser.parse_model(_HEADER.format(opset=self.opset or 18) + text)
        for index, node in enumerate(proto.graph.node):
            node.name = f"{node.op_type}_{index}"
        feeds = {
            k: a.astype(dtype) if dtype is not None and a.dtype == np.float64 else a
            for k, a in ((k, np.asarray(a)) for k, a in self.arguments.items())
        }
        for info in proto.graph.input:
            for dim, size in zip(info.type.tensor_type.shape.dim, feeds[info.name].shape, strict=True):
                dim.dim_value = size
        for info in proto.graph.output:
            _forget_sizes(info)
        if dynamic:
            _make_symbolic(proto.graph)
        used = next((n for n in proto.graph.node if n.op_type == self.op), proto.graph.node[0])
        return OneNodeModel(proto, feeds, tuple(o.name for o in proto.graph.output), used)


def _forget_sizes(info: onnx.ValueInfoProto) -> None:
    for axis, dim in enumerate(info.type.tensor_type.shape.dim):
        dim.dim_param = f"{info.name}_{axis}"


def _make_symbolic(graph: onnx.GraphProto) -> None:
    """Give every dimension of the graph's inputs a symbol of its own, and bodies no shapes at all."""
    for info in graph.input:
        _forget_sizes(info)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _forget_shapes(attribute.g)


def _forget_shapes(graph: onnx.GraphProto) -> None:
    for info in [*graph.input, *graph.output]:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _forget_shapes(attribute.g)


def text_case(op: str, name: str, text: str, *, kind: str = "ordinary", **keywords: Any) -> TextCase:
    """Return a case of `op` in a graph; keywords that are not fields of `Case` are values of the graph's inputs."""
    fields = {f.name for f in dataclasses.fields(Case)} - {"op", "name", "kind", "arguments"}
    options = {k: keywords.pop(k) for k in list(keywords) if k in fields}
    return TextCase(op, name, keywords, kind=kind, text=text, **options)
