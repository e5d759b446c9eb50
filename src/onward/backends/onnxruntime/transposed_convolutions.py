"""Write transposed convolutions of small images as one product and one Col2Im.

The gradient of a convolution's input is a ConvTranspose. ONNX Runtime computes it image by image. It shares each
product between the threads, and where that is small, two threads take twice as long as one: the products of all images
in one MatMul have work for every thread. And where an image has few pixels and many channels, each product is thin; one
product of the pixels of all images takes 0.6 of the time. Col2Im adds up the columns in the same order.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx_ir as ir

from onward.graph import edit, shapes
from onward.graph.builder import Builder, Value
from onward.passes.base import Pass, Unit, rewrite_nodes

MOST = 65_536  # columns of an image, elements; above, one product has enough work, and the columns leave the cache
FEW, MANY = 64, 256  # pixels and channels: with fewer pixels and at least as many channels, the products are thin


class TransposeConvolutionsAtOnce(Pass):
    """Replace each ConvTranspose of small images, without groups and bias, by MatMul and Col2Im."""

    def run(self, unit: Unit) -> bool:
        return rewrite_nodes(unit, "ConvTranspose", _at_once)


class MergeThinProducts(Pass):
    """Replace each ConvTranspose of few pixels and many channels by one product of all images and Col2Im."""

    def run(self, unit: Unit) -> bool:
        return rewrite_nodes(unit, "ConvTranspose", _merged)


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """X is [N, channels, pixels], W is [channels, columns] with a kernel of `kernel`, Y has images of `image`."""

    channels: int
    pixels: int
    made: int
    kernel: tuple[int, int]
    image: tuple[int, int]

    @property
    def columns(self) -> int:
        return self.made * math.prod(self.kernel)


def _sizes(node: ir.Node) -> _Sizes | None:
    """Return the sizes of a ConvTranspose of float32 images that is plain enough; None for any other."""
    X, W = node.inputs[:2]
    if X is None or W is None or X.dtype != ir.DataType.FLOAT or any(v is not None for v in node.inputs[2:]):
        return None
    dims = [shapes.dims(v) for v in (X, W, node.outputs[0])]
    if any(d is None or len(d) != 4 for d in dims) or node.attributes.get_int("group", 1) != 1:
        return None
    image, kernel, result = (d for d in dims if d is not None)
    known = [n for n in (*image[1:], *kernel[1:], *result[2:]) if isinstance(n, int) and n > 0]
    if len(known) != 8 or node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return None
    channels, height, width, made, high, wide, out_high, out_wide = known
    return _Sizes(channels, height * width, made, (high, wide), (out_high, out_wide))


def _at_once(node: ir.Node, op: Builder) -> bool:
    sizes = _sizes(node)
    if sizes is None or sizes.columns * sizes.pixels > MOST:
        return False
    product = op.MatMul(_flat_kernel(node, op, sizes), _flat_images(node, op, sizes))
    _fold(node, op, sizes, product)
    return True


def _merged(node: ir.Node, op: Builder) -> bool:
    sizes = _sizes(node)
    if sizes is None or sizes.pixels >= FEW or sizes.channels < MANY:
        return False
    turned = op.Transpose(_flat_images(node, op, sizes), perm=[1, 0, 2])
    product = op.MatMul(_flat_kernel(node, op, sizes), op.Reshape(turned, _vector(sizes.channels, -1)))
    apart = op.Reshape(product, _vector(sizes.columns, -1, sizes.pixels))
    _fold(node, op, sizes, op.Transpose(apart, perm=[1, 0, 2]))
    return True


def _flat_kernel(node: ir.Node, op: Builder, sizes: _Sizes) -> Value:
    return op.Transpose(op.Reshape(node.inputs[1], _vector(sizes.channels, sizes.columns)), perm=[1, 0])


def _flat_images(node: ir.Node, op: Builder, sizes: _Sizes) -> Value:
    return op.Reshape(node.inputs[0], _vector(0, sizes.channels, sizes.pixels))


def _fold(node: ir.Node, op: Builder, sizes: _Sizes, product: Value) -> None:
    """Replace the node by the sum of the columns [N, columns, pixels]."""
    if sizes.kernel == (1, 1) and math.prod(sizes.image) == sizes.pixels:  # the columns are the image
        folded = op.Reshape(product, _vector(0, sizes.made, *sizes.image))
    else:
        windows = {k: node.attributes[k].value for k in ("dilations", "pads", "strides") if k in node.attributes}
        folded = op.Col2Im(product, _vector(*sizes.image), _vector(*sizes.kernel), **windows)
    edit.replace_node(node, op, [folded])


def _vector(*sizes: int) -> np.ndarray:
    return np.array(sizes, np.int64)
