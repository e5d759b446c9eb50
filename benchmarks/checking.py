"""Checking models of growing size: `onward.check` beside onnx.checker, which does not look at the training graphs.

    python benchmarks/checking.py [--nodes 20000]

Each model has half as many trained weights as nodes, with a Gradient and an Adagrad over all of them. The promise:
20,000 nodes in under 5 seconds, and twice the nodes in twice the time.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import onnx
from onnx import helper, numpy_helper

TRAINING = "ai.onnx.preview.training"


def build(nodes: int) -> onnx.ModelProto:
    """Return a chain of Gemm and Relu whose weights are all trained by one Adagrad."""
    layers = nodes // 2
    weights = [f"W{i}" for i in range(layers)]

    def value(name: str, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)

    def tensor(name: str, data: object, dtype: type = np.float32) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(data, dtype), name)

    chain = []
    for i in range(layers):
        chain.append(helper.make_node("Gemm", [f"h{i}", f"W{i}"], [f"g{i}"]))
        chain.append(helper.make_node("Relu", [f"g{i}"], [f"h{i + 1}"]))
    graph = helper.make_graph(
        chain, "chain", [value("h0", "N", 4)], [value(f"h{layers}", "N", 4)],
        [tensor(w, np.eye(4)) for w in weights],
    )  # fmt: skip
    gradients, states = [f"d{w}" for w in weights], [f"H{w}" for w in weights]
    fresh = [f"new_{name}" for name in weights + states]
    algorithm = helper.make_graph(
        [
            helper.make_node("ReduceMean", [f"h{layers}"], ["loss"], keepdims=0),
            helper.make_node("Gradient", [*weights, "h0"], gradients, domain=TRAINING, xs=weights, zs=["h0"], y="loss"),
            helper.make_node("Adagrad", ["R", "T", *weights, *gradients, *states], fresh, domain=TRAINING),
        ],
        "step",
        [],
        [value("loss"), *(value(name, 4, 4) for name in fresh)],
        [tensor("R", 0.1), tensor("T", 0, np.int64), *(tensor(s, np.zeros((4, 4))) for s in states)],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(TRAINING, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    model.training_info.append(
        helper.make_training_info(algorithm, list(zip(weights + states, fresh, strict=True)), None, None)
    )
    return model


def main() -> None:
    from onward.check import check

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    print(f"median of {options.repeat} runs\n\n{'nodes':>8}{'weights':>9}{'onward.check s':>16}{'onnx.checker s':>16}")
    for nodes in (options.nodes // 4, options.nodes // 2, options.nodes):
        model = build(nodes)
        ours, theirs = [], []
        for _ in range(options.repeat):
            start = time.perf_counter()
            report = check(model)
            ours.append(time.perf_counter() - start)
            assert not report.findings, report.render()
            start = time.perf_counter()
            onnx.checker.check_model(model, full_check=True)
            theirs.append(time.perf_counter() - start)
        print(f"{nodes:>8}{nodes // 2:>9}{statistics.median(ours):>16.2f}{statistics.median(theirs):>16.2f}")


if __name__ == "__main__":
    main()
