"""Cases of autodiff/rules/elementary.py."""

from __future__ import annotations

import numpy as np

from cases import array, case


def one(op: str, function: object, low: float, high: float, **special: object) -> list:
    """Return the ordinary, edge and special cases of a function of one argument called `input`."""
    inputs = {"ordinary": array(2, 3, low=low, high=high), "scalar": array(low=low, high=high, seed=3)}
    cases = [
        case(op, "ordinary", input=inputs["ordinary"], torch=function),
        case(op, "scalar", kind="edge", input=inputs["scalar"], torch=function),
        case(op, "empty", kind="edge", input=array(0, 3), torch=function),
    ]
    points, slopes = special["points"], special["slopes"]
    return [*cases, case(op, "special values", kind="special", input=np.array(points), expected={"input": slopes})]


NEAR = 1 - 2.0**-20  # so near to 1 that 1 - NEAR² would lose half its digits in float32

CASES = [
    *one("Identity", lambda input: input * 1, -2, 2, points=[np.inf, 5.0], slopes=[1, 1]),
    *one("Exp", lambda input: input.exp(), -2, 2, points=[-np.inf, 0.0], slopes=[0, 1]),
    *one("Log", lambda input: input.log(), 0.5, 2, points=[np.inf, 1.0], slopes=[0, 1]),
    *one("Sin", lambda input: input.sin(), -4, 4, points=[0.0, np.pi], slopes=[1, -1]),
    *one("Cos", lambda input: input.cos(), -4, 4, points=[0.0, np.pi / 2], slopes=[0, -1]),
    *one("Tan", lambda input: input.tan(), -1, 1, points=[0.0, np.pi], slopes=[1, 1]),
    *one(
        "Asin",
        lambda input: input.asin(),
        -0.9,
        0.9,
        points=[0.0, NEAR],
        slopes=[1, 1 / np.sqrt((1 - NEAR) * (1 + NEAR))],
    ),
    *one("Acos", lambda input: input.acos(), -0.9, 0.9, points=[0.0], slopes=[-1]),
    *one("Atan", lambda input: input.atan(), -3, 3, points=[0.0, 1e4, -np.inf], slopes=[1, 1 / (1 + 1e8), 0]),
    *one("Sinh", lambda input: input.sinh(), -2, 2, points=[0.0], slopes=[1]),
    *one("Cosh", lambda input: input.cosh(), -2, 2, points=[0.0], slopes=[0]),
    *one("Tanh", lambda input: input.tanh(), -2, 2, points=[0.0, 800.0, -np.inf], slopes=[1, 0, 0]),
    *one("Asinh", lambda input: input.asinh(), -3, 3, points=[0.0, 1e4], slopes=[1, 1 / np.sqrt(1 + 1e8)]),
    *one(
        "Acosh",
        lambda input: input.acosh(),
        1.2,
        3,
        points=[2 - NEAR, np.inf],
        slopes=[1 / np.sqrt((1 - NEAR) * (3 - NEAR)), 0],
    ),
    *one("Atanh", lambda input: input.atanh(), -0.8, 0.8, points=[0.0], slopes=[1]),
    *one("Erf", lambda input: input.erf(), -2, 2, points=[0.0, 40.0, -np.inf], slopes=[2 / np.sqrt(np.pi), 0, 0]),
]
for _op, _function in (("Floor", "floor"), ("Ceil", "ceil"), ("Round", "round")):
    CASES += [
        case(_op, "flat", X=array(2, 3), torch=lambda X, f=_function: getattr(X, f)()),
        case(_op, "scalar", kind="edge", X=np.array(0.3), torch=lambda X, f=_function: getattr(X, f)()),
        case(_op, "on the step", kind="special", X=np.array([1.0, 0.5, -2.5]), expected={"X": [0, 0, 0]}),
    ]
