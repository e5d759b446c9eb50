"""What the cases cannot say of linear algebra: they are all run with distinct symbols for all dimensions."""

from __future__ import annotations

import numpy as np
import pytest

from onward.errors import NotDifferentiable
from onward.testing import assert_gradients, one_node_model


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 1), (3, 2)]),
        ("ij,jk->ik", [(2, 3), (1, 2)]),
        ("ij,ij->i", [(2, 3), (2, 1)]),
        ("...ij,j->...i", [(2, 2, 1), (3,)]),
        ("ij,jk,kl->il", [(2, 1), (3, 1), (2, 2)]),
    ],
)
def test_einsum_broadcasts_a_label_of_size_one(equation: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = [np.random.default_rng(i).normal(size=shape) for i, shape in enumerate(shapes)]
    model = one_node_model("Einsum", Inputs=arrays, equation=equation)

    assert_gradients(model)


def test_einsum_refuses_an_output_whose_size_onnx_infers_wrongly() -> None:
    model = one_node_model("Einsum", Inputs=[np.ones((2, 1)), np.ones((2, 3))], equation="ij,ij->ij")

    with pytest.raises(NotDifferentiable, match="label `j` of the output has size 1 in one input"):
        assert_gradients(model)


def test_the_gradient_of_a_large_determinant_builds_its_masks_at_run_time() -> None:
    X = np.random.default_rng(0).normal(size=(9, 9))
    model = one_node_model("Det", X=X)

    assert_gradients(model, rtol=1e-5, step=1e-4)


@pytest.mark.parametrize(
    "shapes", [((2, 1, 2, 3), (4, 3, 2)), ((4, 2, 3), (2, 1, 3, 2)), ((3,), (4, 3, 2)), ((4, 2, 3), (3,))]
)
def test_a_product_of_matrices_of_unknown_ranks_has_a_gradient_that_onnxruntime_runs(shapes: tuple) -> None:
    """ONNX Runtime's Einsum takes no ellipsis that stands for different numbers of axes."""
    from onnx import TensorProto, helper

    from onward.backends import onnxruntime
    from onward.compiler.derivatives import gradient

    flat = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, ["N" + n]) for n in "ab"]
    sizes = [helper.make_tensor_value_info(n, TensorProto.INT64, ["R" + n]) for n in "st"]
    nodes = [helper.make_node("Reshape", ["a", "s"], ["A"]), helper.make_node("Reshape", ["b", "t"], ["B"])]
    nodes += [helper.make_node("MatMul", ["A", "B"], ["y"]), helper.make_node("ReduceSum", ["y"], ["z"], keepdims=0)]
    total = helper.make_tensor_value_info("z", TensorProto.DOUBLE, [])
    graph = helper.make_graph(nodes, "g", [*flat, *sizes], [total])
    model = gradient(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), of="z", wrt=["a", "b"])
    a, b = (np.random.default_rng(i).normal(size=shape) for i, shape in enumerate(shapes))

    _, da, db = onnxruntime.run_model(model, [a.ravel(), b.ravel(), *(np.array(s) for s in shapes)])

    for found, x, other in ((da, a, lambda v: (v @ b).sum()), (db, b, lambda v: (a @ v).sum())):
        steps = np.eye(x.size).reshape(-1, *x.shape) * 1e-6
        wanted = np.array([(other(x + s) - other(x - s)) / 2e-6 for s in steps]).reshape(x.shape)
        np.testing.assert_allclose(found.reshape(x.shape), wanted, rtol=1e-6, atol=1e-8)
