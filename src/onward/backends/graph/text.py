"""What a framework has no tensors for, computed with numpy: text, and the look-ups of `ai.onnx.ml`.

A value of text is a numpy array of objects. A node that moves text runs in onnx's reference evaluator, and so does an
operator of `ai.onnx.ml` without a formula of plain operators; what it makes of numbers is a tensor again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

ML = "ai.onnx.ml"
_MOVES = frozenset(
    {"Cast", "Concat", "Expand", "Flatten", "Gather", "GatherElements", "Identity", "Reshape", "Slice", "Split"}
    | {"Squeeze", "Transpose", "Unsqueeze", "Where"}
)


def is_text(value: Any) -> bool:
    """Return whether a value of a graph is text."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "OUS"


def runs_on_numpy(node: ir.Node) -> bool:
    """Return whether a node moves text, or is one of `ai.onnx.ml`."""
    if node.domain == ML:
        return True
    if node.domain not in ("", "ai.onnx") or node.op_type not in _MOVES:
        return False
    return any(v is not None and v.dtype == ir.DataType.STRING for v in [*node.inputs, *node.outputs])


class OnNumpy:
    """One node in onnx's reference evaluator: called with arrays, it returns arrays."""

    def __init__(self, node: ir.Node, opset: int, ml_version: int) -> None:
        from onward.backends.reference.evaluator import Evaluator

        proto = ir.serde.serialize_node(node)
        proto.input[:] = [f"in{i}" if name else "" for i, name in enumerate(proto.input)]
        proto.output[:] = [f"out{i}" for i, _ in enumerate(proto.output)]
        anything = onnx.TypeProto()
        graph = helper.make_graph(
            [proto],
            "node",
            [helper.make_value_info(name, anything) for name in proto.input if name],
            [helper.make_value_info(name, anything) for name in proto.output],
        )
        imports = [helper.make_opsetid("", opset), helper.make_opsetid(ML, ml_version)]
        self._names = list(proto.input)
        self._evaluator = Evaluator(helper.make_model(graph, opset_imports=imports))

    def __call__(self, *arrays: np.ndarray | None) -> tuple[np.ndarray, ...]:
        feeds = {name: array for name, array in zip(self._names, arrays, strict=False) if name and array is not None}
        found = self._evaluator.run(feeds).values()
        return tuple(v.astype(object) if is_text(v) else v for v in found)
