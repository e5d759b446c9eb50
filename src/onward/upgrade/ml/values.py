"""What the decompositions of `ai.onnx.ml` share: weights, labels, post-transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Value
from onward.model.trainable import FIXED, LEARNED, PREPARES
from onward.upgrade.microsoft.call import Call, CannotDecompose

FLOAT = ir.DataType.FLOAT
_SMALL = 0.0000001  # below it, SOFTMAX_ZERO takes a score as absent


def weight(call: Call, attribute: str, array: np.ndarray) -> Value:
    """Return a constant with a name that people can train it by; it is written back into `attribute`."""
    value = _lifted(call, attribute, array)
    value.metadata_props[LEARNED] = call.node.op_type
    return value


def _lifted(call: Call, attribute: str, array: np.ndarray) -> Value:
    call.weights[attribute] = value = _named(call, attribute, array)
    return value


def _named(call: Call, name: str, array: np.ndarray) -> Value:
    value = call.op.Constant(value=ir.tensor(array))  # its own one: `constant` gives equal numbers once
    value.name = call.op.names.unique(f"{call.op.prefix}{name}")
    value.shape = ir.Shape(array.shape)
    value.const_value = ir.tensor(array)
    return value


def fixed(call: Call, name: str, array: np.ndarray, reason: str) -> Value:
    """Return a constant that nothing can train, for `reason`."""
    value = _named(call, name, array)
    value.metadata_props[FIXED] = reason
    return value


def incidence(call: Call, pairs: Sequence[tuple[int, int]], shape: tuple[int, int], dtype: ir.DataType) -> Value:
    """Return a matrix with ones at `pairs` and zeros elsewhere; as truth values in the file, it is no weight."""
    array = np.zeros(shape, bool)
    array[tuple(np.array(pairs, np.int64).reshape(-1, 2).T)] = True
    return call.op.Cast(call.op.constant(array), to=dtype)


def prepared(call: Call, attribute: str, array: np.ndarray) -> Value:
    """Return a weight that is trained only if it is named: it was measured, not learned."""
    value = _lifted(call, attribute, array)
    value.metadata_props[PREPARES] = call.node.op_type
    return value


def floats(call: Call, value: Value) -> Value:
    """Return `value` as float32."""
    return value if value.dtype == FLOAT else call.op.Cast(value, to=FLOAT)


def rows(call: Call, value: Value, width: int = 0) -> Value:
    """Return one row per sample: a vector is one sample.

    Where nothing tells the rank, as behind a vectorizer of text, the `width` of a row does if it is given.
    """
    if value.shape is None and width:
        return call.op.Reshape(value, np.array([-1, width]))
    rank = call.rank(value)
    if rank == 1:
        return call.op.Reshape(value, np.array([1, -1]))
    if rank != 2:
        raise CannotDecompose(f"an input of rank {rank}")
    return value


def axes(call: Call, axis: int) -> tuple[list[np.ndarray], dict[str, list[int]]]:
    """Return the axis of a reduction as an input or, before opset 18, as an attribute."""
    return ([np.array([axis])], {}) if call.op.opset >= 18 else ([], {"axes": [axis]})


def labels(call: Call, words: str = "classlabels_strings", numbers: str = "classlabels_ints") -> list[str] | list[int]:
    """Return the labels of the classes."""
    found = call.attr(words, None) or call.attr(numbers, None)
    return list(found or ())


def label_constant(call: Call, names: Sequence[str] | Sequence[int]) -> Value:
    """Return labels as a constant."""
    if isinstance(names[0], str):
        return call.op.Constant(value_strings=list(names))
    return call.op.constant(np.asarray(names, np.int64))


def chosen(call: Call, names: Sequence[str] | Sequence[int], index: Value) -> Value:
    """Return the label of each index."""
    return call.op.Gather(label_constant(call, names), index, axis=0)


def either(call: Call, names: Sequence[str] | Sequence[int], condition: Value) -> Value:
    """Return the second of two labels where the condition is true, else the first."""
    return chosen(call, names, call.op.Cast(condition, to=ir.DataType.INT64))


def sigmoid_pair(call: Call, score: Value) -> Value:
    """Return the probabilities of two classes: 1 - p and p of one Sigmoid."""
    p = call.op.Sigmoid(score)
    return two_columns(call, call.op.Sub(1.0, p), p)


def two_columns(call: Call, first: Value, second: Value) -> Value:
    """Return two columns side by side."""
    return call.op.Concat(first, second, axis=1)


def transformed(call: Call, scores: Value, kind: str) -> Value:
    """Return scores of at least two columns after `post_transform`."""
    op = call.op
    if kind == "NONE":
        return scores
    if kind == "SOFTMAX":
        return op.Softmax(scores, axis=1)
    if kind == "LOGISTIC":
        return op.Sigmoid(scores)
    if kind == "PROBIT":
        return probit(call, scores)
    if kind == "SOFTMAX_ZERO":
        given, keyword = axes(call, 1)
        top = op.ReduceMax(scores, *given, **keyword, keepdims=1)
        absent = op.LessOrEqual(op.Abs(scores), _like(call, _SMALL, scores))
        powers = op.Exp(op.Sub(scores, top))
        present = op.Where(absent, _like(call, 0.0, scores), powers)
        total = op.ReduceSum(present, np.array([1]), keepdims=1)
        return op.Div(op.Where(absent, op.Mul(scores, op.Exp(op.Neg(top))), powers), total)
    raise CannotDecompose(f"post_transform {kind}")


def probit(call: Call, scores: Value) -> Value:
    """Return sqrt(2) erfinv(2 scores - 1), with the approximation of erfinv that ONNX Runtime uses."""
    op = call.op

    def number(value: float) -> Value:
        return _like(call, value, scores)

    x = op.Sub(op.Mul(scores, number(2.0)), number(1.0))
    log = op.Log(op.Mul(op.Sub(number(1.0), x), op.Add(number(1.0), x)))
    v = op.Add(op.Mul(log, number(0.5)), number(2.0 / (3.14159 * 0.147)))
    root = op.Sqrt(op.Sub(op.Mul(v, v), op.Mul(log, number(1.0 / 0.147))))
    size = op.Sqrt(op.Sub(root, v))
    sign = op.Where(op.Less(x, number(0.0)), number(-math.sqrt(2.0)), number(math.sqrt(2.0)))
    return op.Mul(sign, size)


def _like(call: Call, number: float, value: Value) -> Value:
    return call.op.constant(number, value.dtype or FLOAT)
