"""Run an ONNX graph with TensorFlow operators, eagerly or while `tf.function` traces; a GradientTape records a run."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import tensorflow as tf

from onward.backends.graph import interpreter as core
from onward.backends.graph.host import Host, run_on_host
from onward.backends.graph.interpreter import Instruction
from onward.backends.tensorflow import layout_rules
from onward.backends.tensorflow.framework import TENSORFLOW, is_traced
from onward.backends.tensorflow.layout import Laid, Moves
from onward.errors import BackendError, Diagnostic

FAILURES = TENSORFLOW.failures

# What Python computes from sizes that are not known while TensorFlow traces; other operators run on tensors.
_SYMBOLIC = frozenset([
    "Add", "Sub", "Mul", "Div", "Concat", "Gather", "Slice", "Unsqueeze", "Squeeze", "Reshape", "Identity",
    "ReduceProd", "ReduceSum",
])  # fmt: skip
_OPTIONAL = frozenset(["MaxPool", "BatchNormalization"])  # outputs after the first
_RANDOM = frozenset([
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial",
])  # fmt: skip


class Interpreter(core.Interpreter):
    """A graph ready to run on TensorFlow: `run({name: tensor})` returns its outputs by name."""

    framework = TENSORFLOW
    moves: Moves

    def __init__(self, graph: ir.Graph, opset: int, *, outputs: Sequence[ir.Value] | None = None) -> None:
        super().__init__(graph, opset, outputs=outputs)
        read = {*self._outputs, *(slot for i in self.instructions for slot in i.inputs)}
        read |= {slot for i in self.instructions for body in i.bodies for slot in body.outer.values()}
        self.instructions = [_without_unread(i, read) for i in self.instructions]

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        self.moves = Moves()
        return super().run(feeds)

    def call(self, instruction: Instruction, arguments: list[Any]) -> Any:
        known = _on_host(instruction, arguments)
        if known is not None:
            return known
        for body in instruction.bodies:  # what a branch transposes cannot be used outside of it
            body.values = {name: v.plain() if isinstance(v, Laid) else v for name, v in body.values.items()}
        if tf.executing_eagerly():
            return layout_rules.call(self.plain, instruction, arguments, self.moves)
        captured = [v for b in instruction.bodies for v in b.values.values()]
        if instruction.op_type in _RANDOM or any(is_traced(a) for a in (*arguments, *captured)):
            with tf.name_scope(_scope(instruction)):
                return layout_rules.call(self.plain, instruction, arguments, self.moves)
        with tf.init_scope():  # what depends on constants only stays known while TensorFlow traces
            return layout_rules.call(self.plain, instruction, arguments, self.moves)


def _without_unread(instruction: Instruction, read: set[int]) -> Instruction:
    """Return the instruction without the indices or statistics that nothing reads: a faster kernel may do."""
    if instruction.op_type not in _OPTIONAL or any(slot in read for slot in instruction.outputs[1:]):
        return instruction
    attributes = instruction.attributes.replaced()
    attributes.outputs = 1
    return dataclasses.replace(instruction, attributes=attributes)


def _on_host(instruction: Instruction, arguments: list[Any]) -> Host | None:
    """Return the result of a node on sizes, or None if it has to run on tensors."""
    name = instruction.op_type
    if not any(isinstance(a, Host) and is_traced(a) for a in arguments):
        return run_on_host(name, instruction.attributes, arguments)
    first = arguments[0]
    if name == "Cast" and instruction.attributes["to"] in (6, 7):
        return Host(first.values, first.shape, "int64" if instruction.attributes["to"] == 7 else "int32")
    steady = arguments[1:] if name in ("Div", "Gather", "Slice", "Unsqueeze", "Squeeze", "Reshape") else []
    if name not in _SYMBOLIC or any(is_traced(a) for a in steady):
        return None
    return run_on_host(name, instruction.attributes, arguments)


def _scope(instruction: Instruction) -> str:
    """Return the name of a node as TensorFlow allows it."""
    name = re.sub(r"[^A-Za-z0-9_.\-/]", "_", instruction.name).strip("/")
    return name if re.match(r"[A-Za-z0-9.]", name) else f"n{name}"


def failure(what: str, error: Exception) -> BackendError:
    """Return the error for an exception that ended a run of `what`, with the node at which it did."""
    found = core.failure(TENSORFLOW, what, error)
    if not isinstance(error, tf.errors.OpError):
        return found
    nodes = re.findall(r"\{\{node ([^ }]+)", error.message)
    place = found.diagnostics[0].place or (f"`{nodes[-1]}`" if nodes else "")
    lines = [line.strip() for line in error.message.splitlines() if line.strip() and "[[{{" not in line]
    problem = re.sub(r"\{\{[^}]*\}\}\s*|\s*\[Op:.*", "", lines[-1] if lines else type(error).__name__)
    return BackendError(Diagnostic(core.B301, f"TensorFlow failed in {what}: {problem}", place=place))
