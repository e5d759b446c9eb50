"""Derivatives that somebody wrote by hand: stop_gradient, custom_jvp and custom_vjp.

Their gradient is not that of the operators that compute the value. Where it matters, the graph says both:

    y = Attach(jvp(StopGradient(x), Tangent(x)), f(x))

`Attach` has the value f(x), and moves as its first input does. JAX itself gives the jvp, which is linear in the
tangent, so that the gradient of the plain operators in it is the transposed rule. The rule of a custom_vjp is
transposed by JAX first; one that is not linear in what it gets, such as clipping, cannot be expressed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import onnx_ir as ir

from onward.frontends.jaxpr import primitives, versions
from onward.frontends.jaxpr.frame import constant_of
from onward.frontends.jaxpr.random import Key
from onward.frontends.jaxpr.registry import UnsupportedError
from onward.graph.builder import Builder, Names, Value
from onward.graph.schema import GRADIENT_DOMAIN
from onward.graph.walk import ancestors

if TYPE_CHECKING:
    from onward.frontends.jaxpr.frame import Frame


def call(frame: Frame, equation: Any, inputs: Sequence[Any]) -> list[Any]:
    """Translate a call of a function with its own derivative."""
    params = equation.params
    inside = params.get("call_jaxpr") or params["fun_jaxpr"]
    known = primitives.by_name(_name(inside), inside)
    if known is not None:
        with contextlib.suppress(primitives.NotNamedError):
            made = known(frame, equation, *inputs)
            return list(made) if isinstance(made, list | tuple) else [made]
    values = frame.run(inside, inputs)
    if not frame.translator.differentiable or not _moves(frame, inputs):
        return values
    moving = [
        i
        for i, (v, value) in enumerate(zip(equation.invars, inputs, strict=True))
        if isinstance(value, ir.Value) and _is_real(v.aval) and constant_of(value) is None
    ]
    if not moving or not any(_is_real(v.aval) for v in equation.outvars if not versions.is_key(v.aval)):
        return values
    if any(isinstance(v, Key) for v in [*inputs, *values]) or _draws(inside.jaxpr):
        raise UnsupportedError("a function with its own derivative that draws random numbers")
    trace = _jvp if equation.primitive.name == "custom_jvp_call" else _transposed_vjp
    closed = trace(equation, moving)
    stopped = [stop_gradient(frame, v) if i in moving else v for i, v in enumerate(inputs)]
    frame.translator.rules += 1
    tangents = frame.run(closed, [*stopped, *(tangent(frame, inputs[i]) for i in moving)])
    frame.translator.rules -= 1
    moved = iter(tangents)
    return [
        attach(frame, next(moved), value) if _is_real(v.aval) else value
        for value, v in zip(values, equation.outvars, strict=True)
    ]


def _moves(frame: Frame, inputs: Sequence[Any]) -> bool:
    """Return whether a gradient can reach the inputs: inside a rule, only through a tangent."""
    if not frame.translator.rules:
        return True
    values = [v for v in inputs if isinstance(v, ir.Value)]
    return any(node.op_type == "Tangent" and node.domain == GRADIENT_DOMAIN for node in ancestors(values))


def _name(closed: Any) -> str:
    """Return the name of the function behind a closed jaxpr."""
    return str(getattr(closed.jaxpr.debug_info, "func_name", ""))


def _is_real(aval: Any) -> bool:
    return bool(jax.numpy.issubdtype(aval.dtype, np.floating))


def _draws(jaxpr: Any) -> bool:
    return any(
        e.primitive.name.startswith("random_") or any(_draws(inner) for inner in versions.inner_jaxprs(e))
        for e in jaxpr.eqns
    )


def _structs(variables: Sequence[Any]) -> list[Any]:
    return [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in variables]


def _jvp(equation: Any, moving: Sequence[int]) -> Any:
    """Return the jaxpr of the tangents of the real outputs, over the inputs and the tangents of the moving ones."""
    real = [i for i, v in enumerate(equation.outvars) if _is_real(v.aval)]

    def tangents(inputs: list[Any], moves: list[Any]) -> list[Any]:
        def function(*given: Any) -> list[Any]:
            full = list(inputs)
            for index, value in zip(moving, given, strict=True):
                full[index] = value
            outputs = versions.bind(equation, full)
            return [outputs[i] for i in real]

        return list(jax.jvp(function, tuple(inputs[i] for i in moving), tuple(moves))[1])

    structs = _structs(equation.invars)
    return jax.make_jaxpr(tangents)(structs, [structs[i] for i in moving])


def _transposed_vjp(equation: Any, moving: Sequence[int]) -> Any:
    """Return the same for a custom_vjp: the transpose of its backward rule.

    Raises:
        UnsupportedError: the rule is not linear in the gradient that it gets.
    """
    real = [i for i, v in enumerate(equation.outvars) if _is_real(v.aval)]
    outputs = _structs([equation.outvars[i] for i in real])

    def tangents(inputs: list[Any], moves: list[Any]) -> list[Any]:
        def function(*given: Any) -> list[Any]:
            full = list(inputs)
            for index, value in zip(moving, given, strict=True):
                full[index] = value
            results = versions.bind(equation, full)
            return [results[i] for i in real]

        _, backward = jax.vjp(function, *(inputs[i] for i in moving))
        transposed = jax.linear_transpose(lambda *given: backward(list(given)), *outputs)
        return list(transposed(tuple(moves)))

    structs = _structs(equation.invars)
    try:
        return jax.make_jaxpr(tangents)(structs, [structs[i] for i in moving])
    except Exception as error:  # JAX raises many types where a rule is not linear
        raise UnsupportedError(
            f"its backward rule is not linear in the gradient that it gets, or cannot be transposed ({_first(error)}); "
            "clip or change gradients in the optimizer instead"
        ) from error


def _first(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:120]}" if lines else type(error).__name__


# -- the three functions ---------------------------------------------------------------------------------------------


def stop_gradient(frame: Frame, x: Value) -> Value:
    """Return `x` as a constant for gradients."""
    if not frame.translator.differentiable or constant_of(x) is not None:
        return x
    return _call(frame, "StopGradient", [x], x)


def attach(frame: Frame, tangent: Value, value: Value) -> Value:
    """Return `value`, which moves as `tangent` does."""
    return _call(frame, "Attach", [tangent, value], value)


def with_slope(frame: Frame, value: Value, x: Value, slope: Any) -> Value:
    """Return `value`, an element-wise function of `x` whose derivative is `slope(x)`.

    For a formula whose own gradient would be inaccurate.
    """
    if not frame.translator.differentiable:
        return value
    return attach(frame, frame.op.Mul(tangent(frame, x), slope(stop_gradient(frame, x))), value)


def tangent(frame: Frame, x: Value) -> Value:
    return _call(frame, "Tangent", [x], x)


def _call(frame: Frame, name: str, inputs: Sequence[Value], like: Value) -> Value:
    functions = frame.translator.functions
    if name not in functions:
        functions[name] = _function(name, frame.op.opset)
    (made,) = frame.op.call(name, inputs, domain=GRADIENT_DOMAIN)
    made.type, made.shape = like.type, None if like.shape is None else like.shape.copy()
    return made


def _function(name: str, opset: int) -> ir.Function:
    inputs = {"StopGradient": ["X"], "Tangent": ["X"], "Attach": ["T", "V"]}[name]
    formal = [ir.Value(name=n) for n in inputs]
    op = Builder(opset, Names([*inputs, "Y"]))
    if name == "Tangent":  # zeros of any type: a cast of a constant would need the type
        zero = op.constant(np.array(0.0, np.float32))
        made = op.Expand(op.CastLike(zero, formal[0]), op.Shape(formal[0]))
    else:
        made = op.Identity(formal[-1])
    made.name = "Y"
    doc = {
        "StopGradient": "Y = X; no gradient reaches X.",
        "Tangent": "Y = 0; the gradient of Y is that of X.",
        "Attach": "Y = V; the gradient of Y is that of T, and none reaches V.",
    }[name]
    graph = ir.Graph(formal, [made], nodes=op.nodes, opset_imports={"": opset}, doc_string=doc)
    return ir.Function(GRADIENT_DOMAIN, name, graph=graph, attributes=[])
