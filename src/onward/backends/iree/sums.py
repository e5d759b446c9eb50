"""Long sums in several stages: IREE 3.13 adds the numbers of a ReduceSum one after the other.

The mean of 200,000 numbers was off by 4e-5 so, where ONNX Runtime and PyTorch, which add blocks, are off by 1e-7. A
mean is one of means: float16 holds neither the sum nor the count of 100,000 numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import onnx
from onnx import helper, numpy_helper

from onward.backends.iree.writing import Values, Writer, rewritten

_KINDS = (onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
_MOST = 1024  # numbers that are added one after the other
_AXES_AS_INPUT = {"ReduceSum": 13, "ReduceMean": 18}


def write_out_sums(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with known sizes in which no ReduceSum or ReduceMean adds many numbers at once.

    The same model comes back if there is nothing to change, as where the number of numbers is a prime.
    """
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    return rewritten(model, functools.partial(_staged, opset=opset))


def _axes(node: onnx.NodeProto, size: Sequence[int], known: Mapping[str, onnx.TensorProto]) -> set[int]:
    """Return the axes that a node adds; none if they are not known, or there is nothing to add."""
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    axes = given.get("axes", ())
    if len(node.input) > 1 and node.input[1]:
        if node.input[1] not in known:
            return set()
        axes = numpy_helper.to_array(known[node.input[1]]).ravel().tolist()
    if not len(axes) and given.get("noop_with_empty_axes", 0):
        return set()
    return {axis % len(size) for axis in axes} if len(axes) else set(range(len(size)))


def _staged(node: onnx.NodeProto, values: Values, *, opset: int) -> list[onnx.NodeProto] | None:
    """Return what replaces a ReduceSum or ReduceMean; None where it stays."""
    if node.op_type not in _AXES_AS_INPUT or values.kinds.get(node.input[0]) not in _KINDS:
        return None
    size = values.sizes[node.input[0]]
    axes = _axes(node, size, values.constants)
    if not axes or node.output[0] not in values.sizes:
        return None
    split: list[int] = []  # the shape with long axes in two
    added: list[int] = []
    count = math.prod(size[axis] for axis in axes)
    if count <= _MOST:
        return None
    for axis, length in enumerate(size):
        parts = [length]
        if axis in axes and length > _MOST:
            part = _divisor(length)
            parts = [length] if part == 1 else [length // part, part]
        if axis in axes:
            added += range(len(split), len(split) + len(parts))
        split += parts
    stages: list[list[int]] = []
    for place in reversed(added):
        if stages and math.prod(split[p] for p in (*stages[-1], place)) <= _MOST:
            stages[-1].append(place)
        else:
            stages.append([place])
    if len(stages) == 1:
        return None
    write, value = Writer(node.output[0]), node.input[0]
    if split != list(size):
        value = write.node("Reshape", [value, write.numbers("split/shape", split)], "split")
    for number, places in enumerate(stages):
        label, listed = f"stage{number}", sorted(places)
        if opset < _AXES_AS_INPUT[node.op_type]:
            value = write.node(node.op_type, [value], label, axes=listed, keepdims=1)
        else:
            value = write.node(node.op_type, [value, write.numbers(f"{label}/axes", listed)], label, keepdims=1)
    write.node("Reshape", [value, write.numbers("shape", values.sizes[node.output[0]])], "")
    return write.made


def _divisor(number: int) -> int:
    """Return the divisor that is nearest to the root of a number, from below."""
    return next(d for d in range(math.isqrt(number), 0, -1) if number % d == 0)
