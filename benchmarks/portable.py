"""What the portable profile costs on ONNX Runtime's CPU kernels: one training step of it and of the default profile.

    python benchmarks/portable.py [--rounds 40] [--batch 64] [--threads 1 2] [--json portable.json]

Both run the compiled step on a stock session, in turn, so that what else the machine does meets both alike. Prints the
median of each in milliseconds, and the median of the quotients of neighbouring runs.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import onward


def convolutional(shape: tuple[int, ...], layers: list[tuple[Any, ...]]) -> onward.TrainingModel:
    """Return a network of convolutions (outputs, kernel, stride, group) and pools (kernel, stride, pad)."""
    rng, nodes, weights, last, channels = np.random.default_rng(0), [], {}, "x", shape[0]
    for index, layer in enumerate(layers):
        name = f"h{index}"
        if len(layer) == 4:
            outputs, kernel, stride, group = layer
            size = (outputs, channels // group, kernel, kernel)
            weights[f"W{index}"] = rng.standard_normal(size) / np.sqrt(np.prod(size[1:]))
            weights[f"b{index}"] = np.zeros(outputs)
            attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
            inputs = [last, f"W{index}", f"b{index}"]
            nodes.append(helper.make_node("Conv", inputs, [f"c{index}"], group=group, dilations=[1, 1], **attributes))
            nodes.append(helper.make_node("Relu", [f"c{index}"], [name]))
            channels = outputs
        else:
            kernel, stride, pad = layer
            attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
            nodes.append(helper.make_node("MaxPool", [last], [name], **attributes))
        last = name
    weights["W"] = rng.standard_normal((channels, 10)) / np.sqrt(channels)
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["mean"]))
    nodes.append(helper.make_node("Flatten", ["mean"], ["flat"]))
    nodes.append(helper.make_node("MatMul", ["flat", "W"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", *shape])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return onward.make_trainable(model, loss="cross_entropy", optimizer=onward.Adam(1e-3))


NETWORKS: dict[str, Callable[[], onward.TrainingModel]] = {
    "digits": lambda: onward.samples.build("digits"),
    "mnist (LeNet)": lambda: onward.samples.build("mnist"),
    "depthwise": lambda: convolutional(
        (3, 32, 32), [(16, 3, 2, 1), (16, 3, 1, 16), (32, 1, 1, 1), (32, 3, 2, 32), (64, 1, 1, 1)]
    ),
    "3x3, overlapping pools": lambda: convolutional((3, 32, 32), [(16, 3, 1, 1), (3, 2, 1), (32, 3, 1, 1), (3, 2, 1)]),
}


def batch_of(program: onward.Program, size: int) -> dict[str, np.ndarray]:
    """Return one batch, the state and the settings: all that a step reads."""
    rng = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {n: np.asarray(a) for n, a in {**program.state, **program.settings}.items()}
    for spec in (*program.inputs, *program.targets):
        shape = [d if isinstance(d, int) else size for d in spec.shape]
        whole = spec.dtype.startswith("int")
        found[spec.name] = (rng.integers(0, 10, shape) if whole else rng.standard_normal(shape)).astype(spec.dtype)
    return found


def measure(programs: list[onward.Program], size: int, rounds: int, threads: int) -> np.ndarray:
    """Return the seconds of each round and program."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Else the threads of the session that ran last go on spinning on the cores that the other one needs.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    runs = []
    for program in programs:
        step = program.step.SerializeToString()
        session = onnxruntime.InferenceSession(step, options, providers=["CPUExecutionProvider"])
        values = batch_of(program, size)
        runs.append((session, {v.name: values[v.name] for v in session.get_inputs()}))
    seconds = []
    for _ in range(rounds + 3):
        seconds.append([])
        for session, feeds in runs:
            began = time.perf_counter()
            session.run(None, feeds)
            seconds[-1].append(time.perf_counter() - began)
    return np.array(seconds[3:])  # the first rounds warm up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", type=Path, help="write the numbers")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    results: dict[str, dict[str, float]] = {}
    print(f"{'network':<24}{'threads':>8}{'default':>10}{'portable':>10}{'quotient':>10}   (ms)")
    for name, build in NETWORKS.items():
        model = build()
        programs = [onward.compile(model, profile=p) for p in ("default", "portable")]
        for threads in arguments.threads:
            seconds = measure(programs, arguments.batch, arguments.rounds, threads)
            default, portable = (float(s) * 1e3 for s in np.median(seconds, axis=0))
            quotient = float(np.median(seconds[:, 1] / seconds[:, 0]))
            results[f"{name}, {threads}"] = {"default": default, "portable": portable, "quotient": quotient}
            print(f"{name:<24}{threads:>8}{default:>10.2f}{portable:>10.2f}{quotient:>10.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
