"""A small builder of inference graphs for the samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder, Names, Value
from onward.graph.random_numbers import uniform
from onward.model.training_model import TrainingModel

OPSET = 18
IR_VERSION = 8


class Network:
    """One graph under construction: weights are He-uniform with a fixed seed, byte-identical on every machine."""

    def __init__(self, name: str, input_name: str, shape: Sequence[int | str]) -> None:
        self.name = name
        self.op = Builder(OPSET, Names([input_name]))
        self.input = ir.Value(name=input_name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
        self.weights: list[Value] = []

    def weight(self, name: str, shape: tuple[int, ...], fan_in: int = 0) -> Value:
        """Return a new weight: zero without `fan_in`, else uniform in ±√(6 / fan_in)."""
        array = np.zeros(shape, np.float32)
        if fan_in:
            bound = np.sqrt(6.0 / fan_in)
            array = ((2.0 * uniform(0, len(self.weights), shape) - 1.0) * bound).astype(np.float32)
        return self.initializer(name, array)

    def initializer(self, name: str, array: np.ndarray) -> Value:
        """Return a new initializer."""
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
        self.op.names.taken.add(name)
        self.weights.append(value)
        return value

    def conv(self, x: Value, name: str, channels: tuple[int, int], kernel: int, pad: int) -> Value:
        """Return a convolution with bias."""
        into, out = channels
        w = self.weight(f"{name}.weight", (out, into, kernel, kernel), fan_in=into * kernel * kernel)
        b = self.weight(f"{name}.bias", (out,))
        made: Value = self.op.Conv(x, w, b, kernel_shape=[kernel, kernel], pads=[pad] * 4, name=name)
        return made

    def dense(self, x: Value, name: str, into: int, out: int) -> Value:
        """Return a fully connected layer with bias."""
        w = self.weight(f"{name}.weight", (out, into), fan_in=into)
        b = self.weight(f"{name}.bias", (out,))
        made: Value = self.op.Gemm(x, w, b, transB=1, name=name)
        return made

    def pool(self, x: Value) -> Value:
        """Return a 2×2 max pooling."""
        made: Value = self.op.MaxPool(x, kernel_shape=[2, 2], strides=[2, 2])
        return made

    def finish(self, output: Value, name: str, shape: Sequence[int | str], doc: str) -> TrainingModel:
        """Return the model with one output of that name and shape."""
        output.name = name
        output.shape = ir.Shape(shape)
        graph = ir.Graph(
            [self.input], [output], nodes=self.op.nodes, initializers=self.weights,
            opset_imports={"": OPSET}, name=self.name, doc_string=doc,
        )  # fmt: skip
        return TrainingModel(ir.Model(graph, ir_version=IR_VERSION, producer_name="onward"))
