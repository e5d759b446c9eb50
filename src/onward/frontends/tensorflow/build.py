"""Build the training model: inference graph, training forward, loss, gradients and update, from traced functions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.author.initialize import build_initialization
from onward.author.make import emit_gradient
from onward.author.objective import Objective, build_loss
from onward.author.training_mode import TrainingForward
from onward.errors import ArgumentError, Diagnostic
from onward.frontends.tensorflow.dropouts import recognise_dropouts
from onward.frontends.tensorflow.nodes import Translated, stop_function
from onward.frontends.tensorflow.optimizers import Traced as TracedOptimizer
from onward.frontends.tensorflow.trace import Traced, Weight
from onward.frontends.tensorflow.versions import OPSET
from onward.graph.builder import Builder, Names, Value
from onward.graph.edit import remove_dead_nodes
from onward.graph.schema import TRAINING_DOMAIN
from onward.graph.shapes import infer_shapes
from onward.graph.walk import ancestors, reads
from onward.model.roles import STATISTIC, Role, mark
from onward.model.training_model import FLOAT_TYPES, TrainingEntry, TrainingModel
from onward.optimizers import Optimizer
from onward.optimizers.base import FunctionLibrary
from onward.optimizers.emit import emit_update, initializer

A208 = "A208"
BATCH = "batch"


@dataclasses.dataclass
class Step:
    """A traced function and its nodes."""

    traced: Traced
    nodes: Translated


@dataclasses.dataclass
class Parts:
    """All that the model is made of. `training` is None where training computes what inference does."""

    inputs: Mapping[str, Any]
    targets: Mapping[str, Any]
    outputs: Sequence[str]
    weights: Sequence[Weight]
    inference: Step
    training: Step | None
    loss: Step | Objective
    optimizer: Optimizer | TracedOptimizer
    loss_name: str
    entry: str
    described: str


def build(parts: Parts, *, pattern: bool = False) -> TrainingModel:
    """Return the training model; with `pattern`, fixed numbers take the place of random ones."""
    return _Build(parts, pattern).model


class _Build:
    def __init__(self, parts: Parts, pattern: bool) -> None:
        self.parts, self.pattern = parts, pattern
        fixed = [*parts.inputs, *parts.targets, *parts.outputs, *(w.name for w in parts.weights), parts.loss_name]
        self.names = Names(fixed)
        self.weights = {id(w.variable): initializer(w.name, w.variable.numpy()) for w in parts.weights}
        self.inputs = {name: _input(name, spec) for name, spec in parts.inputs.items()}
        self.model = TrainingModel(ir.Model(self._inference(), ir_version=10, producer_name="onward"))
        self.model.ir.opset_imports[""] = OPSET
        infer_shapes(self.model.ir)
        self._entry()
        self.model.ir.opset_imports[TRAINING_DOMAIN] = 1

    def _arguments(self, step: Step, given: Sequence[Value]) -> dict[str, Value]:
        """Return the values that a traced function reads: its arguments, then variables."""
        pure = step.traced.pure
        found = dict(zip(pure.inputs, given, strict=True))
        return {**found, **{name: self.weights[key] for key, name in step.traced.read.items()}}

    def _inference(self) -> ir.Graph:
        parts, step = self.parts, self.parts.inference
        op = Builder(OPSET, self.names)
        given = list(self.inputs.values())
        results = step.nodes.splice(op, self._arguments(step, given), step.traced.pure.outputs)
        specs = _flat(step.traced.results)
        outputs = [_named(op, v, n, s) for v, n, s in zip(results, parts.outputs, specs, strict=True)]
        graph = ir.Graph(
            given,
            outputs,
            nodes=op.nodes,
            initializers=list(self.weights.values()),
            opset_imports={"": OPSET},
            name="tensorflow",
        )
        remove_dead_nodes(graph)
        return graph

    # -- training ------------------------------------------------------------------------------------------------------

    def _entry(self) -> None:
        parts, model = self.parts, self.model
        op = Builder(OPSET, self.names, prefix="train/")
        changed: dict[int, Value] = {}
        outputs = list(model.graph.outputs)
        if parts.training is not None:
            step = parts.training
            pure = step.traced.pure
            made = step.nodes.splice(
                op,
                self._arguments(step, list(self.inputs.values())),
                [*pure.outputs, *pure.changed.values()],
                pattern=self.pattern,
            )
            outputs = []
            for value, twin in zip(made, model.graph.outputs, strict=False):
                named: Value = op.Identity(value)
                named.name, named.type, named.shape = self.names.unique(f"train/{twin.name}"), twin.type, twin.shape
                mark(named, Role.TRAINING, of=twin.name)
                outputs.append(named)
            changed = dict(zip(step.traced.changed, made[len(outputs) :], strict=True))
        targets, loss = self._loss(op, outputs, changed)
        for value in targets:
            mark(value, Role.TARGET)
        if not self.pattern:
            recognise_dropouts(op, self.names)
        self._stops([parts.training, parts.loss])
        self._finish(op, outputs, changed, targets, loss)

    def _loss(self, op: Builder, outputs: list[Value], changed: dict[int, Value]) -> tuple[list[Value], Value]:
        parts = self.parts
        if isinstance(parts.loss, Objective):
            terms = parts.loss.bind(self.model.graph, self.names)
            for name in terms.labels:
                self.names.taken.add(name)
            labels = terms.label_inputs()
            forward = TrainingForward(op.nodes, dict(zip(self.model.graph.outputs, outputs, strict=True)))
            for function in terms.functions():
                self.model.ir.functions[function.identifier()] = function
                self.model.ir.opset_imports.setdefault(function.domain, 1)
            nodes, loss = build_loss(self.model, terms, forward, labels, self.names, parts.loss_name)
            op.nodes.extend(nodes)
            return labels, loss
        step = parts.loss
        targets = {name: _input(name, spec) for name, spec in parts.targets.items()}
        pure = step.traced.pure
        results = step.nodes.splice(
            op,
            self._arguments(step, [*outputs, *targets.values()]),
            [*pure.outputs, *pure.changed.values()],
            pattern=self.pattern,
        )
        changed.update(zip(step.traced.changed, results[1:], strict=True))
        loss = _named(op, results[0], parts.loss_name, _flat(step.traced.results)[0])
        mark(loss, Role.LOSS)
        return list(targets.values()), loss

    def _stops(self, steps: Sequence[Any]) -> None:
        if any(isinstance(step, Step) and step.nodes.stops for step in [self.parts.inference, *steps]):
            function = stop_function(OPSET)
            self.model.ir.functions[function.identifier()] = function
            self.model.ir.opset_imports.setdefault(function.domain, 1)

    def _finish(
        self, op: Builder, outputs: Sequence[Value], changed: Mapping[int, Value], targets: list[Value], loss: Value
    ) -> None:
        parts, model = self.parts, self.model
        parameters = [self.weights[id(w.variable)] for w in parts.weights if w.trained]
        for weight in parts.weights:
            value = self.weights[id(weight.variable)]
            if weight.trained:
                mark(value, Role.PARAMETER)
            elif id(weight.variable) not in changed and value.dtype in FLOAT_TYPES:
                mark(value, Role.FROZEN)
        gradients = self._gradients(op, parameters, targets, loss)
        bindings: dict[str, Value] = {}
        for key, new in changed.items():
            old = self.weights[key]
            mark(old, Role.STATE, slot=STATISTIC)
            bindings[old.name or ""] = bound(op, old, new)
        twins = [v for v in outputs if v not in model.graph.outputs]
        optimizer = parts.optimizer
        if isinstance(optimizer, Optimizer):
            update = emit_update(optimizer, op, gradients, FunctionLibrary(OPSET, set()))
            for function in update.functions:
                model.ir.functions[function.identifier()] = function
                model.ir.opset_imports.setdefault(function.domain, 1)
            bindings.update(update.bindings)
            settings, stored = update.settings, update.state
            described = json.dumps(optimizer.describe(), sort_keys=True)
        else:
            named = {w.name: self.weights[id(w.variable)] for w in parts.weights}
            emitted = optimizer.emit(op, self.names, gradients, named)
            bindings.update(emitted.bindings)
            settings, stored, described = emitted.settings, emitted.state, json.dumps({"name": optimizer.name})
        algorithm = ir.Graph(
            [*targets, *settings],
            [loss, *twins, *bindings.values()],
            nodes=op.nodes,
            initializers=[*settings, *stored],
            name=parts.entry,
        )
        algorithm.metadata_props["onward.loss"] = parts.described
        algorithm.metadata_props["onward.optimizer"] = described
        entry = TrainingEntry(algorithm, update_binding={k: v.name or "" for k, v in bindings.items()})
        if isinstance(optimizer, Optimizer):
            build_initialization(entry, parameters, [], update, "keep", OPSET, 0)
        else:
            optimizer.reset(entry, emitted)
        remove_dead_nodes(algorithm)
        model.entries.append(entry)
        infer_shapes(model.ir, algorithm)

    def _gradients(
        self, op: Builder, parameters: Sequence[Value], targets: Sequence[Value], loss: Value
    ) -> dict[Value, Value]:
        """Emit the Gradient node; the gradient of a parameter that the loss does not read is zero."""
        read = {v for node in ancestors([loss]) for v in reads(node)}
        reached = [p for p in parameters if p in read]
        if not reached:
            raise ArgumentError(Diagnostic(A208, "the loss does not depend on the trained variables", place="loss="))
        found = dict(emit_gradient(op, self.model, reached, targets, loss))
        for parameter in parameters:
            if parameter not in found:
                assert parameter.const_value is not None
                zero = op.ConstantOfShape(
                    np.array(parameter.const_value.shape, np.int64),
                    value=np.zeros(1, parameter.const_value.numpy().dtype),
                )
                zero.type, zero.shape = parameter.type, parameter.shape
                found[parameter] = zero
        return {p: found[p] for p in parameters}


def _flat(structure: Any) -> list[Any]:
    import tensorflow as tf

    return list(tf.nest.flatten(structure))


def dims(spec: Any) -> list[int | str | None]:
    """Return the sizes of a tensor; the first one, if it is free, is the batch size."""
    if spec.shape.rank is None:
        return []
    return [BATCH if size is None and i == 0 else size for i, size in enumerate(spec.shape.as_list())]


def _input(name: str, spec: Any) -> Value:
    dtype = ir.DataType.from_numpy(np.dtype(spec.dtype.as_numpy_dtype))
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(dims(spec)))


def _named(op: Builder, value: Value, name: str, spec: Any) -> Value:
    """Return `value` under a name of its own, computed by a node."""
    made: Value = op.Identity(value)
    made.name = name
    made.type = ir.TensorType(ir.DataType.from_numpy(np.dtype(spec.dtype.as_numpy_dtype)))
    made.shape = None if spec.shape.rank is None else ir.Shape(dims(spec))
    return made


def bound(op: Builder, old: Value, new: Value) -> Value:
    """Return the new value of a state under its own name."""
    made: Value = op.Identity(new)
    made.name = op.names.unique(f"new/{old.name}")
    made.type, made.shape = old.type, None if old.shape is None else old.shape.copy()
    return made
