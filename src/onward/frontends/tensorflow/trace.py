"""Trace functions of TensorFlow: the graph of a call, the variables that it reads, and their names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from onward.errors import ArgumentError, Diagnostic
from onward.frontends.tensorflow.nodes import Translated, translate
from onward.frontends.tensorflow.pure import A264, Pure, purify
from onward.frontends.tensorflow.source import A261, user_errors


@dataclasses.dataclass
class Traced:
    """One traced function: its results as symbolic tensors, the variables it reads, and its graph without effects."""

    results: Any
    variables: list[Any]
    pure: Pure
    what: str

    @property
    def changed(self) -> dict[int, str]:
        """The new value of each variable that the function assigns: the variable's identity, and the tensor."""
        return {id(self.variables[i]): name for i, name in self.pure.changed.items()}

    @property
    def read(self) -> dict[int, str]:
        """The tensor that stands for each variable, by the variable's identity."""
        return {id(self.variables[i]): name for i, name in self.pure.variables.items()}

    def translate(self, *, differentiable: bool) -> Translated:
        """Return the graph as nodes of ONNX."""
        return translate(self.pure, self.what, differentiable=differentiable)


def trace(
    function: Callable[..., Any], structure: Any, what: str, hint: str = "", *, differentiable: bool = True
) -> Traced:
    """Return the graph of `function(*args, **kwargs)`; `structure` is (args, kwargs) with TensorSpecs.

    Raises:
        ArgumentError: the function fails, returns something else than tensors, or has effects that a file cannot have.
    """
    flat = tf.nest.flatten(structure)
    found: dict[str, Any] = {}

    def body(*tensors: Any) -> list[Any]:
        args, kwargs = tf.nest.pack_sequence_as(structure, list(tensors))
        found["results"] = results = function(*args, **kwargs)
        return [tf.identity(_tensor(t, what)) for t in tf.nest.flatten(results)]

    with user_errors(what, hint):
        first = tf.function(body, autograph=False).get_concrete_function(*flat)
    variables = _in_order(first)
    _check_made(variables, what)

    def whole(*tensors: Any) -> list[Any]:
        return [*body(*tensors), *(v.read_value() for v in variables)]

    with user_errors(what, hint):
        second = tf.function(whole, autograph=False).get_concrete_function(*flat)
    count = len(tf.nest.flatten(found["results"]))
    pure = purify(second, count, variables, what, differentiable=differentiable)
    return Traced(found["results"], variables, pure, what)


def _in_order(function: Any) -> list[Any]:
    """Return the variables of a concrete function, in the order in which it came to read them."""
    places = {id(outside): i for i, (outside, _) in enumerate(function.graph.captures)}
    found = {id(v): v for v in function.graph.variables}.values()
    return sorted(found, key=lambda v: places.get(id(v.handle), len(places)))


def _tensor(value: Any, what: str) -> Any:
    try:
        made = tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        made = None
    if made is None or not (made.dtype.is_floating or made.dtype.is_integer or made.dtype.is_bool):
        raise ArgumentError(
            Diagnostic(
                A261,
                "a result is not a tensor of numbers",
                place=what,
                found=f"{type(value).__name__}" + ("" if made is None else f" of {made.dtype.name}"),
                needed="tensors, or a structure of tensors",
            )
        )
    return made


def _check_made(variables: Sequence[Any], what: str) -> None:
    """Raise if tracing made a variable: it has no value yet."""
    empty = []
    for variable in variables:
        try:
            variable.numpy()
        except (tf.errors.FailedPreconditionError, tf.errors.NotFoundError, NotImplementedError):
            empty.append(variable.name)
    if empty:
        raise ArgumentError(
            Diagnostic(
                A264,
                f"variable `{empty[0]}` has no value yet",
                place=what,
                hint="create variables outside of the function, or call it once on a batch before",
            )
        )


# -- variables ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Weight:
    """A variable, its name in the file, and whether it is trained."""

    variable: Any
    name: str
    trained: bool


