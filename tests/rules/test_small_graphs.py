"""Backward graphs stay small: where shapes are known, none is computed at run time."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import onward.testing.gradcheck as gradcheck
from cases import Case
from onward.compiler.derivatives import gradient

FAMILIES = ("arithmetic", "elementary", "activation", "softmax", "reduction", "loss", "normalization", "random")
CASES = [
    case
    for family in FAMILIES
    for case in importlib.import_module(f"cases.{family}").CASES
    if case.name != "computed axes"  # what is reduced is known at run time only
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_backward_graph_has_no_shape_arithmetic_where_shapes_are_known(case: Case) -> None:
    model = case.model(dtype=np.float32)

    lowered = gradient(gradcheck._with_loss(model, {}), of="testing/loss", wrt=case.differentiated(model))

    operators = {n.op_type for n in lowered.graph.node}
    assert not operators & {"Shape", "Size", "NonZero", "Range"}


@pytest.mark.parametrize(
    ("op", "most"),
    [("Relu", 3), ("Sigmoid", 3), ("Tanh", 3), ("Exp", 1), ("Softmax", 4), ("LogSoftmax", 4), ("Add", 2), ("Clip", 15)],
)
def test_backward_graph_is_as_small_as_the_formula(op: str, most: int) -> None:
    cases = [c for c in CASES if c.op == op]

    for case in cases:
        model = case.model(dtype=np.float32)
        lowered = gradient(gradcheck._with_loss(model, {}), of="testing/loss", wrt=case.differentiated(model))
        backward = [n for n in lowered.graph.node if n.name.startswith(f"grad/{op}/") and n.op_type != "Constant"]

        assert len(backward) <= most, f"{case}: {[n.op_type for n in backward]}"
