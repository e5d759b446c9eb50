"""onnx-ad 0.3.0: it writes the adjoint of the forward graph as another graph, which runs on stock ONNX Runtime.

It has no optimizer: the update is numpy, in place. The loss is written with Exp, ReduceSum and Log as for onnxsim; the
weights are graph inputs.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ad
import onnxruntime
from onnx import TensorProto, helper, shape_inference
from workloads import CLASSES, LEARNING_RATE, MOMENTUM, Workload

from peers import THREADS, Batches, Files, Step

B1, B2, EPSILON = 0.9, 0.999, 1e-8
Arrays = dict[str, np.ndarray]


def add_loss(graph: onnx.GraphProto, batch: int) -> None:
    """Make the mean cross-entropy of `output` and a one-hot `target` the only output."""
    graph.input.append(helper.make_tensor_value_info("target", TensorProto.FLOAT, [batch, CLASSES]))
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([1], np.int64), "axis"))
    for kind, inputs, output in (
        ("Exp", ["output"], "e"), ("ReduceSum", ["e", "axis"], "s"), ("Log", ["s"], "l"), ("Sub", ["l", "output"], "d"),
        ("Mul", ["d", "target"], "m"), ("ReduceSum", ["m", "axis"], "row"), ("ReduceMean", ["row"], "loss"),
    ):  # fmt: skip
        attributes = {"keepdims": int(output not in ("row", "loss"))} if kind.startswith("Reduce") else {}
        graph.node.append(helper.make_node(kind, inputs, [output], **attributes))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))


def take_out(graph: onnx.GraphProto) -> Arrays:
    """Make the trained weights inputs of the graph, and return them."""
    trained = [i for i in graph.initializer if i.data_type == TensorProto.FLOAT and "running_" not in i.name]
    trained = [i for i in trained if "." in i.name]  # the exporter's own constants have no module
    weights = {i.name: onnx.numpy_helper.to_array(i).copy() for i in trained}
    kept = [i for i in graph.initializer if i.name not in weights]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    graph.input.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, w.shape) for n, w in weights.items())
    return weights


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def build(workload: Workload, batches: Batches, files: Files) -> Step:
    model = onnx.load(files.forward(17))
    weights = take_out(model.graph)
    add_loss(model.graph, workload.shape[0])
    model = shape_inference.infer_shapes(model)
    adjoint = onnx_ad.reverse(model, inputs=list(weights), outputs=["loss"], layout="onnx")
    has_loss = any(o.name == "loss" for o in adjoint.graph.output)
    forward = None if has_loss else session(model)
    backward = session(adjoint)
    given = {i.name for i in backward.get_inputs()}
    results = [o.name for o in backward.get_outputs()]
    seed = {"adj_loss": np.ones(1, np.float32)}
    feeds = [{"input": x, "target": np.eye(CLASSES, dtype=np.float32)[t]} for x, t in batches]
    moments = [{n: np.zeros_like(w) for n, w in weights.items()} for _ in range(2)]

    def step(k: int) -> float:
        values = {**feeds[k % len(feeds)], **weights}
        found = {} if forward is None else {"loss": forward.run(["loss"], values)[0]}
        values = {**values, **{n: v for n, v in found.items() if n in given}, **seed}
        found |= dict(zip(results, backward.run(results, values), strict=True))
        gradients = {n: found[f"adj_{n}"].reshape(w.shape) for n, w in weights.items()}
        (adam if workload.optimizer == "adam" else sgd)(weights, gradients, moments, k + 1)
        return float(np.asarray(found["loss"]).reshape(-1)[0])

    return step


def adam(weights: Arrays, gradients: Arrays, moments: list[Arrays], t: int) -> None:
    size, root = LEARNING_RATE / (1 - B1**t), np.float32(np.sqrt(1 - B2**t))
    for name, g in gradients.items():
        m, v = moments[0][name], moments[1][name]
        m *= B1
        m += (1 - B1) * g
        v *= B2
        v += (1 - B2) * g * g
        weights[name] -= np.float32(size) * m / (np.sqrt(v) / root + np.float32(EPSILON))


def sgd(weights: Arrays, gradients: Arrays, moments: list[Arrays], t: int) -> None:
    for name, g in gradients.items():
        velocity = moments[0][name]
        velocity *= MOMENTUM
        velocity += g
        weights[name] -= np.float32(LEARNING_RATE) * velocity
