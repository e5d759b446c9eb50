"""Gradients through If, Loop, Scan, sequences and optionals: values, checker, ONNX Runtime, second order."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from autodiff.text_models import model, parse, run
from cases.control_flow import CASES as ALL
from onward.compiler.derivatives import gradient
from onward.errors import NotDifferentiable
from onward.testing import assert_gradients

CASES = {str(case): case.model() for case in ALL}


GROWING = """net (double[N] x, int64 n, int64 m) => (double[M] y) {
    y = Loop(n, "", x) <body = outer (int64 i, bool c, double[A] v) => (bool k, double[B] r) {
        k = Identity(c)
        g = Loop(m, "", v) <body = inner (int64 j, bool d, double[C] u) => (bool l, double[D] s) {
            l = Identity(d)
            t = Tanh(u)
            s = Concat<axis=0>(t, u)
        }>
        one = Constant<value_ints=[1]>()
        end = Constant<value_ints=[4]>()
        zero = Constant<value_ints=[0]>()
        r = Slice(g, one, end, zero)
    }>
}"""


@pytest.mark.parametrize(("outer", "inner"), [(2, 2), (1, 0), (0, 1)])
def test_sequences_that_an_inner_loop_keeps_are_packed_for_the_outer_one(outer: int, inner: int) -> None:
    """An inner loop whose state grows keeps a sequence, in every iteration of the outer one."""
    feeds = {"x": np.array([0.3, -0.4, 0.8, 0.1, 0.6]), "n": np.array(outer), "m": np.array(inner)}

    assert_gradients(model(GROWING, **feeds), ["x"])


def test_packed_sequences_give_the_same_on_onnxruntime() -> None:
    feeds = {"x": np.array([0.3, -0.4, 0.8], np.float32), "n": np.array(2), "m": np.array(2)}
    lowered = gradient(parse(GROWING.replace("double", "float")), of="y", wrt=["x"])
    session = onnxruntime.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"])

    (actual,) = session.run(["grad/x"], feeds)

    np.testing.assert_allclose(actual, run(lowered, **feeds)["grad/x"], rtol=1e-5)


def test_sequences_that_a_loop_keeps_inside_a_scan_are_refused() -> None:
    text = """net (double[2] h, double[3,2] x, int64 m) => (double[2] y, double[3] z) {
        y, z = Scan <num_scan_inputs=1, body = step (double[2] s, double[2] e) => (double[2] r, double q) {
            v = Add(s, e)
            g = Loop(m, "", v) <body = inner (int64 j, bool d, double[C] u) => (bool l, double[D] w) {
                l = Identity(d)
                t = Tanh(u)
                w = Concat<axis=0>(t, u)
            }>
            q = ReduceSumSquare<keepdims=0>(g)
            r = Tanh(v)
        }> (h, x)
    }"""

    with pytest.raises(NotDifferentiable, match="a Scan outputs only tensors; use a Loop"):
        gradient(parse(text), of="z", wrt=["x"])


BAGS = """net (double[N, 2] w, int64[M] offsets, int64 n) => (double[B, 2] y) {
    zero = Constant<value_int=0>()
    one = Constant<value_ints=[1]>()
    first = Less(zero, n)
    none = SequenceEmpty<dtype=11>()
    last, bags = Loop("", first, zero, none) <body = each (int64 i, bool c, int64 k, seq(double[1, 2]) s) =>
                                                       (bool more, int64 next, seq(double[1, 2]) t) {
        at = Reshape(k, one)
        after = Add(at, one)
        after2 = Add(after, one)
        start = Slice(offsets, at, after)
        end = Slice(offsets, after, after2)
        nothing = Equal(start, end)
        row = If(nothing) <
            then_branch = empty () => (double[1, 2] zeros) {
                zeros = Constant<value = double[1, 2] {0.0, 0.0}>()
            },
            else_branch = full () => (double[1, 2] outer) {
                outer = If(first) <
                    then_branch = sum () => (double[1, 2] total) {
                        axis = Constant<value_ints=[0]>()
                        rows = Slice(w, start, end)
                        total = ReduceSum(rows, axis)
                    },
                    else_branch = max () => (double[1, 2] largest) {
                        axis2 = Constant<value_ints=[0]>()
                        rows2 = Slice(w, start, end)
                        largest = ReduceMax(rows2, axis2)
                    }
                >
            }
        >
        t = SequenceInsert(s, row)
        step = Constant<value_int=1>()
        next = Add(k, step)
        more = Less(next, n)
    }>
    y = ConcatFromSequence<axis=0>(bags)
}"""


def test_every_bag_of_rows_that_a_loop_sums_gets_its_gradient() -> None:
    """Slice without axes, at a start of unknown length, in an If in an If in a while: nn.EmbeddingBag, as exported."""
    w = np.random.default_rng(0).standard_normal((7, 2))

    assert_gradients(model(BAGS, w=w, offsets=np.array([0, 2, 2, 5, 7]), n=np.array(4)), ["w"])


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
    assert "in node `outer` (Loop), between input `x` and output `y`" in messages
