"""Inference over a message without large tensors finds what it finds with them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from onward.graph import shapes
from onward.model import serde


@pytest.mark.parametrize("operator", ["Add", "Cast", "Gather", "Concat"])
def test_long_lists_of_integers_and_large_weights_are_inferred(operator):
    attributes = {"Cast": {"to": TensorProto.INT64}, "Concat": {"axis": 0}}.get(operator, {})
    reads = ["list"] if operator == "Cast" else ["list", "list"]
    constant = numpy_helper.from_array(np.ones((50, 60), np.float32))
    graph = helper.make_graph(
        [
            helper.make_node(operator, reads, ["i"], **attributes),
            helper.make_node("Constant", [], ["c"], value=constant),
            helper.make_node("MatMul", ["x", "W"], ["h"]),
            helper.make_node("MatMul", ["h", "c"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 40])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.zeros(3000, np.int64), "list"),
            numpy_helper.from_array(np.ones((40, 50), np.float32), "W"),
        ],
    )
    model = serde.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))

    assert shapes.infer_shapes(model.ir)

    found = {v.name: shapes.dims(v) for node in model.graph for v in node.outputs}
    assert found == {"i": (6000 if operator == "Concat" else 3000,), "c": (50, 60), "h": ("N", 50), "y": ("N", 60)}


@pytest.mark.parametrize(("shape", "all_axes"), [(None, False), ([], True), (["N", 3], False), ([4], True)])
def test_whether_all_axes_are_reduced_needs_no_particular_rank(shape, all_axes):
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([0]), "axes")],
    )
    model = serde.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))

    assert shapes.reduces_all(next(iter(model.graph))) is all_axes
