"""Custom losses: a Python function over the builder, an ONNX function, or an ONNX model."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import onnx
import onnx_ir as ir

from onward.errors import A101, ArgumentError, Diagnostic, counted
from onward.graph.builder import Builder, Value
from onward.graph.edit import copy_nodes
from onward.losses.base import ANY_NUMBER, LabelSpec, Loss
from onward.model import serde


@dataclasses.dataclass(frozen=True)
class PythonLoss(Loss):
    """A loss written as `function(op, outputs, labels) -> value`, over the builder.

    `outputs` and `labels` are single values, or lists if there are several, in the order of the names that
    `make_trainable` was given.

    >>> loss = PythonLoss(lambda op, y, t: op.ReduceMean(op.Abs(op.Sub(y, t)), keepdims=0))
    """

    function: Callable[..., Value]
    num_outputs: ClassVar[int] = ANY_NUMBER

    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec] | None:
        return None

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        value = self.function(op, _one_or_all(outputs), _one_or_all(labels))
        if not isinstance(value, ir.Value):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "the loss function does not return a value of the graph",
                    place="loss=",
                    found=type(value).__name__,
                    needed="the result of an operator, such as op.ReduceMean(...)",
                )
            )
        return value

    def __repr__(self) -> str:
        return f"PythonLoss({getattr(self.function, '__name__', 'function')})"


@dataclasses.dataclass(frozen=True)
class FunctionLoss(Loss):
    """A loss that is an ONNX function: its inputs are the outputs, then the labels; its only output is the loss."""

    proto: onnx.FunctionProto
    num_outputs: ClassVar[int] = ANY_NUMBER

    def __post_init__(self) -> None:
        if len(self.proto.output) != 1:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    f"the function `{self.proto.name}` cannot be a loss",
                    place="loss=",
                    found=counted(len(self.proto.output), "output"),
                    needed="one output, the loss",
                )
            )

    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec] | None:
        return [] if len(self.proto.input) == len(outputs) else None

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        inputs = [*outputs, *labels]
        if len(inputs) != len(self.proto.input):
            raise wrong_count(f"function `{self.proto.name}`", list(self.proto.input), inputs)
        (value,) = op.call(self.proto.name, inputs, domain=self.proto.domain, overload=self.proto.overload)
        value.type = outputs[0].type
        return value

    def functions(self) -> list[ir.Function]:
        return [ir.serde.deserialize_function(self.proto)]

    def __repr__(self) -> str:
        return f"FunctionLoss({self.proto.domain}.{self.proto.name})"


@dataclasses.dataclass(frozen=True)
class ModelLoss(Loss):
    """A loss that is an ONNX model: its inputs are the outputs, then the labels; its first output is the loss.

    Its nodes become part of the algorithm, its initializers constants.
    """

    proto: onnx.ModelProto
    num_outputs: ClassVar[int] = ANY_NUMBER

    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec] | None:
        graph = serde.from_proto(self.proto).graph
        specs = []
        for value in list(graph.inputs)[len(outputs) :]:
            if value.dtype is None or value.shape is None:
                return None
            specs.append(LabelSpec(value.dtype, tuple(d if isinstance(d, int) else d.value for d in value.shape)))
        return specs

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        proto = self.proto
        opset = max((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), default=op.opset)
        if opset != op.opset:
            proto = onnx.version_converter.convert_version(proto, op.opset)
        graph = serde.from_proto(proto).graph
        inputs = [*outputs, *labels]
        formal = [v for v in graph.inputs if v.name not in graph.initializers]
        if len(formal) != len(inputs):
            raise wrong_count(f"model `{graph.name}`", [v.name or "" for v in formal], inputs)
        values: dict[Value, Value] = dict(zip(formal, inputs, strict=True))
        for initializer in graph.initializers.values():
            assert initializer.const_value is not None
            values[initializer] = op.constant(initializer.const_value.numpy())
        op.nodes.extend(copy_nodes(graph, values, names=op.names, prefix=op.prefix))
        return values[graph.outputs[0]]

    def functions(self) -> list[ir.Function]:
        return [ir.serde.deserialize_function(f) for f in self.proto.functions]

    def __repr__(self) -> str:
        return f"ModelLoss({self.proto.graph.name})"


def custom(given: Any) -> Loss | None:
    """Return a loss for a Python function, an ONNX function, model, graph or path; None for anything else."""
    if hasattr(given, "to_function_proto"):  # an onnxscript function
        given = given.to_function_proto()
    if isinstance(given, onnx.FunctionProto):
        return FunctionLoss(given)
    if isinstance(given, onnx.GraphProto):  # at the opset of the model it is used with
        return ModelLoss(onnx.ModelProto(graph=given, ir_version=8))
    if isinstance(given, onnx.ModelProto):
        return ModelLoss(given)
    if isinstance(given, os.PathLike):
        return ModelLoss(serde.read_proto(given))
    if callable(given):
        return PythonLoss(given)
    return None


def wrong_count(what: str, formal: Sequence[str], given: Sequence[Value]) -> ArgumentError:
    """Return the error for a loss with a wrong number of inputs."""
    return ArgumentError(
        Diagnostic(
            A101,
            f"the {what} cannot be used as a loss",
            place="loss=",
            found=f"inputs {', '.join(formal)}",
            needed=f"one input for each of {', '.join(v.name or '?' for v in given)}",
            hint="set output= and label= to the values that the loss reads",
        )
    )


def _one_or_all(values: Sequence[Value]) -> Any:
    return values[0] if len(values) == 1 else list(values)
