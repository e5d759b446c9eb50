"""Let the native kernels compute the gradients of convolutions.

A plain graph has the gradient of a convolution's input as a ConvTranspose (or a Conv with the flipped kernel), and that
of its kernel as the product of dY and columns of X, which a Conv with one-hot kernels makes. Both read and write
several times the memory of the images; the kernels do not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import onnx_ir as ir

from onward.backends.onnxruntime.native.nodes import native, only_reader
from onward.graph import edit, shapes, walk
from onward.graph.builder import Builder, Value
from onward.passes.base import Pass, Unit, rewrite_nodes

FEWEST = 8  # channels of X: with fewer, most of a tile of channels is empty


class UseNativeConvolutions(Pass):
    """Replace the gradients of convolutions of float32 images by native kernels."""

    def run(self, unit: Unit) -> bool:
        shapes.infer_shapes(unit.model)
        kernels = rewrite_nodes(unit, "MatMul", _replace_product)
        inputs = rewrite_nodes(unit, "ConvTranspose", _replace_transposed)
        images = rewrite_nodes(unit, "Conv", _replace_convolution)  # last: some of them made columns
        return kernels or inputs or images


@dataclasses.dataclass(frozen=True)
class Geometry:
    """How a convolution reads its images."""

    image: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1

    @property
    def result(self) -> tuple[int, int]:
        """The size of the images that it makes."""
        high, wide = (
            (self.image[a] + self.pads[a] + self.pads[a + 2] - (self.kernel[a] - 1) * self.dilations[a] - 1)
            // self.strides[a]
            + 1
            for a in (0, 1)
        )
        return high, wide

    def sizes(self) -> list[int]:
        """The attribute `sizes` of the native operators."""
        return [*self.image, *self.kernel, *self.strides, *self.dilations, *self.pads, self.groups]


def geometry(node: ir.Node, image: tuple[int, int], kernel: tuple[int, int]) -> Geometry | None:
    """Return how a Conv or ConvTranspose reads its images; None where that depends on the run."""
    if node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return None
    pads = tuple(node.attributes.get_ints("pads", [0, 0, 0, 0]))
    strides, dilations = (tuple(node.attributes.get_ints(n, [1, 1])) for n in ("strides", "dilations"))
    if len(pads) != 4 or len(strides) != 2 or len(dilations) != 2 or min(pads) < 0:
        return None
    return Geometry(
        image, kernel, (strides[0], strides[1]), (dilations[0], dilations[1]), (pads[0], pads[1], pads[2], pads[3]),
        node.attributes.get_int("group", 1),
    )  # fmt: skip


def image_dims(value: Value | None) -> tuple[int, int, int] | None:
    """Return channels, height and width of float32 images, if they are known."""
    dims = None if value is None or value.dtype != ir.DataType.FLOAT else shapes.dims(value)
    if dims is None or len(dims) != 4:
        return None
    channels, high, wide = dims[1:]
    if not (isinstance(channels, int) and isinstance(high, int) and isinstance(wide, int)):
        return None
    return (channels, high, wide) if channels and high and wide else None


def _kernel_dims(value: Value | None) -> tuple[int, int, int, int] | None:
    dims = None if value is None else shapes.dims(value)
    rest = image_dims(value)
    return None if dims is None or rest is None or not isinstance(dims[0], int) else (dims[0], *rest)


def _suits(how: Geometry, outputs: int, inner: int, inputs: int) -> bool:
    """Return whether the kernels are faster than ONNX Runtime's operators.

    They are not where a convolution is a product of matrices, nor with few channels in a group, unless that is one.
    """
    if how.kernel == (1, 1) and how.strides == (1, 1):
        return False
    if how.groups > 1 and how.groups == inputs == outputs:
        return True
    return inner >= FEWEST and outputs // how.groups >= FEWEST


# -- the convolution itself ------------------------------------------------------------------------------------------


def _replace_convolution(node: ir.Node, op: Builder) -> bool:
    X, W = node.inputs[:2]
    given, kernel, made = image_dims(X), _kernel_dims(W), image_dims(node.outputs[0])
    if given is None or kernel is None or made is None or X is None or W is None or W.const_value is not None:
        return False  # ONNX Runtime packs constant kernels
    how = geometry(node, given[1:], kernel[2:])
    if how is None or how.result != made[1:] or not _suits(how, kernel[0], FEWEST, given[0]):
        return False
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    relu = only_reader(node.outputs[0], "Relu") if how.groups == 1 else None
    inputs = [X, W] if bias is None else [X, W, bias]
    name = "Convolve" if bias is None else "ConvolveBiased"
    edit.replace_node(node, op, native(op, name, inputs, [*how.sizes(), relu is not None], also=relu))
    if relu is not None:
        assert relu.inputs[0] is not None
        edit.take_place(relu.outputs[0], relu.inputs[0])
    return True


# -- the gradient of the input ---------------------------------------------------------------------------------------


def _replace_transposed(node: ir.Node, op: Builder) -> bool:
    dY, W = node.inputs[:2]
    given, kernel, made = image_dims(dY), _kernel_dims(W), image_dims(node.outputs[0])
    if given is None or kernel is None or made is None or dY is None or W is None:
        return False
    how = geometry(node, made[1:], kernel[2:])
    if how is None or how.result != given[1:] or any(v is not None for v in node.inputs[2:]):
        return False
    if not _suits(how, kernel[0], kernel[1], kernel[1] * how.groups):
        return False
    edit.replace_node(node, op, native(op, "ConvolveBack", [dY, W], how.sizes()))
    return True


# -- the gradient of the kernel --------------------------------------------------------------------------------------


def _replace_product(node: ir.Node, op: Builder) -> bool:
    """Replace the product of dY and columns, with the sum over the batch and the Reshape behind it."""
    result = _behind(node)
    left, right = node.inputs
    dims = None if result is None else _kernel_dims(result)
    if result is None or dims is None or left is None or right is None:
        return False
    flat = len(shapes.dims(node.outputs[0]) or ()) == 2  # then dY has its channels first, and no sum is left
    for columns, _ in _before(right, [(0, 2, 1), (0, 1, 3, 2), (0, 2, 3, 1)]):
        for X, how in _images_of(columns, dims):
            for dY, turned in _before(left, [(1, 0, 2, 3)]):
                in_order = turned == flat or (shapes.dims(dY) or (None,))[0] == 1
                if in_order and _is_gradient_of(dY, X, how, dims):
                    maker = result.producer()
                    assert maker is not None
                    edit.replace_node(maker, op, native(op, "KernelGradient", [X, dY], how.sizes()))
                    return True
    return False


def _is_gradient_of(dY: Value, X: Value, how: Geometry, kernel: tuple[int, int, int, int]) -> bool:
    """Return whether dY has the shape of a convolution of X with this kernel, and the native one is faster."""
    if image_dims(dY) != (kernel[0], *how.result) or not _suits(how, kernel[0], FEWEST, kernel[1] * how.groups):
        return False
    batches = [(shapes.dims(value) or (None,))[0] for value in (X, dY)]
    if kernel[1] == 1:  # X may be one channel of each image, or one of several: the number of images tells
        return batches[0] is not None and batches[0] == batches[1]
    return not all(isinstance(n, int) for n in batches) or batches[0] == batches[1]


def _behind(node: ir.Node) -> Value | None:
    """Return the gradient that a product ends in: behind a sum over the samples and a Reshape."""
    value = node.outputs[0]
    rank = len(shapes.dims(value) or ())
    if rank > 2:
        after = only_reader(value, "ReduceSum")
        axes = None if after is None or len(after.inputs) < 2 else walk.constant_of(after.inputs[1])
        if after is None or axes is None or axes.tolist() != [0] or after.attributes.get_int("keepdims", 1):
            return None
        value = after.outputs[0]
    last = only_reader(value, "Reshape")
    return None if last is None else last.outputs[0]


def _before(value: Value, perms: Sequence[tuple[int, ...]]) -> Iterator[tuple[Value, bool]]:
    """Yield what a factor was made of by Reshape and at most one Transpose, the last first; and if one is behind it."""
    transposed = False
    while True:
        yield value, transposed
        node = value.producer()
        if node is None or node.domain or node.inputs[:1] in ((), (None,)):
            return
        if node.op_type == "Transpose":
            if transposed or tuple(node.attributes.get_ints("perm", [])) not in perms:
                return
            transposed = True
        elif node.op_type != "Reshape":
            return
        value = cast(Value, node.inputs[0])


def _images_of(columns: Value, kernel: tuple[int, int, int, int]) -> Iterator[tuple[Value, Geometry]]:
    """Yield the images whose columns these may be, and how the convolution read them."""
    node = columns.producer()
    if node is None or node.op_type != "Conv" or len(node.inputs) != 2 or not _is_one_hot(node.inputs[1], kernel[2:]):
        return
    found = [node.inputs[0]]
    maker = None if found[0] is None else found[0].producer()
    if node.attributes.get_int("group", 1) == 1 and maker is not None and maker.op_type == "Reshape":
        found.insert(0, maker.inputs[0])  # each channel is an image of its own, by the rule or by the model
    for X in found:
        dims = image_dims(X)
        how = None if dims is None or dims[0] % kernel[1] else geometry(node, dims[1:], kernel[2:])
        if X is not None and dims is not None and how is not None:
            yield X, dataclasses.replace(how, groups=dims[0] // kernel[1])


def _is_one_hot(value: Value | None, size: tuple[int, int]) -> bool:
    """Return whether these kernels each copy the element under one tap: all taps in order, for each channel."""
    array = walk.constant_of(value)
    count = size[0] * size[1]
    if array is None or array.shape[1:] != (1, *size) or array.shape[0] % count:
        return False
    return bool((array.reshape(-1, count, count) == np.eye(count)).all())
