"""Ensembles of trees of `ai.onnx.ml`: all samples walk all trees at once, level by level; the leaves are a table.

Which leaf a sample reaches does not change with a small change of the input: the gradient of the input is zero. The
numbers of the leaves and the base values have one.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Value
from onward.model import forest as forests
from onward.model.forest import Forest, read_forest, weights_name
from onward.model.ml_nodes import plain_attributes
from onward.upgrade.microsoft.call import CLASSICAL, Call, CannotDecompose, decomposes
from onward.upgrade.ml import values

STEPS = "which way a tree goes has no gradient; the numbers of its leaves have one"
DEEPEST = 512  # levels, each of which is seven nodes or more
_POST = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_AGGREGATE = ("AVERAGE", "SUM", "MIN", "MAX")


@decomposes("TreeEnsemble", CLASSICAL)
def tree_ensemble(call: Call) -> list[Value | None]:
    """Y = the sum, mean, least or greatest of the leaves that X reaches, one of each tree."""
    forest = read_forest("TreeEnsemble", plain_attributes(call.node))
    kind, post = _AGGREGATE[int(call.attr("aggregate_function", 1))], _POST[int(call.attr("post_transform", 0))]
    if post in ("SOFTMAX", "LOGISTIC") and forest.count > 1:
        raise CannotDecompose(
            "ONNX Runtime 1.31 takes 1 as LOGISTIC and 2 as SOFTMAX; the standard has it the other way"
        )
    scores = _scores(call, forest, kind, call.required(0).dtype)
    return [_finished(call, scores, forest, post)]


@decomposes("TreeEnsembleRegressor", CLASSICAL)
def tree_ensemble_regressor(call: Call) -> list[Value | None]:
    """Y = base_values + the sum, mean, least or greatest of the leaves that X reaches, one of each tree."""
    forest = read_forest("TreeEnsembleRegressor", plain_attributes(call.node))
    scores = _scores(call, forest, call.attr("aggregate_function", "SUM"))
    base = forests.numbers(plain_attributes(call.node), "base_values")
    if base.size == forest.count:
        scores = call.op.Add(scores, _base(call, base))
    scores = _finished(call, scores, forest, call.attr("post_transform", "NONE"))
    return [values.floats(call, scores)]


@decomposes("TreeEnsembleClassifier", CLASSICAL)
def tree_ensemble_classifier(call: Call) -> list[Value | None]:
    """Z = softmax or sigmoid of base_values + the sum of the leaves, Y = the label of its largest number."""
    op, attributes = call.op, plain_attributes(call.node)
    forest = read_forest("TreeEnsembleClassifier", attributes)
    names = values.labels(call, numbers="classlabels_int64s")
    kind, base = call.attr("post_transform", "NONE"), forests.numbers(attributes, "base_values")
    weights_at = weights_name("TreeEnsembleClassifier", attributes)
    if forest.count == 1:
        raise CannotDecompose("one class")
    if forest.count == 2:
        if np.unique(forest.targets).tolist() == [0, 1]:
            return _two_scores(call, forest, names, kind, base)
        if forest.targets.any() or base.size == 2 or kind == "PROBIT":
            raise CannotDecompose("one score for two classes, in a form in which ONNX Runtime leaves a class at 0")
        stored = forests.numbers(attributes, weights_at.removesuffix("_as_tensor"))
        positive = bool((stored >= 0).all())
        if positive:  # then runtimes read the scores as probabilities, so training must not make one negative
            call.clipped.add(weights_at)
        call.guards[weights_at] = positive
        forest.count = 1
        score = values.floats(call, _scores(call, forest, "SUM"))
        if base.size:
            score = op.Add(score, values.floats(call, _base(call, base)))
        limit = op.constant(0.5 if positive else 0.0, values.FLOAT)
        label = values.either(call, names, op.Greater(op.Squeeze(score, [1]), limit))
        if kind == "LOGISTIC":
            return [label, values.sigmoid_pair(call, score)]
        return [label, values.two_columns(call, op.Sub(1.0, score) if positive else op.Neg(score), score)]
    scores = _scores(call, forest, "SUM")
    if base.size:
        if base.size != forest.count:
            raise CannotDecompose("base values for some of the classes")
        scores = op.Add(scores, _base(call, base))
    elif not _covers(forest):
        raise CannotDecompose("a class that some leaves do not know")
    best = op.ArgMax(scores, axis=1, keepdims=0)
    return [values.chosen(call, names, best), values.floats(call, values.transformed(call, scores, kind))]


def _two_scores(
    call: Call, forest: Forest, names: list[str] | list[int], kind: str, base: np.ndarray
) -> list[Value | None]:
    """Return label and scores of two classes with a score each, as CatBoost writes them.

    ONNX Runtime decides by the second score alone, and gives 0 or 1 where the labels are numbers, whatever they are.
    """
    op = call.op
    if base.size == 2:
        raise CannotDecompose("base values of two scores: ONNX Runtime adds the second to the first score")
    if not _covers(forest):
        raise CannotDecompose("a class that some leaves do not know")
    attributes = plain_attributes(call.node)
    weights_at = weights_name("TreeEnsembleClassifier", attributes)
    stored = forests.numbers(attributes, weights_at.removesuffix("_as_tensor"))
    if not base.size and _is_paired(forest, stored):
        # One tensor for both, so that the probabilities still add up to 1 after training.
        call.paired.add(weights_at)
        forest.leaves, forest.targets, forest.count = forest.leaves[1::2], np.zeros_like(forest.targets[1::2]), 1
        second = values.floats(call, _scores(call, forest, "SUM", stored=stored[1::2]))
        if kind == "LOGISTIC":
            found = values.sigmoid_pair(call, second)
        else:
            found = values.transformed(call, values.two_columns(call, op.Neg(second), second), kind)
    else:
        scores = values.floats(call, _scores(call, forest, "SUM"))
        if base.size:
            first = values.incidence(call, [(0, 0)], (1, 2), values.FLOAT)
            scores = op.Add(scores, op.Mul(first, values.floats(call, _base(call, base))))
        second = op.Slice(scores, np.array([1]), np.array([2]), np.array([1]))
        found = values.transformed(call, scores, kind)
    wins = op.Greater(op.Squeeze(second, np.array([1])), op.constant(0.0, values.FLOAT))
    return [values.either(call, names if isinstance(names[0], str) else [0, 1], wins), found]


def _is_paired(forest: Forest, stored: np.ndarray) -> bool:
    """Return whether the numbers come in pairs for the same leaf: that of the first class is the negated second."""
    if len(stored) % 2:
        return False
    ids, leaves = forest.targets.reshape(-1, 2), forest.leaves.reshape(-1, 2)
    halves = stored.reshape(-1, 2)
    return bool(
        (ids == [0, 1]).all() and (leaves[:, 0] == leaves[:, 1]).all() and (halves[:, 0] == -halves[:, 1]).all()
    )


def _finished(call: Call, scores: Value, forest: Forest, kind: str) -> Value:
    # ONNX Runtime transforms a single target by PROBIT only.
    return scores if forest.count == 1 and kind != "PROBIT" else values.transformed(call, scores, kind)


def _base(call: Call, base: np.ndarray) -> Value:
    name = "base_values_as_tensor" if call.attr("base_values_as_tensor", None) is not None else "base_values"
    return values.weight(call, name, base)


def _covers(forest: Forest) -> bool:
    """Return whether each class has a tree all of whose leaves know it."""
    tree = forest.tree_of()
    leaves = np.flatnonzero((forest.modes == forests.LEAF) & (tree >= 0))
    known = np.zeros((len(forest.modes), forest.count), bool)
    known[forest.leaves, forest.targets] = True
    lacking = np.zeros((len(forest.roots), forest.count), bool)
    np.logical_or.at(lacking, tree[leaves], ~known[leaves])
    return bool((~lacking).any(axis=0).all())


def _scores(
    call: Call, forest: Forest, kind: str, dtype: ir.DataType | None = None, stored: np.ndarray | None = None
) -> Value:
    """Return the numbers of the leaves that each sample reaches, joined over the trees: (N, targets).

    `stored` are the numbers if they are not those of the attribute, one by one.
    """
    op = call.op
    X = values.rows(call, call.required(0))
    width = call.size(X, 1)
    if isinstance(width, int) and forest.features.max(initial=0) >= width:
        raise CannotDecompose("more features than the input has columns")
    if forest.depth() > DEEPEST:
        raise CannotDecompose("a very deep tree")
    attributes = plain_attributes(call.node)
    name = weights_name(call.node.op_type, attributes)
    stored = forests.numbers(attributes, name.removesuffix("_as_tensor")) if stored is None else stored
    leaf = _walk(call, forest, X)
    weight = values.weight(call, name, stored)
    if name in call.clipped:
        weight = op.Clip(weight, 0.0)
    tree = forest.tree_of()[forest.leaves]
    single = len(np.unique(forest.leaves)) == len(forest.leaves)
    same = single and all(np.unique(forest.targets[tree == t]).size <= 1 for t in range(len(forest.roots)))
    shape = (len(forest.modes),) if same else (len(forest.modes), forest.count)
    slots = np.full(shape, len(stored), np.int64)
    place = (forest.leaves,) if same else (forest.leaves, forest.targets)
    slots[place] = np.arange(len(stored))
    if (slots[place] != np.arange(len(stored))).any():
        raise CannotDecompose("a leaf with two weights for one target")
    reached = slots[(forest.modes == forests.LEAF) & (forest.tree_of() >= 0)]
    if (reached == len(stored)).any():
        if kind in ("MIN", "MAX"):
            raise CannotDecompose("leaves without a weight")
        weight = op.Concat(weight, np.zeros(1, stored.dtype), axis=0)
    elif kind in ("MIN", "MAX") and same and forest.count > 1:
        raise CannotDecompose("trees of different targets")
    found = op.Gather(weight, op.Gather(op.constant(slots), leaf, axis=0), axis=0)  # (N, trees) or (N, trees, targets)
    given, keyword = values.axes(call, 1)
    if kind in ("MIN", "MAX"):
        made = (op.ReduceMin if kind == "MIN" else op.ReduceMax)(found, *given, **keyword, keepdims=int(same))
    elif same and forest.count > 1:
        pairs = [(t, k) for t, k in zip(tree.tolist(), forest.targets.tolist(), strict=True) if t >= 0]
        dtype_of = ir.DataType.from_numpy(stored.dtype)
        share = values.incidence(call, pairs, (len(forest.roots), forest.count), dtype_of)
        made = op.MatMul(found, share)
    else:
        made = op.ReduceSum(found, np.array([1]), keepdims=int(same))
    if kind == "AVERAGE":
        made = op.Div(made, op.constant(float(len(forest.roots)), ir.DataType.from_numpy(stored.dtype)))
    return made if dtype is None else op.cast(made, dtype)


def _walk(call: Call, forest: Forest, X: Value) -> Value:
    """Return the leaf that each sample reaches in each tree: (N, trees) of int64."""
    op = call.op
    # Comparisons are in the type of the input if that is floating point, else in that of the splits.
    dtype = ir.DataType.from_numpy(forest.splits.dtype)
    if X.dtype != dtype:
        if X.dtype == ir.DataType.DOUBLE:
            dtype = ir.DataType.DOUBLE
        X = op.cast(X, dtype)
    count = op.Slice(op.Shape(X), np.array([0]), np.array([1]))
    node = op.Expand(op.constant(forest.roots[None]), op.Concat(count, np.array([1]), axis=0))
    depth = forest.depth()
    if not depth:
        return node
    used = sorted(set(forest.modes.tolist()) - {forests.LEAF})
    splits = values.fixed(call, _splits_name(call), forest.splits.astype(dtype.numpy()), STEPS)
    features, yes, no = (op.constant(a) for a in (forest.features, forest.yes, forest.no))
    for _ in range(depth):
        x = op.GatherElements(X, op.Gather(features, node, axis=0), axis=1)
        true = _decided(call, forest, used, x, op.Gather(splits, node, axis=0), node)
        if forest.missing_is_true.any():
            tracks = op.Gather(op.constant(forest.missing_is_true), node, axis=0)
            true = op.Or(true, op.And(op.IsNaN(x), tracks))
        node = op.Where(true, op.Gather(yes, node, axis=0), op.Gather(no, node, axis=0))
    return node


def _splits_name(call: Call) -> str:
    if call.node.op_type == "TreeEnsemble":
        return "nodes_splits"
    tensor = "nodes_values_as_tensor"
    return tensor if call.attr(tensor, None) is not None else "nodes_values"


def _decided(call: Call, forest: Forest, used: list[int], x: Value, split: Value, node: Value) -> Value:
    """Return what the node decides, (N, trees) of truth values."""
    op = call.op
    compare = {
        forests.LEQ: lambda: op.LessOrEqual(x, split),
        forests.LT: lambda: op.Less(x, split),
        forests.GTE: lambda: op.GreaterOrEqual(x, split),
        forests.GT: lambda: op.Greater(x, split),
        forests.EQ: lambda: op.Equal(x, split),
        forests.NEQ: lambda: op.Not(op.Equal(x, split)),
        forests.MEMBER: lambda: _member(call, forest, x, node),
    }
    true = compare[used[0]]()
    if len(used) > 1:
        mode = op.Gather(op.constant(forest.modes), node, axis=0)
        for other in used[1:]:
            other_mode = op.Equal(mode, np.array(other, np.int64))
            true = op.Or(op.And(other_mode, compare[other]()), op.And(op.Not(other_mode), true))
    return true


def _member(call: Call, forest: Forest, x: Value, node: Value) -> Value:
    """Return whether x is in the set of the node; NaN fills sets up, and is equal to nothing."""
    op, largest = call.op, max(len(s) for s in forest.sets.values())
    table = np.full((len(forest.sets), max(largest, 1)), np.nan, forest.splits.dtype)
    which = np.zeros(len(forest.modes), np.int64)
    for position, (owner, held) in enumerate(forest.sets.items()):
        table[position, : len(held)] = held
        which[owner] = position
    assert x.dtype is not None
    members = values.fixed(call, "membership_values", table.astype(x.dtype.numpy()), STEPS)
    sets = op.Gather(members, op.Gather(op.constant(which), node, axis=0), axis=0)
    same = op.Cast(op.Equal(op.Unsqueeze(x, np.array([-1])), sets), to=values.FLOAT)
    given, keyword = values.axes(call, -1)
    return op.Cast(op.ReduceMax(same, *given, **keyword, keepdims=0), to=ir.DataType.BOOL)
