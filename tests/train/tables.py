"""A real table with text and empty cells, and small networks for it."""

from __future__ import annotations

import json
from importlib import resources

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import onward

COLUMNS = ["Cylinders", "Horsepower", "Weight_in_lbs", "Origin"]
TARGET = "Miles_per_Gallon"


def cars():
    """Return 398 cars of 1970 to 1982 (UCI Auto MPG, as vega_datasets ships it): numbers, text, six empty cells."""
    import pandas

    rows = json.loads((resources.files("vega_datasets") / "_data" / "cars.json").read_text())
    table = pandas.DataFrame(rows).dropna(subset=[TARGET]).reset_index(drop=True)
    return table.assign(Year=pandas.to_datetime(table["Year"]))


def network(width: int, out: int = 1, seed: int = 0, batch: object = "N") -> onnx.ModelProto:
    """Return two dense layers."""
    rng = np.random.default_rng(seed)
    shapes = {"W1": (width, 8), "b1": (8,), "W2": (8, out), "b2": (out,)}
    weights = [numpy_helper.from_array((rng.normal(size=s) * 0.3).astype("f"), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Gemm", ["x", "W1", "b1"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["a"]),
        helper.make_node("Gemm", ["a", "W2", "b2"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, width])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, out])
    graph = helper.make_graph(nodes, "network", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def regression(width: int = 6) -> onward.TrainingModel:
    return onward.make_trainable(network(width), loss="mse", optimizer=onward.Adam(1e-2), label="mpg")


def classifier(width: int = 4, classes: int = 3) -> onward.TrainingModel:
    return onward.make_trainable(network(width, classes), loss="cross_entropy", optimizer=onward.SGD(0.1))
