"""Convolutions as matrix products, which IREE 3.13 compiles to vector instructions on processors.

A Conv with channels first becomes a loop over single numbers, unless its sizes fit the vectors: two thirds of the time
of a LeNet's step. The slices of the image under each tap of the kernel, joined, times the kernel give the same, up to
rounding (docs/native.md has times).
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import onnx
from onnx import helper

from onward.backends.iree.writing import Values, Writer, rewritten

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
_VECTOR = 4  # a line of so many results, or a multiple of it, is vectorized by IREE itself
_MOST_TAPS = 128
_MOST_COLUMNS = 1 << 26  # numbers; larger ones would need more memory than the time is worth


def write_out_convolutions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with known sizes in which convolutions are matrix products; the same one if there are none.

    Those that IREE vectorizes, those with groups, and those whose slices together would be very large stay as they are.
    """
    return rewritten(model, _product)


def _product(node: onnx.NodeProto, values: Values) -> list[onnx.NodeProto] | None:
    """Return what replaces a Conv; None where it stays."""
    if node.op_type != "Conv" or values.kinds.get(node.input[0]) not in _FLOATS:
        return None
    image, kernel, results = (values.sizes.get(name, ()) for name in (node.input[0], node.input[1], node.output[0]))
    given: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    rank, taps = len(image) - 2, math.prod(kernel[2:])
    if rank < 1 or not (len(image) == len(kernel) == len(results)) or 0 in (*image, *kernel, *results):
        return None
    if given.get("group", 1) != 1 or given.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return None
    (batch, channels, *_), (outputs, *_), counts = image, kernel, results[2:]
    if not 1 < taps <= _MOST_TAPS or batch * channels * taps * math.prod(counts) > _MOST_COLUMNS:
        return None
    pads = given.get("pads") or [0] * (2 * rank)
    steps, gaps = (given.get(name) or [1] * rank for name in ("strides", "dilations"))
    if set(steps) == {1} and counts[-1] % _VECTOR == 0 and channels > 1:
        return None
    write = Writer(node.output[0])
    X = node.input[0]
    if any(pads):
        X = write.node("Pad", [X, write.numbers("pads", [0, 0, *pads[:rank], 0, 0, *pads[rank:]])], "padded")
    axes, strides = write.numbers("axes", range(2, rank + 2)), write.numbers("strides", steps)
    flat, parts = write.numbers("flat", [batch, channels, 1, math.prod(counts)]), []
    for tap in itertools.product(*map(range, kernel[2:])):
        name = "tap" + "_".join(map(str, tap))
        starts = [t * g for t, g in zip(tap, gaps, strict=True)]
        ends = [s + (c - 1) * step + 1 for s, c, step in zip(starts, counts, steps, strict=True)]
        bounds = [write.numbers(f"{name}/starts", starts), write.numbers(f"{name}/ends", ends)]
        part = write.node("Slice", [X, *bounds, axes, strides], name)
        parts.append(write.node("Reshape", [part, flat], f"{name}/flat"))
    shape = write.numbers("columns/shape", [batch, channels * taps, math.prod(counts)])
    columns = write.node("Reshape", [write.node("Concat", parts, "taps", axis=2), shape], "columns")
    shape = write.numbers("kernel/shape", [outputs, channels * taps])
    product = write.node("MatMul", [write.node("Reshape", [node.input[1], shape], "kernel"), columns], "product")
    has_bias = len(node.input) > 2 and bool(node.input[2])
    write.node("Reshape", [product, write.numbers("shape", results)], "image" if has_bias else "")
    if has_bias:
        shape = write.numbers("bias/shape", [1, outputs, *[1] * rank])
        write.node("Add", [f"{write.name}/image", write.node("Reshape", [node.input[2], shape], "bias")], "")
    return write.made
