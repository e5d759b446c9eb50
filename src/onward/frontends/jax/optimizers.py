"""Optimizers of other libraries: a step is traced with the current state, and becomes part of the algorithm."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import onnx_ir as ir

from onward.errors import ArgumentError, Diagnostic, require_extra
from onward.frontends.jax.trees import Leaf, Tree, read_tree
from onward.frontends.jaxpr import versions
from onward.frontends.jaxpr.random import Key
from onward.frontends.jaxpr.translator import Translator, trace
from onward.graph.builder import Builder, Names, Value
from onward.model.roles import STEP, Role, mark
from onward.model.training_model import TrainingEntry
from onward.optimizers.emit import initializer

A225 = "A225"


def is_optax(optimizer: Any) -> bool:
    """Return whether `optimizer` has the two functions of an optax optimizer."""
    return (
        not isinstance(optimizer, type)
        and callable(getattr(optimizer, "init", None))
        and callable(getattr(optimizer, "update", None))
    )


class Traced:
    """An optimizer whose `step` JAX can trace, with its current state; a subclass is one library's."""

    name: str
    params: Tree
    state: Tree
    fresh: Tree
    """The state with which the optimizer begins."""
    rates: frozenset[str] = frozenset()
    """Leaves of the state that are learning rates: the step reads them, and the user may set them."""

    def step(self, gradients: Any, state: Any, params: Any, value: Any) -> tuple[Any, Any]:
        """Return the new parameters and the new state; `value` is the loss."""
        raise NotImplementedError

    def refuse(self, error: Exception, name: str) -> ArgumentError:
        """Return what to raise where the optimizer's function `name` cannot be traced."""
        raise NotImplementedError

    def trace(self, loss: Any) -> tuple[Any, Tree]:
        """Return the jaxpr of a step, and the new state's shapes; `loss` is the shape of the loss."""
        try:
            closed, shapes = trace(self.step, self.params.structs, self.state.structs, self.params.structs, loss)
        except Exception as error:  # an optimizer may raise any type
            raise self.refuse(error, "update") from error
        new_params, new_state = shapes
        problems = []
        if jax.tree.structure(new_state) != self.state.structure:
            problems.append("a state of another structure")
        else:
            found = [*jax.tree.leaves(new_params), *jax.tree.leaves(new_state)]
            for leaf, made in zip([*self.params.leaves, *self.state.leaves], found, strict=True):
                if (leaf.struct.shape, leaf.struct.dtype) != (made.shape, made.dtype):
                    was = f"{leaf.struct.dtype}{list(leaf.struct.shape)}"
                    problems.append(f"`{leaf.name}` as {made.dtype}{list(made.shape)} instead of {was}")
        if problems:
            raise ArgumentError(
                Diagnostic(
                    A225,
                    "the optimizer changes the type or shape of what it updates",
                    place="optimizer=",
                    found=f"it returns {'; '.join(problems[:3])}",
                    needed="the same structure, shapes and types",
                )
            )
        return closed, self.state


class Optax(Traced):
    """An optax optimizer with its current state."""

    name = "optax"

    def __init__(self, optimizer: Any, state: Any, params: Tree, names: set[str]) -> None:
        self.optimizer = optimizer
        self.params = params
        try:
            fresh = _initial(optimizer, params.values)
        except Exception as error:  # an optimizer may raise any type
            raise self.refuse(error, "init") from error
        self.fresh = read_tree(fresh, "optimizer", "optimizer=", (), prefix="optimizer.")
        self.state = (
            self.fresh if state is None else read_tree(state, "optimizer", "optimizer_state=", (), prefix="optimizer.")
        )
        self._check_state()

    def _check_state(self) -> None:
        if self.state.structure != self.fresh.structure:
            raise ArgumentError(
                Diagnostic(
                    A225,
                    "the state is not one of this optimizer",
                    place="optimizer_state=",
                    found=f"{len(self.state.leaves)} arrays in {str(self.state.structure)[:150]}",
                    needed=f"the structure of optimizer.init(params): {str(self.fresh.structure)[:150]}",
                )
            )

    def step(self, gradients: Any, state: Any, params: Any, value: Any) -> tuple[Any, Any]:
        """Return the new parameters and the new state, as the user's own loop computes them."""
        try:
            import optax
        except ImportError as error:
            raise require_extra("optax", "jax", "an optax optimizer") from error
        extra = {"value": value, "grad": gradients} if _takes_extra(self.optimizer) else {}
        updates, new = self.optimizer.update(gradients, state, params, **extra)
        return optax.apply_updates(params, updates), new

    def refuse(self, error: Exception, name: str) -> ArgumentError:
        """Return what to raise where `init` or `update` fails."""
        line = next((text for text in str(error).splitlines() if text.strip()), "")
        again = any(word in str(error) for word in ("value_fn", "obj_fn", "grad_fn"))
        return ArgumentError(
            Diagnostic(
                A225,
                f"the optimizer's `{name}` cannot be traced: {type(error).__name__}: {line[:200]}",
                place="optimizer=",
                hint="this optimizer evaluates the loss again within a step, which a training step of a file cannot do"
                if again
                else "the step gives it the gradients, its state, the parameters, value= (the loss) and grad=",
            )
        )


