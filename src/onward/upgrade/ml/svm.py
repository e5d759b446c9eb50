"""Support vector machines of `ai.onnx.ml`."""

from __future__ import annotations

import numpy as np

from onward.graph.builder import Value
from onward.upgrade.microsoft.call import CLASSICAL, Call, CannotDecompose, decomposes
from onward.upgrade.ml import values
from onward.upgrade.ml.coupling import coupled
from onward.upgrade.ml.values import FLOAT


@decomposes("SVMRegressor", CLASSICAL)
def svm_regressor(call: Call) -> list[Value | None]:
    """Y = kernel(X, support_vectors) coefficients + rho."""
    op, supports = call.op, int(call.attr("n_supports", 0))
    X = values.floats(call, values.rows(call, call.required(0)))
    coefficients = np.asarray(call.attr("coefficients", ()), np.float32)
    rho = np.asarray(call.attr("rho", ()), np.float32)
    if rho.size != 1:
        raise CannotDecompose("several rho")
    reached = _kernel(call, X, supports) if supports else X
    weight = op.Reshape(values.weight(call, "coefficients", coefficients), np.array([-1, 1]))
    score = op.Add(op.MatMul(reached, weight), values.weight(call, "rho", rho))
    if call.attr("one_class", 0):
        score = op.Where(op.Greater(score, 0.0), op.constant(1.0, FLOAT), op.constant(-1.0, FLOAT))
    return [score]


@decomposes("SVMClassifier", CLASSICAL)
def svm_classifier(call: Call) -> list[Value | None]:
    """Z = kernel(X, support_vectors) coefficients + rho for each pair of classes, Y = the class of most pairs.

    With `prob_a` and `prob_b`, Z holds the probabilities of the classes that fit the pairs best (coupling.py).
    """
    op, names = call.op, values.labels(call)
    classes, counts = len(names), [int(c) for c in call.attr("vectors_per_class", None) or ()]
    if not sum(counts):
        raise CannotDecompose("no support vectors")
    if len(counts) != classes or classes < 2:
        raise CannotDecompose("not one label for each class")
    kind = call.attr("post_transform", "NONE")
    X = values.floats(call, values.rows(call, call.required(0)))
    scores = _pairs(call, _kernel(call, X, sum(counts)), counts)
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    shape = (len(pairs), classes)
    first, second = (
        values.incidence(call, [(k, pair[side]) for k, pair in enumerate(pairs)], shape, FLOAT) for side in (0, 1)
    )
    wins = op.Cast(op.Greater(scores, 0.0), to=FLOAT)
    votes = op.Add(op.MatMul(wins, first), op.MatMul(op.Sub(1.0, wins), second))
    label = values.chosen(call, names, op.ArgMax(votes, axis=1, keepdims=0))
    if call.attr("prob_a", None):
        return [label, values.transformed(call, coupled(call, scores, classes), kind)]
    if classes > 2:
        return [label, values.transformed(call, scores, kind)]
    if kind == "PROBIT":
        raise CannotDecompose("PROBIT of one score")
    if kind == "LOGISTIC":
        return [label, values.sigmoid_pair(call, scores)]
    return [label, values.two_columns(call, op.Neg(scores) if kind == "NONE" else op.Sub(1.0, scores), scores)]


def _pairs(call: Call, kernel: Value, counts: list[int]) -> Value:
    """Return the score of each pair of classes: the vectors of both count, each with its row of coefficients."""
    op, total = call.op, sum(counts)
    starts = np.concatenate([[0], np.cumsum(counts)])
    flat = np.asarray(call.attr("coefficients", ()), np.float32)
    columns = []
    for i in range(len(counts)):
        for j in range(i + 1, len(counts)):
            column = np.full(total, flat.size, np.int64)
            of_i, of_j = np.arange(starts[i], starts[i + 1]), np.arange(starts[j], starts[j + 1])
            column[of_i] = (j - 1) * total + of_i
            column[of_j] = i * total + of_j
            columns.append(column)
    stored = op.Concat(values.weight(call, "coefficients", flat), np.zeros(1, np.float32), axis=0)
    table = op.Gather(stored, op.constant(np.stack(columns, axis=1)), axis=0)
    rho = np.asarray(call.attr("rho", ()), np.float32)
    return op.Add(op.MatMul(kernel, table), values.weight(call, "rho", rho[: len(columns)]))


def _kernel(call: Call, X: Value, supports: int) -> Value:
    """Return the kernel of each sample and each support vector: (N, supports)."""
    op = call.op
    vectors = np.asarray(call.attr("support_vectors", ()), np.float32).reshape(supports, -1)
    width = call.size(X, 1)
    if isinstance(width, int) and width != vectors.shape[1]:
        raise CannotDecompose("support vectors of another width than the input")
    V = values.prepared(call, "support_vectors", vectors)
    gamma, coef0, degree = [*(call.attr("kernel_params", None) or ()), 0.0, 0.0, 0.0][:3]
    kind = call.attr("kernel_type", "LINEAR")
    if kind == "RBF":
        # |x - v|^2 = |x|^2 + |v|^2 - 2 xv, both relative to the middle of the vectors, where less is cancelled.
        given, keyword = values.axes(call, 0)
        middle = op.ReduceMean(V, *given, **keyword, keepdims=1)
        X, V = op.Sub(X, middle), op.Sub(V, middle)
        squares = [op.ReduceSum(op.Mul(v, v), np.array([1]), keepdims=1) for v in (X, V)]
        far = op.Add(op.Sub(squares[0], op.Mul(_product(call, X, V), 2.0)), op.Transpose(squares[1], perm=[1, 0]))
        return op.Exp(op.Mul(op.Relu(far), op.constant(-gamma, FLOAT)))
    product = _product(call, X, V)
    if kind == "LINEAR":
        return product
    product = op.Add(op.Mul(product, op.constant(gamma, FLOAT)), op.constant(coef0, FLOAT))
    if kind == "SIGMOID":
        return op.Tanh(product)
    if kind == "POLY":
        return op.Pow(product, op.constant(degree, FLOAT))
    raise CannotDecompose(f"kernel {kind}")


def _product(call: Call, X: Value, V: Value) -> Value:
    return call.op.MatMul(X, call.op.Transpose(V, perm=[1, 0]))
