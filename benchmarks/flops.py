"""The floating-point operations of a training step, counted from the forward graph."""

from __future__ import annotations

import math

import numpy as np
import onnx

PRODUCTS = ("MatMul", "Gemm", "Conv", "LSTM", "GRU")


def count(model: onnx.ModelProto, x: np.ndarray) -> int:
    """Return the operations of all matrix products, convolutions, LSTMs and GRUs in one step on a batch like `x`.

    A product of two operands is done once forward, and once more for each operand that needs a gradient. Element-wise
    work and the update are not counted.
    """
    shapes = product_shapes(model, x)
    differentiable = {i.name for i in model.graph.initializer if i.data_type == onnx.TensorProto.FLOAT}
    total = 0
    for node in model.graph.node:
        if node.op_type in PRODUCTS:
            total += _cost(node, shapes, differentiable)
        if node.op_type != "Shape" and differentiable.intersection(node.input):
            differentiable.update(node.output)
    return total


def product_shapes(model: onnx.ModelProto, x: np.ndarray) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the products' operands and results, from a run of the forward graph."""
    import onnxruntime

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        if node.op_type == "BatchNormalization":  # the stock runtime has no training mode; shapes are the same
            del node.output[1:]
            del node.attribute[:]
    wanted = {n for node in copy.graph.node if node.op_type in PRODUCTS for n in (*node.input[:3], node.output[0]) if n}
    inner = wanted - {i.name for i in copy.graph.input} - {o.name for o in copy.graph.output}
    copy.graph.output.extend(onnx.ValueInfoProto(name=n) for n in sorted(inner))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(copy.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    values = session.run(names, {session.get_inputs()[0].name: x})
    return {session.get_inputs()[0].name: x.shape, **{n: v.shape for n, v in zip(names, values, strict=True)}}


def _cost(node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]], differentiable: set[str]) -> int:
    first, second = node.input[:2]
    if node.op_type in ("LSTM", "GRU"):
        steps, batch, width = shapes[first]
        gates, hidden = shapes[second][1], shapes[node.input[2]][2]
        inward, recurrent = 2 * steps * batch * gates * width, 2 * steps * batch * gates * hidden
        return inward * (2 + (first in differentiable)) + recurrent * 3
    if node.op_type == "Conv":
        length = math.prod(shapes[second][1:])
    else:
        transposed = any(a.name == "transA" and a.i for a in node.attribute)
        length = shapes[first][0 if transposed else -1]
    once = 2 * math.prod(shapes[node.output[0]]) * length
    return once * (1 + len(differentiable.intersection((first, second))))
