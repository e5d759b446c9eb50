"""Make and find nodes for the native kernels."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onward.backends.onnxruntime.native.library import DOMAIN
from onward.graph import walk
from onward.graph.builder import Builder, Value

ALSO = "onward.also"
"""The name of a second node, such as a Relu, whose work a native node does: metadata of that node."""


def native(
    op: Builder,
    op_type: str,
    inputs: Sequence[Value],
    sizes: Sequence[int],
    outputs: int = 1,
    *,
    also: ir.Node | None = None,
) -> tuple[Value, ...]:
    """Make a node of the native domain and return its outputs, which are float32."""
    made = op.call(op_type, inputs, domain=DOMAIN, outputs=outputs, sizes=[int(s) for s in sizes])
    for value in made:
        value.type = ir.TensorType(ir.DataType.FLOAT)
    if also is not None and also.name:
        op.nodes[-1].metadata_props[ALSO] = also.name
    return made


def only_reader(value: Value, op_type: str) -> ir.Node | None:
    """Return the node of this type that alone reads `value`, as its first input."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output() or uses[0].node.op_type != op_type or uses[0].idx != 0:
        return None
    return uses[0].node


Pattern = str | float | Value | tuple["str | Pattern", ...]
"""What `match` compares: (operator, input, ...), a value, a number, or the name for any value."""


def match(value: Value | None, pattern: Pattern, found: dict[str, Value]) -> bool:
    """Return whether `value` is computed as `pattern` says; `found` gets the value of each name.

    A name that occurs twice stands for one value. Inputs of a node beyond those of the pattern may be anything.
    """
    if value is None:
        return False
    if isinstance(pattern, str):
        return found.setdefault(pattern, value) is value
    if isinstance(pattern, tuple):
        op_type, *inputs = pattern
        node = value.producer()
        if node is None or node.op_type != op_type or node.domain or len(node.inputs) < len(inputs):
            return False
        return all(match(v, p, found) for v, p in zip(node.inputs, inputs, strict=False))
    if isinstance(pattern, ir.Value):
        return value is pattern
    number = walk.constant_of(value)
    return number is not None and number.size == 1 and number.item() == pattern
