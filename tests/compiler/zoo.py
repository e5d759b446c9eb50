"""Training models that between them hold every role, and data for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper, numpy_helper

import onward
from models import dropout_network, perceptron
from onward.model.training_model import TrainingModel


def normalised(*, dropout: bool = False) -> onnx.ModelProto:
    """Return `x` -> MatMul -> BatchNormalization (-> Dropout) -> `y`, with statistics that no batch has."""
    rng = np.random.default_rng(0)
    weights = {
        "W": rng.standard_normal((4, 3)),
        "scale": rng.uniform(0.5, 2.0, 3),
        "bias": np.zeros(3),
        "mean": np.full(3, 5.0),
        "variance": np.full(3, 0.5),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"], name="fc"),
        helper.make_node("BatchNormalization", ["h", "scale", "bias", "mean", "variance"], ["n"], name="norm"),
    ]
    nodes.append(helper.make_node("Dropout" if dropout else "Relu", ["n"], ["y"], name="last"))
    return _model(nodes, weights)


def dropping_branch() -> onnx.ModelProto:
    """Return `x` -> MatMul -> If (mean of `x` above -100: Dropout) -> `y`."""
    value = helper.make_tensor_value_info("branch", onnx.TensorProto.FLOAT, None)
    drop = helper.make_graph([helper.make_node("Dropout", ["h"], ["branch"], name="drop")], "then", [], [value])
    keep = helper.make_graph([helper.make_node("Identity", ["h"], ["branch"], name="keep")], "else", [], [value])
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"], name="fc"),
        helper.make_node("ReduceMean", ["x"], ["level"], name="level", keepdims=0),
        helper.make_node("Greater", ["level", "limit"], ["high"], name="compare"),
        helper.make_node("If", ["high"], ["y"], name="choose", then_branch=drop, else_branch=keep),
    ]
    return _model(nodes, {"W": np.random.default_rng(0).standard_normal((4, 3)), "limit": np.float32(-100)})


def _model(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def two_entries() -> TrainingModel:
    """Return a model that ends in BatchNormalization, with two training entries."""
    first = onward.make_trainable(normalised(), loss="mse", optimizer=onward.Adam(1e-2))
    return onward.make_trainable(
        first, loss="l1", optimizer="sgd", entry="second", label="labels2", loss_name="loss2", batch_norm="always"
    )


ZOO: dict[str, Callable[[], TrainingModel]] = {
    "average": lambda: onward.make_trainable(perceptron(), loss="mse", optimizer=onward.Adam(1e-2, ema=0.9)),
    "groups": lambda: onward.make_trainable(
        perceptron(),
        loss="mse",
        optimizer=onward.AdamW(1e-2, groups={"b*": {"weight_decay": 0.0}}, clip_global_norm=1.0, accumulate=2),
    ),
    "frozen": lambda: onward.make_trainable(perceptron(), loss="mse", optimizer=onward.Momentum(1e-2), train="*1"),
    "schedule": lambda: onward.make_trainable(
        perceptron(), loss="mse", optimizer=onward.SGD(onward.schedules.Cosine(1e-2, steps=10))
    ),
    "dropout": lambda: onward.make_trainable(dropout_network(), loss="mse", optimizer="adagrad", initialize="he"),
    "batch norm": lambda: onward.make_trainable(normalised(), loss="mse", optimizer="adam"),
    "batch norm and dropout": lambda: onward.make_trainable(normalised(dropout=True), loss="mse"),
    "dropout in a branch": lambda: onward.make_trainable(dropping_branch(), loss="mse"),
    "two entries": two_entries,
}


def feeds(names: tuple[str, ...], step: int, rows: int = 8) -> dict[str, np.ndarray]:
    """Return one batch: four features for the first name, three numbers for each other."""
    rng = np.random.default_rng(step)
    return {n: rng.standard_normal((rows, 3 if i else 4)).astype(np.float32) for i, n in enumerate(names)}
