"""`OnnxModule`: an ONNX model as a real `tf.Module`."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import tensorflow as tf

from onward.backends.tensorflow.autograd import Forward, Step
from onward.backends.tensorflow.interpreter import Interpreter
from onward.backends.tensorflow.layout import Moves
from onward.backends.tensorflow.sequences import from_ragged, ragged_spec, to_ragged
from onward.backends.tensorflow.tensors import to_numpy, to_tensor, type_named
from onward.compiler.program import Entry, PlainGraph, Program, TensorSpec
from onward.errors import A101, ArgumentError, Diagnostic
from onward.model.roles import RANDOM_STEP


class OnnxModule(tf.Module):  # type: ignore[misc]  # TensorFlow is not typed here
    """An ONNX model: `module(*inputs)` returns its output, or a tuple of them.

    `state` has a `tf.Variable` for everything that training changes, by its ONNX name and in ONNX's order of axes, and
    `settings` one for each number that a step takes, such as the learning rate. The functions below are
    `tf.function`s with the model's inputs, and its targets, in order.
    """

    def __init__(
        self,
        program: Program,
        mode: str = "both",
        *,
        gradients: str = "auto",
        sizes: Mapping[str, int] | None = None,
        ragged: bool = False,
    ) -> None:
        super().__init__(name=_name(str(program.metadata.get("name") or "onnx_model")))
        kept = program.infer_graph.input_names if mode == "inference" else program.state
        self.state = {
            name: tf.Variable(to_tensor(value), trainable=name in program.parameters, name=_name(name))
            for name, value in program.state.items()
            if name in kept
        }
        self._parts = _Parts(program, sizes or {}, ragged)
        trains = mode != "inference" and bool(program.entries)
        settings = program.settings.items() if trains else ()
        self.settings = {n: tf.Variable(to_tensor(v), trainable=False, name=_name(n)) for n, v in settings}
        if mode != "training":
            self._add_inference(program)
        if trains:
            self._add_training(program, gradients)

    @property
    def input_names(self) -> list[str]:
        """The inputs of the inference graph, in order."""
        return [s.name for s in self._parts.program.inputs]

    @property
    def target_names(self) -> list[str]:
        """What a training step takes after the inputs, in order."""
        return [s.name for s in self._parts.program.targets]

    @property
    def output_names(self) -> list[str]:
        """The outputs of the inference graph, in order."""
        return list(self._parts.program.infer_graph.output_names)

    def get_state(self) -> dict[str, np.ndarray]:
        """Return the state as arrays, as `Trainer` and checkpoints have it."""
        return {name: to_numpy(variable) for name, variable in self.state.items()}

    def __call__(self, *inputs: Any) -> Any:
        """Return what the inference graph gives."""
        if "infer" not in self.__dict__:
            raise _lacks("this module is for training only", 'use mode="both" for inference as well')
        found = self.infer(*inputs)
        return _unpacked(found, self.output_names)

    def infer(self, *inputs: Any) -> Any:
        """Return the outputs of the inference graph by name."""
        raise _lacks("this module is for training only", 'use mode="both" for inference as well')

    def train_step(self, *values: Any) -> Any:
        """Run one step of every training entry; return the loss and the other outputs by name."""
        raise _lacks("this module cannot train", 'use mode="both", and onward.make_trainable(...) first')

    def evaluate(self, *values: Any) -> Any:
        """Return the loss and the outputs in inference mode, by name."""
        raise _lacks("the model has no loss to evaluate", 'use mode="both", and onward.make_trainable(...) first')

    def loss(self, *values: Any) -> Any:
        """Return the loss in training mode, which a GradientTape can differentiate; replace running statistics."""
        reason = self._parts.no_loss or "this module cannot train"
        raise _lacks(f"the loss cannot be had by itself: {reason}", "use module.train_step, or another mode")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a SavedModel with its functions, and those with outputs by name as signatures, too."""
        names = {"infer": "serving_default", "evaluate": "evaluate", "train_step": "train_step"}
        found = {name: self.__dict__[key] for key, name in names.items() if key in self.__dict__}
        tf.saved_model.save(self, os.fspath(path), signatures=found)

    def transposes(self) -> dict[str, list[str]]:
        """Return, for each function, the nodes that need a transposition: where two orders of axes meet.

        The weights of convolutions are not counted: they stay in ONNX's order, and each step lays them out anew.
        """
        report = {}
        for name, moves in self._parts.moves.items():
            self.__dict__[name].get_concrete_function()
            report[name] = [place for each in moves() for place in each.places]
        return report

    # -- making the functions ------------------------------------------------------------------------------------

    def _add_inference(self, program: Program) -> None:
        infer, interpreter = self._graph_function(program.infer_graph, self._parts.signature(program.inputs))
        self._provide("infer", infer)
        self._parts.moves["infer"] = lambda: [interpreter.moves]
        names = self.output_names
        call = tf.function(lambda *v: _unpacked(infer(*v), names), infer.input_signature, autograph=False)
        self.__dict__["__call__"] = call  # a SavedModel has it from here; Python calls the method

    def _add_training(self, program: Program, gradients: str) -> None:
        signature = self._parts.signature((*program.inputs, *program.targets))
        steps = {entry.name: Step(entry, gradients) for entry in program.entries.values()}
        self._provide("train_step", self._function(signature, self._step_of(list(steps.values()), signature)))
        self._parts.moves["train_step"] = lambda: [m for s in steps.values() for m in _moves(s)]
        if len(steps) > 1:
            for name, step in steps.items():
                self._provide(f"train_step_{_name(name)}", self._function(signature, self._step_of([step], signature)))
        first = program.first
        assert first is not None
        if first.evaluate is not None:
            self._provide("evaluate", self._graph_function(first.evaluate, signature)[0])
        forward = steps[first.name].forward
        self._parts.no_loss = steps[first.name].reason or 'the module has gradients="graph"'
        if forward is not None:
            self._provide("loss", self._function(signature, self._loss_of(first, forward, signature)))

    def _provide(self, name: str, function: Any) -> None:
        """Put a function in the place of the method that says it is missing; a SavedModel finds it there."""
        setattr(self, name, function)

    def _function(self, signature: _Signature, run: Callable[..., Any]) -> Any:
        return tf.function(run, input_signature=signature.specs, autograph=False)

    def _values(self, wanted: Iterable[str]) -> dict[str, Any]:
        """Return the current settings and state, as far as a graph reads them."""
        held = {**self.settings, **self.state}
        return {name: held[name].read_value() for name in wanted if name in held}

    def _graph_function(self, graph: PlainGraph, signature: _Signature) -> tuple[Any, Interpreter]:
        interpreter = Interpreter(graph.copy_model().graph, graph.opset)
        names = signature.names
        kinds = {v.name or "": v for v in graph.model.graph.outputs}

        def run(*values: Any) -> dict[str, Any]:
            feeds = self._parts.given(names, values)
            results = interpreter.run({**self._values(graph.input_names), **feeds})
            return self._parts.returned({name: results[name] for name in graph.output_names}, kinds)

        return self._function(signature, run), interpreter

    def _step_of(self, steps: list[Step], signature: _Signature) -> Callable[..., Any]:
        names = signature.names
        kinds = {v.name or "": v for s in steps for v in s.entry.step.model.graph.outputs}

        def run(*values: Any) -> dict[str, Any]:
            feeds, outputs = self._parts.given(names, values), {}
            for step in steps:
                found, state = step({**self._values(step.input_names), **feeds})
                outputs.update(found)
                self._replace(state)
            return self._parts.returned(outputs, kinds)

        return run

    def _loss_of(self, entry: Entry, forward: Forward, signature: _Signature) -> Callable[..., Any]:
        names = signature.names
        gradients, update = entry.gradients, entry.update
        assert gradients is not None
        assert update is not None
        counters = _counters(update, set(gradients.replaces.values()))

        def run(*values: Any) -> Any:
            feeds = self._parts.given(names, values)
            results = forward.run({**self._values(forward.input_names), **feeds})
            state = {s: results[o] for o, s in gradients.replaces.items()}
            if counters is not None:
                counted = counters.run({**self._values(update.input_names), **feeds})
                state.update({update.replaces[o]: value for o, value in counted.items()})
            self._replace(state)
            return results[forward.y]

        return run

    def _replace(self, state: Mapping[str, Any]) -> None:
        """Replace the state, after everything that read the old one."""
        for name, value in state.items():
            self.state[name].assign(value)


