"""The linear models of `ai.onnx.ml`."""

from __future__ import annotations

import numpy as np

from onward.graph.builder import Value
from onward.upgrade.microsoft.call import CLASSICAL, Call, CannotDecompose, decomposes
from onward.upgrade.ml import values


@decomposes("LinearRegressor", CLASSICAL)
def linear_regressor(call: Call) -> list[Value | None]:
    """Y = X coefficients^T + intercepts."""
    targets = int(call.attr("targets", 1))
    kind = call.attr("post_transform", "NONE")
    scores = _linear(call, targets)
    # ONNX Runtime transforms a single target by PROBIT only.
    return [scores if targets == 1 and kind != "PROBIT" else values.transformed(call, scores, kind)]


@decomposes("LinearClassifier", CLASSICAL)
def linear_classifier(call: Call) -> list[Value | None]:
    """Z = softmax or sigmoid of X coefficients^T + intercepts, Y = the label of its largest number."""
    op, names, kind = call.op, values.labels(call), call.attr("post_transform", "NONE")
    classes = len(call.attr("intercepts", None) or names)
    if classes == 1 and len(names) == 2 and kind != "PROBIT":  # one score for two classes
        score = _linear(call, 1)
        label = values.either(call, op.Greater(op.Squeeze(score, [1]), 0.0), names[1], names[0])
        if kind == "LOGISTIC":
            return [label, values.two_columns(call, op.Sigmoid(op.Neg(score)), op.Sigmoid(score))]
        return [label, values.two_columns(call, op.Sub(1.0, score), score)]
    if classes < 2 or len(names) != classes:
        raise CannotDecompose("not one label for each score")
    scores = _linear(call, classes)
    best = op.ArgMax(scores, axis=1, keepdims=0)
    return [values.chosen(call, names, best), values.transformed(call, scores, kind)]


def _linear(call: Call, targets: int) -> Value:
    """Return X coefficients^T + intercepts."""
    X = values.rows(call, call.required(0))
    coefficients = np.asarray(call.attr("coefficients", ()), np.float32).reshape(targets, -1)
    width = call.size(X, 1)
    if isinstance(width, int) and width != coefficients.shape[1]:
        raise CannotDecompose("more coefficients than features: ONNX Runtime's sample logreg_iris")
    intercepts = np.asarray(call.attr("intercepts", None) or [0.0] * targets, np.float32)
    named = (values.weight(call, "coefficients", coefficients), values.weight(call, "intercepts", intercepts))
    return call.op.Gemm(values.floats(call, X), *named, transB=1)
