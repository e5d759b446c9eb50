"""Functions of the domain `onward.gradients`, whose gradient is not that of their body.

They let a plain graph carry a derivative that somebody wrote by hand, as `jax.custom_jvp` does:

    y = Attach(jvp(StopGradient(x), Tangent(x)), f(x))

has the value f(x), and its gradient is the transposed jvp. A file holds the bodies, so every runtime computes the
values; `frontends/jaxpr/derivatives.py` writes them.
"""

from __future__ import annotations

from onward.autodiff.registry import gradient
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.graph.builder import Value
from onward.graph.schema import GRADIENT_DOMAIN


@gradient("StopGradient", domain=GRADIENT_DOMAIN)
def stop_gradient(rule: Rule, dY: Value) -> Grads:
    """Y = X as a constant, so dX = 0."""
    return {}


@gradient("Tangent", domain=GRADIENT_DOMAIN)
def tangent(rule: Rule, dY: Value) -> Grads:
    """Y = 0 as a point through which X moves, so dX = dY."""
    return {"X": dY}


@gradient("Attach", domain=GRADIENT_DOMAIN)
def attach(rule: Rule, dY: Value) -> Grads:
    """Y = V, which moves as the tangent T does, so dT = dY and dV = 0. The inputs are T and V."""
    return {"T": dY}
