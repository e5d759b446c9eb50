"""Shapes: reshape, transpose, broadcast, concatenate, pad, iota."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.frontends.jaxpr.frame import Frame
from onward.frontends.jaxpr.registry import UnsupportedError, primitive
from onward.graph.builder import Value


@primitive("reshape")
def reshape(frame: Frame, equation: Any, x: Value, *sizes: Value) -> Value:
    """Another shape."""
    if equation.params.get("dimensions") is not None:
        raise UnsupportedError("a reshape with an order of dimensions")
    return frame.reshape(x, equation.outvars[0].aval.shape)


@primitive("squeeze")
def squeeze(frame: Frame, equation: Any, x: Value) -> Value:
    """Without some axes of size 1."""
    dims = [d % len(equation.invars[0].aval.shape) for d in equation.params["dimensions"]]
    made: Value = frame.op.Squeeze(x, np.array(dims, np.int64)) if dims else x
    return made


@primitive("expand_dims")
def expand_dims(frame: Frame, equation: Any, x: Value) -> Value:
    """With further axes of size 1."""
    made: Value = frame.op.Unsqueeze(x, np.array(equation.params["dimensions"], np.int64))
    return made


@primitive("transpose")
def transpose(frame: Frame, equation: Any, x: Value) -> Value:
    """The axes in another order."""
    return frame.transpose(x, equation.params["permutation"])


@primitive("broadcast_in_dim")
def broadcast(frame: Frame, equation: Any, x: Value, *sizes: Value) -> Value:
    """Give the axes of `x` their places among more, and repeat."""
    shape, places = equation.outvars[0].aval.shape, equation.params["broadcast_dimensions"]
    old = equation.invars[0].aval.shape
    aligned = [old[places.index(i)] if i in places else 1 for i in range(len(shape))]
    if len(old) != len(shape):
        new_axes = [i for i in range(len(shape)) if i not in places]
        x = frame.op.Unsqueeze(x, np.array(new_axes, np.int64))
        x.shape = ir.Shape([int(d) if isinstance(d, int) else str(d) for d in aligned])
    if list(map(str, aligned)) == list(map(str, shape)):
        return x
    made: Value = frame.op.Expand(x, frame.shape(shape))
    return made


@primitive("concatenate")
def concatenate(frame: Frame, equation: Any, *values: Value) -> Value:
    """One after the other along an axis."""
    if len(values) == 1:
        return values[0]
    made: Value = frame.op.Concat(*values, axis=int(equation.params["dimension"]))
    return made


@primitive("tile")
def tile(frame: Frame, equation: Any, x: Value) -> Value:
    """Repeated along each axis."""
    made: Value = frame.op.Tile(x, frame.shape(equation.params["reps"]))
    return made


@primitive("stack")
def stack(frame: Frame, equation: Any, *values: Value) -> Value:
    """One after the other along a new axis."""
    axis = int(equation.params["axis"])
    made: Value = frame.op.Concat(*(frame.op.Unsqueeze(v, np.array([axis], np.int64)) for v in values), axis=axis)
    return made


@primitive("unstack")
def unstack(frame: Frame, equation: Any, x: Value) -> list[Value]:
    """The parts along an axis, without it."""
    axis = int(equation.params["axis"])
    parts = range(len(equation.outvars))
    return [frame.op.Gather(x, frame.op.constant(np.int64(i)), axis=axis) for i in parts]


@primitive("split")
def split(frame: Frame, equation: Any, x: Value) -> list[Value]:
    """Parts along an axis."""
    sizes = equation.params["sizes"]
    if len(sizes) == 1:
        return [frame.op.Identity(x)]
    parts = frame.op.multi("Split", x, frame.shape(sizes), outputs=len(sizes), axis=int(equation.params["axis"]))
    return list(parts)


@primitive("rev")
def reverse(frame: Frame, equation: Any, x: Value) -> Value:
    """Backwards along some axes."""
    axes = np.array(equation.params["dimensions"], np.int64)
    if not len(axes):
        return x
    ends = np.full(len(axes), -(2**31), np.int64)
    made: Value = frame.op.Slice(x, np.full(len(axes), -1), ends, axes, np.full(len(axes), -1))
    return made


@primitive("pad")
def pad(frame: Frame, equation: Any, x: Value, value: Value) -> Value:
    """Padding before, after and between the elements; negative padding cuts."""
    op, config = frame.op, equation.params["padding_config"]
    shape = equation.invars[0].aval.shape
    for axis, (_, _, between) in enumerate(config):
        if between:
            x = _spread(frame, x, value, axis, shape, between, equation.invars[0].aval.dtype)
            now = [(d - 1) * between + d if i == axis else d for i, d in enumerate(shape)]
            shape = tuple(now)
    before, after = [c[0] for c in config], [c[1] for c in config]
    if any(p < 0 for p in (*before, *after)):
        starts = np.array([max(-p, 0) for p in before], np.int64)
        ends = np.array([-max(-p, 0) if p < 0 else 2**31 for p in after], np.int64)
        x = op.Slice(x, starts, ends, np.arange(len(config)))
        before, after = [max(p, 0) for p in before], [max(p, 0) for p in after]
    if not any((*before, *after)):
        return x
    dtype = equation.invars[0].aval.dtype
    if np.dtype(dtype) == bool:
        wide = op.Pad(frame.cast(x, np.int32), np.array([*before, *after], np.int64), frame.cast(value, np.int32))
        return frame.cast(wide, bool)
    made: Value = op.Pad(x, np.array([*before, *after], np.int64), value)
    return made


def _spread(frame: Frame, x: Value, value: Value, axis: int, shape: Any, between: int, dtype: Any) -> Value:
    """Put `between` copies of `value` between the elements along `axis`."""
    op = frame.op
    apart = op.Unsqueeze(x, np.array([axis + 1], np.int64))
    pads = np.zeros((2, len(shape) + 1), np.int64)
    pads[1, axis + 1] = between
    padded = op.Pad(apart, pads.reshape(-1), value)
    flat = [d * (between + 1) if i == axis else d for i, d in enumerate(shape)]
    joined = frame.reshape(padded, flat)
    made: Value = op.Slice(joined, np.array([0]), np.array([-between]), np.array([axis]))
    return made


@primitive("iota")
def iota(frame: Frame, equation: Any, *sizes: Value) -> Value:
    """0, 1, 2, … along one axis."""
    op, shape, axis = frame.op, equation.outvars[0].aval.shape, equation.params["dimension"]
    dtype = equation.outvars[0].aval.dtype
    if all(isinstance(d, int) for d in shape) and int(np.prod(shape)) <= 65536:
        numbers = np.arange(shape[axis]).astype(np.dtype(dtype))
        grid = numbers.reshape([-1 if i == axis else 1 for i in range(len(shape))])
        return frame.constant(np.ascontiguousarray(np.broadcast_to(grid, shape)))
    length = frame.size(shape[axis])
    end = op.constant(np.int64(length)) if isinstance(length, int) else length
    made = frame.cast(op.Range(op.constant(np.int64(0)), end, op.constant(np.int64(1))), dtype)
    if len(shape) == 1:
        return made
    made = frame.reshape(made, [shape[axis] if i == axis else 1 for i in range(len(shape))])
    return op.Expand(made, frame.shape(shape))


@primitive("dim_as_value")
def size_as_value(frame: Frame, equation: Any) -> Value:
    """A free size as a number."""
    found = frame.size(equation.params["dim"])
    dtype = equation.outvars[0].aval.dtype
    return frame.constant(found, dtype) if isinstance(found, int) else frame.cast(frame.op.Identity(found), dtype)


@primitive("shape_assertion")
def shape_assertion(frame: Frame, equation: Any, *values: Value) -> list[Value]:
    """Nothing: JAX states what it assumed about sizes."""
    return []


@primitive("sharding_constraint", "device_put", "layout_constraint")
def placed(frame: Frame, equation: Any, *values: Value) -> list[Value]:
    """The same values: where they live does not matter."""
    return list(values)
