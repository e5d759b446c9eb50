"""Gradients through If, Loop, Scan, sequences and optionals: values, checker, ONNX Runtime, second order."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onward.testing.gradcheck as gradcheck
from autodiff.text_models import model, run
from cases.control_flow import CASES as ALL
from onward.autodiff.api import gradient
from onward.errors import NotDifferentiable

CASES = {str(case): case.model() for case in ALL}


def test_second_order_through_nested_loops_is_refused_clearly() -> None:
    case = CASES["Loop-in a loop"]
    once = gradient(gradcheck._with_loss(case, {}), of="testing/loss", wrt=["x"])

    with pytest.raises(NotDifferentiable, match=r"ONNX has no\s+sequences of sequences"):
        gradient(once, of="grad/x", wrt=["x"])


def test_loop_without_iterations_hands_the_gradient_through() -> None:
    case = CASES["Loop-of no iteration"]
    lowered = gradient(case.proto, of="y", wrt=["x", "w"])

    result = run(lowered, **case.feeds)

    np.testing.assert_array_equal(result["grad/x"], [1.0, 1.0, 1.0])
    np.testing.assert_array_equal(result["grad/w"], [0.0, 0.0, 0.0])


def test_residuals_of_one_shape_are_scan_outputs_and_others_sequences() -> None:
    fixed = gradient(CASES["Loop-with scan output"].proto, of="y", wrt=["x"])
    growing = gradient(CASES["Loop-whose state grows"].proto, of="y", wrt=["x"])

    assert not [n for n in fixed.graph.node if n.op_type.startswith("Sequence")]
    assert [n for n in growing.graph.node if n.op_type == "SequenceEmpty"]


def test_dropout_in_a_branch_keeps_its_mask() -> None:
    text = """g (float[64] x, bool c) => (float[64] y) {
      ratio = Constant<value_float=0.5>()
      yes = Cast<to=9>(ratio)
      y = If(c) <then_branch = t () => (float[64] a) { a, m = Dropout(x, ratio, yes) },
                 else_branch = f () => (float[64] b) { b = Identity(x) }>
    }"""
    case = model(text, x=np.ones(64, np.float32), c=True)
    lowered = gradient(case.proto, of="y", wrt=["x"])

    result = run(lowered, **case.feeds)

    assert 0 < np.count_nonzero(result["y"]) < 64
    np.testing.assert_array_equal(result["grad/x"], result["y"])  # x is ones: y is the mask, scaled


def test_only_the_differentiated_state_is_carried_backwards() -> None:
    lowered = gradient(CASES["Scan-with two states"].proto, of="hT", wrt=["h0"])

    backward = next(n for n in reversed(lowered.graph.node) if n.op_type == "Scan")

    assert len(backward.output) == 1  # dh0, and nothing for k0, x or z


def test_everything_that_blocks_inside_a_body_is_listed_with_the_place() -> None:
    text = """g (float[3] x, int64 n) => (float[3] y) {
      y = Loop(n, "", x) <body = b (int64 i, bool ci, float[3] v) => (bool co, float[3] vo) {
         co = Identity(ci)
         u = my.ops.Riddle(v)
         vo = my.ops.Mystery(u)
      }>
    }"""
    proto = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 18, "my.ops" : 1]>\n' + text)
    proto.graph.node[0].name = "outer"

    with pytest.raises(NotDifferentiable) as caught:
        gradient(proto, of="y", wrt=["x"])

    messages = str(caught.value)
    assert "`Mystery` (my.ops)" in messages
    assert "`Riddle` (my.ops)" in messages
    assert "in `outer` (Loop), between input `x` and output `y`" in messages
