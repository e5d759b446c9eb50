"""Operators that change the shape or order of elements: the gradient changes them back."""

from __future__ import annotations

import numpy as np

from onward.autodiff.registry import NON_DIFFERENTIABLE, declare, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.graph.builder import Value


@gradient("Reshape", opset=14, integers=True, shape=NON_DIFFERENTIABLE)
def reshape(rule: Rule, dreshaped: Value) -> Grads:
    """reshaped has the elements of data in the same order, so ddata = dreshaped in the shape of data."""
    return {"data": rule.reshape_like(dreshaped, rule.input("data"))}


@gradient("Flatten", opset=13, integers=True)
def flatten(rule: Rule, doutput: Value) -> Grads:
    """output has the elements of input in the same order, so dinput = doutput in the shape of input."""
    return {"input": rule.reshape_like(doutput, rule.input("input"))}


@gradient("Squeeze", opset=13, integers=True, axes=NON_DIFFERENTIABLE)
def squeeze(rule: Rule, dsqueezed: Value) -> Grads:
    """squeezed lacks axes of size 1, so ddata adds them again."""
    axes = rule.optional_input("axes")
    if axes is None:
        return {"data": rule.reshape_like(dsqueezed, rule.input("data"))}
    return {"data": rule.op.Unsqueeze(dsqueezed, _list_of_axes(rule, axes))}


@gradient("Unsqueeze", opset=13, integers=True, axes=NON_DIFFERENTIABLE)
def unsqueeze(rule: Rule, dexpanded: Value) -> Grads:
    """expanded has further axes of size 1, so ddata removes them."""
    return {"data": rule.op.Squeeze(dexpanded, _list_of_axes(rule, rule.input("axes")))}


def _list_of_axes(rule: Rule, axes: Value) -> Value:
    """Return axes as a vector: exporters write one axis as a scalar, which ONNX Runtime's Squeeze refuses."""
    known = rule.constant_input("axes")
    return rule.op.constant(known.reshape(1)) if known is not None and known.ndim == 0 else axes


@gradient("Transpose", opset=13, integers=True)
def transpose(rule: Rule, dtransposed: Value) -> Grads:
    """transposed permutes the axes, so ddata permutes them back; without perm the order is reversed both ways."""
    perm = rule.attr("perm")
    if perm is None:
        return {"data": rule.op.Transpose(dtransposed)}
    return {"data": rule.op.Transpose(dtransposed, perm=[int(i) for i in np.argsort(perm)])}


@gradient("Expand", opset=13, shape=NON_DIFFERENTIABLE)
def expand(rule: Rule, doutput: Value) -> Grads:
    """output repeats input along axes of size 1, so dinput sums over them."""
    return {"input": rule.unbroadcast(doutput, rule.output("output"), rule.input("input"))}


@gradient("Tile", opset=13, repeats=NON_DIFFERENTIABLE)
def tile(rule: Rule, doutput: Value) -> Grads:
    """output is repeats copies of input along each axis, so dinput sums over the copies."""
    op, data, repeats = rule.op, rule.input("input"), rule.input("repeats")
    known, static = rule.constant_input("repeats"), rule.static_shape(data)
    if known is not None and all(r == 1 for r in known):
        return {"input": doutput}
    if known is not None and static is not None:
        copied = [axis for axis, r in enumerate(known) if r != 1]
        split = [n for r, d in zip(known, static, strict=True) for n in ([int(r), d] if r != 1 else [d])]
        axes = [axis + position for position, axis in enumerate(copied)]
        return {"input": rule.sum_over(op.Reshape(doutput, split, allowzero=1 if 0 in split else None), axes)}
    shape = rule.shape_of(data)
    pairs = op.Concat(op.Unsqueeze(repeats, [1]), op.Unsqueeze(shape, [1]), axis=1)
    copies = op.Reshape(doutput, op.Reshape(pairs, [-1]), allowzero=1)
    rank = rule.rank(data)
    axes_value = (
        op.constant(np.arange(0, 2 * rank, 2, dtype=np.int64))
        if rank is not None
        else op.Range(0, op.Mul(op.Size(shape), 2), 2)
    )
    return {"input": op.ReduceSum(copies, axes_value, keepdims=0, noop_with_empty_axes=1)}


@gradient("Concat", opset=13)
def concat(rule: Rule, dconcat_result: Value) -> Grads:
    """concat_result is the inputs one after the other, so each gradient is its part of dconcat_result."""
    op, axis, inputs = rule.op, rule.attr("axis"), rule.variadic("inputs")
    if len(inputs) == 1:
        return {"inputs": [dconcat_result]}
    known = [s for s in (rule.known_dim(v, axis) for v in inputs) if s is not None]
    wanted = [i for i in range(len(inputs)) if rule.needs("inputs", i)]
    if len(known) == len(inputs):
        if len(wanted) == 1:
            start = sum(known[: wanted[0]])
            part = op.Slice(dconcat_result, [start], [start + known[wanted[0]]], [axis])
            return {"inputs": [part if i in wanted else None for i in range(len(inputs))]}
        split = op.constant(np.array(known, np.int64))
    else:
        split = op.Concat(*(rule.dim_of(v, axis) for v in inputs), axis=0)
    return {"inputs": list(op.multi("Split", dconcat_result, split, axis=axis, outputs=len(inputs)))}


