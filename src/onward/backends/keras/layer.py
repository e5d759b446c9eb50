"""`OnnxLayer`: the graphs of a model with their variables. Keras calls it; `OnnxModel` asks it for the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from onward.backends.keras.engine import Runner, assign, engine, new_variable
from onward.backends.keras.parts import Parts, Training

Values = dict[str, Any]


class OnnxLayer(keras.layers.Layer):  # type: ignore[misc]  # Keras is not typed here
    """The inference graph, and in training mode the forward pass of a training step, which updates statistics."""

    def __init__(self, parts: Parts, name: str = "onnx_graph") -> None:
        super().__init__(name=name, autocast=False)
        if engine().name == "tensorflow":
            self.supports_jit = False  # XLA lacks kernels that TensorFlow itself has
        self.onnx_variables = {
            **{n: new_variable(n, value, trainable=True) for n, value in parts.trainable.items()},
            **{n: new_variable(n, value, trainable=False) for n, value in parts.kept.items()},
        }
        self._graphs = _Graphs(parts)
        self.built = True

    def call(self, inputs: Any, training: bool | None = False) -> Any:
        graphs = self._graphs
        given = inputs if isinstance(inputs, list | tuple) else [inputs]
        feeds = dict(zip(graphs.input_names, given, strict=True))
        with engine().wide():
            values = {**self._values(), **feeds}
            if training and graphs.training is not None:
                found = self._forward(graphs.training, values)
                result = graphs.outputs(found)
                graphs.memory = (keras.tree.flatten(result), found)
                return result
            return graphs.outputs(graphs.infer(values))

    def compute_output_spec(self, inputs: Any, training: bool | None = False) -> Any:
        if not self._graphs.parts.ranked:
            return super().compute_output_spec(inputs)  # Keras traces the call
        specs = {
            s.name: keras.KerasTensor(
                tuple(d if isinstance(d, int) else None for d in s.shape), engine().held_type(s.dtype)
            )
            for s in self._graphs.parts.outputs
        }
        return specs if len(specs) > 1 else next(iter(specs.values()))

    def training_loss(self, feeds: Mapping[str, Any], targets: Mapping[str, Any], y_pred: Any) -> Any:
        """Return the loss of a training step, whose gradients the framework, or the file itself, finds.

        `y_pred` is what a call in training mode returned: its random masks and its old statistics count. For other
        predictions the forward pass is computed again, and changes nothing.
        """
        training = self._graphs.training
        assert training is not None
        with engine().wide():
            carried = self._graphs.recall(y_pred)
            if carried is None:
                values = {**self._values(), **feeds}
                carried = {**values, **training.forward(values)}
            results = training.loss({**{n: carried[n] for n in training.parts.carried}, **targets})
            for value, state in training.parts.loss_state.items():
                assign(self.onnx_variables[state], results[value])
            return training.differentiable(results, carried)

    def forget(self) -> None:
        """Let go of the values of the last forward pass: another loss is computed from its predictions."""
        self._graphs.memory = None

    def evaluation_loss(self, feeds: Mapping[str, Any], targets: Mapping[str, Any]) -> Any:
        """Return the loss in inference mode."""
        graphs = self._graphs
        assert graphs.evaluate is not None
        assert graphs.parts.evaluate is not None
        with engine().wide():
            found = graphs.evaluate({**self._values(), **feeds, **targets})
            return keras.ops.sum(found[graphs.parts.evaluate.outputs[0]])

    def _values(self) -> Values:
        return {name: variable.value for name, variable in self.onnx_variables.items()}

    def _forward(self, training: _Training, values: Values) -> Values:
        """Run the forward pass of a step and update its state; return its values, and the old ones of what it read."""
        values = {n: engine().cast(v, training.types[n]) if n in training.types else v for n, v in values.items()}
        found = training.forward(values)
        if training.rest is not None:
            found = {**training.rest(values), **found}
        new = {state: found[value] for value, state in training.parts.forward_state.items()}
        if training.counters is not None:
            counted = training.counters(values)
            new.update({state: counted[value] for value, state in training.parts.counted.items()})
        for state, value in new.items():
            assign(self.onnx_variables[state], value)
        return {**values, **found}


class _Graphs:
    """What a layer runs, in an object of its own: Keras would wrap and track plain lists and dicts."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.input_names = [s.name for s in parts.inputs]
        self.infer = Runner(parts.infer, "the inference graph")
        self.evaluate = None if parts.evaluate is None else Runner(parts.evaluate, "the evaluation")
        self.training = None if parts.training is None else _Training(parts.training)
        self.memory: tuple[list[Any], Values] | None = None

    def outputs(self, found: Mapping[str, Any]) -> Any:
        """Return the outputs of the model: one tensor, or several by name."""
        twins = {} if self.training is None else self.training.parts.predictions
        named = {
            s.name: engine().cast(
                found[s.name] if s.name in found else found[twins[s.name]], engine().held_type(s.dtype)
            )
            for s in self.parts.outputs
        }
        return named if len(named) > 1 else next(iter(named.values()))

    def recall(self, y_pred: Any) -> Values | None:
        """Return the values of the forward pass that gave `y_pred`, once; None for other predictions."""
        memory, self.memory = self.memory, None
        if memory is None or y_pred is None:
            return None
        given = keras.tree.flatten(y_pred)
        same = len(given) == len(memory[0]) and all(a is b for a, b in zip(given, memory[0], strict=True))
        return memory[1] if same else None


class _Training:
    """The graphs of a training step, ready to run."""

    def __init__(self, parts: Training) -> None:
        self.parts = parts
        self.forward = Runner(parts.forward, "the forward pass")
        self.rest = None if parts.rest is None else Runner(parts.rest, "the forward pass")
        self.counters = None if parts.counters is None else Runner(parts.counters, "the update")
        self.loss = Runner(parts.loss, "the loss")
        self.types = {**self.loss.types, **self.forward.types}

    def differentiable(self, results: Mapping[str, Any], carried: Mapping[str, Any]) -> Any:
        """Return the reported loss with the gradients of what the file differentiates.

        `v + (y - stop_gradient(y))` has the value of v and the gradients of y.
        """
        ops, parts = keras.ops, self.parts
        value = ops.sum(results[parts.reported])
        if parts.gradients:
            value = ops.stop_gradient(value)
            for gradient, parameter in parts.gradients.items():
                p = carried[parameter]
                value = value + ops.sum(ops.stop_gradient(results[gradient]) * (p - ops.stop_gradient(p)))
            return value
        if parts.y == parts.reported:
            return value
        y = ops.sum(results[parts.y])
        return ops.stop_gradient(value) + ops.cast(y - ops.stop_gradient(y), value.dtype)
