"""Models of one ai.onnx.ml operator each, for the tests of its decompositions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(7, 4)).astype(np.float32)
HOLES = np.where(RANDOM.random((7, 4)) < 0.3, np.nan, X).astype(np.float32)
FLOAT, INT, TEXT, DOUBLE = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.DOUBLE
POST = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")


class Case(NamedTuple):
    op_type: str
    inputs: list[np.ndarray]
    attributes: dict[str, Any]
    outputs: list[int]
    version: int = 1


def numbers(count: int, scale: float = 1.0) -> list[float]:
    return [float(v) for v in RANDOM.normal(size=count).astype(np.float32) * scale]


def grown(
    trees: int = 3,
    depth: int = 3,
    ids: tuple[int, ...] = (0,),
    *,
    modes: tuple[str, ...] = ("BRANCH_LEQ",),
    kind: str = "target",
    positive: bool = False,
    every: bool = False,
    missing: bool = False,
) -> dict[str, Any]:
    """Return the attributes of random trees: each of one id in turn, or with `every`, all ids in each leaf."""
    nodes: dict[str, list[Any]] = {
        f"nodes_{n}": [] for n in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    }
    leaves: dict[str, list[Any]] = {f"{kind}_{n}": [] for n in ("treeids", "nodeids", "ids", "weights")}
    tracks = []
    for tree in range(trees):
        size = 2 ** (depth + 1) - 1
        for node in range(size):
            leaf = node >= 2**depth - 1 or (node > 2 and RANDOM.random() < 0.2)
            value = float(np.round(RANDOM.normal(), 1)) if not leaf else 0.0
            mode = "LEAF" if leaf else str(RANDOM.choice(modes))
            for name, entry in zip(
                nodes, (tree, node, int(RANDOM.integers(4)), value, mode, 2 * node + 1, 2 * node + 2), strict=True
            ):
                nodes[name].append(entry if not leaf or "nodeids" not in name or name == "nodes_nodeids" else 0)
            tracks.append(int(RANDOM.integers(2)))
            for target in (ids if every else (ids[tree % len(ids)],)) if leaf else ():
                weight = abs(numbers(1, 0.2)[0]) if positive else numbers(1)[0]
                for name, entry in zip(leaves, (tree, node, target, weight), strict=True):
                    leaves[name].append(entry)
    extra = {"nodes_missing_value_tracks_true": tracks} if missing else {}
    return {**nodes, **leaves, **extra}


ROUND = np.round(X, 1)
CASES: dict[str, Case] = {}
for post in POST:
    CASES |= {
        f"regressor {post}": Case(
            "LinearRegressor", [np.abs(X)],
            {"coefficients": [0.05, 0.1, 0.02, 0.1], "intercepts": [0.1], "post_transform": post}, [FLOAT]),
        f"regressor of three {post}": Case(
            "LinearRegressor", [np.abs(X)],
            {"coefficients": [abs(v) * 0.05 for v in numbers(12)], "intercepts": [0.1, 0.2, 0.3], "targets": 3,
             "post_transform": post}, [FLOAT]),
        f"classifier of three {post}": Case(
            "LinearClassifier", [np.abs(X)],
            {"coefficients": [abs(v) * 0.05 for v in numbers(12)], "intercepts": [0.1, 0.2, 0.3],
             "classlabels_ints": [7, 5, 9], "post_transform": post}, [INT, FLOAT]),
        f"trees {post}": Case(
            "TreeEnsembleRegressor", [ROUND],
            {**grown(6, ids=(0, 1, 2), positive=True), "n_targets": 3, "post_transform": post}, [FLOAT]),
        f"trees of one {post}": Case(
            "TreeEnsembleRegressor", [ROUND],
            {**grown(2, positive=True), "n_targets": 1, "post_transform": post}, [FLOAT]),
        f"svm pairs {post}": Case(
            "SVMClassifier", [X],
            {"coefficients": numbers(12, 0.1), "support_vectors": numbers(24), "vectors_per_class": [1, 2, 3],
             "rho": [0.4, 0.5, 0.6], "classlabels_ints": [3, 1, 2], "kernel_type": "LINEAR",
             "kernel_params": [1.0, 0.0, 0.0], "post_transform": post}, [INT, FLOAT]),
    }  # fmt: skip
    if post != "PROBIT":
        CASES |= {
            f"one score {post}": Case(
                "LinearClassifier", [X],
                {"coefficients": numbers(4), "intercepts": [0.1], "classlabels_strings": ["no", "yes"],
                 "post_transform": post}, [TEXT, FLOAT]),
            f"svm of two {post}": Case(
                "SVMClassifier", [X],
                {"coefficients": numbers(5), "support_vectors": numbers(20), "vectors_per_class": [2, 3],
                 "rho": [0.1], "classlabels_strings": ["a", "b"], "kernel_type": "RBF",
                 "kernel_params": [0.3, 0.0, 0.0], "post_transform": post}, [TEXT, FLOAT]),
            f"two classes {post}": Case(
                "TreeEnsembleClassifier", [ROUND],
                {**grown(4, kind="class"), "classlabels_int64s": [4, 5], "post_transform": post}, [INT, FLOAT]),
            f"two classes, positive, base {post}": Case(
                "TreeEnsembleClassifier", [ROUND],
                {**grown(4, kind="class", positive=True), "classlabels_strings": ["no", "yes"], "base_values": [0.1],
                 "post_transform": post}, [TEXT, FLOAT]),
            f"three classes {post}": Case(
                "TreeEnsembleClassifier", [ROUND],
                {**grown(6, ids=(0, 1, 2), kind="class"), "classlabels_int64s": [4, 5, 6],
                 "base_values": [0.1, 0.2, 0.3], "post_transform": post}, [INT, FLOAT]),
        }  # fmt: skip
for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
    CASES[f"svm {kernel}"] = Case(
        "SVMRegressor", [X],
        {"coefficients": numbers(5), "support_vectors": numbers(20), "n_supports": 5, "rho": [0.3],
         "kernel_type": kernel, "kernel_params": [0.2, 0.4, 3.0]}, [FLOAT])  # fmt: skip
for aggregate in ("SUM", "AVERAGE", "MIN", "MAX"):
    CASES[f"trees {aggregate}"] = Case(
        "TreeEnsembleRegressor", [ROUND],
        {**grown(5), "n_targets": 1, "aggregate_function": aggregate, "base_values": [0.7]}, [FLOAT])  # fmt: skip
    CASES[f"trees of every target {aggregate}"] = Case(
        "TreeEnsembleRegressor", [ROUND],
        {**grown(5, ids=(0, 1), every=True), "n_targets": 2, "aggregate_function": aggregate,
         "base_values": [0.7, 0.1]}, [FLOAT])  # fmt: skip
for mode in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ"):
    CASES[f"trees by {mode}"] = Case(
        "TreeEnsembleRegressor", [np.where(np.isnan(HOLES), np.nan, ROUND).astype(np.float32)],
        {**grown(5, modes=(f"BRANCH_{mode}",), missing=True), "n_targets": 1}, [FLOAT])  # fmt: skip
CASES |= {
    "trees of all modes": Case(
        "TreeEnsembleRegressor", [ROUND],
        {**grown(6, 4, modes=tuple(f"BRANCH_{m}" for m in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ"))), "n_targets": 1},
        [FLOAT]),
    "trees of doubles": Case(
        "TreeEnsembleRegressor", [ROUND.astype(np.float64)], {**grown(4), "n_targets": 1}, [FLOAT]),
    "every class": Case(
        "TreeEnsembleClassifier", [ROUND],
        {**grown(4, ids=(0, 1, 2), kind="class", every=True), "classlabels_strings": ["a", "b", "c"]}, [TEXT, FLOAT]),
    "svm linear": Case("SVMRegressor", [X], {"coefficients": numbers(4), "rho": [0.3], "n_supports": 0,
                                        "kernel_params": [1.0, 0.0, 0.0]}, [FLOAT]),
    "svm one class": Case(
        "SVMRegressor", [X],
        {"coefficients": numbers(5), "support_vectors": numbers(20), "n_supports": 5, "rho": [0.0], "one_class": 1,
         "kernel_type": "RBF", "kernel_params": [0.2, 0.4, 3.0]}, [FLOAT]),
    "two mirrored scores": Case(
        "LinearClassifier", [X],
        {"coefficients": [-1.0, 2.0, 0.5, -0.25, 1.0, -2.0, -0.5, 0.25], "intercepts": [-0.5, 0.5],
         "classlabels_ints": [3, 4], "post_transform": "LOGISTIC"}, [INT, FLOAT]),
    "two mirrored distances": Case(
        "LinearClassifier", [X],
        {"coefficients": [-1.0, 2.0, 0.5, -0.25, 1.0, -2.0, -0.5, 0.25], "intercepts": [-0.5, 0.5],
         "classlabels_strings": ["a", "b"]}, [TEXT, FLOAT]),
    "binarizer": Case("Binarizer", [X], {"threshold": 0.25}, [FLOAT]),
    "one hot": Case("OneHotEncoder", [np.array([3, 1, 2, 7, 1])], {"cats_int64s": [1, 2, 3], "zeros": 1}, [FLOAT]),
    "one hot of floats": Case(
        "OneHotEncoder", [np.array([[3.0, 1.0], [2.0, 7.0]], np.float32)], {"cats_int64s": [1, 2, 3]}, [FLOAT]),
    "imputer of integers": Case(
        "Imputer", [np.round(2 * X).astype(np.int64)],
        {"imputed_value_int64s": [9, 8, 7, 6], "replaced_value_int64": 0}, [INT]),
    "label to number": Case(
        "LabelEncoder", [np.array([[3, 1], [2, 5]])],
        {"keys_int64s": [1, 2, 3], "values_floats": [0.5, 0.25, 2.0], "default_float": -1.0}, [FLOAT], 2),
    "word to number": Case(
        "LabelEncoder", [np.array(["a", "c", "x"], object)],
        {"keys_strings": ["a", "b", "c"], "values_floats": [0.5, 0.25, 2.0], "default_float": -1.0}, [FLOAT], 2),
    "number to number": Case(
        "LabelEncoder", [np.array([1.5, 7.0, np.nan], np.float32)],
        {"keys_floats": [1.5, float("nan")], "values_int64s": [10, 20], "default_int64": -5}, [INT], 2),
    "NaN is a key": Case(
        "LabelEncoder", [np.array([1.5, 7.0, np.nan], np.float32)],
        {"keys_floats": [1.5, float("nan")], "values_int64s": [10, 20], "default_int64": -5}, [INT], 4),
    "label column": Case("ArrayFeatureExtractor", [np.array([[4, 5, 6]]), np.array([2, 0])], {}, [INT]),
    "scaler": Case("Scaler", [X], {"offset": numbers(4), "scale": numbers(4)}, [FLOAT]),
    "imputer": Case(
        "Imputer", [HOLES], {"imputed_value_floats": numbers(4), "replaced_value_float": float("nan")}, [FLOAT]),
    "L2": Case("Normalizer", [X], {"norm": "L2"}, [FLOAT]),
    "vectorizer": Case("FeatureVectorizer", [X, X[:, :2]], {"inputdimensions": [4, 2]}, [FLOAT]),
}  # fmt: skip


def tensor(name: str, values: Any, dtype: int) -> onnx.TensorProto:
    return helper.make_tensor(name, dtype, [len(values)], values)


def new_trees(dtype: int, *, member: bool = False, **more: Any) -> Case:
    """Return a TreeEnsemble of version 5: two trees, the second with two kinds of nodes."""
    numpy_type = helper.tensor_dtype_to_np_dtype(dtype)
    attributes = {
        "n_targets": 2, "aggregate_function": 1, "post_transform": 0, "tree_roots": [0, 2],
        "nodes_featureids": [0, 1, 2, 3],
        "nodes_splits": tensor("splits", [0.1, -0.2, 0.0, 0.3], dtype),
        "nodes_modes": tensor("modes", [0, 3, 6 if member else 1, 2], TensorProto.UINT8),
        "nodes_truenodeids": [1, 0, 3, 5], "nodes_trueleafs": [0, 1, 1, 1],
        "nodes_falsenodeids": [2, 1, 3, 4], "nodes_falseleafs": [1, 1, 0, 1],
        "leaf_targetids": [0, 1, 0, 1, 0, 1], "leaf_weights": tensor("w", [5.0, -1.5, 2.0, 0.25, 3.0, 1.0], dtype),
        **({"membership_values": tensor("m", [0.5, -1.0, 1.5, float("nan")], dtype)} if member else {}),
        **more,
    }  # fmt: skip
    rows = np.round(2 * RANDOM.normal(size=(9, 4))) / 2
    return Case("TreeEnsemble", [rows.astype(numpy_type)], attributes, [dtype], 5)


CASES |= {
    "new trees": new_trees(FLOAT),
    "new trees of doubles": new_trees(DOUBLE),
    "new trees, softmax zero": new_trees(FLOAT, post_transform=3),
    "new trees, average": new_trees(FLOAT, aggregate_function=0, nodes_missing_value_tracks_true=[1, 0, 0, 1]),
}


def paired(weights: list[float]) -> list[float]:
    """Return the numbers of leaves of two classes as CatBoost writes them: each after its negation."""
    return [v for w in weights[1::2] for v in (-w, w)]


PAIRS = {**grown(4, ids=(0, 1), kind="class", every=True)}
for post in POST:
    MANY = {
        "coefficients": numbers(12), "support_vectors": numbers(24), "vectors_per_class": [1, 2, 3], "rho": numbers(3),
        "prob_a": [-1.5, -0.7, -2.0], "prob_b": [0.1, -0.3, 0.2], "classlabels_ints": [3, 1, 2],
        "kernel_type": "RBF", "kernel_params": [0.3, 0.0, 0.0], "post_transform": post,
    }  # fmt: skip
    COUPLE = {
        "coefficients": numbers(5), "support_vectors": numbers(20), "vectors_per_class": [2, 3], "rho": [0.1],
        "prob_a": [-1.5], "prob_b": [0.1], "classlabels_strings": ["a", "b"],
        "kernel_type": "RBF", "kernel_params": [0.3, 0.0, 0.0], "post_transform": post,
    }  # fmt: skip
    CASES |= {
        f"svm probabilities {post}": Case("SVMClassifier", [X], MANY, [INT, FLOAT]),
        f"svm probabilities of two {post}": Case("SVMClassifier", [X], COUPLE, [TEXT, FLOAT]),
        f"two scores {post}": Case(
            "TreeEnsembleClassifier", [ROUND],
            {**grown(4, ids=(0, 1), kind="class", every=True, positive=post == "PROBIT"), "classlabels_int64s": [4, 5],
             "post_transform": post}, [INT, FLOAT]),
        f"two scores, one base {post}": Case(
            "TreeEnsembleClassifier", [ROUND],
            {**grown(4, ids=(0, 1), kind="class", positive=post == "PROBIT"), "classlabels_strings": ["no", "yes"],
             "base_values": [0.01], "post_transform": post}, [TEXT, FLOAT]),
    }  # fmt: skip
    if post != "PROBIT":
        CASES[f"two scores in pairs {post}"] = Case(
            "TreeEnsembleClassifier", [ROUND],
            {**PAIRS, "class_weights": paired(PAIRS["class_weights"]), "classlabels_int64s": [0, 1],
             "post_transform": post}, [INT, FLOAT])  # fmt: skip
# ONNX Runtime 1.31 takes whole numbers as members only; onnx's evaluator judges these.
MEMBERS = new_trees(DOUBLE, member=True)


def model_of(case: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    feeds = {f"x{i}": a for i, a in enumerate(case.inputs)}
    outputs = [f"y{i}" for i in range(len(case.outputs))]
    given = {n: v for n, v in case.attributes.items() if v != []}
    graph = helper.make_graph(
        [helper.make_node(case.op_type, list(feeds), outputs, name="it", domain="ai.onnx.ml", **given)],
        "net",
        [
            helper.make_tensor_value_info(
                n,
                TEXT if a.dtype == object else helper.np_dtype_to_tensor_dtype(a.dtype),
                ["N", *a.shape[1:]] if a.ndim > 1 else list(a.shape),
            )
            for n, a in feeds.items()
        ],
        [
            helper.make_value_info(n, helper.make_tensor_type_proto(t, None))
            for n, t in zip(outputs, case.outputs, strict=True)
        ],
    )
    imports = [helper.make_opsetid("ai.onnx.ml", case.version), helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8), feeds
