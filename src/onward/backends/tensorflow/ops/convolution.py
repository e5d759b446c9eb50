"""Conv and ConvTranspose, whose images have the channels last here (`layout_rules.py`), DeformConv and Col2Im."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onward.backends.graph.shapes import along
from onward.backends.graph.windows import Pads, Window, transposed, window_of
from onward.backends.tensorflow.framework import is_symbol, known_ints, shape_of, sized, unknown
from onward.backends.tensorflow.registry import Attributes, op


def window_over(attributes: Attributes, sizes: Sequence[Any], kernel: Sequence[int]) -> Window:
    """Return the window of a Conv or a pooling over an image, of which sizes may be symbols."""
    if attributes.get("auto_pad", "NOTSET").startswith("SAME") and any(is_symbol(n) for n in sizes):
        if any(s != 1 for s in attributes.get("strides") or []):
            raise unknown("the pads of auto_pad depend on the size of the image")
        sizes = [10**6 if is_symbol(n) else n for n in sizes]  # with steps of 1 the pads are the same for all sizes
    return window_of(attributes, sizes, kernel)


def pad_spatial(x: tf.Tensor, pads: Pads, value: Any = None) -> tf.Tensor:
    """Pad (crop, if negative) the spatial axes, which are between the first and the last."""
    if any(v < 0 for pair in pads for v in pair):
        cut = [slice(max(-before, 0), -max(-after, 0) or None) for before, after in pads]
        x = x[(slice(None), *cut)]
    if not any(v > 0 for pair in pads for v in pair):
        return x
    grown = [[0, 0], *([max(before, 0), max(after, 0)] for before, after in pads), [0, 0]]
    return tf.pad(x, grown) if value is None else tf.pad(x, grown, constant_values=tf.cast(value, x.dtype))


def convolve(x: tf.Tensor, w: tf.Tensor, window: Window, groups: int) -> tf.Tensor:
    """Return the convolution of an image with the channels last and ONNX's weights [out, in / groups, ...]."""
    rank = len(window.kernel)
    if rank == 1:
        flat = Window([1, *window.kernel], [1, *window.strides], [1, *window.dilations], [(0, 0), *window.pads])
        return tf.squeeze(convolve(tf.expand_dims(x, 1), tf.expand_dims(w, 2), flat, groups), 1)
    if groups > 1 and rank == 2 and groups == x.shape[-1]:
        found = _by_channel(x, w, window)
        if found is not None:
            return found
    if groups > 1:  # TensorFlow has no gradient of a grouped convolution on a CPU
        parts = zip(tf.split(x, groups, -1), tf.split(w, groups, 0), strict=True)
        return tf.concat([convolve(a, b, window, 1) for a, b in parts], -1)
    kernel = tf.transpose(w, [*range(2, 2 + rank), 1, 0])
    if any(d > 1 for d in window.dilations):  # nor of a dilated one
        return _dilated(pad_spatial(x, window.pads), kernel, window)
    if rank == 2:
        return tf.nn.conv2d(x, kernel, window.strides, [[0, 0], *map(list, window.pads), [0, 0]])
    if rank == 3:
        return tf.nn.conv3d(pad_spatial(x, window.pads), kernel, [1, *window.strides, 1], "VALID")
    raise ValueError(f"TensorFlow has no convolution over {rank} axes")


def _by_channel(x: tf.Tensor, w: tf.Tensor, window: Window) -> tf.Tensor | None:
    """Return the convolution of each channel by itself; None where TensorFlow has no kernel for it."""
    (down, right), dilated = window.strides, any(d > 1 for d in window.dilations)
    if down != right or (dilated and down != 1):
        return None
    channels = x.shape[-1]
    kernel = tf.transpose(tf.reshape(w, [channels, -1, *window.kernel]), [2, 3, 0, 1])
    steps = [1, down, right, 1]
    if dilated:
        padded = pad_spatial(x, window.pads)
        return tf.nn.depthwise_conv2d(padded, kernel, steps, "VALID", dilations=window.dilations)
    return tf.nn.depthwise_conv2d(x, kernel, steps, [[0, 0], *map(list, window.pads), [0, 0]])


