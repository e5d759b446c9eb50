"""Translate a traced function of JAX, a jaxpr, to nodes of ONNX.

`Translator.translate` takes any closed jaxpr and one value for each of its inputs, and returns one value for each
output; it makes the nodes with the given builder. Who calls it decides what the inputs are: inputs of a graph,
initializers, gradients. `trace` makes the jaxpr.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import onnx_ir as ir

from onward.errors import ArgumentError, Diagnostic
from onward.frontends.jaxpr import derivatives, primitives, random, versions
from onward.frontends.jaxpr.frame import Frame, constant_of, element_type
from onward.frontends.jaxpr.random import Key
from onward.frontends.jaxpr.registry import RULES, UnsupportedError
from onward.frontends.jaxpr.sizes import shape_of
from onward.graph.builder import Builder, Value

A220 = "A220"
SMALL = 64  # elements
FOLDED: dict[str, Callable[..., Any]] = {
    "add": lambda _, a, b: np.add(a, b),
    "sub": lambda _, a, b: np.subtract(a, b),
    "mul": lambda _, a, b: np.multiply(a, b),
    "max": lambda _, a, b: np.maximum(a, b),
    "min": lambda _, a, b: np.minimum(a, b),
    "lt": lambda _, a, b: np.less(a, b),
    "le": lambda _, a, b: np.less_equal(a, b),
    "gt": lambda _, a, b: np.greater(a, b),
    "ge": lambda _, a, b: np.greater_equal(a, b),
    "eq": lambda _, a, b: np.equal(a, b),
    "ne": lambda _, a, b: np.not_equal(a, b),
    "select_n": lambda _, which, *cases: np.choose(which.astype(int), cases),
    "broadcast_in_dim": lambda _, a: a,
    "reshape": lambda _, a: a,
    "squeeze": lambda _, a: a,
}
"""What is computed at once where all is known: JAX makes much of it for indices and bounds."""

for _module in pkgutil.iter_modules(primitives.__path__):
    importlib.import_module(f"{primitives.__name__}.{_module.name}")


def trace(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Any]:
    """Return the closed jaxpr of `function` for arguments (arrays or ShapeDtypeStructs), and the shapes it returns."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    return closed, shapes


