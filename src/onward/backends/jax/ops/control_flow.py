"""If, Loop and Scan as `lax.cond`, `lax.scan` and `lax.while_loop`; sequences as lists, optionals as None.

What is known while JAX traces is Python control flow: a constant condition, and a loop whose values change their shape.
A loop with at most `BOUNDED` steps is a `lax.scan` and can be differentiated. Where data decides when it ends, the
steps after the end change nothing. A loop without such a bound is a `lax.while_loop`, and its gradient is refused.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onward.backends.graph.common import register_sequences
from onward.backends.graph.control_flow import ScanPlan, Unrolled
from onward.backends.graph.host import Host
from onward.backends.graph.interpreter import Body
from onward.backends.jax.framework import B304, JAX, ints, is_traced, number, unknown
from onward.backends.jax.ops.shape import split_along
from onward.backends.jax.registry import Attributes, op
from onward.backends.jax.tensors import Array
from onward.errors import BackendError, Diagnostic

BOUNDED = 1000  # steps
_STEPS = Unrolled(JAX)
register_sequences(JAX)


@op("If")
def if_(attributes: Attributes, condition: Any) -> tuple[Any, ...]:
    if not is_traced(condition):
        return _STEPS.if_(attributes, condition)
    branches = [lambda body=attributes[n]: tuple(body()) for n in ("then_branch", "else_branch")]
    shapes = [jax.eval_shape(b) for b in branches]
    if jax.tree.map(_kind, shapes[0]) != jax.tree.map(_kind, shapes[1]):
        raise unknown("the branches of an If give values of different types or shapes, its condition depends on data")
    result: tuple[Any, ...] = lax.cond(condition.reshape(()), *branches)
    return result


def _kind(value: Any) -> tuple[Any, ...]:
    return value.shape, value.dtype


def _kinds(values: Any) -> Any:
    return jax.tree.map(_kind, values)


@op("Loop")
def loop(attributes: Attributes, trips: Any, condition: Any, *carried: Any) -> tuple[Any, ...]:
    body: Body = attributes["body"]
    if not any(is_traced(v) for v in (trips, condition, *carried, *body.values.values())):
        return _STEPS.loop(attributes, trips, condition, *carried)
    count = trips if trips is None or is_traced(trips) else int(number(trips))
    going = True if condition is None else condition if is_traced(condition) else bool(number(condition))
    always: list[bool] = []  # whether the body's own condition is true whatever the data is

    def step(index: Any, values: Any) -> tuple[Any, Any, Any]:
        on, *results = body(index, Host([True], (), "bool"), *values)
        always.append(not is_traced(on) and bool(number(on)))
        return jnp.asarray(on).reshape(()), results[: len(carried)], results[len(carried) :]

    start = [jnp.asarray(v) if not isinstance(v, list) else v for v in carried]
    try:
        _, values, _ = jax.eval_shape(step, jax.ShapeDtypeStruct((), jnp.int64), start)
        steady = _kinds(values) == _kinds(start)
    except BackendError as error:  # the body needs the number of the step
        if error.code != B304:
            raise
        steady, always = False, [False]
    fixed = isinstance(count, int) and going is True and always[-1]
    if not steady or (isinstance(count, int) and (count == 0 or going is False)):
        return _STEPS.loop(attributes, trips, condition, *carried)
    if fixed:
        end, collected = lax.scan(lambda v, i: step(i, v)[1:], start, jnp.arange(count))
        return (*end, *collected)
    if attributes.outputs > len(carried):
        raise unknown("the number of steps of a Loop that collects values depends on data")
    if isinstance(count, int) and count <= BOUNDED:
        return tuple(_bounded(step, start, jnp.asarray(going), count))
    body.values = {name: _without_gradient(value) for name, value in body.values.items()}
    limit = np.iinfo(np.int64).max if count is None else count
    first = (jnp.zeros((), jnp.int64), jnp.asarray(going).reshape(()), [_without_gradient(v) for v in start])
    _, _, end = lax.while_loop(
        lambda state: state[1] & (state[0] < jnp.asarray(limit).reshape(())),
        lambda state: (state[0] + 1, *step(state[0], state[2])[:2]),
        first,
    )
    return tuple(end)


def _bounded(step: Any, start: list[Any], going: Array, count: int) -> list[Any]:
    """Return the values after at most `count` steps; those after the end change nothing, and have no gradient."""

    def one(state: Any, index: Any) -> tuple[Any, None]:
        on, values = state
        still, new = lax.cond(on, lambda i, v: step(i, v)[:2], lambda i, v: (on, v), index, values)
        return (on & still, new), None

    (_, end), _ = lax.scan(one, (going.reshape(()), start), jnp.arange(count))
    return list(end)


@jax.custom_vjp  # type: ignore[untyped-decorator]  # jax is not typed here
def _without_gradient(value: Any) -> Any:
    return value


def _refuse(value: Any) -> Any:
    raise BackendError(
        Diagnostic(
            B304,
            "JAX has no gradient of a Loop whose number of steps has no bound",
            hint=f"give the Loop a constant maximum of at most {BOUNDED} steps, "
            'or use the gradient of the file: to_jax(model, gradients="graph")',
        )
    )


_without_gradient.defvjp(_refuse, lambda _, gradient: (gradient,))


@op("Scan", since=9)
def scan(attributes: Attributes, *inputs: Any) -> tuple[Any, ...]:
    body: Body = attributes["body"]
    if not any(is_traced(v) for v in (*inputs, *body.values.values())):
        return _STEPS.scan(attributes, *inputs)
    plan = ScanPlan(attributes, len(inputs))
    arrays = [jnp.asarray(JAX.tensor(v)) for v in inputs]
    start, scanned = arrays[: plan.states], arrays[plan.states :]
    xs = [
        jnp.flip(jnp.moveaxis(x, axis, 0), 0) if backward else jnp.moveaxis(x, axis, 0)
        for x, axis, backward in zip(scanned, plan.in_axes, plan.in_backward, strict=True)
    ]

    def step(states: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
        results = body(*states, *slices)
        return results[: plan.states], results[plan.states :]

    states, _ = jax.eval_shape(step, start, [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in xs])
    if _kinds(states) != _kinds(start):
        return _STEPS.scan(attributes, *inputs)
    end, collected = lax.scan(step, start, xs)
    stacked = [
        jnp.moveaxis(jnp.flip(y, 0) if backward else y, 0, axis)
        for y, axis, backward in zip(collected, plan.out_axes, plan.out_backward, strict=True)
    ]
    return (*end, *stacked)


@op("ConcatFromSequence")
def concat_from_sequence(attributes: Attributes, sequence: list[Array]) -> Array:
    join = jnp.stack if attributes.get("new_axis", 0) else jnp.concatenate
    return join(sequence, attributes["axis"])


@op("SplitToSequence")
def split_to_sequence(attributes: Attributes, x: Array, split: Any = None) -> list[Array]:
    axis = attributes["axis"]
    if split is None:
        parts = split_along(x, [1] * x.shape[axis], axis)
        return parts if attributes.get("keepdims", 1) else [p.squeeze(axis) for p in parts]
    sizes = ints(split)
    if not len(split.shape):
        whole, rest = divmod(x.shape[axis], sizes[0])
        sizes = sizes * whole + [rest] * bool(rest)
    return split_along(x, sizes, axis)
