"""Random numbers in inference graphs, from the runtime's uniform generator; training steps compute their own."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Value
from onward.passes.core.registry import Lowering, decomposition

FLOAT, DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE


def _type(at: Lowering, like: Value | None) -> ir.DataType:
    given = at.node.attributes.get("dtype")
    return ir.DataType(given.as_int()) if given is not None else FLOAT if like is None else at.dtype(like)


def _uniform(
    at: Lowering, like: Value, dtype: ir.DataType, low: float = 0.0, high: float = 1.0, lane: int = 0
) -> Value:
    seed = at.node.attributes.get("seed")
    given = None if seed is None else float(seed.value) + lane
    return at.op.RandomUniformLike(like, dtype=dtype, low=low, high=high, seed=given)


def _like(at: Lowering) -> Value:
    shape = [int(d) for d in at.attr("shape")]
    return at.op.Expand(at.op.constant(0.0), np.array(shape, np.int64))


@decomposition("RandomUniform")
def random_uniform(at: Lowering) -> Value:
    """RandomUniformLike a tensor of that shape."""
    return _uniform(at, _like(at), _type(at, None), at.attr("low"), at.attr("high"))


@decomposition("RandomNormal")
def random_normal(at: Lowering) -> Value:
    """Sqrt(-2 Log u) Cos(2 pi v), of two uniform numbers, times scale + mean."""
    return _normal(at, _like(at), _type(at, None))


@decomposition("RandomNormalLike")
def random_normal_like(at: Lowering) -> Value:
    """Sqrt(-2 Log u) Cos(2 pi v), of two uniform numbers, times scale + mean."""
    like = at.input("input")
    return _normal(at, like, _type(at, like))


def _normal(at: Lowering, like: Value, dtype: ir.DataType) -> Value:
    op = at.op
    wide = DOUBLE if dtype == DOUBLE else FLOAT
    u, v = (_uniform(at, like, wide, lane=lane) for lane in (0, 1))
    radius = op.Sqrt(op.Mul(op.Log(op.Sub(1.0, u)), -2.0))  # u may be 0, and is not 1
    drawn = op.Mul(radius, op.Cos(op.Mul(v, 2 * math.pi)))
    return op.cast(op.Add(op.Mul(drawn, float(at.attr("scale"))), float(at.attr("mean"))), dtype)


@decomposition("Multinomial")
def multinomial(at: Lowering) -> Value:
    """ArgMax of the log-probabilities - Log(-Log(u))."""
    op, logits = at.op, at.input("input")
    to = at.node.attributes.get("dtype")
    samples = int(at.attr("sample_size"))
    wide = op.Cast(op.Unsqueeze(logits, [1]), to=FLOAT)
    scores = op.Expand(wide, np.array([1, samples, 1], np.int64))
    u = op.Max(_uniform(at, scores, FLOAT), 1e-30)
    gumbel = op.Mul(op.Log(op.Mul(op.Log(u), -1.0)), -1.0)
    best = op.ArgMax(op.Add(scores, gumbel), axis=2, keepdims=0)
    return op.Cast(best, to=ir.DataType.INT32 if to is None else ir.DataType(to.as_int()))


@decomposition("Dropout")
def dropout(at: Lowering) -> list[Value | None]:
    """In training: X * mask / (1 - ratio), mask = uniform < 1 - ratio; else X and a mask of true."""
    op, x = at.op, at.input("data")
    ratio, mode = at.optional_input("ratio"), at.optional_input("training_mode")
    known, dtype = at.constant_input("training_mode"), at.dtype(x)
    off = mode is None or (known is not None and not bool(known.reshape(-1)[0]))
    if off:
        mask = op.Expand(op.constant(True), at.shape_of(x)) if at.wanted("mask") else None
        return [op.Identity(x), mask]
    keep = op.constant(0.5, FLOAT) if ratio is None else op.Sub(1.0, op.cast(ratio, FLOAT))
    mask = op.Less(_uniform(at, x, FLOAT), keep)
    if known is None:
        assert mode is not None
        mask = op.Or(mask, op.Not(mode))
        keep = op.Where(mode, keep, 1.0)
    scaled = op.Div(x, op.cast(op.Max(keep, 1e-30), dtype))
    return [op.Where(mask, scaled, 0.0), mask]
