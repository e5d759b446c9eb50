"""Compute sizes that are known before the run.

Exporters write sizes as nodes even where they are numbers: the rows of a gate of an LSTM layer are a multiple of the
size of its hidden state, read from a tensor of zeros by Shape. The gradient of a Slice with such bounds would compute
its pads at each step, and nobody would see that the parts of a weight lie side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onward.graph import shapes, walk
from onward.graph.builder import Value
from onward.passes.base import Pass, Unit

_LONGEST = 64  # elements; a longer vector of integers is not a shape
_ROUNDS = 4  # a size that is known makes others known

Known = np.ndarray
"""A number or a vector of sizes: an array of objects, None where a size is not known before the run."""

Proven = Mapping[str, Sequence[int | str | None]]


class FoldSizes(Pass):
    """Replace nodes that compute a known size by constants.

    The nodes stay until dead ones are removed: something may need one of their values by its name.

    Only what follows from constants, from the inputs of the graph and from its nodes counts: what a file states about
    the shapes of other values may be wrong.
    """

    def run(self, unit: Unit) -> bool:
        changed = _fold(unit, {})
        for _ in range(_ROUNDS):
            if not any(_may_be_known(n) for n in unit.graph) or not _fold(unit, shapes.proven_sizes(unit.model)):
                break
            changed = True
        if changed:
            shapes.infer_shapes(unit.model)
        return changed


def _fold(unit: Unit, proven: Proven) -> bool:
    """Replace what is known by constants; return whether a node that something reads was among it."""
    known: dict[Value, Known] = {}
    folded: list[tuple[ir.Node, Known]] = []
    for node in unit.graph:
        result = _result(node, known, proven)
        if result is None:
            continue
        known[node.outputs[0]] = result
        if None not in result.reshape(-1) and node.op_type != "Constant" and node.outputs[0].uses():
            folded.append((node, result))
    for node, result in folded:
        op = unit.builder(f"{node.name or node.op_type}/")
        dtype = node.outputs[0].dtype
        made = op.constant(result.astype(np.int64 if dtype is None else dtype.numpy()))
        assert node.graph is not None
        node.graph.insert_before(node, op.nodes)
        node.outputs[0].replace_all_uses_with(made)
    return bool(folded)


def _may_be_known(node: ir.Node) -> bool:
    """Return whether the node reads the shape of a computed value of which a number is stated."""
    value = node.inputs[0] if node.op_type == "Shape" and node.domain in ("", "ai.onnx") else None
    sizes = None if value is None or value.producer() is None else shapes.dims(value)
    return sizes is not None and bool(node.outputs[0].uses()) and any(isinstance(size, int) for size in sizes)


def _result(node: ir.Node, known: dict[Value, Known], proven: Proven) -> Known | None:
    if node.domain not in ("", "ai.onnx") or len(node.outputs) != 1:
        return None
    if node.op_type == "Shape":
        return _shape(node, proven)
    compute = _RULES.get(node.op_type)
    if compute is None or node.outputs[0].dtype not in (ir.DataType.INT64, ir.DataType.BOOL):
        return None
    found = compute(node, [None if v is None else _known(v, known) for v in node.inputs])
    return None if found is None or found.ndim > 1 or found.size > _LONGEST else found


def _known(value: Value, known: dict[Value, Known]) -> Known | None:
    if value in known:
        return known[value]
    constant = walk.constant_of(value)
    if constant is None or constant.dtype != np.int64 or constant.ndim > 1 or constant.size > _LONGEST:
        return None
    known[value] = constant.astype(object)
    return known[value]


def _shape(node: ir.Node, proven: Proven) -> Known | None:
    """Return the sizes that follow from what makes the input of a Shape."""
    value = node.inputs[0]
    sizes = None if value is None else _sizes(value)
    if sizes is None and value is not None and (follows := proven.get(value.name or "")) is not None:
        sizes = _vector([d if isinstance(d, int) else None for d in follows])
    if sizes is None:
        return None
    return sizes[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(sizes))]


def _sizes(value: Value) -> Known | None:
    if value.is_graph_input() or value.const_value is not None:
        dims = shapes.dims(value)
        return None if dims is None else _vector([d if isinstance(d, int) else None for d in dims])
    maker = value.producer()
    if maker is None or maker.domain not in ("", "ai.onnx"):
        return None
    if maker.op_type == "Expand":
        data = walk.constant_of(maker.inputs[0])
        return _elements(maker.inputs[1]) if data is not None and data.size == 1 and data.ndim < 2 else None
    return _elements(maker.inputs[0]) if maker.op_type == "ConstantOfShape" else None


def _elements(value: Value | None) -> Known | None:
    """Return the elements of a shape: a constant, or a Concat of constants and unknown sizes."""
    constant = walk.constant_of(value)
    if constant is not None:
        return constant.astype(object) if constant.ndim == 1 else None
    maker = None if value is None else value.producer()
    if maker is None or maker.op_type != "Concat" or maker.domain not in ("", "ai.onnx"):
        return None
    found: list[int | None] = []
    for part in maker.inputs:
        elements = walk.constant_of(part)
        length = (0,) if part is None else shapes.static_shape(part)
        if elements is None and length != (1,):
            return None
        found += [None] if elements is None else elements.reshape(-1).tolist()
    return _vector(found)


def _vector(elements: list[int | None]) -> Known:
    vector = np.empty(len(elements), object)
    vector[:] = elements
    return vector


def _elementwise(operation: Callable[[int, int], int]) -> Callable[[ir.Node, list[Known | None]], Known | None]:
    def compute(node: ir.Node, inputs: list[Known | None]) -> Known | None:
        del node
        if len(inputs) != 2 or inputs[0] is None or inputs[1] is None:
            return None
        a, b = np.broadcast_arrays(inputs[0], inputs[1])
        pairs = zip(a.reshape(-1), b.reshape(-1), strict=True)
        found = [None if x is None or y is None else operation(x, y) for x, y in pairs]
        return _vector(found).reshape(a.shape)

    return compute


def _quotient(a: int, b: int) -> int | None:
    """Return a / b as ONNX divides sizes; None where that would need a sign or fails."""
    return a // b if a >= 0 and b > 0 else None


def _gather(node: ir.Node, inputs: list[Known | None]) -> Known | None:
    data, places = inputs[:2]
    if data is None or places is None or data.ndim != 1 or None in places.reshape(-1):
        return None
    index = places.astype(np.int64)
    if index.size == 0 or index.min() < -len(data) or index.max() >= len(data) or node.attributes.get_int("axis", 0):
        return None
    return np.asarray(data[index], object)


def _concat(node: ir.Node, inputs: list[Known | None]) -> Known | None:
    del node
    known = [v for v in inputs if v is not None and v.ndim == 1]
    return np.concatenate(known) if len(known) == len(inputs) else None


def _slice(node: ir.Node, inputs: list[Known | None]) -> Known | None:
    bounds = [None if v is None or None in v.reshape(-1) else v.reshape(-1).tolist() for v in inputs[1:]]
    if len(bounds) < 2 or inputs[0] is None or inputs[0].ndim != 1 or any(b is None or len(b) != 1 for b in bounds):
        return None
    (first,), (end,), *others = (b or [] for b in bounds)
    step = others[1][0] if len(others) > 1 else 1
    return inputs[0][first:end:step] if step > 0 else None


def _filled(node: ir.Node, inputs: list[Known | None]) -> Known | None:
    """Return what a ConstantOfShape makes: PyTorch compares a shape to expand to with as many -1."""
    length, number = inputs[0], node.attributes.get_tensor("value", None)
    if length is None or length.shape != (1,) or length[0] is None or length[0] > _LONGEST or number is None:
        return None
    return _vector(number.numpy().reshape(-1).tolist() * length[0])


def _where(node: ir.Node, inputs: list[Known | None]) -> Known | None:
    del node
    condition, chosen, other = inputs
    if condition is None or chosen is None or other is None or None in condition.reshape(-1):
        return None
    if condition.shape != chosen.shape or condition.shape != other.shape or condition.ndim != 1:
        return None
    return _vector([a if yes else b for yes, a, b in zip(condition, chosen, other, strict=True)])


def _cast(node: ir.Node, inputs: list[Known | None]) -> Known | None:
    if inputs[0] is None or node.attributes.get_int("to", 0) != ir.DataType.BOOL:
        return inputs[0]
    truths = [None if x is None else int(x != 0) for x in inputs[0].reshape(-1)]
    return _vector(truths).reshape(inputs[0].shape)


def _squeeze(node: ir.Node, inputs: list[Known | None]) -> Known | None:
    del node
    return inputs[0].reshape(()) if inputs[0] is not None and inputs[0].size == 1 else None


def _unsqueeze(node: ir.Node, inputs: list[Known | None]) -> Known | None:
    """Return the vector of one number; of a vector, or with two axes, the result would be no vector."""
    axes = node.attributes.get_ints("axes", None) if len(inputs) < 2 else inputs[1]
    if inputs[0] is None or inputs[0].ndim or axes is None or np.size(np.asarray(axes, object)) != 1:
        return None
    return inputs[0].reshape(1)


_RULES: dict[str, Callable[[ir.Node, list[Known | None]], Known | None]] = {
    "Gather": _gather,
    "Concat": _concat,
    "Slice": _slice,
    "Cast": _cast,
    "ConstantOfShape": _filled,
    "Equal": _elementwise(lambda a, b: a == b),
    "Where": _where,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Add": _elementwise(lambda a, b: a + b),
    "Sub": _elementwise(lambda a, b: a - b),
    "Mul": _elementwise(lambda a, b: a * b),
    "Div": _elementwise(_quotient),  # type: ignore[arg-type]
    "Min": _elementwise(min),
    "Max": _elementwise(max),
}
