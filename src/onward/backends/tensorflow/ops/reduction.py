"""Reductions, arg-reductions and running sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from onward.backends.graph.shapes import reduced_axes
from onward.backends.tensorflow.framework import TENSORFLOW, ints, is_known, known_ints, number, shape_of
from onward.backends.tensorflow.registry import Attributes, op
from onward.backends.tensorflow.tensors import is_float


def _reduction(function: Callable[[Any, list[int], bool], Any]) -> Callable[..., Any]:
    def run(attributes: Attributes, data: tf.Tensor, axes: Any = None) -> tf.Tensor:
        over = _axes(attributes, axes, data.shape.rank)
        if isinstance(over, list) and not over:
            return tf.cast(function(data[None], [0], False), data.dtype)
        return tf.cast(function(data, over, bool(attributes.get("keepdims", 1))), data.dtype)

    return run


def _axes(attributes: Attributes, axes: Any, rank: int) -> Any:
    """Return the axes to reduce: a list, or a tensor where they are not known while TensorFlow traces."""
    if axes is None or is_known(axes):
        return reduced_axes(attributes, None if axes is None else known_ints(axes), rank)
    given = tf.cast(TENSORFLOW.tensor(axes), tf.int32)
    if attributes.get("noop_with_empty_axes", 0):
        return given
    return tf.cond(tf.size(given) == 0, lambda: tf.range(rank), lambda: given)


def _wide(data: tf.Tensor) -> tf.Tensor:
    """Return the data in a type that can be added up and divided without loss."""
    if data.dtype in (tf.float16, tf.bfloat16):
        return tf.cast(data, tf.float32)
    return data if is_float(data) else tf.cast(data, tf.float64)


def norm(data: tf.Tensor, axes: list[int], keep: bool, p: int = 2) -> tf.Tensor:
    """Return the p-norm; its gradient at zero is zero, not NaN."""
    if p == 1:
        return tf.reduce_sum(data if data.dtype.is_unsigned else tf.abs(data), axes, keep)
    total = tf.reduce_sum(data * data if p == 2 else tf.abs(data) ** p, axes, keep)
    total = total if is_float(total) else tf.cast(total, tf.float64)
    nothing = total == 0
    safe = tf.where(nothing, tf.ones_like(total), total)
    return tf.where(nothing, tf.zeros_like(total), tf.sqrt(safe) if p == 2 else safe ** (1 / p))


def _extreme(data: tf.Tensor, axes: list[int], keep: bool, largest: bool) -> tf.Tensor:
    if data.dtype == tf.bool:
        return tf.reduce_any(data, axes, keep) if largest else tf.reduce_all(data, axes, keep)
    return tf.reduce_max(data, axes, keep) if largest else tf.reduce_min(data, axes, keep)


op("ReduceSum")(_reduction(lambda x, a, k: tf.reduce_sum(x, a, k)))
op("ReduceMean")(_reduction(lambda x, a, k: tf.reduce_mean(_wide(x), a, k)))
op("ReduceMax")(_reduction(lambda x, a, k: _extreme(x, a, k, largest=True)))
op("ReduceMin")(_reduction(lambda x, a, k: _extreme(x, a, k, largest=False)))
op("ReduceProd")(_reduction(lambda x, a, k: tf.reduce_prod(x, a, k)))
op("ReduceL1")(_reduction(lambda x, a, k: norm(x, a, k, 1)))
op("ReduceL2")(_reduction(norm))
op("ReduceLogSum")(_reduction(lambda x, a, k: tf.math.log(tf.reduce_sum(_wide(x), a, k))))
op("ReduceLogSumExp")(_reduction(lambda x, a, k: tf.reduce_logsumexp(_wide(x), a, k)))
op("ReduceSumSquare")(_reduction(lambda x, a, k: tf.reduce_sum(x * x, a, k)))


@op("ArgMax", "ArgMin")
def arg_extreme(attributes: Attributes, data: tf.Tensor) -> tf.Tensor:
    function = tf.argmax if attributes.op_type == "ArgMax" else tf.argmin
    axis = attributes["axis"] % data.shape.rank
    if attributes.get("select_last_index", 0):
        found = shape_of(data)[axis] - 1 - function(tf.reverse(data, [axis]), axis)
    else:
        found = function(data, axis)
    return tf.expand_dims(found, axis) if attributes["keepdims"] else found


@op("CumSum")
def cum_sum(attributes: Attributes, x: tf.Tensor, axis: Any) -> tf.Tensor:
    along = int(number(axis))
    return tf.cumsum(x, along, exclusive=bool(attributes["exclusive"]), reverse=bool(attributes["reverse"]))


@op("CumProd", since=26)
def cum_prod(attributes: Attributes, x: tf.Tensor, axis: Any) -> tf.Tensor:
    along = int(number(axis))
    return tf.math.cumprod(x, along, exclusive=bool(attributes["exclusive"]), reverse=bool(attributes["reverse"]))


@op("TopK")
def top_k(attributes: Attributes, x: tf.Tensor, k: Any = None) -> tuple[tf.Tensor, tf.Tensor]:
    # A stable sort gives ONNX's order among equals: the lower index first.
    axis, rank = attributes["axis"] % x.shape.rank, x.shape.rank
    last = [*(a for a in range(rank) if a != axis), axis]
    back = [last.index(a) for a in range(rank)]
    moved = tf.transpose(x, last)
    count = attributes["k"] if k is None else ints(k)[0]
    direction = "DESCENDING" if attributes.get("largest", 1) else "ASCENDING"
    end = count if isinstance(count, int) else tf.cast(count, tf.int32)
    chosen = tf.argsort(moved, -1, direction, stable=True)[..., :end]
    values = tf.gather(moved, chosen, axis=rank - 1, batch_dims=rank - 1)
    return tf.transpose(values, back), tf.cast(tf.transpose(chosen, back), tf.int64)
