"""Pooling of images with the channels last (`layout_rules.py`), and MaxUnpool."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from onward.backends.graph.windows import Pads, Window, pooled, unpooled
from onward.backends.tensorflow.framework import ints, is_symbol, shape_of, sized, unknown
from onward.backends.tensorflow.ops.convolution import pad_spatial, window_over
from onward.backends.tensorflow.ops.reduction import norm
from onward.backends.tensorflow.registry import Attributes, op


def _window(attributes: Attributes, x: tf.Tensor) -> tuple[Window, Pads]:
    """Return the window, and the pads so that the last window fits."""
    sizes = shape_of(x)[1:-1]
    window = window_over(attributes, sizes, attributes["kernel_shape"])
    if not attributes.get("ceil_mode", 0):
        return window, window.pads
    if any(is_symbol(n) for n in sizes):
        raise unknown("the pads of ceil_mode depend on the size of the image")
    return window, pooled(attributes, sizes, window)[1]


def _windows(x: tf.Tensor, window: Window, pads: Pads, fill: Any) -> tuple[tf.Tensor, Any]:
    """Return the windows [batch, ..., kernel, channels] of a padded image, and the flat positions they come from."""
    padded = pad_spatial(x, pads, fill)
    n, *sizes, channels = shape_of(padded)
    if any(is_symbol(v) for v in sizes):
        raise unknown("the windows of a pooling depend on the size of the image")
    rank = len(sizes)
    index = np.zeros([1] * (2 * rank), np.int64)
    for i in range(rank):
        count = (sizes[i] - window.span(i)) // window.strides[i] + 1
        where = np.arange(count)[:, None] * window.strides[i] + np.arange(window.kernel[i]) * window.dilations[i]
        shape = [1] * (2 * rank)
        shape[i], shape[rank + i] = where.shape
        index = index * sizes[i] + where.reshape(shape)
    index = index.reshape(*index.shape[:rank], -1)
    flat = tf.reshape(padded, sized([n, math.prod(sizes), channels]))
    return tf.gather(flat, index, axis=1), index


def _lowest(dtype: tf.DType) -> Any:
    return -math.inf if dtype.is_floating else dtype.min


def _has_kernel(x: tf.Tensor, window: Window) -> bool:
    types = (tf.float32, tf.bfloat16) if len(window.kernel) == 3 else (tf.float16, tf.bfloat16, tf.float32, tf.float64)
    return x.dtype in types and len(window.kernel) <= 3 and all(d == 1 for d in window.dilations)


def _pool(kind: str, x: tf.Tensor, window: Window) -> tf.Tensor:
    """Return TensorFlow's own pooling of an image that is padded already."""
    kernel, strides = window.kernel, window.strides
    if len(kernel) == 1:
        flat = Window([1, *kernel], [1, *strides], [1, 1], [])
        return tf.squeeze(_pool(kind, tf.expand_dims(x, 1), flat), 1)
    function = {
        ("max", 2): tf.nn.max_pool2d, ("max", 3): tf.nn.max_pool3d, ("avg", 2): tf.nn.avg_pool2d,
        ("avg", 3): tf.nn.avg_pool3d,
    }[kind, len(kernel)]  # fmt: skip
    return function(x, kernel, strides, "VALID")


@op("MaxPool")
def max_pool(attributes: Attributes, x: tf.Tensor) -> Any:
    window, pads = _window(attributes, x)
    low = _lowest(x.dtype)
    fast = _pool("max", pad_spatial(x, pads, low), window) if _has_kernel(x, window) else None
    if attributes.outputs == 1 and fast is not None:
        return fast
    found, index = _windows(x, window, pads, low)
    rank = found.shape.rank
    found = tf.transpose(found, [*range(rank - 2), rank - 1, rank - 2])
    chosen = tf.argmax(found, -1)  # the first of equal values
    values = tf.gather(found, chosen, axis=rank - 1, batch_dims=rank - 1) if fast is None else fast
    if attributes.outputs == 1:
        return values
    table = tf.broadcast_to(tf.expand_dims(index, -2), sized([*shape_of(found)[1:-1], index.shape[-1]]))
    table = tf.broadcast_to(tf.expand_dims(table, 0), sized(shape_of(found)))
    position = tf.gather(table, chosen, axis=rank - 1, batch_dims=rank - 1)
    return values, _unpadded(position, x, pads, attributes.get("storage_order", 0))


