"""Optionals: the gradient of an optional is that of its content; an empty optional has none."""

from __future__ import annotations

from onward.autodiff.registry import NON_DIFFERENTIABLE, declare, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.graph.builder import Value

declare("OptionalHasElement", opset=15, input=NON_DIFFERENTIABLE)


@gradient("Optional", opset=15)
def optional(rule: Rule, doutput: Value) -> Grads:
    """output holds input, so dinput = doutput."""
    return {"input": doutput}


@gradient("OptionalGetElement", opset=15)
def optional_get_element(rule: Rule, doutput: Value) -> Grads:
    """output = what input holds, so dinput = doutput."""
    return {"input": doutput}