@gradient("Split", opset=18, split=NON_DIFFERENTIABLE)
def split(rule: Rule, *doutputs: Value | None) -> Grads:
    """outputs are the parts of input, so dinput is their gradients one after the other."""
    parts = [
        rule.zeros_like(output) if grad is None else grad
        for output, grad in zip(rule.node.outputs, doutputs, strict=True)
    ]
    return {"input": parts[0] if len(parts) == 1 else rule.op.Concat(*parts, axis=rule.attr("axis"))}


@gradient("DepthToSpace", opset=13)
def depth_to_space(rule: Rule, doutput: Value) -> Grads:
    """output moves blocks of channels into space, so dinput moves them back."""
    size, mode = rule.attr("blocksize"), rule.attr("mode")
    blocks = rule.op.SpaceToDepth(doutput, blocksize=size)
    if mode == "CRD":
        return {"input": _reorder_channels(rule, blocks, rule.input("input"), rule.dim_of(doutput, 1), size)}
    return {"input": blocks}


@gradient("SpaceToDepth", opset=13)
def space_to_depth(rule: Rule, doutput: Value) -> Grads:
    """output moves blocks of space into channels, so dinput moves them back (CRD: since opset 28)."""
    return {"input": rule.op.DepthToSpace(doutput, blocksize=rule.attr("blocksize"), mode=rule.attr("mode", "DCR"))}


def _reorder_channels(rule: Rule, blocks: Value, like: Value, depth: Value, size: int) -> Value:
    """Return channels given as (block, depth) as (depth, block): SpaceToDepth before opset 28 knows only DCR."""
    op = rule.op
    dims = rule.dims(like)
    square = op.constant(np.array([size * size], np.int64))
    known = None if depth.const_value is None else int(depth.const_value.numpy()[0])
    if known is not None and dims is not None and all(isinstance(d, int) for d in dims):
        shape = op.constant(np.array([dims[0], size * size, known, *dims[2:]], np.int64))
    else:
        shape = op.Concat(rule.dim_of(like, 0), square, depth, op.Shape(like, start=2), axis=0)
    apart = op.Reshape(blocks, shape, allowzero=1)
    return rule.reshape_like(op.Transpose(apart, perm=[0, 2, 1, 3, 4]), like)


@gradient("Trilu", opset=14, k=NON_DIFFERENTIABLE)
def trilu(rule: Rule, doutput: Value) -> Grads:
    """output keeps one triangle of input, so dinput keeps the same triangle of doutput."""
    return {"input": rule.op.Trilu(doutput, rule.optional_input("k"), upper=rule.attr("upper"))}


@gradient("ReverseSequence", opset=10, sequence_lens=NON_DIFFERENTIABLE)
def reverse_sequence(rule: Rule, dY: Value) -> Grads:
    """Y reverses the start of each sequence, so dX reverses it again."""
    attributes = {name: rule.attr(name) for name in ("batch_axis", "time_axis")}
    return {"input": rule.op.ReverseSequence(dY, rule.input("sequence_lens"), **attributes)}


@gradient("Where", opset=16, broadcasts=True, condition=NON_DIFFERENTIABLE)
def where(rule: Rule, doutput: Value) -> Grads:
    """output = X where condition, else Y, so each gradient is doutput there and 0 elsewhere.

    A product with the mask would turn an infinite gradient on the other side into NaN.
    """
    op, condition = rule.op, rule.input("condition")
    return {
        "X": op.Where(condition, doutput, 0.0) if rule.needs("X") else None,
        "Y": op.Where(condition, 0.0, doutput) if rule.needs("Y") else None,
    }


@gradient("Cast", opset=13)
def cast(rule: Rule, doutput: Value) -> Grads:
    """output = input in another type, so dinput = doutput in the type of input (the engine casts)."""
    return {"input": doutput}


@gradient("CastLike", opset=15, target_type=NON_DIFFERENTIABLE)
def cast_like(rule: Rule, doutput: Value) -> Grads:
    """output = input in another type, so dinput = doutput in the type of input (the engine casts)."""
    return {"input": doutput}


declare("BitCast", opset=26, input=NON_DIFFERENTIABLE)
declare("Shape", opset=13, data=NON_DIFFERENTIABLE)
declare("Size", opset=13, data=NON_DIFFERENTIABLE)
