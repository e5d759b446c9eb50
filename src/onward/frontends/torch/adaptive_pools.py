"""Export adaptive pooling for every size; PyTorch's exporter needs one that divides the input's.

Window i of `count` over an axis of size n is [⌊i·n/count⌋, ⌈(i+1)·n/count⌉). Averages are one product with a matrix per
axis. Maxima gather the windows and take the first largest element, which gets the gradient in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import torch


def adaptive_pools() -> dict[Any, Callable[..., Any]]:
    """Return the translations of adaptive pooling; of one dimension, PyTorch makes two."""
    aten = torch.ops.aten
    return {
        aten._adaptive_avg_pool2d.default: _average,
        aten._adaptive_avg_pool3d.default: _average,
        aten.adaptive_max_pool2d.default: _largest,
        aten.adaptive_max_pool3d.default: _largest,
    }


def _average(self: Any, output_size: Sequence[int]) -> Any:
    from onnxscript import opset20 as op

    dims = len(output_size)
    kernel = _even(self, output_size)
    # ONNX Runtime has no AveragePool of float64.
    if kernel is not None and len(self.shape) == dims + 2 and int(self.dtype) != onnx.TensorProto.DOUBLE:
        return op.AveragePool(self, kernel_shape=kernel, strides=kernel)
    outer = list(range(len(self.shape) - dims))
    turn = [*outer, len(self.shape) - 1, *range(len(outer), len(self.shape) - 1)]
    result = self
    for axis in range(-1, -dims - 1, -1):  # the axis is always the last one: each turn moves it to the front
        result = op.MatMul(result, _shares(op, self, axis, output_size[axis]))
        result = op.Transpose(result, perm=turn) if dims > 1 else result
    return result


def _largest(self: Any, output_size: Sequence[int]) -> tuple[Any, Any]:
    from onnxscript import opset20 as op

    dims, rank = len(output_size), len(self.shape)
    kernel = _even(self, output_size)
    windows = _gather_windows(op, self, self, output_size, rank - dims)
    chosen = op.ArgMax(windows, axis=-1, keepdims=1)
    if kernel is not None and rank == dims + 2:
        values, _ = op.MaxPool(self, kernel_shape=kernel, strides=kernel)
    else:
        values = op.Squeeze(op.GatherElements(windows, chosen, axis=-1), op.Constant(value_ints=[-1]))
    sizes = op.Shape(self, start=rank - dims)
    places = op.Reshape(op.Range(_number(op, 0), op.ReduceProd(sizes, keepdims=0), _number(op, 1)), sizes)
    places = op.Expand(_gather_windows(op, places, self, output_size, 0), op.Shape(windows))
    return values, op.Squeeze(op.GatherElements(places, chosen, axis=-1), op.Constant(value_ints=[-1]))


def _even(x: Any, counts: Sequence[int]) -> list[int] | None:
    """Return the size of the windows if all are equal and do not overlap."""
    sizes = list(x.shape)[-len(counts) :]
    if all(isinstance(n, int) and n % count == 0 for n, count in zip(sizes, counts, strict=True)):
        return [n // count for n, count in zip(sizes, counts, strict=True)]
    return None


def _gather_windows(op: Any, values: Any, x: Any, counts: Sequence[int], outer: int) -> Any:
    """Return the windows over the last axes of `values`, with one flat axis for the elements of a window.

    A window that is shorter than others repeats its last element.
    """
    dims = len(counts)
    for axis in range(dims - 1, -1, -1):
        values = op.Gather(values, _elements(op, x, axis - dims, counts[axis]), axis=outer + axis)
    first = list(range(outer))
    order = [*first, *range(outer, outer + 2 * dims, 2), *range(outer + 1, outer + 2 * dims, 2)]
    return op.Reshape(op.Transpose(values, perm=order), op.Constant(value_ints=[0] * outer + list(counts) + [-1]))


def _shares(op: Any, x: Any, axis: int, count: int) -> Any:
    """Return the matrix [n, count] of what each element contributes to each average."""
    size = x.shape[axis]
    if isinstance(size, int):
        start, end = _bounds(size, count)
        place = np.arange(size)[:, None]
        matrix = ((place >= start) & (place < end)) / (end - start)
        return op.Constant(value=onnx.numpy_helper.from_array(matrix.astype(_numpy_type(x))))
    n = _size(op, x, axis)
    start, end = _dynamic_bounds(op, n, count)
    place = op.Unsqueeze(op.Range(_number(op, 0), n, _number(op, 1)), op.Constant(value_ints=[1]))
    inside = op.And(op.GreaterOrEqual(place, start), op.Less(place, end))
    return op.Div(op.CastLike(inside, x), op.CastLike(op.Sub(end, start), x))


def _elements(op: Any, x: Any, axis: int, count: int) -> Any:
    """Return the places [count, k] of the elements of each window."""
    size = x.shape[axis]
    if isinstance(size, int):
        start, end = _bounds(size, count)
        steps = np.arange(max(end - start))
        places = np.minimum(start[:, None] + steps, end[:, None] - 1)
        return op.Constant(value=onnx.numpy_helper.from_array(places))
    start, end = _dynamic_bounds(op, _size(op, x, axis), count)
    longest = op.ReduceMax(op.Sub(end, start), keepdims=0)
    column = op.Constant(value_ints=[1])
    steps = op.Range(_number(op, 0), longest, _number(op, 1))
    return op.Min(op.Add(op.Unsqueeze(start, column), steps), op.Unsqueeze(op.Sub(end, _number(op, 1)), column))


def _bounds(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the start and the end of each window."""
    index = np.arange(count)
    return index * size // count, ((index + 1) * size + count - 1) // count


def _dynamic_bounds(op: Any, size: Any, count: int) -> tuple[Any, Any]:
    index = op.Constant(value_ints=list(range(count)))
    following = op.Constant(value_ints=list(range(1, count + 1)))
    start = op.Div(op.Mul(index, size), _number(op, count))
    return start, op.Div(op.Add(op.Mul(following, size), _number(op, count - 1)), _number(op, count))


def _size(op: Any, x: Any, axis: int) -> Any:
    place = len(x.shape) + axis
    return op.Squeeze(op.Shape(x, start=place, end=place + 1))


def _number(op: Any, value: int) -> Any:
    return op.Constant(value_int=value)


def _numpy_type(x: Any) -> Any:
    return onnx.helper.tensor_dtype_to_np_dtype(int(x.dtype))
