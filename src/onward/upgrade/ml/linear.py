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
    if len(names) == 2 and kind in ("NONE", "LOGISTIC") and _is_mirrored(call):
        score = _linear(call, 1, mirrored=True)
        label = values.either(call, names, op.Greater(op.Squeeze(score, [1]), 0.0))
        pair = (
            values.sigmoid_pair(call, score) if kind == "LOGISTIC" else values.two_columns(call, op.Neg(score), score)
        )
        return [label, pair]
    if classes == 1 and len(names) == 2 and kind != "PROBIT":  # one score for two classes
        score = _linear(call, 1)
        label = values.either(call, names, op.Greater(op.Squeeze(score, [1]), 0.0))
        if kind == "LOGISTIC":
            return [label, values.sigmoid_pair(call, score)]
        return [label, values.two_columns(call, op.Sub(1.0, score), score)]
    if classes < 2 or len(names) != classes:
        raise CannotDecompose("not one label for each score")
    scores = _linear(call, classes)
    best = op.ArgMax(scores, axis=1, keepdims=0)
    return [values.chosen(call, names, best), values.transformed(call, scores, kind)]


def _is_mirrored(call: Call) -> bool:
    """Return whether the first of two scores is the negated second, as scikit-learn's exporter writes one score."""
    intercepts = np.asarray(call.attr("intercepts", None) or (), np.float32)
    rows = np.asarray(call.attr("coefficients", ()), np.float32).reshape(2, -1)
    return intercepts.size == 2 and bool(intercepts[0] == -intercepts[1] and (rows[0] == -rows[1]).all())


def _linear(call: Call, targets: int, *, mirrored: bool = False) -> Value:
    """Return X coefficients^T + intercepts; with `mirrored`, of the second half of both."""
    rows, intercepts = (np.asarray(call.attr(n, None) or (), np.float32) for n in ("coefficients", "intercepts"))
    if mirrored:
        call.mirrored |= {"coefficients", "intercepts"}
        rows, intercepts = (a[len(a) // 2 :] for a in (rows, intercepts))
    coefficients = rows.reshape(targets, -1)
    X = values.rows(call, call.required(0), coefficients.shape[1])
    width = call.size(X, 1)
    if isinstance(width, int) and width != coefficients.shape[1]:
        raise CannotDecompose("more coefficients than features: ONNX Runtime's sample logreg_iris")
    intercepts = intercepts if intercepts.size else np.zeros(targets, np.float32)
    named = (values.weight(call, "coefficients", coefficients), values.weight(call, "intercepts", intercepts))
    return call.op.Gemm(values.floats(call, X), *named, transB=1)