def _unpadded(position: tf.Tensor, x: tf.Tensor, pads: Pads, order: int) -> tf.Tensor:
    """Return flat positions in the whole unpadded tensor in ONNX's order, as its Indices."""
    n, *sizes, channels = shape_of(x)
    coordinates: list[tf.Tensor] = []
    for i in reversed(range(len(sizes))):
        wide = sizes[i] + sum(pads[i])
        coordinates.insert(0, position % wide - pads[i][0])
        position = position // wide
    flat = tf.zeros_like(position)
    for i in range(len(sizes)) if not order else reversed(range(len(sizes))):
        flat = flat * sizes[i] + coordinates[i]
    lead = tf.range(n, dtype=tf.int64)[:, None] * channels + tf.range(channels, dtype=tf.int64)
    return flat + tf.reshape(lead, sized([n, *[1] * len(sizes), channels])) * math.prod(sizes)


@op("AveragePool")
def average_pool(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    window, pads = _window(attributes, x)

    def mean(image: tf.Tensor) -> tf.Tensor:
        if _has_kernel(image, window) or (len(window.kernel) == 3 and image.dtype == tf.float64):
            return _pool("avg", image, window)
        return tf.reduce_mean(_windows(image, window, [(0, 0)] * len(window.kernel), None)[0], -2)

    y = mean(pad_spatial(x, pads))
    if not any(v for pair in pads for v in pair):
        return y
    ones = tf.ones(sized([1, *shape_of(x)[1:-1], 1]), x.dtype)  # how much of each window counts
    if attributes.get("count_include_pad", 0):
        ones = pad_spatial(ones, window.pads, 1)
        pads = [(0, p[1] - g[1]) for p, g in zip(pads, window.pads, strict=True)]
    return y / mean(pad_spatial(ones, pads))


@op("LpPool")
def lp_pool(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    found, _ = _windows(x, *_window(attributes, x), None)
    return norm(found, [found.shape.rank - 2], False, attributes["p"])


@op("GlobalAveragePool")
def global_average_pool(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(x, list(range(1, x.shape.rank - 1)), True)


@op("GlobalMaxPool")
def global_max_pool(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    n, *sizes, channels = shape_of(x)
    flat = tf.transpose(tf.reshape(x, sized([n, math.prod(sizes), channels])), [0, 2, 1])
    first = tf.argmax(flat, -1)  # the first of equal values gets the gradient
    return tf.reshape(tf.gather(flat, first, axis=2, batch_dims=2), sized([n, *[1] * len(sizes), channels]))


@op("GlobalLpPool")
def global_lp_pool(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    return norm(x, list(range(1, x.shape.rank - 1)), True, attributes["p"])


@op("MaxUnpool")
def max_unpool(attributes: Attributes, x: tf.Tensor, indices: tf.Tensor, shape: Any = None) -> tf.Tensor:
    n, channels, *sizes = shape_of(x)
    small = [n, channels, *unpooled(attributes, sizes)]
    size = small if shape is None else ints(shape)
    # The indices are positions in the original tensor, which has the inferred size.
    where = tf.reshape(tf.cast(indices, tf.int64), [-1])
    if shape is not None:
        before = [math.prod(small[i + 1 :]) for i in range(len(small))]
        after = [math.prod(size[i + 1 :]) for i in range(len(size))]
        where = sum((where // a % n) * b for a, n, b in zip(before, small, after, strict=True))
    out = tf.zeros(sized([math.prod(size)]), x.dtype)
    return tf.reshape(tf.tensor_scatter_nd_update(out, where[:, None], tf.reshape(x, [-1])), sized(size))
