"""`OnnxOptimizer`: a Keras optimizer that runs the update graph of a file, with the file's state."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import onnx

from onward.backends.keras.engine import Runner, assign, check_types, engine, new_variable
from onward.backends.keras.parts import A248, Piece, Update
from onward.errors import A101, ArgumentError, Diagnostic
from onward.model import serde
from onward.model.roles import RANDOM_STEP
from onward.registration import PACKAGE

SMALL = 64  # elements of a state that a config holds


@keras.saving.register_keras_serializable(PACKAGE)
class OnnxOptimizer(keras.optimizers.Optimizer):  # type: ignore[misc]  # Keras is not typed here
    """The optimizer of a file.

    `apply` feeds the gradients to the update graph, and replaces parameters and state by what it gives. `settings` are
    the variables that a step only reads, such as the learning rate, which is also `learning_rate`, and `state` all
    variables, both by their ONNX names.
    """

    def __init__(self, update: Update, name: str = "onnx_optimizer") -> None:
        check_types({n: value.dtype for n, value in update.held.items()})
        super().__init__(learning_rate=lambda: self.learning_rate, name=name)
        self._parts = _Parts(update)
        for variable in self._parts.held.values():
            self._track_variable(variable)
        count = update.held.get(update.step)
        if count is not None and np.size(count) == 1:
            self._iterations.assign(int(np.reshape(count, ())))

    @property
    def state(self) -> dict[str, Any]:
        """The variables of the optimizer by their ONNX names."""
        return dict(self._parts.held)

    @property
    def settings(self) -> dict[str, Any]:
        """The variables that a step only reads, by their ONNX names."""
        replaced = self._parts.update.graph.replaces.values()
        return {n: v for n, v in self._parts.held.items() if n not in replaced and not n.startswith("random/")}

    @property
    def learning_rate(self) -> Any:
        """The learning rate, where it is a setting of the file."""
        return self._parts.held[self._rate()]

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        if callable(value) and not hasattr(value, "shape"):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "the learning rate of a file's optimizer is a number",
                    place="learning_rate",
                    found=f"a {type(value).__name__}",
                    hint="use keras.callbacks.LearningRateScheduler, or compile the model with an optimizer of Keras",
                )
            )
        for name in self._parts.update.learning_rates or (self._rate(),):
            assign(self._parts.held[name], value)

    def _rate(self) -> str:
        rates = self._parts.update.learning_rates
        if not rates:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "the update of the file has no learning rate that could be set",
                    place="learning_rate",
                    found="a schedule or a constant inside of the update",
                    needed=f"settings: {', '.join(self.settings) or 'none'}",
                )
            )
        return rates[0]

    def build(self, variables: Sequence[Any]) -> None:
        """Take the variables that the optimizer trains: those of the file, in its order."""
        if self.built:
            return
        names = self._parts.update.trained
        shapes = [self._parts.shapes.get(n) for n in names]
        found = [tuple(v.shape) for v in variables]
        if len(found) != len(names) or any(s is not None and s != f for s, f in zip(shapes, found, strict=True)):
            raise ArgumentError(
                Diagnostic(
                    A248,
                    "the optimizer of a file trains the variables of that file",
                    place=f"optimizer `{self.name}`",
                    found=f"{len(found)} trainable variables: {', '.join(v.path for v in list(variables)[:5])}",
                    needed=f"{len(names)}: {', '.join(names[:5])}",
                    hint="to train other variables, compile the model with an optimizer of Keras",
                )
            )
        super().build(list(variables))

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Replace parameters and state by what the update graph makes of the gradients."""
        if trainable_variables is not None:
            self.build(list(trainable_variables))
        _check_replicas()
        variables = self._trainable_variables
        given = variables if trainable_variables is None else list(trainable_variables)
        if [id(v) for v in given] != [id(v) for v in variables] or len(grads) != len(variables):
            raise ArgumentError(
                Diagnostic(
                    A248,
                    "the optimizer of a file updates all of its variables at once",
                    place=f"optimizer `{self.name}`",
                    found=f"gradients for {len(grads)} of {len(variables)} variables",
                    hint="to freeze some of them, compile the model with an optimizer of Keras",
                )
            )
        parts = self._parts
        models = dict(zip(parts.update.trained, variables, strict=True))
        by_name = dict(zip(parts.update.trained, grads, strict=True))
        with engine().wide():
            values = {n: v.value for n, v in {**parts.held, **models}.items()}
            for gradient, parameter in parts.update.gradients.items():
                found = by_name[parameter]
                values[gradient] = keras.ops.zeros_like(models[parameter]) if found is None else found
            results = parts.run(values)
            for output, state in parts.update.graph.replaces.items():
                if state in models or state in parts.held:
                    assign(models[state] if state in models else parts.held[state], results[output])
            if RANDOM_STEP in parts.held:  # the update draws numbers of its own: it counts as the model does
                assign(parts.held[RANDOM_STEP], engine().cast(values[RANDOM_STEP], "int64") + 1)
        self._iterations.assign_add(1)

    def get_config(self) -> dict[str, Any]:
        """Return the update graph as text, and what its inputs are; large states are not in it."""
        update = self._parts.update
        held = {
            n: {"dtype": v.dtype.name, "shape": list(v.shape), "value": v.tolist() if v.size <= SMALL else None}
            for n, v in ((n, self.numbers(n)) for n in self._parts.held)
        }
        return {
            "name": self.name,
            "graph": base64.b64encode(serde.serialize(update.graph.proto())).decode("ascii"),
            "replaces": dict(update.graph.replaces),
            "gradients": dict(update.gradients),
            "held": held,
            "trained": list(update.trained),
            "learning_rates": list(update.learning_rates),
            "step": update.step,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> OnnxOptimizer:
        """Return the optimizer of a config; large states are zero until they are loaded."""
        return cls(read_update(config), name=config["name"])

    def numbers(self, name: str) -> np.ndarray:
        """Return a state or setting in the type of the file."""
        value = keras.ops.convert_to_numpy(self._parts.held[name].value)
        return np.asarray(value).astype(self._parts.update.held[name].dtype)


class _Parts:
    """What an optimizer knows, in an object of its own: Keras would wrap and track plain lists and dicts."""

    def __init__(self, update: Update) -> None:
        self.update = update
        self.held = {n: new_variable(n, value, trainable=False) for n, value in update.held.items()}
        self.run = Runner(_needed(update), "the update")
        self.shapes = {
            v.name: tuple(v.shape.numpy())
            for v in update.graph.model.graph.inputs
            if v.shape is not None and v.shape.is_static()
        }


def _needed(update: Update) -> Piece:
    """Return the update without what the model itself counts."""
    outputs = [o for o, s in update.graph.replaces.items() if s in update.held or s in update.trained]
    return Piece(update.graph.copy_model().graph, update.graph.opset, tuple(outputs))


def read_update(config: Mapping[str, Any]) -> Update:
    """Return the update of a config of `OnnxOptimizer.get_config`."""
    from onward.compiler.program import PlainGraph

    proto = onnx.ModelProto.FromString(base64.b64decode(config["graph"]))
    model = serde.from_proto(proto).ir
    held = {}
    for name, known in config["held"].items():
        shape, dtype = tuple(known["shape"]), np.dtype(known["dtype"])
        held[name] = np.zeros(shape, dtype) if known["value"] is None else np.array(known["value"], dtype)
    graph = PlainGraph("update", model, replaces=dict(config["replaces"]))
    rates, trained = tuple(config["learning_rates"]), tuple(config["trained"])
    return Update(graph, dict(config["gradients"]), held, trained, rates, config["step"])


def _check_replicas() -> None:
    """Raise where several replicas train at once: the update graph sees the gradients of one."""
    if engine().name != "tensorflow":
        return
    from onward.backends.tensorflow.tensors import replicas

    if replicas() > 1:
        raise ArgumentError(
            Diagnostic(
                A248,
                "the optimizer of a file does not run under a tf.distribute strategy",
                found=f"{replicas()} replicas",
                hint="train on one device, or on many machines with torchrun (docs/many_machines.md)",
            )
        )
