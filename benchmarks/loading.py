"""Loading a large model with external data: Onward beside onnx.load, time and memory.

    python benchmarks/loading.py [--gigabytes 1.0]

Each reader runs in a process of its own, on the same files, whose pages are in the system's cache. `load` is the time
until the model is there; `use` also reads every page of every weight once, so that mapping hides nothing. `held` is
memory of the process itself after loading; `peak` counts mapped pages too, which the system can take back.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

READERS = {
    "onnx.load": """
import onnx, numpy
from onnx import numpy_helper
def load(path): return onnx.load(path)
def arrays(model): return (numpy_helper.to_array(t) for t in model.graph.initializer)
""",
    "onnx_ir.load": """
import onnx_ir
def load(path): return onnx_ir.load(path)
def arrays(model): return (v.const_value.numpy() for v in model.graph.initializers.values())
""",
    "onward.load": """
from onward.model import serde
def load(path): return serde.load(path)
def arrays(model): return (v.const_value.numpy() for v in model.graph.initializers.values())
""",
}
MEASURE = """
import json, sys, time, numpy as np, onnx
def memory(key): return [int(l.split()[1]) for l in open('/proc/self/status') if l.startswith(key)][0] / 1024
base = memory('RssAnon')
start = time.perf_counter(); model = load(sys.argv[1]); loaded = time.perf_counter() - start
held = memory('RssAnon') - base
total = sum(float(a.ravel().view(np.uint8)[::4096].sum()) for a in arrays(model))
used = time.perf_counter() - start
peak = memory('VmHWM')
print(json.dumps(dict(load=loaded, use=used, held=held, peak=peak, total=total)))
"""


def write_model(folder: pathlib.Path, gigabytes: float) -> pathlib.Path:
    """Write a chain of square MatMuls with 64 MB each, and a training entry with one moment per weight."""
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    from onward.model import serde

    count = max(1, round(gigabytes * 1e9 / (4096 * 4096 * 4)))
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(size=(4096, 4096)).astype(np.float32), f"W{i}") for i in range(count)]
    nodes = [helper.make_node("MatMul", [f"h{i}", f"W{i}"], [f"h{i + 1}"]) for i in range(count)]
    io = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["n", 4096]) for n in ("h0", f"h{count}")]
    graph = helper.make_graph(nodes, "large", io[:1], io[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    serde.save(model, folder / "large.onnx", external_data=True)
    return folder / "large.onnx"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(pathlib.Path(folder), options.gigabytes)
        size = sum(p.stat().st_size for p in pathlib.Path(folder).iterdir())
        results: dict[str, list[dict[str, float]]] = {name: [] for name in READERS}
        for _ in range(options.repeat + 1):
            for name, source in READERS.items():  # in turn, so that all see the same noise
                run = subprocess.run(
                    [sys.executable, "-c", source + MEASURE, str(path)], capture_output=True, text=True, check=True
                )
                results[name].append(json.loads(run.stdout))
    assert len({r["total"] for runs in results.values() for r in runs}) == 1, "the readers read different weights"
    print(f"{size / 1e9:.2f} GB in external data, median of {options.repeat} runs after one to warm up\n")
    print(f"{'reader':<14}{'load s':>9}{'use s':>9}{'held MB':>10}{'peak MB':>10}{'load / onnx':>13}{'use / onnx':>12}")
    reference: dict[str, float] = {}
    for name, runs in results.items():
        m = {k: statistics.median(r[k] for r in runs[1:]) for k in ("load", "use", "held", "peak")}
        reference = reference or m
        print(
            f"{name:<14}{m['load']:>9.3f}{m['use']:>9.3f}{m['held']:>10.0f}{m['peak']:>10.0f}"
            f"{m['load'] / reference['load']:>13.2f}{m['use'] / reference['use']:>12.2f}"
        )


if __name__ == "__main__":
    main()
