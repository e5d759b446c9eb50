"""The linear models and the preparations of `ai.onnx.ml`: their attributes become tensors, which can be trained."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Value
from onward.model.trainable import PREPARES
from onward.upgrade.microsoft.call import CLASSICAL, Call, CannotDecompose, decomposes

_FLOAT = ir.DataType.FLOAT


@decomposes("LinearRegressor", CLASSICAL)
def linear_regressor(call: Call) -> list[Value | None]:
    """Y = X coefficients^T + intercepts."""
    targets = int(call.attr("targets", 1))
    scores = _linear(call, np.asarray(call.attr("coefficients", ()), np.float32).reshape(targets, -1))
    return [_transformed(call, scores)]


@decomposes("LinearClassifier", CLASSICAL)
def linear_classifier(call: Call) -> list[Value | None]:
    """Z = softmax or sigmoid of X coefficients^T + intercepts, Y = the label of its largest number."""
    classes = len(call.attr("intercepts", ()))
    if classes < 2:
        raise CannotDecompose("one score for two classes")
    scores = _linear(call, np.asarray(call.attr("coefficients", ()), np.float32).reshape(classes, -1))
    words, numbers = call.attr("classlabels_strings", None), call.attr("classlabels_ints", None)
    if len(words or numbers or ()) != classes:
        raise CannotDecompose("not one label for each score")
    labels = call.op.Constant(value_strings=list(words)) if words else call.op.constant(np.asarray(numbers, np.int64))
    best = call.op.ArgMax(scores, axis=1, keepdims=0)
    return [call.op.Gather(labels, best, axis=0), _transformed(call, scores)]


@decomposes("Scaler", CLASSICAL)
def scaler(call: Call) -> list[Value | None]:
    """Y = (X - offset) scale."""
    op, X = call.op, _floats(call, call.required(0))
    offset, scale = (np.asarray(call.attr(name, ()), np.float32) for name in ("offset", "scale"))
    if not offset.size or not scale.size:
        raise CannotDecompose("no offset or no scale")
    return [op.Mul(op.Sub(X, _prepared(call, "offset", offset)), _prepared(call, "scale", scale))]


@decomposes("Normalizer", CLASSICAL)
def normalizer(call: Call) -> list[Value | None]:
    """Y = X / the norm of each row; rows of norm 0 stay."""
    op, X = call.op, _floats(call, call.required(0))
    kind, last = call.attr("norm", "MAX"), {"axes": [-1]} if call.op.opset < 18 else {}
    axes = [] if last else [np.array([-1])]
    if kind == "L1":
        norm = op.ReduceL1(X, *axes, **last)
    elif kind == "L2":
        norm = op.ReduceL2(X, *axes, **last)
    else:
        norm = op.ReduceMax(X, *axes, **last)
    zero = op.constant(0.0, _FLOAT)
    return [op.Div(X, op.Where(op.Equal(norm, zero), op.constant(1.0, _FLOAT), norm))]


@decomposes("Imputer", CLASSICAL)
def imputer(call: Call) -> list[Value | None]:
    """Y = X where it is present, imputed_value_floats elsewhere."""
    op, X = call.op, call.required(0)
    values, absent = call.attr("imputed_value_floats", None), call.attr("replaced_value_float", 0.0)
    if X.dtype not in (_FLOAT, ir.DataType.DOUBLE) or not values:
        raise CannotDecompose("integers")
    missing = op.IsNaN(X) if np.isnan(absent) else op.Equal(X, op.constant(absent, X.dtype))
    return [op.Where(missing, _prepared(call, "imputed", np.asarray(values, X.dtype.numpy())), X)]


@decomposes("FeatureVectorizer", CLASSICAL)
def feature_vectorizer(call: Call) -> list[Value | None]:
    """Y = the inputs side by side."""
    parts = [call.required(i) for i in range(len(call.node.inputs))]
    if any(call.rank(part) != 2 for part in parts):
        raise CannotDecompose("columns without an axis of their own")
    return [call.op.Concat(*(_floats(call, part) for part in parts), axis=1)]


@decomposes("ArrayFeatureExtractor", CLASSICAL)
def array_feature_extractor(call: Call) -> list[Value | None]:
    """Z = the columns Y of X."""
    op, X = call.op, call.required(0)
    if call.rank(X) < 2 or X.dtype not in (_FLOAT, ir.DataType.DOUBLE):
        raise CannotDecompose("labels, not numbers")
    return [op.Gather(X, op.Reshape(call.required(1), np.array([-1])), axis=-1)]


def _linear(call: Call, coefficients: np.ndarray) -> Value:
    """Return X coefficients^T + intercepts."""
    X = call.required(0)
    if call.rank(X) != 2:
        raise CannotDecompose("a sample without the axis of the batch")
    width = call.size(X, 1)
    if isinstance(width, int) and width != coefficients.shape[1]:
        raise CannotDecompose("more coefficients than features: ONNX Runtime's sample logreg_iris")
    intercepts = np.asarray(call.attr("intercepts", None) or [0.0] * len(coefficients), np.float32)
    named = (_named(call, "coefficients", coefficients), _named(call, "intercepts", intercepts))
    return call.op.Gemm(_floats(call, X), *named, transB=1)


def _named(call: Call, name: str, array: np.ndarray) -> Value:
    """Return a constant with a name that people can train it by."""
    value = call.op.Constant(value=ir.tensor(array))  # its own one: `constant` gives equal numbers once
    value.name = call.op.names.unique(f"{call.op.prefix}{name}")
    return value


def _prepared(call: Call, name: str, array: np.ndarray) -> Value:
    """Return a constant that is trained only if it is named: it was measured, not learned."""
    value = _named(call, name, array)
    value.metadata_props[PREPARES] = call.node.op_type
    return value


def _transformed(call: Call, scores: Value) -> Value:
    """Return the scores after the attribute `post_transform`."""
    kind = call.attr("post_transform", "NONE")
    if kind == "NONE":
        return scores
    if kind == "SOFTMAX":
        return call.op.Softmax(scores, axis=1)
    if kind == "LOGISTIC":
        return call.op.Sigmoid(scores)
    raise CannotDecompose(f"post_transform {kind}")


def _floats(call: Call, value: Value) -> Value:
    return value if value.dtype == _FLOAT else call.op.Cast(value, to=_FLOAT)
