"""Gather, scatter and dynamic slices.

The general form of both computes, for each element, its place in the flattened array; the common forms have an operator
of their own: rows (Gather), one element of each row (GatherElements).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.frontends.jaxpr import versions
from onward.frontends.jaxpr.frame import Frame, constant_of
from onward.frontends.jaxpr.registry import UnsupportedError, primitive
from onward.frontends.jaxpr.sizes import shape_of
from onward.graph.builder import Value


def _mode(equation: Any) -> str:
    """Return what happens beyond the end: "clip", "fill" (or drop) or "promise" (it does not happen)."""
    text = str(equation.params["mode"]).lower()
    return "clip" if "clip" in text else "fill" if "fill" in text else "promise"


def _index_part(frame: Frame, indices: Value, rank: int, position: int) -> Value:
    """Return one component of the index vectors, as int64."""
    known = constant_of(indices)
    if known is not None:
        return frame.constant(known[..., position], np.int64)
    part = frame.op.Gather(indices, np.int64(position), axis=rank - 1)
    if indices.shape is not None:
        part.shape = ir.Shape(list(indices.shape)[: rank - 1])
    return frame.cast(part, np.int64)


@primitive("gather")
def gather(frame: Frame, equation: Any, x: Value, indices: Value) -> Value:
    """Elements or slices of `x` at computed places."""
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    shape, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    dtype = equation.invars[0].aval.dtype
    if np.dtype(dtype) == bool:
        return frame.cast(_gather(frame, equation, frame.cast(x, np.int32), indices, numbers, sizes, shape, out), bool)
    return _gather(frame, equation, x, indices, numbers, sizes, shape, out)


def _gather(
    frame: Frame, equation: Any, x: Value, indices: Value, numbers: Any, sizes: Any, shape: Any, out: Any
) -> Value:
    mode, rank = _mode(equation), len(equation.invars[1].aval.shape)
    starts, batching = tuple(numbers.start_index_map), tuple(numbers.operand_batching_dims)
    collapsed = tuple(numbers.collapsed_slice_dims)
    whole = all(str(sizes[i]) == str(shape[i]) for i in range(len(shape)) if i not in (*collapsed, *batching))
    plain_fill = mode != "fill" or _is_usual_fill(equation)
    if whole and plain_fill and len(starts) == 1 and collapsed == starts:
        index, size = _index_part(frame, indices, rank, 0), frame.size(shape[starts[0]])
        place = _checked(frame, index, size, mode)
        if not batching:
            return _rows(frame, numbers, x, place, starts[0], rank - 1, len(out))
        last = len(shape) - 1
        if starts == (last,) and batching == tuple(range(last)) and not numbers.offset_dims:
            order = list(numbers.start_indices_batching_dims)
            if order == list(range(last)):
                if mode == "fill":
                    return _along_last_or_fill(frame, equation, x, index, size, rank - 1)
                return _along_last(frame, x, place, rank - 1, len(shape))
    return _general_gather(frame, equation, x, indices)


def _checked(frame: Frame, place: Value, size: int | Value, mode: str) -> Value:
    """Return an index that is inside, or that the runtime refuses where JAX would return NaN."""
    op, known = frame.op, constant_of(place)
    if known is not None and isinstance(size, int) and np.all((known >= 0) & (known < size)):
        return place
    end = op.constant(np.int64(size)) if isinstance(size, int) else size
    if mode == "clip":
        made: Value = op.Max(op.Min(place, op.Sub(end, 1)), 0)
        return made
    if mode == "fill":  # a negative index counts from the end in ONNX
        made = op.Where(op.Less(place, 0), end, place)
        return made
    return place


def _is_usual_fill(equation: Any) -> bool:
    """Return whether NaN, or what JAX takes for it in other types, is read beyond the end."""
    fill = equation.params.get("fill_value")
    return fill is None or (np.issubdtype(equation.outvars[0].aval.dtype, np.floating) and bool(np.isnan(fill)))


def _along_last_or_fill(frame: Frame, equation: Any, x: Value, index: Value, size: int | Value, rank: int) -> Value:
    """Gather along the last axis; NaN where an index is beyond the end, as a label that a mask leaves out may be."""
    op, out = frame.op, equation.outvars[0].aval
    end = op.constant(np.int64(size)) if isinstance(size, int) else size
    inside = op.And(op.GreaterOrEqual(index, 0), op.Less(index, end))
    nearest = op.Max(op.Min(index, op.Sub(end, 1)), 0)
    made = _along_last(frame, x, nearest, rank, len(equation.invars[0].aval.shape))
    frame.typed(made, out)
    return op.Where(inside, made, op_constant(frame, _fill(equation, x), x))


def _fill(equation: Any, x: Value) -> Any:
    """Return what JAX reads beyond the end."""
    fill = equation.params.get("fill_value")
    if fill is not None:
        return fill
    floating = np.issubdtype(equation.outvars[0].aval.dtype, np.floating)
    return np.nan if floating else np.iinfo(np.int32).min if x.dtype == ir.DataType.INT32 else 0


def _rows(frame: Frame, numbers: Any, x: Value, place: Value, axis: int, count: int, rank: int) -> Value:
    """Gather whole slices along one axis, then put the axes where JAX wants them."""
    made = frame.op.Gather(x, place, axis=axis)
    batch = [k for k in range(rank) if k not in numbers.offset_dims]
    now = list(range(axis, axis + count))
    rest = [k for k in range(rank) if k not in now]
    order = [0] * rank
    for wanted, found in zip([*batch, *numbers.offset_dims], [*now, *rest], strict=True):
        order[wanted] = found
    return frame.transpose(made, order)


def _along_last(frame: Frame, x: Value, place: Value, rank: int, wanted: int) -> Value:
    """Gather one or more elements of each row (take_along_axis)."""
    if rank == wanted:
        made: Value = frame.op.GatherElements(x, place, axis=wanted - 1)
        return made
    column = frame.op.Unsqueeze(place, np.array([wanted - 1], np.int64))
    made = frame.op.Squeeze(frame.op.GatherElements(x, column, axis=wanted - 1), np.array([wanted - 1], np.int64))
    return made


def _places(
    frame: Frame, indices: Value, variable: Any, layout: Any, sizes: Sequence[Any], shape: Any, out: Any, mode: str
) -> tuple[Value, Value | None]:
    """Return the place of each element of `out` in the flattened array, and whether its slice is inside.

    `layout` has the fields of a gather: offset dims (of `out`), collapsed dims, start index map, batching dims.
    """
    op = frame.op
    rank, wide = len(variable.aval.shape), len(out)
    offset, collapsed, starts, batching, index_batching = layout
    batch = [k for k in range(wide) if k not in offset]

    def along(part: Value, axes: Sequence[int]) -> Value:
        """Give the axes of a value their places in the result."""
        missing = [k for k in range(wide) if k not in axes]
        made: Value = op.Unsqueeze(part, np.array(missing, np.int64)) if missing else part
        return made

    def count(size: Any) -> Value:
        end = frame.size(size)
        whole = op.constant(np.int64(end)) if isinstance(end, int) else end
        made: Value = op.Range(op.constant(np.int64(0)), whole, op.constant(np.int64(1)))
        return made

    inner = [i for i in range(len(shape)) if i not in (*collapsed, *batching)]
    total: Value | None = None
    inside: Value | None = None
    stride: Any = 1
    for axis in range(len(shape) - 1, -1, -1):
        parts: list[Value] = []
        if axis in starts:
            start = _index_part(frame, indices, rank, starts.index(axis))
            last = frame.size(shape[axis] - sizes[axis])
            limit = op.constant(np.int64(last)) if isinstance(last, int) else last
            if mode == "fill":
                good = along(op.And(op.GreaterOrEqual(start, 0), op.LessOrEqual(start, limit)), batch)
                inside = good if inside is None else op.And(inside, good)
            if mode != "promise":
                start = op.Max(op.Min(start, limit), 0)
            parts.append(along(start, batch))
        if axis in inner and not (versions.is_static(sizes[axis]) and sizes[axis] == 1):
            parts.append(along(count(sizes[axis]), [offset[inner.index(axis)]]))
        if axis in batching:
            place = index_batching[batching.index(axis)]
            parts.append(along(count(shape[axis]), [batch[place]]))
        for part in parts:
            by = frame.size(stride)
            moved = part if isinstance(by, int) and by == 1 else op.Mul(part, by)
            total = moved if total is None else op.Add(total, moved)
        stride = stride * shape[axis]
    if total is None:
        total = op.constant(np.int64(0))
    return op.Expand(total, frame.shape(out)), inside


def _general_gather(frame: Frame, equation: Any, x: Value, indices: Value) -> Value:
    numbers, out = equation.params["dimension_numbers"], equation.outvars[0].aval
    layout = (
        list(numbers.offset_dims), list(numbers.collapsed_slice_dims), list(numbers.start_index_map),
        list(numbers.operand_batching_dims), list(numbers.start_indices_batching_dims),
    )  # fmt: skip
    places, inside = _places(
        frame, indices, equation.invars[1], layout, equation.params["slice_sizes"], equation.invars[0].aval.shape,
        out.shape, _mode(equation),
    )  # fmt: skip
    flat = frame.op.Reshape(x, np.array([-1], np.int64))
    made: Value = frame.op.Gather(flat, places, axis=0)
    made.type, made.shape = x.type, shape_of(out.shape)
    if inside is None:
        return made
    return frame.op.Where(inside, made, op_constant(frame, _fill(equation, x), x))


def op_constant(frame: Frame, number: Any, like: Value) -> Value:
    """Return a number in the type of a value."""
    assert like.dtype is not None
    return frame.op.constant(np.asarray(number, like.dtype.numpy()))


_REDUCTIONS = {
    "scatter": "none", "scatter-add": "add", "scatter_add": "add", "scatter-mul": "mul", "scatter_mul": "mul",
    "scatter-sub": "add", "scatter-min": "min", "scatter_min": "min", "scatter-max": "max", "scatter_max": "max",
}  # fmt: skip


@primitive(*_REDUCTIONS)
def scatter(frame: Frame, equation: Any, x: Value, indices: Value, updates: Value) -> Value:
    """`x` with elements or slices at computed places replaced, added to, or multiplied."""
    op, numbers = frame.op, equation.params["dimension_numbers"]
    shape, given = equation.invars[0].aval.shape, equation.invars[2].aval.shape
    dtype = equation.invars[0].aval.dtype
    mode = _mode(equation)
    wide = (
        dtype
        if dtype in (np.float32, np.float64, np.int32, np.int64)
        else np.int32
        if np.dtype(dtype) == bool
        else None
    )
    if wide is None:
        raise UnsupportedError(f"a scatter into {dtype}")
    offset = list(numbers.update_window_dims)
    collapsed, batching = list(numbers.inserted_window_dims), list(numbers.operand_batching_dims)
    inner = [i for i in range(len(shape)) if i not in (*collapsed, *batching)]
    sizes = [given[offset[inner.index(i)]] if i in inner else 1 for i in range(len(shape))]
    layout = (
        offset, collapsed, list(numbers.scatter_dims_to_operand_dims), batching,
        list(numbers.scatter_indices_batching_dims),
    )  # fmt: skip
    places, inside = _places(frame, indices, equation.invars[1], layout, sizes, shape, given, mode)
    all_of_it = np.array([-1], np.int64)
    flat, new = op.Reshape(frame.cast(x, wide), all_of_it), op.Reshape(frame.cast(updates, wide), all_of_it)
    new = op.Neg(new) if equation.primitive.name == "scatter-sub" else new
    where = op.Reshape(places, all_of_it)
    if inside is not None:  # what falls outside goes to a place of its own, which is cut off
        beyond = op.Shape(flat)
        whole = op.Expand(inside, frame.shape(given))
        where = op.Reshape(op.Where(whole, places, beyond), all_of_it)
        flat = op.Concat(flat, frame.constant([0], wide), axis=0)
    reduction = _REDUCTIONS[equation.primitive.name]
    made = op.ScatterElements(flat, where, new, axis=0, **({} if reduction == "none" else {"reduction": reduction}))
    if inside is not None:
        made = op.Slice(made, np.array([0]), np.array([-1]), np.array([0]))
    return frame.cast(frame.reshape(made, shape), dtype)


def _clamped_starts(frame: Frame, starts: Sequence[Value], shape: Sequence[Any], sizes: Sequence[Any]) -> Value:
    """Return the start of a slice as a vector, moved so that the slice is inside."""
    op = frame.op
    parts = [op.Reshape(frame.cast(v, np.int64), np.array([1], np.int64)) for v in starts]
    vector = parts[0] if len(parts) == 1 else op.Concat(*parts, axis=0)
    last = frame.shape([d - s for d, s in zip(shape, sizes, strict=True)])
    made: Value = op.Max(op.Min(vector, last), np.array([0], np.int64))
    return made


@primitive("dynamic_slice")
def dynamic_slice(frame: Frame, equation: Any, x: Value, *starts: Value) -> Value:
    """A slice of fixed size at a computed place."""
    op, shape, sizes = frame.op, equation.invars[0].aval.shape, equation.params["slice_sizes"]
    if not shape:
        return x
    start = _clamped_starts(frame, starts[: len(shape)], shape, sizes)
    made: Value = op.Slice(x, start, op.Add(start, frame.shape(sizes)), np.arange(len(shape)))
    return made


@primitive("dynamic_update_slice")
def dynamic_update_slice(frame: Frame, equation: Any, x: Value, update: Value, *starts: Value) -> Value:
    """`x` with a slice at a computed place replaced."""
    op, shape, sizes = frame.op, equation.invars[0].aval.shape, equation.invars[1].aval.shape
    if not shape:
        return update
    start = _clamped_starts(frame, starts, shape, sizes)
    total: Value | None = None
    stride: Any = 1
    for axis in range(len(shape) - 1, -1, -1):
        length = frame.size(sizes[axis])
        end = op.constant(np.int64(length)) if isinstance(length, int) else length
        run = op.Range(op.constant(np.int64(0)), end, op.constant(np.int64(1)))
        part = op.Add(run, op.Gather(start, np.int64(axis), axis=0))
        others = [k for k in range(len(shape)) if k != axis]
        part = op.Unsqueeze(part, np.array(others, np.int64)) if others else part
        by = frame.size(stride)
        part = part if isinstance(by, int) and by == 1 else op.Mul(part, by)
        total = part if total is None else op.Add(total, part)
        stride = stride * shape[axis]
    assert total is not None
    all_of_it = np.array([-1], np.int64)
    dtype = equation.invars[0].aval.dtype
    wide = np.int32 if np.dtype(dtype) == bool else dtype
    made = op.ScatterElements(
        op.Reshape(frame.cast(x, wide), all_of_it),
        op.Reshape(total, all_of_it),
        op.Reshape(frame.cast(update, wide), all_of_it),
        axis=0,
    )
    return frame.cast(frame.reshape(made, shape), dtype)


@primitive("slice")
def static_slice(frame: Frame, equation: Any, x: Value) -> Value:
    """A slice at a fixed place, perhaps with steps."""
    params, shape = equation.params, equation.invars[0].aval.shape
    steps = params["strides"] or (1,) * len(shape)
    axes = [
        i
        for i in range(len(shape))
        if str(params["start_indices"][i]) != "0" or str(params["limit_indices"][i]) != str(shape[i]) or steps[i] != 1
    ]
    if not axes:
        return x
    made: Value = frame.op.Slice(
        x,
        frame.shape([params["start_indices"][i] for i in axes]),
        frame.shape([params["limit_indices"][i] for i in axes]),
        np.array(axes, np.int64),
        np.array([steps[i] for i in axes], np.int64),
    )
    return made
