"""What ONNX Runtime's own profiler adds to the times of the operators.

It writes down the shapes of an operator while the operator's clock runs: 2 to 3 µs, more than a small operator takes.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from onward.backends.measurement import middle

_NODES = 64
_RUNS = 30
INSIDE = "operators inside"
"""The key under which an event of an operator says how many operators, such as those of a Loop, ran inside of it."""


@dataclasses.dataclass(frozen=True)
class ProfilerCost:
    """Seconds that the profiler takes for an operator."""

    counted: float
    """Those that count as time of the operator."""
    whole: float
    """These, and those between operators."""

    def without(self, event: Mapping[str, Any]) -> float:
        """Return the seconds of an operator without the profiler; 0 where the profiler took all of them."""
        microseconds: int = event["dur"]
        inside: int = event.get(INSIDE, 0)
        return max(0.0, microseconds * 1e-6 - self.counted - inside * self.whole)


def measure_cost(threads: int) -> ProfilerCost:
    """Return the cost that additions of two numbers show; at least so much for any operator."""
    plain, _ = _additions(threads, None)
    with tempfile.TemporaryDirectory() as folder:
        profiled, times = _additions(threads, Path(folder))
    return ProfilerCost(max(0.0, middle(times) - plain), max(0.0, profiled - plain))


def _additions(threads: int, folder: Path | None) -> tuple[float, Sequence[float]]:
    """Return the seconds of a run by the number of its operators, and with a folder what the profiler says of each."""
    one = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("x0", f"x{_NODES}")]
    nodes = [helper.make_node("Add", [f"x{i}", "x0"], [f"x{i + 1}"]) for i in range(_NODES)]
    graph = helper.make_graph(nodes, "additions", one[:1], one[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if folder is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "additions")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds, seconds = {"x0": np.ones(1, np.float32)}, []
    for _ in range(_RUNS):
        began = time.perf_counter()
        session.run(None, feeds)
        seconds.append(time.perf_counter() - began)
    each = statistics.median(seconds) / _NODES
    if folder is None:
        return each, ()
    events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    return each, [e["dur"] * 1e-6 for e in events if e.get("cat") == "Node" and "op_name" in e["args"]]