def _dilated(x: tf.Tensor, kernel: tf.Tensor, window: Window) -> tf.Tensor:
    """Return a dilated convolution: every d-th sample of an axis makes an image of its own."""
    rank, by = len(window.kernel), window.dilations
    sizes = shape_of(x)[1:-1]
    filled = [v for n, d in zip(sizes, by, strict=True) for v in (0, -n % d)]
    images = tf.space_to_batch(x, by, tf.reshape(sized(filled), [-1, 2]))
    one = [1] * rank
    y = tf.nn.conv2d(images, kernel, one, "VALID") if rank == 2 else tf.nn.conv3d(images, kernel, [1] * 5, "VALID")
    y = tf.batch_to_space(y, by, [[0, 0]] * rank)
    ends = [n - window.span(i) + 1 for i, n in enumerate(sizes)]
    ends = [tf.cast(n, tf.int32) if is_symbol(n) else n for n in ends]
    return y[(slice(None), *(slice(0, end, step) for end, step in zip(ends, window.strides, strict=True)))]


@op("Conv")
def conv(attributes: Attributes, x: tf.Tensor, w: tf.Tensor, b: tf.Tensor | None = None) -> tf.Tensor:
    window = window_over(attributes, shape_of(x)[1:-1], shape_of(w)[2:])
    y = convolve(x, w, window, attributes["group"])
    return y if b is None else tf.nn.bias_add(y, b)


@op("ConvTranspose")
def conv_transpose(attributes: Attributes, x: tf.Tensor, w: tf.Tensor, b: tf.Tensor | None = None) -> tf.Tensor:
    n, *sizes, _ = shape_of(x)
    window, crop = transposed(attributes, sizes, shape_of(w)[2:])
    rank, groups = len(sizes), attributes["group"]
    if rank == 2 and groups == 1 and all(d == 1 for d in window.dilations):
        full = [(size - 1) * window.strides[i] + window.kernel[i] for i, size in enumerate(sizes)]
        kernel = tf.transpose(w, [2, 3, 1, 0])
        y = tf.nn.conv2d_transpose(x, kernel, _small([n, *full, w.shape[1]]), window.strides, "VALID")
    else:
        y = _spread_and_convolve(x, w, window, groups)
    y = pad_spatial(y, crop)
    return y if b is None else tf.nn.bias_add(y, b)


def _small(sizes: list[Any]) -> Any:
    return tf.cast(sized(sizes), tf.int32)


