"""Attributes of ai.onnx.ml that contradict each other: all of them are named, with what is needed; nothing crashes."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import onnx
import pytest

import onward
from onward.backends.base import open_session
from upgrade.ml_cases import FLOAT, INT, ROUND, Case, X, grown, model_of, new_trees, tensor

TREES = {**grown(2, 2), "n_targets": 1}
CLASSES = {**grown(3, 2, ids=(0, 1, 2), kind="class"), "classlabels_int64s": [0, 1, 2]}
SVC = {
    "coefficients": [0.5] * 4, "support_vectors": [0.1] * 8, "vectors_per_class": [1, 1], "rho": [0.1],
    "classlabels_ints": [0, 1], "kernel_type": "RBF", "kernel_params": [0.1, 0.0, 0.0],
}  # fmt: skip


def trees(**changes: Any) -> Case:
    return Case("TreeEnsembleRegressor", [ROUND], {**copy.deepcopy(TREES), **changes}, [FLOAT], 3)


def classes(**changes: Any) -> Case:
    return Case("TreeEnsembleClassifier", [ROUND], {**copy.deepcopy(CLASSES), **changes}, [INT, FLOAT])


def svc(**changes: Any) -> Case:
    return Case("SVMClassifier", [X], {**SVC, "coefficients": [0.5] * 2, **changes}, [INT, FLOAT])


def circle() -> Case:
    """Return a tree whose second node goes back to its root."""
    back = [0 if i == 1 else n for i, n in enumerate(TREES["nodes_truenodeids"])]
    return trees(nodes_truenodeids=back)


def linear(op_type: str, outputs: list[int], **attributes: Any) -> Case:
    return Case(op_type, [X], attributes, outputs)


WRONG: dict[str, tuple[Case, str]] = {
    "lists of different length": (trees(nodes_featureids=[0]), "the lists differ in length"),
    "no nodes": (trees(**{k: [] for k in TREES if k.startswith("nodes_")}), "the lists are empty"),
    "weights of different length": (trees(target_weights=[1.0]), "the lists differ in length"),
    "an unknown mode": (trees(nodes_modes=["BRANCH_MAYBE"] * len(TREES["nodes_modes"])), "unknown kinds of nodes"),
    "no targets": (trees(n_targets=0), "there is no target"),
    "a target out of range": (trees(target_ids=[7] * len(TREES["target_ids"])), "`target_ids` are out of range"),
    "a child that does not exist": (
        trees(nodes_truenodeids=[99] * len(TREES["nodes_truenodeids"])), "`nodes_truenodeids` name nodes"),
    "a leaf that does not exist": (
        trees(target_nodeids=[99] * len(TREES["target_nodeids"])), "weights belong to nodes that do not exist"),
    "a circle": (circle(), "do not make a tree"),
    "two nodes of one number": (trees(nodes_nodeids=[0] * len(TREES["nodes_nodeids"])), "the same tree and number"),
    "a negative feature": (
        trees(nodes_featureids=[-1] * len(TREES["nodes_featureids"])), "`nodes_featureids` are negative"),
    "base values": (trees(base_values=[1.0, 2.0, 3.0]), "`base_values` do not fit"),
    "both forms of weights": (
        trees(nodes_values_as_tensor=tensor("v", TREES["nodes_values"], FLOAT)), "are both there"),
    "a class out of range": (classes(class_ids=[3] * len(CLASSES["class_ids"])), "`class_ids` are out of range"),
    "text and integers": (classes(classlabels_strings=["a", "b", "c"]), "labels of text and of integers"),
    "no labels": (classes(classlabels_int64s=[]), "there is no class"),
    "an unknown transform": (trees(post_transform="MAYBE"), "unknown `post_transform`"),
    "an unknown aggregate": (trees(aggregate_function="MEDIAN"), "unknown `aggregate_function`"),
    "new: a root out of range": (new_trees(FLOAT, tree_roots=[0, 44]), "`tree_roots` are out of range"),
    "new: a leaf out of range": (new_trees(FLOAT, nodes_truenodeids=[1, 0, 3, 55]), "`nodes_truenodeids` are out of"),
    "new: a target out of range": (new_trees(FLOAT, leaf_targetids=[0, 1, 0, 9, 0, 1]), "`leaf_targetids` are out of"),
    "new: a circle": (new_trees(FLOAT, nodes_trueleafs=[0, 0, 1, 1]), "do not make a tree"),
    "new: modes": (
        new_trees(FLOAT, nodes_modes=tensor("m", [0, 9, 1, 2], onnx.TensorProto.UINT8)), "unknown kinds of nodes"),
    "new: sets without members": (
        new_trees(FLOAT, nodes_modes=tensor("m", [6, 6, 1, 2], onnx.TensorProto.UINT8)), "one set of members"),
    "new: an enumeration": (new_trees(FLOAT, aggregate_function=9), "`aggregate_function` is out of range"),
    "linear coefficients": (
        linear("LinearRegressor", [FLOAT], coefficients=[1.0] * 5, targets=2), "`coefficients` do not fit"),
    "linear intercepts": (
        linear("LinearRegressor", [FLOAT], coefficients=[1.0] * 4, intercepts=[1.0, 2.0]), "`intercepts` do not fit"),
    "classifier labels": (
        linear("LinearClassifier", [INT, FLOAT], coefficients=[1.0] * 12, intercepts=[1.0] * 3,
               classlabels_ints=[0, 1]), "`intercepts` do not fit"),
    "support vectors": (svc(support_vectors=[0.1] * 7), "`support_vectors` do not fit"),
    "svm coefficients": (svc(coefficients=[0.5]), "`coefficients` do not fit"),
    "svm rho": (svc(rho=[]), "`rho` does not fit"),
    "svm counts": (svc(vectors_per_class=[5, -3]), "`vectors_per_class` are negative"),
    "svm labels": (svc(classlabels_ints=[0, 1, 2]), "`vectors_per_class` do not fit"),
    "svm kernel": (svc(kernel_type="FREE"), "unknown `kernel_type`"),
    "svm probabilities": (svc(prob_a=[0.1]), "`prob_a` and `prob_b` differ"),
    "scaler": (linear("Scaler", [FLOAT], offset=[1.0, 2.0], scale=[1.0, 2.0, 3.0, 4.0]), "differ in length"),
    "norm": (linear("Normalizer", [FLOAT], norm="L7"), "unknown `norm`"),
    "imputed": (linear("Imputer", [FLOAT], imputed_value_floats=[1.0], imputed_value_int64s=[1]), "not of one kind"),
    "labels": (Case("LabelEncoder", [np.array([1, 2])], {"keys_int64s": [1, 2], "values_int64s": [1]}, [INT], 2),
               "keys and values differ in length"),
    "categories": (Case("OneHotEncoder", [np.array([1, 2])], {"cats_int64s": [1], "cats_strings": ["a"]}, [FLOAT]),
                   "not of one kind"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_contradiction_is_refused_with_its_place(name: str) -> None:
    case, message = WRONG[name]
    proto, _ = model_of(case)

    with pytest.raises(onward.OnwardError) as refused:
        onward.make_trainable(proto, loss="mse", output=proto.graph.output[-1].name)
    report = onward.check(proto)

    found = [d for d in refused.value.diagnostics if message in d.message]
    assert found, refused.value
    assert found[0].code == "M122"
    assert "node `it`" in found[0].place
    assert found[0].needed
    assert any(d.code == "C148" and message in d.message for d in report.errors)
    with pytest.raises(onward.OnwardError):
        onward.compile(proto)


def test_all_contradictions_are_reported_at_once() -> None:
    proto, _ = model_of(trees(n_targets=0, nodes_featureids=[0], post_transform="MAYBE"))

    with pytest.raises(onward.OnwardError) as refused:
        onward.compile(proto)

    assert {d.message for d in refused.value.diagnostics} >= {
        "the lists differ in length", "there is no target", "unknown `post_transform`",
    }  # fmt: skip


def chain(depth: int) -> Case:
    """Return one tree that is a chain of decisions."""
    nodes = list(range(2 * depth + 1))
    return Case(
        "TreeEnsembleRegressor",
        [np.float32([[0.5, 0, 0, 0], [depth + 1, 0, 0, 0]])],
        {
            "nodes_treeids": [0] * len(nodes), "nodes_nodeids": nodes, "nodes_featureids": [0] * len(nodes),
            "nodes_values": [float(n // 2) for n in nodes],
            "nodes_modes": ["BRANCH_LEQ" if n % 2 == 0 and n < 2 * depth else "LEAF" for n in nodes],
            "nodes_truenodeids": [n + 1 if n % 2 == 0 and n < 2 * depth else 0 for n in nodes],
            "nodes_falsenodeids": [n + 2 if n % 2 == 0 and n < 2 * depth else 0 for n in nodes],
            "target_treeids": [0] * (depth + 1), "target_nodeids": [*range(1, 2 * depth, 2), 2 * depth],
            "target_ids": [0] * (depth + 1), "target_weights": [float(n) for n in range(depth + 1)], "n_targets": 1,
        },
        [FLOAT],
    )  # fmt: skip


def test_a_tree_that_would_crash_the_runtime_is_refused() -> None:
    """ONNX Runtime 1.31 ends in a segmentation fault at 20,000 levels."""
    proto, _ = model_of(chain(20_000))

    with pytest.raises(onward.OnwardError, match=r"(?s)M122.*20000 levels"):
        onward.compile(proto)


def test_a_feature_beyond_the_columns_is_refused() -> None:
    """A runtime would read what follows the row in memory."""
    proto, _ = model_of(trees(nodes_featureids=[4] * len(TREES["nodes_featureids"])))

    with pytest.raises(onward.OnwardError, match=r"(?s)M122.*beyond the columns.*0 to 3"):
        onward.compile(proto)


def test_a_deep_tree_is_walked_and_a_very_deep_one_is_left_to_the_runtime() -> None:
    proto, feeds = model_of(chain(60))
    session = open_session(onward.compile(proto), "onnxruntime")
    deep = onward.compile(model_of(chain(600))[0]).infer

    assert session.infer(feeds)["y0"].reshape(-1).tolist() == [1.0, 60.0]
    assert [n.op_type for n in deep.graph.node if n.domain] == ["TreeEnsembleRegressor"]
