"""Comparisons and logic: booleans have no gradient."""

from __future__ import annotations

from onward.autodiff.registry import NON_DIFFERENTIABLE, declare

for _op_type, _opset in {
    "And": 7, "Or": 7, "Xor": 7, "Equal": 13, "Greater": 13, "GreaterOrEqual": 16, "Less": 13, "LessOrEqual": 16,
}.items():  # fmt: skip
    declare(_op_type, opset=_opset, A=NON_DIFFERENTIABLE, B=NON_DIFFERENTIABLE)

declare("Not", X=NON_DIFFERENTIABLE)
