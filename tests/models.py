"""Small models shared by the tests, built with onnx's own helpers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from onward import versions


def perceptron(sizes: Sequence[int] = (4, 8, 3), *, opset: int = 18, dtype: type = np.float32) -> onnx.ModelProto:
    """Return a multi-layer perceptron `x` -> `logits` with weights W0, b0, W1 …"""
    rng = np.random.default_rng(0)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes, weights, value = [], [], "x"
    for i, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        last = i == len(sizes) - 2
        weights.append(
            numpy_helper.from_array((rng.standard_normal((rows, columns)) / rows**0.5).astype(dtype), f"W{i}")
        )
        weights.append(numpy_helper.from_array(np.zeros(columns, dtype), f"b{i}"))
        result = "logits" if last else f"z{i}"
        nodes.append(helper.make_node("Gemm", [value, f"W{i}", f"b{i}"], [result], name=f"fc{i}"))
        value = result
        if not last:
            nodes.append(helper.make_node("Relu", [value], [f"a{i}"], name=f"relu{i}"))
            value = f"a{i}"
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x", kind, ["N", sizes[0]])],
        [helper.make_tensor_value_info("logits", kind, ["N", sizes[-1]])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def dropout_network(ratio: float = 0.5) -> onnx.ModelProto:
    """Return `x` -> Gemm -> Relu -> Dropout -> Gemm -> `logits`."""
    model = perceptron()
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(np.float32(ratio), "ratio"))
    graph.node.insert(2, helper.make_node("Dropout", ["a0", "ratio"], ["d0"], name="drop"))
    graph.node[3].input[0] = "d0"
    return model


def batch(rows: int = 16, features: int = 4, classes: int = 3, seed: int = 0) -> dict[str, np.ndarray]:
    """Return a batch for `perceptron`: `x` and integer `labels`."""
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((rows, features)).astype(np.float32),
        "labels": rng.integers(0, classes, rows),
    }


def stock_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return a session of ONNX Runtime on the CPU; skip the test where the installed one does not read such a graph."""
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    needed = versions.runtime_needed(onnxruntime.__version__, opset, model.ir_version)
    if needed:
        pytest.skip(f"needs {needed}")
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
