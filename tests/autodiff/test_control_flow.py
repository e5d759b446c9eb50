"""Gradients through If, Loop, Scan, sequences and optionals: values, checker, ONNX Runtime, second order."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import onward.testing.gradcheck as gradcheck
from autodiff.text_models import model, run
from onward.autodiff.api import gradient
from onward.backends.reference import Evaluator
from onward.errors import NotDifferentiable
from onward.testing import OneNodeModel, assert_gradients, gradients

IF = """g (double[3] x, double[3] w, bool c) => (double[3] y, double s) {
  h = Mul(x, w)
  y, s = If(c) <
    then_branch = t () => (double[3] a, double b) { e = Exp(h) a = Mul(e, x) b = ReduceSum<keepdims=0>(e) },
    else_branch = f () => (double[3] a2, double b2) { q = Tanh(w) a2 = Mul(q, h) b2 = ReduceSum<keepdims=0>(h) }>
}"""
IF_HANDS_THROUGH = """g (double[3] x, bool c) => (double[3] y) {
  y = If(c) <then_branch = t () => (double[3] a) { a = Identity(x) },
             else_branch = f () => (double[3] b) { b = Mul(x, x) }>
}"""
LOOP = """g (double[3] x, double[3] w, int64 n) => (double[3] y, double[T,3] s) {
  y, s = Loop(n, "", x) <body = b (int64 i, bool ci, double[3] v) => (bool co, double[3] vo, double[3] so) {
     co = Identity(ci)
     a = Mul(v, w)
     vo = Tanh(a)
     so = Mul(vo, vo)
  }>
}"""
LOOP_COUNTER = """g (double[K] x, double[K] w, int64 n) => (double[K] y) {
  y = Loop(n, "", x) <body = b (int64 i, bool ci, double[K] v) => (bool co, double[K] vo) {
     co = Identity(ci)
     f = Cast<to=11>(i)
     a = Mul(v, f)
     p = Mul(a, w)
     vo = Sin(p)
  }>
}"""
LOOP_UNTIL = """g (double[K] x, double[K] w) => (double[K] y) {
  one = Constant<value_int=1>()
  go = Cast<to=9>(one)
  limit = Constant<value = double {40.0}>()
  y = Loop("", go, x) <body = b (int64 i, bool ci, double[K] v) => (bool co, double[K] vo) {
     a = Mul(v, w)
     vo = Add(a, x)
     q = Mul(vo, vo)
     size = ReduceSum<keepdims=0>(q)
     co = Less(size, limit)
  }>
}"""
LOOP_GROWS = """g (double[K] x, double[M] w, int64 n) => (double[L] y) {
  y = Loop(n, "", x) <body = b (int64 i, bool ci, double[P] v) => (bool co, double[Q] vo) {
     a = Concat<axis=0>(v, w)
     vo = Mul(a, a)
     co = Identity(ci)
  }>
}"""
LOOP_TWO_STATES = """g (double[2] x, double[2] w, int64 n) => (double[2] y, double[2] z) {
  y, z = Loop(n, "", x, w) <body = b (int64 i, bool ci, double[2] v, double[2] u) =>
                                    (bool co, double[2] vo, double[2] uo) {
     co = Identity(ci)
     p = Mul(v, u)
     vo = Cos(p)
     uo = Identity(v)
  }>
}"""
LOOP_IN_LOOP = """g (double[2] x, double[2] w, int64 n) => (double[2] y) {
  y = Loop(n, "", x) <body = b (int64 i, bool ci, double[2] v) => (bool co, double[2] vo) {
     m = Add(i, n)
     vo = Loop(m, "", v) <body = b2 (int64 i2, bool ci2, double[2] v2) => (bool co2, double[2] vo2) {
        a = Mul(v2, w)
        vo2 = Sin(a)
        co2 = Identity(ci2)
     }>
     co = Identity(ci)
  }>
}"""
IF_IN_LOOP = """g (double[2] x, double[2] w, int64 n) => (double[2] y) {
  one = Constant<value_int=1>()
  y = Loop(n, "", x) <body = b (int64 i, bool ci, double[2] v) => (bool co, double[2] vo) {
     k = Less(i, one)
     vo = If(k) <then_branch = tb () => (double[2] p) { p1 = Exp(v) p = Mul(p1, w) },
                 else_branch = eb () => (double[2] p2) { p2 = Sin(v) }>
     co = Identity(ci)
  }>
}"""
SCAN = """g (double[2] h0, double[2,3] x, double[2] w) => (double[2] hT, double[2,3] ys) {
  hT, ys = Scan(h0, x) <num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[1],
      scan_input_directions=[INTO], scan_output_directions=[OUT],
      body = b (double[2] h, double[2] e) => (double[2] ho, double[2] yo) {
         a = Mul(h, w)
         c = Mul(a, e)
         ho = Tanh(c)
         yo = Mul(ho, e)
      }>
}"""
SCAN_ADDS = """g (double[2] h0, double[3,2] x) => (double[2] hT) {
  hT = Scan(h0, x) <num_scan_inputs=1, body = b (double[2] h, double[2] e) => (double[2] ho) { ho = Add(h, e) }>
}"""
SCAN_STATES = """g (double[N] h0, double[N] k0, double[T,N] x, double[T,N] z) => (double[N] hT, double[T,N] ys) {
  hT, kT, ys = Scan(h0, k0, x, z) <num_scan_inputs=2,
      body = b (double[N] h, double[N] k, double[N] e, double[N] f) => (double[N] ho, double[N] ko, double[N] yo) {
         a = Mul(h, e)
         ho = Sin(a)
         c = Mul(k, f)
         ko = Add(c, h)
         yo = Mul(ko, ho)
      }>
}"""
SEQUENCES = """g (double[2] a, double[3] b, int64 p, int64 q) => (double[L] y, double[K] z) {
  s = SequenceConstruct(a, b)
  s2 = SequenceInsert(s, a, q)
  e = SequenceAt(s2, p)
  s3 = SequenceErase(s2, p)
  z = Mul(e, e)
  y1 = ConcatFromSequence<axis=0>(s3)
  y = Mul(y1, y1)
}"""
DEFAULT_POSITIONS = """g (double[2] a, double[2] b) => (double[L] y, double[2] z) {
  e = SequenceEmpty<dtype=11>()
  s = SequenceInsert(e, a)
  s2 = SequenceInsert(s, b)
  s3 = SequenceInsert(s2, a)
  s4 = SequenceErase(s3)
  y1 = ConcatFromSequence<axis=-1>(s4)
  y = Mul(y1, y1)
  zero = Constant<value_int=0>()
  z = SequenceAt(s4, zero)
}"""
SPLIT = """g (double[5,2] x) => (double[L,2] y) {
  one = Constant<value_int=1>()
  zero = Constant<value_int=0>()
  sizes = Constant<value_ints=[2,3]>()
  s = SplitToSequence<axis=0>(x, sizes)
  e = SequenceAt(s, one)
  f = SequenceAt(s, zero)
  y0 = Concat<axis=0>(e, f)
  t = SplitToSequence<axis=1, keepdims=0>(x)
  y2 = ConcatFromSequence<axis=1, new_axis=1>(t)
  y = Mul(y0, y2)
}"""
MAP = """g (double[2] a, double[3] b, double w, double v) => (double[L] y) {
  s = SequenceConstruct(a, b)
  t = SequenceMap(s, v) <body = bb (double[N] e, double vv) => (double[N] o) {
     k = Mul(e, w)
     kk = Mul(k, vv)
     o = Exp(kk)
  }>
  y = ConcatFromSequence<axis=0>(t)
}"""
MAP_TWO = """g (double[2] a, double[3] b) => (double[L] y) {
  s = SequenceConstruct(a, b)
  t = SequenceMap(s, s) <body = bb (double[N] e, double[N] f) => (double[N] o) { o = Mul(e, f) }>
  y = ConcatFromSequence<axis=0>(t)
}"""
OPTIONAL = """g (double[2] a) => (double[2] y) {
  o = Optional(a)
  h = OptionalHasElement(o)
  e = OptionalGetElement(o)
  f = Cast<to=11>(h)
  q = Mul(e, e)
  y = Mul(q, f)
}"""

X2, W2 = np.array([0.1, 0.2]), np.array([1.0, 0.5])
X3, W3 = np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 0.5])
STEPS = np.arange(6.0).reshape(2, 3) * 0.3 + 0.2
CASES: dict[str, OneNodeModel] = {
    "If taken": model(IF, x=X3, w=W3, c=True),
    "If not taken": model(IF, x=X3, w=W3, c=False),
    "If hands a captured value through": model(IF_HANDS_THROUGH, x=X3, c=True),
    "Loop with scan output": model(LOOP, x=X3, w=W3, n=np.array(4)),
    "Loop of one iteration": model(LOOP, x=X3, w=W3, n=np.array(1)),
    "Loop reads its counter": model(LOOP_COUNTER, x=X3, w=W3, n=np.array(3)),
    "Loop until a condition": model(LOOP_UNTIL, x=X3, w=W3),
    "Loop whose state grows": model(LOOP_GROWS, x=X3, w=W2, n=np.array(3)),
    "Loop with two states": model(LOOP_TWO_STATES, x=X2, w=W2, n=np.array(4)),
    "Loop in Loop": model(LOOP_IN_LOOP, x=X2, w=W2, n=np.array(2)),
    "If in Loop": model(IF_IN_LOOP, x=X2, w=W2, n=np.array(3)),
    **{
        f"Scan directions {i}{o}": model(SCAN.replace("INTO", str(i)).replace("OUT", str(o)), h0=X2, x=STEPS, w=W2)
        for i in (0, 1)
        for o in (0, 1)
    },
    "Scan that only adds": model(SCAN_ADDS, h0=X2, x=STEPS.T.copy()),
    "Scan with two states": model(SCAN_STATES, h0=X2, k0=W2, x=STEPS.T.copy(), z=STEPS.T[::-1].copy()),
    "sequences, positions from the end": model(SEQUENCES, a=X2, b=W3, p=np.array(-2), q=np.array(-1)),
    "sequences, positions from the front": model(SEQUENCES, a=X2, b=W3, p=np.array(2), q=np.array(2)),
    "sequences, default positions": model(DEFAULT_POSITIONS, a=X2, b=W2),
    "SplitToSequence": model(SPLIT, x=np.arange(10.0).reshape(5, 2)),
    "SequenceMap": model(MAP, a=X2, b=W3, w=np.array(0.7), v=np.array(0.3)),
    "SequenceMap over two sequences": model(MAP_TWO, a=X2, b=W3),
    "Optional": model(OPTIONAL, a=X2),
}
by_case = pytest.mark.parametrize("case", list(CASES.values()), ids=list(CASES))


def floats(case: OneNodeModel) -> list[str]:
    return [n for n, a in case.feeds.items() if a.dtype.kind == "f"]


@by_case
def test_gradient_agrees_with_finite_differences(case: OneNodeModel) -> None:
    assert_gradients(case)


@by_case
def test_lowered_graph_passes_the_checker_and_runs_in_onnxruntime(case: OneNodeModel) -> None:
    names = floats(case)
    weights = gradcheck._random_weights(case, seed=0)
    lowered = gradient(gradcheck._with_loss(case, weights), of="testing/loss", wrt=names)

    onnx.checker.check_model(lowered, full_check=True)
    session = onnxruntime.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"])
    actual = session.run([f"grad/{n}" for n in names], dict(case.feeds))

    expected = gradients(case, names, weights=weights)
    for name, value in zip(names, actual, strict=True):
        np.testing.assert_allclose(value, expected[name], rtol=1e-9, atol=1e-12)


# Nested loops are refused: test_second_order_through_nested_loops_is_refused_clearly.
TWICE = {name: case for name, case in CASES.items() if name != "Loop in Loop"}


@pytest.mark.parametrize("case", list(TWICE.values()), ids=list(TWICE))
def test_second_derivative_agrees_with_finite_differences(case: OneNodeModel) -> None:
    names = floats(case)
    once = gradient(gradcheck._with_loss(case, gradcheck._random_weights(case, 0)), of="testing/loss", wrt=names)
    rng = np.random.default_rng(1)
    direction = {n: rng.uniform(-1, 1, case.feeds[n].shape) for n in names}
    for name in names:
        once.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(direction[name]), f"v/{name}"))
        once.graph.node.append(onnx.helper.make_node("Mul", [f"grad/{name}", f"v/{name}"], [f"gv/{name}"]))
        once.graph.node.append(onnx.helper.make_node("ReduceSum", [f"gv/{name}"], [f"gvs/{name}"], keepdims=0))
    once.graph.node.append(onnx.helper.make_node("Sum", [f"gvs/{n}" for n in names], ["gv"]))
    once.graph.output.append(onnx.helper.make_tensor_value_info("gv", onnx.TensorProto.DOUBLE, []))

    twice = gradient(once, of="gv", wrt=names)

    onnx.checker.check_model(twice, full_check=True)
    actual = Evaluator(twice).run(case.feeds)
    forward, step = Evaluator(once), 1e-4
    moved = [
        forward.run({n: a + s * step * direction[n] if n in direction else a for n, a in case.feeds.items()})
        for s in (-2, -1, 1, 2)
    ]
    for name in names:
        key = f"grad/{name}"
        expected = (8 * (moved[2][key] - moved[1][key]) - (moved[3][key] - moved[0][key])) / (12 * step)
        np.testing.assert_allclose(actual[f"{key}_2"], expected, rtol=1e-5, atol=1e-6, err_msg=name)


def test_second_order_through_nested_loops_is_refused_clearly() -> None:
    case = CASES["Loop in Loop"]
    once = gradient(gradcheck._with_loss(case, {}), of="testing/loss", wrt=["x"])

    with pytest.raises(NotDifferentiable, match=r"ONNX has no\s+sequences of sequences"):
        gradient(once, of="grad/x", wrt=["x"])


def test_loop_without_iterations_hands_the_gradient_through() -> None:
    case = model(LOOP, x=X3, w=W3, n=np.array(0))
    lowered = gradient(case.proto, of="y", wrt=["x", "w"])

    result = run(lowered, **case.feeds)

    np.testing.assert_array_equal(result["grad/x"], [1.0, 1.0, 1.0])
    np.testing.assert_array_equal(result["grad/w"], [0.0, 0.0, 0.0])


def test_residuals_of_one_shape_are_scan_outputs_and_others_sequences() -> None:
    fixed = gradient(CASES["Loop with scan output"].proto, of="y", wrt=["x"])
    growing = gradient(CASES["Loop whose state grows"].proto, of="y", wrt=["x"])

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
    lowered = gradient(CASES["Scan with two states"].proto, of="hT", wrt=["h0"])

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
