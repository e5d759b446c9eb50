"""Graphs of well-known networks, built from onnx.helper with small random weights: their size is what matters."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Net:
    """Collects nodes and parameters of one graph."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.parameters: list[str] = []
        self._rng = np.random.default_rng(0)

    def add(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        name = f"{op_type}_{len(self.nodes)}"
        names = [f"{name}:{i}" if i else name for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, list(inputs), names, name=name, **attributes))
        return names[0]

    def parameter(self, name: str, *shape: int) -> str:
        values = self._rng.standard_normal(shape, dtype=np.float32) * np.float32(0.05)
        self.initializers.append(numpy_helper.from_array(values, name))
        self.parameters.append(name)
        return name

    def constant(self, name: str, value: object) -> str:
        if all(i.name != name for i in self.initializers):
            self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def model(self, inputs: list[onnx.ValueInfoProto], output: str, opset: int = 18) -> onnx.ModelProto:
        info = helper.make_tensor_value_info(output, TensorProto.FLOAT, [])
        graph = helper.make_graph(self.nodes, "net", inputs, [info], self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def resnet50(
    batch: int | str = 8, image: int = 224, width: int = 64, normalized: bool = True
) -> tuple[onnx.ModelProto, list[str]]:
    """Return a ResNet-50 with cross entropy, and the names of its parameters.

    Not `normalized`: batch normalization is folded into the convolutions, as exporters do for inference.
    """
    net = Net()

    def conv(x: str, name: str, out: int, into: int, kernel: int, stride: int = 1) -> str:
        weight = net.parameter(f"{name}.weight", out, into, kernel, kernel)
        pads = [kernel // 2] * 4
        bias = () if normalized else (net.parameter(f"{name}.bias", out),)
        return net.add("Conv", x, weight, *bias, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads)

    def norm(x: str, name: str, channels: int) -> str:
        if not normalized:
            return x
        scale, bias = net.parameter(f"{name}.scale", channels), net.parameter(f"{name}.bias", channels)
        mean = net.constant(f"{name}.mean", np.zeros(channels, np.float32))
        var = net.constant(f"{name}.var", np.ones(channels, np.float32))
        return net.add("BatchNormalization", x, scale, bias, mean, var, outputs=3, training_mode=1)

    x = net.add("Relu", norm(conv("images", "stem", width, 3, 7, 2), "stem.bn", width))
    x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = width * 2**stage
        for block in range(blocks):
            name = f"layer{stage + 1}.{block}"
            stride = 2 if stage and block == 0 else 1
            y = net.add("Relu", norm(conv(x, f"{name}.conv1", inner, channels, 1), f"{name}.bn1", inner))
            y = net.add("Relu", norm(conv(y, f"{name}.conv2", inner, inner, 3, stride), f"{name}.bn2", inner))
            y = norm(conv(y, f"{name}.conv3", inner * 4, inner, 1), f"{name}.bn3", inner * 4)
            if block == 0:
                x = norm(conv(x, f"{name}.down", inner * 4, channels, 1, stride), f"{name}.down.bn", inner * 4)
            channels = inner * 4
            x = net.add("Relu", net.add("Add", x, y))
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    weight, bias = net.parameter("fc.weight", 1000, channels), net.parameter("fc.bias", 1000)
    logits = net.add("Gemm", x, weight, bias, transB=1)
    loss = net.add("SoftmaxCrossEntropyLoss", logits, "labels")
    inputs = [
        helper.make_tensor_value_info("images", TensorProto.FLOAT, [batch, 3, image, image]),
        helper.make_tensor_value_info("labels", TensorProto.INT64, [batch]),
    ]
    return net.model(inputs, loss), net.parameters


def bert(
    layers: int = 12, hidden: int = 768, heads: int = 12, batch: int | str = 4, length: int | str = 128
) -> tuple[onnx.ModelProto, list[str]]:
    """Return a BERT encoder with a masked-language-model loss, and the names of its parameters."""
    net = Net()
    vocabulary = 1000  # the size of the table changes no node
    size = hidden // heads

    def linear(x: str, name: str, into: int, out: int) -> str:
        weight, bias = net.parameter(f"{name}.weight", into, out), net.parameter(f"{name}.bias", out)
        return net.add("Add", net.add("MatMul", x, weight), bias)

    def norm(x: str, name: str) -> str:
        scale, bias = net.parameter(f"{name}.weight", hidden), net.parameter(f"{name}.bias", hidden)
        return net.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-12)

    split = net.constant("split_heads", np.array([0, 0, heads, size], np.int64))
    merge = net.constant("merge_heads", np.array([0, 0, hidden], np.int64))
    root = net.constant("root", np.array(np.sqrt(size), np.float32))
    half, one = net.constant("half", np.array(0.5, np.float32)), net.constant("one", np.array(1.0, np.float32))
    sqrt2 = net.constant("sqrt2", np.array(np.sqrt(2.0), np.float32))

    def gelu(x: str) -> str:
        inner = net.add("Add", net.add("Erf", net.add("Div", x, sqrt2)), one)
        return net.add("Mul", net.add("Mul", x, inner), half)

    words = net.add("Gather", net.parameter("embeddings.word", vocabulary, hidden), "tokens")
    places = net.add("Gather", net.parameter("embeddings.position", 512, hidden), "positions")
    x = norm(net.add("Add", words, places), "embeddings.norm")
    for layer in range(layers):
        name = f"layer.{layer}"

        def split_heads(kind: str, perm: list[int], x: str = x, name: str = name) -> str:
            return net.add(
                "Transpose", net.add("Reshape", linear(x, f"{name}.{kind}", hidden, hidden), split), perm=perm
            )

        q, k, v = (
            split_heads("query", [0, 2, 1, 3]), split_heads("key", [0, 2, 3, 1]), split_heads("value", [0, 2, 1, 3])
        )  # fmt: skip
        scores = net.add("Add", net.add("Div", net.add("MatMul", q, k), root), "mask")
        context = net.add("MatMul", net.add("Softmax", scores, axis=-1), v)
        context = net.add("Reshape", net.add("Transpose", context, perm=[0, 2, 1, 3]), merge)
        x = norm(net.add("Add", linear(context, f"{name}.output", hidden, hidden), x), f"{name}.norm1")
        y = linear(gelu(linear(x, f"{name}.up", hidden, 4 * hidden)), f"{name}.down", 4 * hidden, hidden)
        x = norm(net.add("Add", y, x), f"{name}.norm2")
    logits = net.add("Transpose", linear(x, "head", hidden, vocabulary), perm=[0, 2, 1])
    loss = net.add("SoftmaxCrossEntropyLoss", logits, "labels")
    inputs = [
        helper.make_tensor_value_info("tokens", TensorProto.INT64, [batch, length]),
        helper.make_tensor_value_info("positions", TensorProto.INT64, [batch, length]),
        helper.make_tensor_value_info("mask", TensorProto.FLOAT, [batch, 1, 1, length]),
        helper.make_tensor_value_info("labels", TensorProto.INT64, [batch, length]),
    ]
    return net.model(inputs, loss), net.parameters


def chain(length: int) -> tuple[onnx.ModelProto, list[str]]:
    """Return a chain of `length` nodes, four kinds in turn, each second one with a parameter."""
    net = Net()
    x = "x"
    for index in range(length - 1):
        if index % 4 == 0:
            x = net.add("Mul", x, net.parameter(f"w{index}", 8))
        elif index % 4 == 1:
            x = net.add("Tanh", x)
        elif index % 4 == 2:
            x = net.add("Add", x, net.parameter(f"w{index}", 8))
        else:
            x = net.add("Sigmoid", x)
    loss = net.add("ReduceSum", x, keepdims=0)
    return net.model([helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])], loss), net.parameters
