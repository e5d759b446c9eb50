"""The peers that need an environment of their own (`make bench-peers`): onnxruntime-training 1.19.2 and onnxsim 0.8.1.

They train the perceptrons only, from the same hand-made ONNX graph. onnxsim has no cross-entropy operator, so its loss
is written with Exp, ReduceSum and Log; onnxruntime-training's AdamW has a formula of its own.
"""

from __future__ import annotations

import itertools
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Step = Callable[[int], float]
THREADS = 2
BATCHES = {"mlp-64": 64, "mlp-256": 256, "mlp-64-sgd": 64}


def perceptron(batch: int | str, opset: int) -> onnx.ModelProto:
    """Return 784-512-512-10 as plain ONNX, `input` -> `output`."""
    rng = np.random.default_rng(0)
    sizes = (784, 512, 512, 10)
    nodes, weights, value = [], [], "input"
    for i, (before, width) in enumerate(itertools.pairwise(sizes)):
        scale = 1 / np.sqrt(before)
        for name, shape in ((f"w{i}", (width, before)), (f"b{i}", (width,))):
            weights.append(numpy_helper.from_array(rng.uniform(-scale, scale, shape).astype(np.float32), name))
        result = "output" if i == 2 else f"z{i}"
        nodes.append(helper.make_node("Gemm", [value, f"w{i}", f"b{i}"], [result], transB=1))
        value = result
        if i < 2:
            nodes.append(helper.make_node("Relu", [value], [f"a{i}"]))
            value = f"a{i}"
    inputs = [helper.make_tensor_value_info("input", TensorProto.FLOAT, [batch, 784])]
    outputs = [helper.make_tensor_value_info("output", TensorProto.FLOAT, [batch, 10])]
    graph = helper.make_graph(nodes, "mlp", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def data(batch: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal((batch, 784)).astype(np.float32), rng.integers(0, 10, batch)) for _ in range(8)]


def onnxruntime_training(batch: int, optimizer: str) -> Step:
    import onnxruntime
    from onnxruntime.training import artifacts
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    if optimizer == "sgd":
        raise SystemExit("onnxruntime-training has no SGD with momentum")
    onnx.IR_VERSION = min(int(onnx.IR_VERSION), 10)  # it stamps the installed onnx's version and reads up to 10
    onnxruntime.set_default_logger_severity(3)
    folder = Path(tempfile.mkdtemp())
    model = perceptron("batch", 17)
    artifacts.generate_artifacts(
        model, requires_grad=[i.name for i in model.graph.initializer], loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW, artifact_directory=str(folder),
    )  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = Module(
        str(folder / "training_model.onnx"), state, str(folder / "eval_model.onnx"), session_options=options
    )
    update = Optimizer(str(folder / "optimizer_model.onnx"), module)
    update.set_learning_rate(1e-3)
    module.train()
    batches = data(batch)

    def step(k: int) -> float:
        x, t = batches[k % 8]
        loss = module(x, t.astype(np.int64))
        update.step()
        module.lazy_reset_grad()
        return float(np.asarray(loss).reshape(-1)[0])

    return step


def onnxsim(batch: int, optimizer: str) -> Step:
    import onnxsim as peer

    model = perceptron(batch, 17)
    graph = model.graph
    params = [i.name for i in graph.initializer]
    graph.input.append(helper.make_tensor_value_info("target", TensorProto.FLOAT, [batch, 10]))
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
    loop = peer.compile_training_loop(model, "loss", params, "adam" if optimizer == "adam" else "sgd_momentum")
    batches = [(x, np.eye(10, dtype=np.float32)[t]) for x, t in data(batch)]
    return lambda k: float(loop({"input": batches[k % 8][0], "target": batches[k % 8][1]}, lr=1e-3))


PEERS = {"onnxruntime-training": onnxruntime_training, "onnxsim": onnxsim}


def main() -> None:
    peer, name = sys.argv[1:3]
    if name not in BATCHES:
        raise SystemExit("not set up for this workload")
    began = time.perf_counter()
    step = PEERS[peer](BATCHES[name], "sgd" if name.endswith("sgd") else "adam")
    loss = step(0)
    print(json.dumps({"first": time.perf_counter() - began, "loss": loss}), flush=True)
    k = 1
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            began = time.perf_counter()
            loss = step(k)
            times.append(time.perf_counter() - began)
            k += 1
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"times": times, "loss": loss, "peak": peak, "steps": k}), flush=True)


if __name__ == "__main__":
    main()
