"""One peer on one workload in a process of its own: `worker.py PEER WORKLOAD FOLDER`.

It answers in lines of JSON: first the time to the first step, then one line for each number of steps read from stdin,
so that peers can be timed in turn in one run without their thread pools meeting. `worker.py --gemm` prints the
machine's matrix-product rate.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.metadata
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from peers import MEMORY_LIMIT, PEERS, THREADS, Files
from workloads import find


def gemm_peak() -> float:
    """Return the machine's float32 matrix-product rate in GFLOPS: the best of several, by the best of three libraries.

    One is not enough: on a processor with AVX-512, ONNX Runtime may reach twice the rate of the other two.
    """
    import onnxruntime
    import torch
    from onnx import TensorProto, helper

    kinds = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "n"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["y"])], "product", kinds[:1], kinds[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    torch.set_num_threads(THREADS)
    products = [
        lambda a: a @ a,
        lambda a: torch.from_numpy(a) @ torch.from_numpy(a),
        lambda a: session.run(None, {"x": a}),
    ]
    best = 0.0
    for size in (1024, 2048):
        a = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
        for product in products:
            for _ in range(8):
                began = time.perf_counter()
                product(a)
                best = max(best, 2 * size**3 / (time.perf_counter() - began) / 1e9)
    return best


def memory(field: str) -> int:
    """Return the process's VmRSS (now) or VmHWM (at most) in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(lines[field].split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def answer(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def end_with_parent() -> None:
    """End when the run ends, however it does: a stopped process in a session of its own would stay, with its memory."""
    set_signal_of_death = 1
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # a C library that has no such call
            ctypes.CDLL(None).prctl(set_signal_of_death, signal.SIGKILL)


def main() -> None:
    end_with_parent()
    if hasattr(os, "sched_setaffinity"):  # some peers take every core they see
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    if sys.argv[1] == "--gemm":
        answer(gflops=gemm_peak())
        return
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    peer, workload = PEERS[sys.argv[1]], find(sys.argv[2])
    batches = workload.batches()
    bare = memory("VmRSS")
    began = time.perf_counter()
    module = importlib.import_module(f"peers.{peer.module}")
    step = module.build(workload, batches, Files(Path(sys.argv[3]), workload.name), **peer.options)
    loss = step(0)
    took = time.perf_counter() - began
    answer(first=took, losses=[loss], versions={name: importlib.metadata.version(name) for name in peer.packages})
    k = 1
    for line in sys.stdin:
        times, losses = [], []
        processor = time.process_time()  # of all threads
        for _ in range(int(line)):
            began = time.perf_counter()
            losses.append(step(k))
            times.append(time.perf_counter() - began)
            k += 1
        used = time.process_time() - processor
        answer(times=times, losses=losses, peak=memory("VmHWM") - bare, processor=used)


if __name__ == "__main__":
    main()
