"""Write small transposed convolutions as one product and one Col2Im.

The gradient of a convolution's input is a ConvTranspose. ONNX Runtime computes it image by image, and shares each small
product between the threads: on two of them that takes twice as long as on one. The product of all images at once has
work for every thread, and Col2Im adds up the columns in the same order, so that the result is the same, bit by bit.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onward.graph import edit, shapes
from onward.graph.builder import Builder
from onward.passes.base import Pass, Unit, rewrite_nodes

MOST = 65_536  # columns of an image, elements; above, one product has enough work, and the columns leave the cache


class TransposeConvolutionsAtOnce(Pass):
    """Replace each ConvTranspose of small images, without groups and bias, by MatMul and Col2Im."""

    def run(self, unit: Unit) -> bool:
        return rewrite_nodes(unit, "ConvTranspose", _replace)


def _replace(node: ir.Node, op: Builder) -> bool:
    X, W = node.inputs[:2]
    if X is None or W is None or X.dtype != ir.DataType.FLOAT or any(v is not None for v in node.inputs[2:]):
        return False
    image, kernel, result = (shapes.dims(v) for v in (X, W, node.outputs[0]))
    if image is None or kernel is None or result is None or len(image) != 4:
        return False
    known = [*image[1:], *kernel, *result[2:]]
    if not all(isinstance(n, int) for n in known) or node.attributes.get_int("group", 1) != 1:
        return False
    if node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return False
    sizes = [n for n in known if isinstance(n, int)]
    channels, height, width, _, made, high, wide, out_high, out_wide = sizes
    columns = made * high * wide
    if columns * height * width > MOST or math.prod(sizes) == 0:
        return False
    flat = op.Transpose(op.Reshape(W, _vector([channels, columns])), perm=[1, 0])
    product = op.MatMul(flat, op.Reshape(X, _vector([0, channels, height * width])))
    windows = {k: node.attributes[k].value for k in ("dilations", "pads", "strides") if k in node.attributes}
    if (high, wide, out_high, out_wide) == (1, 1, height, width):  # the columns are the image
        folded = op.Reshape(product, _vector([0, made, height, width]))
    else:
        folded = op.Col2Im(product, _vector([out_high, out_wide]), _vector([high, wide]), **windows)
    edit.replace_node(node, op, [folded])
    return True


def _vector(sizes: list[int]) -> np.ndarray:
    return np.array(sizes, np.int64)