@dataclasses.dataclass(frozen=True)
class _Signature:
    """What a function takes: the ONNX names, and TensorFlow's descriptions of shapes and types."""

    names: list[str]
    specs: list[Any]


class _Parts:
    """What a module knows, in an object of its own: a `tf.Module` would wrap and save plain lists and dicts."""

    def __init__(self, program: Program, sizes: Mapping[str, int], ragged: bool) -> None:
        self.program = program
        self.moves: dict[str, Callable[[], list[Moves]]] = {}
        self.no_loss = ""
        self._sizes = sizes
        self._ragged = ragged
        graphs = [program.infer_graph, *(e.step for e in program.entries.values())]
        self._sequences = {
            v.name or "": v for g in graphs for v in g.model.graph.inputs if isinstance(v.type, ir.SequenceType)
        }
        self._check_boundary()

    def signature(self, values: Iterable[TensorSpec]) -> _Signature:
        """Return the inputs of a function; sizes that the model leaves open, and `sizes` does not give, are None."""
        found: list[Any] = []
        names = []
        for value in values:
            names.append(value.name)
            if value.name in self._sequences:
                found.append(ragged_spec(self._sequences[value.name], _name(value.name)))
                continue
            shape = [d if isinstance(d, int) else self._sizes.get(d or "") for d in value.shape]
            found.append(tf.TensorSpec(shape, type_named(value.dtype), _name(value.name)))
        return _Signature(names, found)

    def given(self, names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
        """Return the arguments of a function by name, ragged tensors as sequences."""
        pairs = zip(names, values, strict=True)
        return {n: from_ragged(v) if n in self._sequences else v for n, v in pairs}

    def returned(self, results: Mapping[str, Any], kinds: Mapping[str, ir.Value]) -> dict[str, Any]:
        """Return the results of a function, sequences as ragged tensors if that was asked for."""
        if not self._ragged:
            return dict(results)
        return {n: to_ragged(v, kinds[n]) if n in kinds else v for n, v in results.items()}

    def _check_boundary(self) -> None:
        """Raise if sequences enter the model and the caller did not ask for ragged tensors."""
        if self._sequences and not self._ragged:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "the model takes sequences, which TensorFlow's functions do not",
                    found=", ".join(f"`{n}`" for n in self._sequences),
                    hint="use ragged=True: a sequence is a tf.RaggedTensor then",
                )
            )


def _name(name: str) -> str:
    """Return a name as TensorFlow allows it for arguments and variables."""
    allowed = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return allowed if re.match(r"[A-Za-z]", allowed) else f"n{allowed}"


def _moves(step: Step) -> list[Moves]:
    return [step.graph.moves] if step.forward is None else [step.forward.interpreter.moves, step.graph.moves]


def _counters(update: PlainGraph, done: set[str]) -> Interpreter | None:
    """Return the graph that counts the draws of random masks, if the forward part does not."""
    if RANDOM_STEP in done or RANDOM_STEP not in update.replaces.values():
        return None
    graph = update.copy_model().graph
    wanted: list[ir.Value] = [v for v in graph.outputs if update.replaces.get(v.name or "") == RANDOM_STEP]
    return Interpreter(graph, update.opset, outputs=wanted)


def _unpacked(found: Mapping[str, Any], names: list[str]) -> Any:
    values = [found[name] for name in names]
    return values[0] if len(values) == 1 else tuple(values)


def _lacks(problem: str, hint: str) -> ArgumentError:
    return ArgumentError(Diagnostic(A101, problem, hint=hint))
