"""Cases of autodiff/rules/control_flow.py and loop.py, written as ONNX text because the operators come in graphs."""

from __future__ import annotations

import numpy as np

from cases.text import text_case

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
  forty = Constant<value_float = 40.0>()
  limit = CastLike(forty, x)
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
LOOP_OF_SEQUENCE = """g (double[2] x, double[2] w, int64 n) => (double[L] y) {
  s0 = SequenceEmpty<dtype=11>()
  v, s = Loop(n, "", x, s0) <body = b (int64 i, bool ci, double[2] v, seq(double[2]) s) =>
                                      (bool co, double[2] vo, seq(double[2]) so) {
     co = Identity(ci)
     a = Mul(v, w)
     vo = Sin(a)
     so = SequenceInsert(s, vo)
  }>
  y = ConcatFromSequence<axis=0>(s)
}"""
LOOP_SCANS_ONLY = """g (double[2] w, int64[1] n) => (double[T,2] y) {
  y = Loop(n, "") <body = b (int64 i, bool ci) => (bool co, double[2] so) {
     co = Identity(ci)
     f = Cast<to=11>(i)
     a = Mul(w, f)
     so = Sin(a)
  }>
}"""
IF_IN_IF = """g (double[2] x, bool c, bool d) => (double[2] y) {
  y = If(c) <
    then_branch = t () => (double[2] a) {
      a = If(d) <then_branch = t2 () => (double[2] p) { q = Exp(x) p = Mul(q, q) },
                 else_branch = e2 () => (double[2] r) { r = Sin(x) }>
    },
    else_branch = f () => (double[2] b) {
      k = Constant<value_floats = [1.0, 2.0]>()
      b = CastLike(k, x)
    }>
}"""
SCAN_IN_LOOP = """g (double[2] h0, double[3,2] x, int64 n) => (double[2] y) {
  y = Loop(n, "", h0) <body = lb (int64 i, bool ci, double[2] v) => (bool co, double[2] vo) {
     co = Identity(ci)
     vo = Scan(v, x) <num_scan_inputs=1, body = b (double[2] h, double[2] e) => (double[2] ho) {
       a = Mul(h, e)
       ho = Tanh(a)
     }>
  }>
}"""
LOOP_IN_SCAN = """g (double[2] h0, double[3,2] x, int64 n) => (double[2] y) {
  y = Scan(h0, x) <num_scan_inputs=1, body = b (double[2] v, double[2] e) => (double[2] vo) {
     vo = Loop(n, "", v) <body = lb (int64 i, bool ci, double[2] h) => (bool co, double[2] ho) {
       co = Identity(ci)
       a = Mul(h, e)
       ho = Tanh(a)
     }>
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

X2, W2 = np.array([0.1, 0.2]), np.array([1.0, 0.5])
X3, W3 = np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 0.5])
STEPS = np.arange(6.0).reshape(2, 3) * 0.3 + 0.2
LARGE = np.array([np.inf, 1.0, 2.0])

CASES = [
    text_case("If", "taken", IF, x=X3, w=W3, c=True),
    text_case("If", "not taken", IF, x=X3, w=W3, c=False),
    text_case("If", "hands a captured value through", IF_HANDS_THROUGH, kind="edge", x=X3, c=True),
    text_case(
        "If",
        "infinity in the branch not taken",
        IF_HANDS_THROUGH,
        kind="special",
        x=LARGE,
        c=True,
        expected={"x": [1.0, 1.0, 1.0]},
    ),
    text_case("Loop", "with scan output", LOOP, x=X3, w=W3, n=np.array(4)),
    text_case("Loop", "of one iteration", LOOP, kind="edge", x=X3, w=W3, n=np.array(1)),
    text_case("Loop", "of no iteration", LOOP_COUNTER, kind="edge", x=X3, w=W3, n=np.array(0)),
    text_case("Loop", "reads its counter", LOOP_COUNTER, x=X3, w=W3, n=np.array(3)),
    text_case("Loop", "until a condition", LOOP_UNTIL, x=X3, w=W3),
    text_case("Loop", "whose state grows", LOOP_GROWS, kind="edge", x=X3, w=W2, n=np.array(3)),
    text_case("Loop", "with two states", LOOP_TWO_STATES, x=X2, w=W2, n=np.array(4)),
    # Second order needs sequences of sequences: test_second_order_through_nested_loops_is_refused_clearly.
    text_case("Loop", "in a loop", LOOP_IN_LOOP, x=X2, w=W2, n=np.array(2)),
    text_case("Loop", "with If inside", IF_IN_LOOP, x=X2, w=W2, n=np.array(3)),
    text_case(
        "Loop", "saturated", LOOP, kind="special", x=np.full(3, 800.0), w=W3, n=np.array(2), expected={"x": [0.0] * 3}
    ),
    *(
        text_case(
            "Scan",
            f"directions {i} and {o}, axis 1",
            SCAN.replace("INTO", str(i)).replace("OUT", str(o)),
            h0=X2,
            x=STEPS,
            w=W2,
        )
        for i in (0, 1)
        for o in (0, 1)
    ),
    text_case("Scan", "that only adds", SCAN_ADDS, kind="edge", h0=X2, x=STEPS.T.copy()),
    text_case("Scan", "of one step", SCAN_ADDS, kind="edge", h0=X2, x=STEPS.T[:1].copy()),
    text_case("Scan", "with two states", SCAN_STATES, h0=X2, k0=W2, x=STEPS.T.copy(), z=STEPS.T[::-1].copy()),
    text_case(
        "Scan",
        "saturated",
        SCAN.replace("INTO", "0").replace("OUT", "0"),
        kind="special",
        h0=np.full(2, 800.0),
        x=STEPS + 10,
        w=W2,
        expected={"h0": [0.0, 0.0]},
    ),
    text_case("Loop", "that carries a sequence", LOOP_OF_SEQUENCE, x=X2, w=W2, n=np.array(3), smooth=False),
    text_case("Loop", "with scan outputs only", LOOP_SCANS_ONLY, kind="edge", w=W2, n=np.array([3])),
    text_case("If", "in If", IF_IN_IF, x=X2, c=True, d=True),
    text_case("If", "that takes the branch without a gradient", IF_IN_IF, kind="edge", x=X2, c=False, d=True),
    text_case("Scan", "in Loop", SCAN_IN_LOOP, h0=X2, x=STEPS.T.copy(), n=np.array(2), smooth=False),
    text_case(
        "Loop",
        "in Scan",
        LOOP_IN_SCAN,
        h0=X2,
        x=STEPS.T.copy(),
        n=np.array(2),
        smooth=False,
        symbolic="h and e may broadcast then: what the Loop keeps is a sequence, refused inside a Scan",
    ),
]
