"""Cases of autodiff/rules/arithmetic.py."""

from __future__ import annotations

import numpy as np

from cases import array, case

CASES = [
    case("Add", "same shape", A=array(2, 3), B=array(2, 3, seed=1), torch=lambda A, B: A + B),
    case("Add", "broadcast", kind="edge", A=array(2, 3), B=array(1, seed=1), torch=lambda A, B: A + B),
    case("Add", "scalar", kind="edge", A=array(), B=array(2, 1, seed=1), torch=lambda A, B: A + B),
    case("Mul", "broadcast both", kind="edge", A=array(2, 1), B=array(3, seed=1), torch=lambda A, B: A * B),
    case("Mul", "empty", kind="edge", A=array(0, 3), B=array(3, seed=1), torch=lambda A, B: A * B),
    case("Div", "broadcast", A=array(2, 3), B=array(3, seed=1, low=0.5), torch=lambda A, B: A / B),
    case("Sub", "broadcast", A=array(3), B=array(2, 3, seed=1), torch=lambda A, B: A - B),
    case("Neg", "ordinary", X=array(2, 3), torch=lambda X: -X),
    case("Sum", "three", data_0=[array(2, 3), array(3, seed=1), array(2, 1, seed=2)]),
    case("Mul", "infinite", kind="special", A=np.array([np.inf]), B=np.array([2.0]), expected={"A": [2.0]}, wrt=["A"]),
]