def _initial(optimizer: Any, params: Any) -> Any:
    """Return the state with which an optimizer begins; compiled as a whole, if that is possible."""
    try:
        return versions.quick_jit(optimizer.init)(params)
    except (TypeError, ValueError, AttributeError):  # it looks at numbers, or returns what is not an array
        return optimizer.init(params)


def _takes_extra(optimizer: Any) -> bool:
    """Return whether `update` takes further keyword arguments, such as the value of the loss."""
    try:
        parameters = inspect.signature(optimizer.update).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.kind is p.VAR_KEYWORD for p in parameters)


def state_values(tree: Tree, params: Tree, names: Names) -> dict[str, Value]:
    """Return an initializer for each array of the optimizer's state, by the name of the leaf, marked with its role."""
    found: dict[str, Value] = {}
    by_path = {leaf.path: leaf for leaf in params.leaves}
    counters = 0
    for leaf in tree.leaves:
        if leaf.is_key:
            continue
        value = initializer(names.unique(leaf.name), np.asarray(leaf.value))
        owner, slot = _owner(leaf, by_path)
        counts = slot.rsplit(".", 1)[-1] in ("count", "iteration") and leaf.struct.shape == ()
        if owner is None and counts and not counters:
            counters, slot = 1, STEP
        mark(value, Role.STATE, of=owner, slot=slot)
        found[leaf.name] = value
    return found


def _owner(leaf: Leaf, params: Mapping[str, Leaf]) -> tuple[str | None, str]:
    """Return the parameter that a state belongs to, and what it is of it: `0.mu.dense.kernel` is `0.mu` of it."""
    fitting = [path for path in params if path and leaf.path.endswith(f".{path}")]
    if not fitting:
        return None, leaf.path
    path = max(fitting, key=len)
    return params[path].name, leaf.path[: -len(path) - 1]


def emit_step(
    optimizer: Traced,
    op: Builder,
    closed: Any,
    gradients: Sequence[Value],
    state: Mapping[str, Value],
    params: Sequence[Value],
    loss: Value,
) -> tuple[dict[str, Value], set[str], Translator]:
    """Emit the update; return the new value of each parameter and state by name, and the names of all that changes."""
    translator = Translator("the optimizer's update")
    keys = [
        Key(("argument", leaf.name), frozenset({leaf.name})) if leaf.is_key else state[leaf.name]
        for leaf in optimizer.state.leaves
    ]
    names = [
        *(f"grad/{leaf.name}" for leaf in optimizer.params.leaves),
        *(leaf.name for leaf in optimizer.state.leaves),
        *(leaf.name for leaf in optimizer.params.leaves),
        "loss",
    ]
    results = translator.translate(closed, [*gradients, *keys, *params, loss], op, names)
    leaves = [*optimizer.params.leaves, *optimizer.state.leaves]
    pairs = list(zip(leaves, [*params, *keys], results, strict=True))
    updated = {leaf.name: new for leaf, old, new in pairs if isinstance(new, ir.Value) and new is not old}
    moved = {leaf.name for leaf, _, new in pairs if isinstance(new, Key) and new.origin != ("argument", leaf.name)}
    return updated, {*updated, *moved}, translator


def emit_reset(entry: TrainingEntry, optimizer: Traced, state: Mapping[str, Value], opset: int) -> None:
    """Add the initialization graph: it sets the state to what `optimizer.init` returns.

    A state that starts as a copy of a parameter keeps its value: the graph does not read parameters.
    """
    op = Builder(opset, Names())
    outputs: dict[str, Value] = {}
    arrays = [np.asarray(leaf.value) for leaf in optimizer.params.leaves]
    for leaf in optimizer.fresh.leaves:
        if leaf.is_key or leaf.name not in state:
            continue
        array = np.asarray(leaf.value)
        same = array.size > 0 and bool(np.all(array == array.reshape(-1)[0]))
        if not same and any(a.shape == array.shape and np.array_equal(a, array) for a in arrays):
            continue
        shape = np.array(array.shape, np.int64)
        value = op.ConstantOfShape(shape, value=array.reshape(-1)[:1]) if same else op.Identity(op.constant(array))
        like = state[leaf.name]
        value.name = f"init/{like.name}"
        value.type, value.shape = like.type, like.shape
        outputs[like.name or ""] = value
    entry.initialization = ir.Graph([], list(outputs.values()), nodes=op.nodes, name="initialize")
    entry.initialization_binding = {k: v.name or "" for k, v in outputs.items()}
