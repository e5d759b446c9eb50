"""Loops and branches: scan becomes Scan, while becomes Loop, cond becomes If."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.frontends.jaxpr import random
from onward.frontends.jaxpr.frame import Frame, element_type
from onward.frontends.jaxpr.random import Key
from onward.frontends.jaxpr.registry import UnsupportedError, primitive
from onward.frontends.jaxpr.sizes import shape_of
from onward.graph.builder import Value


@dataclasses.dataclass
class Loop:
    """A loop that is being translated: its number, and the draws that its body reads from outside."""

    number: int
    length: Any = None
    """The number of iterations; None for a `while`, whose body cannot draw."""
    wholes: list[Value] = dataclasses.field(default_factory=list)
    slices: list[Value] = dataclasses.field(default_factory=list)

    def draw(self, frame: Frame, kind: str, key: Key, shape: Sequence[Any], dtype: Any) -> Value:
        """Return the numbers of one iteration; those of all iterations are drawn outside."""
        if self.length is None:
            raise UnsupportedError("a draw in a while loop, of which nobody knows how often it runs; use lax.scan")
        assert frame.parent is not None
        outside = Key(("all iterations", self.number, key.origin), key.roots, key.steps - {self.number})
        if frame.translator.pattern:  # the same pattern in each iteration, as the comparison in JAX has it
            same = random._pattern(frame.parent, kind, shape, np.dtype(dtype))
            whole = frame.parent.op.Expand(same, frame.parent.shape([self.length, *shape]))
        else:
            whole = random.draw(frame.parent, kind, outside, [self.length, *shape], dtype)
        inside = _input(frame, "draw", shape, dtype)
        self.wholes.append(whole)
        self.slices.append(inside)
        return inside


def _input(frame: Frame, name: str, shape: Sequence[Any], dtype: Any) -> Value:
    return ir.Value(
        name=frame.op.names.unique(f"{frame.op.prefix}{name}"),
        type=ir.TensorType(element_type(dtype)),
        shape=shape_of(shape),
    )


def _start(frame: Frame, length: Any = None) -> Loop:
    frame.translator.loops += 1
    return Loop(frame.translator.loops, length)


def _graph(frame: Frame, inputs: Sequence[Value], outputs: Sequence[Value], name: str) -> ir.Graph:
    """Return the graph of a body; each output is a value of its own that the body computes."""
    made = set(frame.op.nodes)
    results: list[Value] = []
    for value in outputs:
        if value.producer() not in made or value in results:
            copy = frame.op.Identity(value)
            copy.type, copy.shape = value.type, value.shape
            value = copy
        results.append(value)
    return ir.Graph(list(inputs), results, nodes=frame.op.nodes, name=frame.op.names.unique(name))


@primitive("scan")
def scan(frame: Frame, equation: Any, *inputs: Any) -> list[Any]:
    """carry, y[t] = body(constants, carry, x[t])."""
    params, closed = equation.params, equation.params["jaxpr"]
    constants, carries = params["num_consts"], params["num_carry"]
    loop = _start(frame, params["length"])
    body = frame.body(loop)
    given: list[Any] = list(inputs[:constants])
    formal: list[Value] = []
    kept: list[Value] = []
    for index, (value, variable) in enumerate(
        zip(inputs[constants:], closed.jaxpr.invars[constants:], strict=True), start=constants
    ):
        if isinstance(value, Key):
            origin = ("iteration", loop.number, index, value.origin)
            given.append(Key(origin, value.roots, value.steps | {loop.number}, value.raw))
            continue
        made = _input(body, "carry" if index < constants + carries else "x", variable.aval.shape, variable.aval.dtype)
        given.append(made)
        formal.append(made)
        kept.append(value)
    states = sum(not isinstance(v, Key) for v in inputs[constants : constants + carries])
    results = body.run(closed, given)
    _check_carried_keys(given[constants : constants + carries], results, loop)
    wholes, slices = loop.wholes, loop.slices
    if len(kept) == states and not wholes:  # a Scan must read something
        length = frame.size(params["length"])
        end = frame.op.constant(np.int64(length)) if isinstance(length, int) else length
        count = frame.op.Range(frame.op.constant(np.int64(0)), end, frame.op.constant(np.int64(1)))
        count.shape = shape_of([params["length"]])
        wholes, slices = [count], [_input(body, "step", (), np.int64)]
    outputs = [v for v in results if not isinstance(v, Key)]
    for value, variable in zip(results, closed.jaxpr.outvars, strict=True):
        if isinstance(value, ir.Value):
            value.type = value.type or ir.TensorType(element_type(variable.aval.dtype))
    graph = _graph(body, [*formal, *slices], outputs, "scan")
    reads, writes = len(kept) - states + len(wholes), len(outputs) - states
    direction = int(params["reverse"])
    made_outputs = iter(
        frame.op.call(
            "Scan",
            [*kept, *wholes],
            outputs=len(outputs),
            body=graph,
            num_scan_inputs=reads,
            scan_input_directions=[direction] * (len(kept) - states) + [0] * len(wholes) if reads else None,
            scan_output_directions=[direction] * writes if writes else None,
        )
    )
    return [
        Key(("after", loop.number, index, v.origin), v.roots, v.steps - {loop.number}, v.raw)
        if isinstance(v, Key)
        else next(made_outputs)
        for index, v in enumerate(results)
    ]


def _check_carried_keys(before: Sequence[Any], after: Sequence[Any], loop: Loop) -> None:
    """Raise if a body draws, and a key that it carries stays the same: JAX then draws the same in each iteration."""
    same = any(isinstance(old, Key) and old == new for old, new in zip(before, after, strict=False))
    if same and loop.wholes:
        raise UnsupportedError("a scan that draws and carries a key without changing it; split it in each iteration")


@primitive("while")
def while_loop(frame: Frame, equation: Any, *inputs: Any) -> list[Any]:
    """carry = body(carry) as long as condition(carry)."""
    params = equation.params
    first, second = params["cond_nconsts"], params["body_nconsts"]
    for_condition, for_body, carry = inputs[:first], inputs[first : first + second], inputs[first + second :]
    (go,) = frame.run(params["cond_jaxpr"], [*for_condition, *carry])
    loop = _start(frame)
    body = frame.body(loop)
    variables = params["body_jaxpr"].jaxpr.invars[second:]
    given = [
        Key(("iteration", loop.number, i, value.origin), value.roots, value.steps | {loop.number}, value.raw)
        if isinstance(value, Key)
        else _input(body, "carry", variable.aval.shape, variable.aval.dtype)
        for i, (value, variable) in enumerate(zip(carry, variables, strict=True))
    ]
    results = body.run(params["body_jaxpr"], [*for_body, *given])
    (again,) = body.run(params["cond_jaxpr"], [*for_condition, *results])
    counter, going = _input(body, "iteration", (), np.int64), _input(body, "going", (), np.bool_)
    formal = [v for v in given if isinstance(v, ir.Value)]
    graph = _graph(body, [counter, going, *formal], [again, *(v for v in results if isinstance(v, ir.Value))], "while")
    made = iter(
        frame.op.call(
            "Loop", [None, go, *(v for v in carry if isinstance(v, ir.Value))], outputs=len(formal), body=graph
        )
    )
    return [
        Key(("after", loop.number, i, v.origin), v.roots, v.steps - {loop.number}, v.raw)
        if isinstance(v, Key)
        else next(made)
        for i, v in enumerate(results)
    ]


@primitive("cond")
def branches(frame: Frame, equation: Any, which: Value, *inputs: Any) -> list[Value]:
    """branches[which](inputs): an If, or several inside each other."""
    return _choose(frame, equation, which, inputs, list(equation.params["branches"]), 0)


def _choose(
    frame: Frame, equation: Any, which: Value, inputs: Sequence[Any], left: list[Any], first: int
) -> list[Value]:
    if len(left) == 1:
        return _checked(frame.run(left[0], inputs))
    if equation.invars[0].aval.dtype == bool:
        later = which
    else:
        later = frame.op.Greater(frame.cast(which, np.int64), first)  # an index out of range is the nearest one
        later.shape = ir.Shape([])
    here, there = frame.body(), frame.body()
    now = _graph(here, [], _typed(here, equation, _checked(here.run(left[0], inputs))), "branch")
    others = _choose(there, equation, which, inputs, left[1:], first + 1)
    then = _graph(there, [], _typed(there, equation, others), "branch")
    made = frame.op.call("If", [later], outputs=len(equation.outvars), then_branch=then, else_branch=now)
    return _typed(frame, equation, list(made))


def _typed(frame: Frame, equation: Any, values: list[Value]) -> list[Value]:
    for value, variable in zip(values, equation.outvars, strict=True):
        if value.type is None or value.shape is None:
            frame.typed(value, variable.aval)
    return values


def _checked(values: list[Any]) -> list[Value]:
    if any(isinstance(v, Key) for v in values):
        raise UnsupportedError("a branch that returns a random key; split the key before the branch")
    return values
