"""Optimizers of Keras on TensorFlow: a step is traced with the current state. There is no table of optimizers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from onward.errors import A101, ArgumentError, Diagnostic
from onward.frontends.tensorflow.trace import Traced as TracedFunction
from onward.frontends.tensorflow.trace import Weight, trace
from onward.graph.builder import Builder, Names, Value
from onward.model.roles import STEP, Role, mark
from onward.model.training_model import TrainingEntry
from onward.optimizers import Optimizer, by_name
from onward.optimizers.emit import initializer

A266 = "A266"
UPDATE = "the optimizer's update"


@dataclasses.dataclass
class Emitted:
    """What an optimizer adds to an algorithm: inputs with a default, state, and the new value of all that changes."""

    settings: list[Value]
    state: list[Value]
    bindings: dict[str, Value]
    values: dict[int, Value]


class Traced:
    """An optimizer of Keras on TensorFlow, built for the trained variables, with its current state."""

    def __init__(self, optimizer: Any, weights: Sequence[Weight]) -> None:
        self.optimizer = optimizer
        self.name = f"keras.{type(optimizer).__name__}"
        self.trained = [w for w in weights if w.trained]
        variables = [w.variable for w in self.trained]
        self._build(variables)
        self.state = [(v.path, _inner(v)) for v in optimizer.variables]
        self.traced = self._trace(variables)
        self.nodes = self.traced.translate(differentiable=False)

    def _build(self, variables: Sequence[Any]) -> None:
        from onward.frontends.keras import versions

        optimizer = self.optimizer
        if versions.scales_loss(optimizer):
            raise _refused(optimizer, "it scales the loss, which is part of a step of Keras", "use it without scaling")
        if not optimizer.built:
            try:
                optimizer.build(list(variables))
            except Exception as error:  # an optimizer may raise any type
                why = f"its build fails for a tf.Variable: {type(error).__name__}: {error}"
                raise _refused(optimizer, why, "use one of onward.optimizers") from error
            return
        its = [id(_inner(v)) for v in versions.trained_by(optimizer)]
        if its != [id(v) for v in variables]:
            raise _refused(
                optimizer,
                f"it was built for other variables: {', '.join(v.name for v in versions.trained_by(optimizer))}",
                f"pass one that was built for {', '.join(v.name for v in variables)}, or a new one",
            )

    def _trace(self, variables: Sequence[Any]) -> TracedFunction:
        def apply(*gradients: Any) -> Any:
            self.optimizer.apply(list(gradients), list(variables))
            return gradients[0]

        specs = tuple(tf.TensorSpec(v.shape, v.dtype) for v in variables)
        try:
            return trace(apply, (specs, {}), UPDATE, differentiable=False)
        except ArgumentError as error:
            found = [d for d in error.diagnostics if d.code in ("A261", "A262", "A264", "A265")]
            if not found:
                raise
            raise ArgumentError(
                [
                    Diagnostic(
                        A266,
                        f"the optimizer cannot be captured: {d.message}",
                        place=f"optimizer `{self.optimizer.name}`, {d.place}",
                        hint="use one of onward.optimizers, or the optimizer without options that branch "
                        "(accumulation, averages with a frequency)",
                    )
                    for d in found
                ]
            ) from error

    def emit(
        self, op: Builder, names: Names, gradients: Mapping[Value, Value], weights: Mapping[str, Value]
    ) -> Emitted:
        """Emit the update; `weights` are the variables of the model by name."""
        from onward.frontends.keras import versions

        rate = versions.learning_rate(self.optimizer)
        settings, state = [], []
        values = {id(w.variable): weights[w.name] for w in self.trained}
        changed = self.traced.changed
        for path, variable in self.state:
            value = initializer(names.unique(path), variable.numpy())
            values[id(variable)] = value
            if rate is not None and _inner(rate) is variable and id(variable) not in changed:
                mark(value, Role.LEARNING_RATE)
                settings.append(value)
                continue
            owner, slot = self._owner(path)
            mark(value, Role.STATE, of=owner, slot=slot)
            state.append(value)
        pure = self.traced.pure
        arguments = dict(zip(pure.inputs, gradients.values(), strict=True))
        arguments.update({name: values[key] for key, name in self.traced.read.items() if key in values})
        after = Builder(op.opset, op.names, prefix="update/")
        results = self.nodes.splice(after, arguments, list(changed.values()))
        bindings = {}
        for key, new in zip(changed, results, strict=True):
            old = values[key]
            made = after.Identity(new)
            made.name = names.unique(f"new/{old.name}")
            made.type, made.shape = old.type, None if old.shape is None else old.shape.copy()
            bindings[old.name or ""] = made
        op.nodes.extend(after.nodes)
        return Emitted(settings, state, bindings, values)

    def _owner(self, path: str) -> tuple[str | None, str]:
        """Return the weight that a state belongs to, and what it is of it."""
        name = path.rsplit("/", 1)[-1]
        fitting = []
        for weight in self.trained:
            for own in (weight.variable.name, weight.variable.name.split(":")[0]):
                prefix = own.replace("/", "_").replace(":", "_") + "_"
                if name.startswith(prefix):
                    fitting.append((len(prefix), name[len(prefix) :], weight.name))
        if fitting:
            _, slot, owner = max(fitting)
            return owner, slot
        return None, STEP if name == "iteration" else name

    def reset(self, entry: TrainingEntry, emitted: Emitted) -> None:
        """Add the initialization graph: it sets the state to that of a new optimizer."""
        optimizer = self.optimizer
        try:
            fresh = type(optimizer).from_config(optimizer.get_config())
            fresh.build([w.variable for w in self.trained])
        except Exception as error:  # an optimizer may raise any type
            raise _refused(optimizer, f"from_config fails: {type(error).__name__}: {error}", "") from error
        op = Builder(18, Names())
        outputs: dict[str, Value] = {}
        for (_, variable), new in zip(self.state, fresh.variables, strict=True):
            like = emitted.values[id(variable)]
            if like in emitted.settings:
                continue
            array = _inner(new).numpy()
            same = array.size > 0 and bool(np.all(array == array.reshape(-1)[0]))
            shape = np.array(array.shape, np.int64)
            value = op.ConstantOfShape(shape, value=array.reshape(-1)[:1]) if same else op.Identity(op.constant(array))
            value.name, value.type, value.shape = f"init/{like.name}", like.type, like.shape
            outputs[like.name or ""] = value
        entry.initialization = ir.Graph([], list(outputs.values()), nodes=op.nodes, name="initialize")
        entry.initialization_binding = {k: v.name or "" for k, v in outputs.items()}


def _inner(variable: Any) -> Any:
    """Return the tf.Variable of a variable of Keras."""
    return variable.value if hasattr(variable, "value") and not isinstance(variable, tf.Variable) else variable


def _refused(optimizer: Any, why: str, hint: str) -> ArgumentError:
    return ArgumentError(
        Diagnostic(A266, f"the optimizer cannot be captured: {why}", place=f"optimizer `{optimizer.name}`", hint=hint)
    )


def _is_of_keras(given: Any) -> bool:
    return any(kind.__module__.split(".")[0] == "keras" for kind in type(given).__mro__) and hasattr(given, "apply")


def in_order(optimizer: Any, weights: Sequence[Weight]) -> list[Weight]:
    """Return the weights in the order for which an optimizer of Keras was built; its state is in that order, too."""
    if not _is_of_keras(optimizer) or not getattr(optimizer, "built", False):
        return list(weights)
    from onward.frontends.keras import versions

    places = {id(_inner(v)): place for place, v in enumerate(versions.trained_by(optimizer))}
    return sorted(weights, key=lambda weight: places.get(id(weight.variable), len(places)))


def read_optimizer(given: Any, weights: Sequence[Weight]) -> Optimizer | Traced:
    """Return the optimizer that the user gave.

    Raises:
        ArgumentError: it is none, or one of Keras that cannot be captured.
    """
    if isinstance(given, str):
        return by_name(given)
    if isinstance(given, Optimizer):
        return given
    if _is_of_keras(given):
        import keras

        if keras.backend.backend() != "tensorflow":
            raise _refused(given, f"Keras runs on {keras.backend.backend()}", "set KERAS_BACKEND=tensorflow")
        return Traced(given, weights)
    raise ArgumentError(
        Diagnostic(
            A101,
            "invalid optimizer",
            place="optimizer=",
            found=repr(given)[:200],
            needed="a name or an object of onward.optimizers, or an optimizer of keras.optimizers",
            hint="call it first" if isinstance(given, type) else "",
        )
    )
