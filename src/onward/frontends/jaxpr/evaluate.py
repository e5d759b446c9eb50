"""Compute a function in JAX with fixed patterns in the place of its random draws, to compare a graph with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from onward.frontends.jaxpr import random, versions


def with_patterns(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with each draw replaced by the numbers of `random.pattern`; it can be differentiated."""

    def replaced(*arguments: Any) -> Any:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        results = _run(closed.jaxpr, closed.consts, jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return replaced


def _run(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, versions.Literal) else values[variable]

    for equation in jaxpr.eqns:
        outputs = _equation(equation, [read(v) for v in equation.invars])
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _equation(equation: Any, inputs: list[Any]) -> list[Any]:
    called = versions.called(equation)
    if called is not None:
        kind = random.DRAWS.get(equation.params.get("name", ""))
        if kind is not None and versions.made_by_jax(called):
            aval = equation.outvars[0].aval
            numbers = random.pattern(kind, aval.shape, aval.dtype)
            if kind == "normal":
                return [numbers]
            low, high = (jax.numpy.asarray(v, aval.dtype) for v in inputs[1:])
            return [numbers * (high - low) + low]
        return _run(called.jaxpr, called.consts, inputs) if _draws(called.jaxpr) else versions.bind(equation, inputs)
    name = equation.primitive.name
    if name == "scan" and _draws(equation.params["jaxpr"].jaxpr):
        return _scan(equation, inputs)
    if name == "cond" and any(_draws(b.jaxpr) for b in equation.params["branches"]):
        branches = [
            (lambda closed: lambda *given: _run(closed.jaxpr, closed.consts, given))(b)
            for b in equation.params["branches"]
        ]
        return list(jax.lax.switch(inputs[0].astype("int32"), branches, *inputs[1:]))
    return versions.bind(equation, inputs)


def _scan(equation: Any, inputs: list[Any]) -> list[Any]:
    params, closed = equation.params, equation.params["jaxpr"]
    constants, carries = params["num_consts"], params["num_carry"]
    given = inputs[:constants]

    def body(carry: tuple[Any, ...], x: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        results = _run(closed.jaxpr, closed.consts, [*given, *carry, *x])
        return tuple(results[:carries]), tuple(results[carries:])

    final, stacked = jax.lax.scan(
        body,
        tuple(inputs[constants : constants + carries]),
        tuple(inputs[constants + carries :]),
        length=params["length"],
        reverse=params["reverse"],
    )
    return [*final, *stacked]


def _draws(jaxpr: Any) -> bool:
    return any(
        e.primitive.name == "random_bits" or any(_draws(inner) for inner in versions.inner_jaxprs(e))
        for e in jaxpr.eqns
    )
