"""onnxsim 0.8.1, whose training loop is plain operators on stock ONNX Runtime, as ours.

It has neither a cross-entropy operator (the loss is written with Exp, ReduceSum and Log) nor a gradient for Flatten and
for Gather with more than one axis of indices: both are written with Reshape here.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxsim
from onnx import TensorProto, helper, numpy_helper, shape_inference
from workloads import CLASSES, LEARNING_RATE, Workload

from peers import Batches, Files, Step


def rewrite(model: onnx.ModelProto) -> None:
    """Write Flatten, and Gather of a matrix of indices, with Reshape; constants become initializers."""
    graph = model.graph
    inferred = shape_inference.infer_shapes(model).graph
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in (*inferred.value_info, *inferred.input, *inferred.output)
    }

    def reshape(value: str, shape: list[int], result: str) -> onnx.NodeProto:
        graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), f"{result}/shape"))
        return helper.make_node("Reshape", [value, f"{result}/shape"], [result])

    nodes = []
    for node in graph.node:
        result = node.output[0]
        if node.op_type == "Constant":
            value = numpy_helper.to_array(node.attribute[0].t)
            graph.initializer.append(numpy_helper.from_array(value, result))
        elif node.op_type == "Flatten":
            nodes.append(reshape(node.input[0], shapes[result], result))
        elif node.op_type == "Gather" and len(shapes.get(node.input[1], [])) == 2:
            nodes.append(reshape(node.input[1], [-1], f"{result}/indices"))
            nodes.append(helper.make_node("Gather", [node.input[0], f"{result}/indices"], [f"{result}/rows"], axis=0))
            nodes.append(reshape(f"{result}/rows", shapes[result], result))
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def add_loss(graph: onnx.GraphProto, batch: int) -> None:
    """Make the mean cross-entropy of `output` and a one-hot `target` the only output."""
    graph.input.append(helper.make_tensor_value_info("target", TensorProto.FLOAT, [batch, CLASSES]))
    graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "axis"))
    graph.node.extend(
        [
            helper.make_node("Exp", ["output"], ["e"]),
            helper.make_node("ReduceSum", ["e", "axis"], ["s"], keepdims=1),
            helper.make_node("Log", ["s"], ["l"]),
            helper.make_node("Sub", ["l", "output"], ["d"]),
            helper.make_node("Mul", ["d", "target"], ["m"]),
            helper.make_node("ReduceSum", ["m", "axis"], ["row"], keepdims=0),
            helper.make_node("ReduceMean", ["row"], ["loss"], keepdims=0),
        ]
    )
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))


def simplify(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its shapes computed; the weights are inputs meanwhile, or equal ones would be merged."""
    weights = list(model.graph.initializer)
    del model.graph.initializer[:]
    model.graph.input.extend(helper.make_tensor_value_info(w.name, w.data_type, w.dims) for w in weights)
    simple, _ = onnxsim.simplify(model)
    names = {w.name for w in weights}
    inputs = [i for i in simple.graph.input if i.name not in names]
    del simple.graph.input[:]
    simple.graph.input.extend(inputs)
    simple.graph.initializer.extend(weights)
    return simple


def build(workload: Workload, batches: Batches, files: Files) -> Step:
    model = onnx.load(files.forward(17))
    trained = [i.name for i in model.graph.initializer if "running_" not in i.name]
    model = simplify(model)
    rewrite(model)
    add_loss(model.graph, workload.shape[0])
    loop = onnxsim.compile_training_loop(
        model, "loss", trained, "adam" if workload.optimizer == "adam" else "sgd_momentum"
    )
    feeds = [{"input": x, "target": np.eye(CLASSES, dtype=np.float32)[t]} for x, t in batches]
    return lambda k: float(loop(feeds[k % len(feeds)], lr=LEARNING_RATE))