def weights_of(traces: Sequence[Traced], root: Any, chosen: Any, taken: Sequence[str]) -> list[Weight]:
    """Return the variables of all traces with their names and roles.

    Raises:
        ArgumentError: lists every variable that cannot be what it is asked to be.
    """
    kept = {id(v): v for t in traces for i, v in enumerate(t.variables) if i in t.pure.variables}
    names = _names(list(kept.values()), root, chosen, taken)
    trained = _trained(kept, chosen, {key for t in traces for key in t.changed}, names)
    first = [*_listed(chosen), *(root.variables if isinstance(root, tf.Module) else [])]
    order = dict.fromkeys([*(id(v) for v in first if id(v) in kept), *kept])
    return [Weight(kept[key], names[key], key in trained) for key in order]


def _listed(chosen: Any) -> list[Any]:
    return [] if chosen is None else list(chosen.values() if isinstance(chosen, Mapping) else chosen)


def _trained(kept: Mapping[int, Any], chosen: Any, changed: set[int], names: Mapping[int, str]) -> set[int]:
    wanted = None if chosen is None else _listed(chosen)
    problems: list[Diagnostic] = []
    if wanted is not None:
        for variable in wanted:
            if not isinstance(variable, tf.Variable):
                problems.append(
                    Diagnostic(A264, "not a tf.Variable", place="variables=", found=f"a {type(variable).__qualname__}")
                )
            elif id(variable) not in kept:
                problems.append(
                    Diagnostic(
                        A264,
                        f"the function does not read variable `{variable.name}`",
                        place="variables=",
                        found=f"it reads {', '.join(sorted(names.values())) or 'no variable'}",
                    )
                )
    if problems:
        raise ArgumentError(problems)
    ids = {key for key, v in kept.items() if v.trainable} if wanted is None else {id(v) for v in wanted}
    floating = {key for key in ids if kept[key].dtype.is_floating}
    if wanted is not None:
        problems += [_refused(names[key], f"it holds {kept[key].dtype.name}", "numbers") for key in ids - floating]
    problems += [
        _refused(names[key], f"it is {kept[key].dtype.name}", "float32 or float64")
        for key in floating
        if kept[key].dtype not in (tf.float32, tf.float64, tf.float16)
    ]
    problems += [
        _refused(
            names[key], "the function assigns it as well", "tf.Variable(…, trainable=False) for running statistics"
        )
        for key in floating & changed
    ]
    if not floating and not problems:
        problems.append(
            Diagnostic(
                A264,
                "there is no variable to train",
                place="variables=",
                found=f"not trainable: {', '.join(names.values())}" if names else "the function reads no variable",
                needed="a tf.Variable that is trainable",
            )
        )
    if problems:
        raise ArgumentError(problems)
    return floating


def _refused(name: str, found: str, needed: str) -> Diagnostic:
    return Diagnostic(A264, f"variable `{name}` cannot be trained", place="variables=", found=found, needed=needed)


def _names(variables: Sequence[Any], root: Any, chosen: Any, taken: Sequence[str]) -> dict[int, str]:
    """Return a unique name for each variable: the user's, its own, or where the module keeps it."""
    given = {id(v): str(name) for name, v in chosen.items()} if isinstance(chosen, Mapping) else {}
    own = {id(v): v.name.split(":")[0] for v in variables}
    paths = _paths(root)
    used = set(taken)
    found: dict[int, str] = {}
    for variable in variables:
        key = id(variable)
        shared = sum(name == own[key] for name in own.values()) > 1
        generic = own[key].rsplit("/", 1)[-1].startswith("Variable")
        name = given.get(key) or (paths.get(key, own[key]) if shared or generic else own[key])
        base, count = name, 2
        while name in used:
            name, count = f"{base}_{count}", count + 1
        used.add(name)
        found[key] = name
    return found


def _paths(root: Any) -> dict[int, str]:
    """Return the attributes that lead from a module to each of its variables."""
    found: dict[int, str] = {}
    try:
        view = tf.train.TrackableView(root)
        waiting = [(root, "")]
        seen = {id(root)}
        while waiting:
            node, path = waiting.pop(0)
            for name, child in view.children(node).items():
                if id(child) in seen:
                    continue
                seen.add(id(child))
                full = f"{path}/{name}" if path else name
                if isinstance(child, tf.Variable):
                    found[id(child)] = full
                else:
                    waiting.append((child, full))
    except (AttributeError, TypeError, ValueError):
        return found  # a plain function: nothing that is tracked
    return found
