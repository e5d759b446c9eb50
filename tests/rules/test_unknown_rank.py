"""Rules of shape, indexing and linear algebra where not even the rank of a tensor is known."""

from __future__ import annotations

import importlib

import numpy as np
import onnx
import pytest

import onward.testing.gradcheck as gradcheck
from cases import Case
from onward.backends.reference import Evaluator
from onward.compiler.derivatives import gradient
from onward.errors import NotDifferentiable
from onward.testing import gradients

FAMILIES = (
    "linalg",
    "shape",
    "slicing",
    "creation",
    "indexing",
    "cumulative",
    "signal",
    "resize",
    "image",
    "roi",
)
CASES = [c for f in FAMILIES for c in importlib.import_module(f"cases.{f}").CASES if (c.opset or 18) >= 18]
# Their rules place things on axes counted from the front, and say so where the node does not tell the rank.
NEED_THE_RANK = {"Resize", "Upsample", "GridSample", "TensorScatter"}


def refuses(case: Case) -> bool:
    """Return whether the rule needs a rank that nothing tells."""
    if case.op == "Resize":  # a scale or a size for each axis
        return "axes" in case.arguments or not {"scales", "sizes"} & set(case.constants)
    if case.op == "GridSample":  # images only
        return case.arguments.get("mode") != "cubic"
    return case.op in NEED_THE_RANK


def without_ranks(case: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return the case's model with every floating-point input made by a Reshape to a shape given at run time."""
    model = case.model(dynamic=True)
    weights = gradcheck._random_weights(model, seed=0)
    proto = gradcheck._with_loss(model, weights)
    feeds = dict(model.feeds)
    graph = proto.graph
    reshapes = []
    for info in list(graph.input):
        array = model.feeds[info.name]
        if array.dtype.kind != "f":
            continue
        flat, shape = f"flat/{info.name}", f"shape/{info.name}"
        reshapes.append(onnx.helper.make_node("Reshape", [flat, shape], [info.name], allowzero=1))
        graph.input.append(onnx.helper.make_tensor_value_info(flat, info.type.tensor_type.elem_type, ["n"]))
        graph.input.append(onnx.helper.make_tensor_value_info(shape, onnx.TensorProto.INT64, ["r"]))
        feeds[flat], feeds[shape] = array.reshape(-1), np.array(array.shape, np.int64)
        graph.input.remove(info)
        del feeds[info.name]
    nodes = [*reshapes, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    loss = graph.output[-1]
    del graph.output[:]
    graph.output.append(loss)
    return proto, feeds


@pytest.mark.parametrize("case", [c for c in CASES if not refuses(c)], ids=str)
def test_gradient_is_the_same_where_no_rank_is_known(case: Case) -> None:
    static = case.model()
    names = case.differentiated(static)
    expected = gradients(static, names, weights=gradcheck._random_weights(static, seed=0))
    proto, feeds = without_ranks(case)

    lowered = gradient(proto, of="testing/loss", wrt=[f"flat/{n}" for n in names])

    actual = Evaluator(lowered).run(feeds)
    for name in names:
        np.testing.assert_allclose(
            actual[f"grad/flat/{name}"], expected[name].reshape(-1), rtol=1e-12, atol=1e-14, err_msg=name
        )


@pytest.mark.parametrize("case", [c for c in CASES if refuses(c)], ids=str)
def test_a_rule_that_needs_the_rank_says_so(case: Case) -> None:
    proto, _ = without_ranks(case)
    names = case.differentiated(case.model())

    with pytest.raises(NotDifferentiable, match="not known; give"):
        gradient(proto, of="testing/loss", wrt=[f"flat/{n}" for n in names])
