"""Cases of autodiff/rules/sequence.py and optional.py, written as ONNX text because the operators come in graphs."""

from __future__ import annotations

import numpy as np

from cases.text import text_case

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
W3 = np.array([1.0, 2.0, 0.5])
BACK, FRONT = {"p": np.array(-2), "q": np.array(-1)}, {"p": np.array(2), "q": np.array(2)}
INFINITE = {"a": np.array([100.0, -np.inf]), "b": np.array([0.0, 0.001])}
TENS = np.where(np.arange(10.0).reshape(5, 2) == 7, np.inf, np.arange(10.0).reshape(5, 2))
MOVED = [2, 3, 4, 0, 1]  # the order in which SPLIT puts the rows

CASES = [
    text_case("SequenceConstruct", "two tensors", SEQUENCES, a=X2, b=W3, **FRONT),
    text_case("SequenceAt", "from the front", SEQUENCES, a=X2, b=W3, **FRONT),
    text_case("SequenceAt", "from the end", SEQUENCES, kind="edge", a=X2, b=W3, **BACK),
    text_case("SequenceInsert", "at the end by number", SEQUENCES, a=X2, b=W3, **FRONT),
    text_case("SequenceInsert", "from the end", SEQUENCES, kind="edge", a=X2, b=W3, **BACK),
    text_case("SequenceInsert", "into an empty sequence, default position", DEFAULT_POSITIONS, kind="edge", a=X2, b=W2),
    text_case("SequenceErase", "from the front", SEQUENCES, a=X2, b=W3, **FRONT),
    text_case("SequenceErase", "from the end", SEQUENCES, kind="edge", a=X2, b=W3, **BACK),
    text_case("SequenceErase", "default position", DEFAULT_POSITIONS, kind="edge", a=X2, b=W2),
    text_case("ConcatFromSequence", "pieces of different length", SEQUENCES, a=X2, b=W3, **FRONT),
    text_case("ConcatFromSequence", "negative axis", DEFAULT_POSITIONS, kind="edge", a=X2, b=W2),
    text_case("ConcatFromSequence", "new axis", SPLIT, kind="edge", x=np.arange(10.0).reshape(5, 2)),
    text_case("SplitToSequence", "by sizes", SPLIT, x=np.arange(10.0).reshape(5, 2)),
    text_case("SplitToSequence", "without keepdims", SPLIT, kind="edge", x=np.ones((5, 2))),
    text_case("SequenceMap", "captures and a tensor", MAP, a=X2, b=W3, w=np.array(0.7), v=np.array(0.3)),
    text_case("SequenceMap", "over two sequences", MAP_TWO, a=X2, b=W3),
    text_case("SequenceMap", "of empty tensors", MAP_TWO, kind="edge", a=np.zeros(0), b=np.zeros(1)),
    text_case("Optional", "with a tensor", OPTIONAL, a=X2),
    text_case("Optional", "empty tensor", OPTIONAL, kind="edge", a=np.zeros(0)),
    text_case("OptionalGetElement", "of a tensor", OPTIONAL, a=X2),
    text_case("OptionalGetElement", "empty tensor", OPTIONAL, kind="edge", a=np.zeros(0)),
    *(
        text_case(
            op,
            "infinities",
            DEFAULT_POSITIONS,
            kind="special",
            expected={"a": [201.0, -np.inf], "b": [0.0, 0.002]},
            **INFINITE,
        )
        for op in ("SequenceAt", "SequenceInsert", "SequenceErase", "ConcatFromSequence")
    ),
    *(
        text_case(op, "infinities", MAP_TWO, kind="special", expected={"a": [200.0, -np.inf]}, **INFINITE)
        for op in ("SequenceMap", "SequenceConstruct")
    ),
    text_case("SequenceConstruct", "one of its tensors empty", MAP_TWO, kind="edge", a=np.zeros(0), b=np.ones(1)),
    text_case(
        "SplitToSequence",
        "infinity",
        SPLIT,
        kind="special",
        x=TENS,
        expected={"x": TENS[MOVED] + TENS[np.argsort(MOVED)]},
    ),
    *(
        text_case(op, "infinity", OPTIONAL, kind="special", a=np.array([np.inf, -1.0]), expected={"a": [np.inf, -2.0]})
        for op in ("Optional", "OptionalGetElement")
    ),
]