class Translator:
    """Translates jaxprs; several may share one, so that they share the names of sizes.

    With `differentiable`, derivatives that are written by hand (custom_jvp, custom_vjp, stop_gradient) become part of
    the graph; without, only values matter. With `pattern`, every draw of random numbers is a fixed pattern, the same as
    `random.pattern` computes in JAX. `functions` are the model-local functions that the nodes call.
    """

    def __init__(self, what: str, *, differentiable: bool = False, pattern: bool = False) -> None:
        self.what = what
        self.differentiable = differentiable
        self.pattern = pattern
        self.sizes: dict[str, Value] = {}
        self.functions: dict[str, ir.Function] = {}
        self.drawn: list[Key] = []
        self.loops = 0
        self.rules = 0
        """How many rules of custom derivatives are being translated inside each other."""
        self.problems: dict[tuple[str, str], Diagnostic] = {}
        self._arguments: dict[Value, str] = {}

    def translate(
        self, closed: Any, arguments: Sequence[Value | Key], op: Builder, names: Sequence[str] | None = None
    ) -> list[Value | Key]:
        """Translate a closed jaxpr; return one value for each output, or a `Key` where JAX returns a random key.

        `names` are the names of the arguments, for messages.

        Raises:
            ArgumentError: lists every primitive that has no rule or is used in a way that has none.
        """
        frame = Frame(self, op)
        for value, name in zip(arguments, names or [""] * len(arguments), strict=True):
            if isinstance(value, ir.Value):
                self._arguments[value] = name or value.name or ""
        jaxpr, used = versions.remove_dead(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
        read = [value for value, is_used in zip(arguments, used, strict=True) if is_used]
        self._read_sizes(frame, jaxpr.invars, read)
        self._read_sizes(frame, closed.jaxpr.invars, arguments)  # a size may be all that is read of an argument
        results = self.run(frame, jaxpr, closed.consts, read)
        if self.problems:
            raise ArgumentError(list(self.problems.values()))
        return results

    def _read_sizes(self, frame: Frame, variables: Sequence[Any], arguments: Sequence[Value | Key]) -> None:
        """Compute each free size from the first input that has it."""
        for variable, value in zip(variables, arguments, strict=True):
            if isinstance(value, Key):
                continue
            for axis, size in enumerate(variable.aval.shape):
                if versions.is_static(size) or str(size) in self.sizes or not str(size).isidentifier():
                    continue
                made = frame.op.Reshape(frame.op.Shape(value, start=axis, end=axis + 1), np.array([], np.int64))
                made.shape = ir.Shape([])
                self.sizes[str(size)] = made

    def run(self, frame: Frame, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """Translate the equations of a jaxpr in `frame` and return its results."""
        values: dict[Any, Any] = {}
        for variable, constant in zip(jaxpr.constvars, consts, strict=True):
            values[variable] = self._constant(frame, variable.aval, constant)
        values.update(zip(jaxpr.invars, arguments, strict=True))

        def read(variable: Any) -> Any:
            if isinstance(variable, versions.Literal):
                return self._constant(frame, variable.aval, variable.val)
            return values[variable]

        for equation in jaxpr.eqns:
            inputs = [read(v) for v in equation.invars]
            outputs = self._equation(frame, equation, inputs)
            values.update(zip(equation.outvars, outputs, strict=True))
        return [read(v) for v in jaxpr.outvars]

    def _constant(self, frame: Frame, aval: Any, value: Any) -> Value | Key:
        if versions.is_key(aval):
            return Key(("constant key", id(value)), frozenset())
        return frame.constant(value, aval.dtype)

    def _equation(self, frame: Frame, equation: Any, inputs: Sequence[Any]) -> list[Any]:
        name = equation.primitive.name
        try:
            outputs = self._apply(frame, equation, inputs)
        except UnsupportedError as error:
            self._problem(equation, f"`{name}` cannot be captured: {error}")
            return [self._stand_in(frame, v.aval) for v in equation.outvars]
        outputs = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
        given = set(map(id, inputs))
        for value, variable in zip(outputs, equation.outvars, strict=True):
            if isinstance(value, ir.Value) and id(value) not in given:
                frame.typed(value, variable.aval)
        return outputs

    def _apply(self, frame: Frame, equation: Any, inputs: Sequence[Any]) -> Any:
        name = equation.primitive.name
        if any(isinstance(v, Key) for v in inputs) or name in ("random_wrap", "random_seed", "random_bits"):
            found = self._on_keys(frame, equation, inputs)
            if found is not None:
                return found
        if name in ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"):
            return derivatives.call(frame, equation, inputs)
        called = versions.called(equation)
        if called is not None:
            known = primitives.by_name(equation.params.get("name"), called)
            return frame.run(called, inputs) if known is None else known(frame, equation, *inputs)
        folded = self._folded(frame, equation, inputs)
        if folded is not None:
            return folded
        rule = RULES.get(name)
        if rule is None:
            raise UnsupportedError(f"Onward has no rule for this primitive of JAX {versions.VERSION}")
        return rule(frame, equation, *inputs)

    def _folded(self, frame: Frame, equation: Any, inputs: Sequence[Any]) -> list[Value] | None:
        """Return the results of arithmetic with small constants, which JAX itself computes; None for anything else."""
        function = FOLDED.get(equation.primitive.name)
        if function is None or not all(isinstance(v, ir.Value) for v in inputs):
            return None
        arrays = [a for v in inputs if (a := constant_of(v)) is not None and a.size <= SMALL]
        out = equation.outvars[0].aval
        if len(arrays) < len(inputs) or not all(map(versions.is_static, out.shape)) or np.prod(out.shape) > SMALL:
            return None
        with np.errstate(all="ignore"):
            made = np.asarray(function(equation.params, *arrays))
        if equation.primitive.name in ("broadcast_in_dim", "reshape", "squeeze"):
            places = equation.params.get("broadcast_dimensions", ())
            sizes = [made.shape[places.index(i)] if i in places else 1 for i in range(len(out.shape))]
            made = np.broadcast_to(made.reshape(sizes), out.shape) if places else made
            made = np.broadcast_to(made, out.shape) if made.size == 1 else made.reshape(out.shape)
        return [frame.constant(np.ascontiguousarray(made).reshape(out.shape), out.dtype)]

    def _on_keys(self, frame: Frame, equation: Any, inputs: Sequence[Any]) -> Any:
        """Return the outputs of an equation that reads random keys; None if it is to be translated as any other."""
        name = equation.primitive.name
        called = versions.called(equation)
        if called is not None:
            kind = random.DRAWS.get(equation.params.get("name", ""))
            if kind is None or not versions.made_by_jax(called):
                return None
            numbers = frame.draw(kind, inputs[0], equation.outvars[0].aval.shape, equation.outvars[0].aval.dtype)
            if kind == "normal":
                return [numbers]
            op, (low, high) = frame.op, inputs[1:]
            if any(v.aval.shape != () for v in equation.invars[1:]):
                raise UnsupportedError("a uniform draw whose bounds are arrays; scale a draw from 0 to 1 instead")
            low, high = (frame.cast(v, equation.outvars[0].aval.dtype) for v in (low, high))
            return [op.Add(op.Mul(numbers, op.Sub(high, low)), low)]
        if name in ("scan", "while", "cond", "custom_jvp_call", "custom_vjp_call"):
            return None
        if name == "random_seed":
            known = constant_of(inputs[0])
            seed = id(inputs[0]) if known is None else known.tobytes()
            argument = self._arguments.get(inputs[0])
            roots = frozenset() if known is not None else frozenset({argument or inputs[0]})
            return [Key(("seed", seed), roots)]
        if name == "random_wrap" and not isinstance(inputs[0], Key):
            argument = self._arguments.get(inputs[0])
            if argument is None:  # integers that were computed, or a constant
                constant = constant_of(inputs[0]) is not None
                roots = frozenset() if constant else frozenset({inputs[0]})
                return [Key(("integers", id(inputs[0])), roots)]
            return [Key(("argument", argument), frozenset({argument}))]
        return random.moved(equation, inputs)

    def _stand_in(self, frame: Frame, aval: Any) -> Value | Key:
        """Return what takes the place of a result that could not be made, so that all problems are found."""
        if versions.is_key(aval):
            return Key(("unknown",), frozenset({"unknown"}))
        return ir.Value(
            name=frame.op.names.unique("unknown"),
            type=ir.TensorType(element_type(aval.dtype)),
            shape=shape_of(aval.shape),
        )

    def _problem(self, equation: Any, message: str) -> None:
        place = versions.user_line(equation)
        self.problems.setdefault(
            (message, place),
            Diagnostic(
                A220,
                message,
                place=f"{self.what}{', ' if place else ''}{place}",
                hint=f"JAX {versions.VERSION}; write this part with other functions of jax.numpy or jax.lax",
            ),
        )
