"""Backward graphs of linear algebra, shape and indexing stay small where shapes are known."""

from __future__ import annotations

import numpy as np
import pytest

import onward.testing.gradcheck as gradcheck
from onward.compiler.derivatives import gradient
from onward.testing import OneNodeModel, one_node_model

W = np.ones((3, 4), np.float32)
X = np.ones((2, 5, 3), np.float32)


def backward(model: OneNodeModel, wrt: list[str]) -> list[str]:
    lowered = gradient(gradcheck._with_loss(model, {}), of="testing/loss", wrt=wrt)
    prefix = f"grad/{model.node.op_type}/"
    return [n.op_type for n in lowered.graph.node if n.name.startswith(prefix) and n.op_type != "Constant"]


def test_the_gradient_of_a_weight_is_one_product_of_matrices() -> None:
    assert backward(one_node_model("MatMul", A=X, B=W), ["B"]) == ["Flatten", "Transpose", "Flatten", "MatMul"]


def test_a_gemm_has_a_gemm_for_each_operand() -> None:
    model = one_node_model("Gemm", A=X[0], B=W, C=W[0], alpha=0.5)

    assert backward(model, ["A", "B", "C"]) == ["Gemm", "Gemm", "ReduceSum"]


@pytest.mark.parametrize(
    ("op", "arguments", "expected"),
    [
        ("Transpose", {"data": X, "perm": [2, 0, 1]}, ["Transpose"]),
        ("Reshape", {"data": X, "shape": np.array([-1, 3])}, ["Reshape"]),
        ("Slice", {"data": X, "starts": np.array([1]), "ends": np.array([3]), "axes": np.array([1])}, ["Pad"]),
        ("Pad", {"data": X, "pads": np.array([0, 1, 0, 0, 2, 0])}, ["Pad"]),
        ("Concat", {"inputs": [X, X], "axis": 1}, ["Split"]),
        (
            "Gather",
            {"data": W, "indices": np.array([0, 2])},
            ["Reshape", "Expand", "ConstantOfShape", "ScatterElements"],
        ),
        ("CumSum", {"x": X, "axis": np.array(1)}, ["CumSum"]),
    ],
)
def test_a_gradient_is_as_small_as_its_formula(op: str, arguments: dict, expected: list[str]) -> None:
    integers = [k for k, v in arguments.items() if isinstance(v, np.ndarray) and v.dtype.kind == "i"]
    model = one_node_model(op, constants=integers, **arguments)
    names = [n for n, a in model.feeds.items() if a.dtype.kind == "f"]

    assert backward(model, names) == expected


def test_nearest_neighbours_at_a_whole_factor_are_summed_in_blocks() -> None:
    model = one_node_model(
        "Resize",
        X=np.ones((1, 1, 2, 3), np.float32),
        scales=np.array([1, 1, 2, 2], np.float32),
        constants=["scales"],
        mode="nearest",
    )

    assert backward(model, ["X"]) == ["Reshape", "ReduceSum"]