def _spread_and_convolve(x: tf.Tensor, w: tf.Tensor, window: Window, groups: int) -> tf.Tensor:
    """Return the full transposed convolution: zeros between the samples, then the mirrored kernel."""
    rank = len(window.kernel)
    for axis in range(1, 1 + rank):
        step = window.strides[axis - 1]
        if step > 1:
            sizes = shape_of(x)
            wide = tf.expand_dims(x, axis + 1)
            wide = tf.pad(wide, [[0, step - 1 if i == axis + 1 else 0] for i in range(rank + 3)])
            x = tf.reshape(wide, sized([*sizes[:axis], sizes[axis] * step, *sizes[axis + 1 :]]))
            x = x[(*[slice(None)] * axis, slice(None, 1 - step))]
    x = pad_spatial(x, [(window.span(i) - 1, window.span(i) - 1) for i in range(rank)])
    channels, out, *kernel = shape_of(w)
    grouped = tf.reshape(w, [groups, channels // groups, out, *kernel])
    swapped = tf.transpose(grouped, [0, 2, 1, *range(3, 3 + rank)])
    mirrored = tf.reverse(tf.reshape(swapped, [groups * out, channels // groups, *kernel]), list(range(2, 2 + rank)))
    return convolve(x, mirrored, Window(window.kernel, [1] * rank, window.dilations, [(0, 0)] * rank), groups)


@op("DeformConv", since=19)
def deform_conv(
    attributes: Attributes, x: tf.Tensor, w: tf.Tensor, offset: tf.Tensor, b: tf.Tensor | None = None,
    mask: tf.Tensor | None = None,
) -> tf.Tensor:  # fmt: skip
    """A convolution whose taps are moved by `offset` and read by linear interpolation, zero outside the image."""
    rank, groups, shifts = w.shape.rank - 2, attributes["group"], attributes["offset_group"]
    n, channels, *sizes = shape_of(x)
    image = shape_of(offset)[2:]
    window = window_over(attributes, sizes, shape_of(w)[2:])
    kernel = window.kernel
    points = math.prod(kernel) * math.prod(image)
    moved = tf.reshape(offset, sized([n, shifts, *kernel, rank, *image]))
    at = []
    for axis in range(rank):
        taps = tf.range(kernel[axis]) * window.dilations[axis]
        places = tf.range(image[axis]) * window.strides[axis] - window.pads[axis][0]
        start = tf.reshape(taps, along(axis, rank) + [1] * rank) + tf.reshape(places, [1] * rank + along(axis, rank))
        at.append(tf.cast(start, x.dtype) + tf.gather(moved, axis, axis=2 + rank))
    low = [tf.floor(tf.stop_gradient(a)) for a in at]
    flat = tf.transpose(tf.reshape(x, sized([n, shifts, channels // shifts, math.prod(sizes)])), [0, 1, 3, 2])
    columns: Any = None
    for corner in itertools.product((0, 1), repeat=rank):
        inside, weight, place = tf.ones_like(at[0], tf.bool), tf.ones_like(at[0]), tf.zeros_like(at[0], tf.int64)
        for axis, side in enumerate(corner):
            i = low[axis] + side
            inside = inside & (i >= 0) & (i < sizes[axis])
            weight = weight * (1 - tf.abs(at[axis] - i))
            place = place * sizes[axis] + tf.clip_by_value(tf.cast(i, tf.int64), 0, sizes[axis] - 1)
        chosen = tf.reshape(place, sized([n, shifts, points]))
        share = tf.reshape(tf.where(inside, weight, tf.zeros_like(weight)), sized([n, shifts, points, 1]))
        read = tf.gather(flat, chosen, axis=2, batch_dims=2) * share
        columns = read if columns is None else columns + read
    if mask is not None:
        columns = columns * tf.reshape(mask, sized([n, shifts, points, 1]))
    each = channels // groups * math.prod(kernel)
    rows = tf.reshape(tf.transpose(columns, [0, 1, 3, 2]), sized([n, groups, each, math.prod(image)]))
    out = w.shape[0]
    y = tf.reshape(tf.matmul(tf.reshape(w, [groups, out // groups, -1]), rows), sized([n, out, *image]))
    return y if b is None else y + tf.reshape(b, along(1, rank + 2))


@op("Col2Im")
def col2im(attributes: Attributes, x: tf.Tensor, image: Any, block: Any) -> tf.Tensor:
    sizes, kernel = known_ints(image), known_ints(block)
    rank = len(sizes)
    window = window_of(attributes, sizes, kernel)
    padded = [n + sum(p) for n, p in zip(sizes, window.pads, strict=True)]
    counts = [(padded[i] - window.span(i)) // window.strides[i] + 1 for i in range(rank)]
    index = np.zeros([1] * (2 * rank), np.int64)
    for i in range(rank):
        places = np.arange(kernel[i])[:, None] * window.dilations[i] + np.arange(counts[i]) * window.strides[i]
        shape = [1] * (2 * rank)
        shape[i], shape[rank + i] = kernel[i], counts[i]
        index = index * padded[i] + places.reshape(shape)
    n, lines, _ = shape_of(x)
    channels = lines // math.prod(kernel)
    values = tf.transpose(tf.reshape(x, sized([n * channels, -1])))
    total = tf.math.unsorted_segment_sum(values, index.reshape(-1), math.prod(padded))
    out = tf.transpose(tf.reshape(total, sized([*padded, n, channels])), [rank, *range(rank), rank + 1])
    cropped = pad_spatial(out, [(-before, -after) for before, after in window.pads])
    return tf.transpose(cropped, [0, rank + 1, *range(1, rank + 1)])
