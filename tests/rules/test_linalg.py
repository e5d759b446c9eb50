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
