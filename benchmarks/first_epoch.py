"""Measure the first and the tenth epoch with the core install and with `[fast]`, interleaved.

Each run is a process of its own, because what a first epoch costs is imports and compilation. `[fast]` must not be
slower than the core install in the first epoch, and faster in the tenth. Prints wall and processor seconds, the median
of the repetitions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

WORKER = """
import json, os, sys, time
import numpy as np
begin = time.perf_counter(), sum(os.times()[:2])
import onward
width, samples_count, fused = int(sys.argv[1]), int(sys.argv[2]), None if sys.argv[3] == "fast" else False
proto = onward.samples.build("mnist") if width == 0 else None
if proto is None:
    import onnx
    rng = np.random.default_rng(0)
    text = f'<ir_version: 8, opset_import: ["": 18]> net (float[N, {width}] x) => (float[N, 10] logits)'
    text += " { a = MatMul(x, W1) b = Relu(a) c = MatMul(b, W2) d = Relu(c) logits = MatMul(d, W3) }"
    net = onnx.parser.parse_model(text)
    for name, shape in (("W1", (width, width)), ("W2", (width, width)), ("W3", (width, 10))):
        array = rng.standard_normal(shape).astype(np.float32) / 30
        net.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    proto = onward.make_trainable(net, loss="cross_entropy", optimizer=onward.AdamW(1e-3))
    x = rng.standard_normal((samples_count, width)).astype(np.float32)
else:
    x = np.random.default_rng(0).random((samples_count, 1, 28, 28), np.float32)
y = np.random.default_rng(1).integers(0, 10, samples_count)
trainer = onward.Trainer(proto, fused=fused)
found = {}
for epoch in range(1, 11):
    trainer.fit(x, y, epochs=1, batch_size=32, progress="none")
    now = time.perf_counter(), sum(os.times()[:2])
    found[epoch] = [now[0] - begin[0], now[1] - begin[1]]
    begin = now
print(json.dumps({"1": found[1], "10": found[10]}))
"""


def main() -> None:
    """Run both installs in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--samples", type=int, default=3200)
    parser.add_argument("--widths", type=int, nargs="+", default=[0, 256, 1024], help="0: the MNIST sample")
    given = parser.parse_args()
    for width in given.widths:
        found: dict[str, list[dict[str, list[float]]]] = {"core": [], "fast": []}
        for _ in range(given.repeats):
            for install in found:
                command = [sys.executable, "-c", WORKER, str(width), str(given.samples), install]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found[install].append(json.loads(done.stdout))
        for epoch in ("1", "10"):
            for kind, label in enumerate(("wall", "processor")):
                core, fast = (statistics.median(r[epoch][kind] for r in found[i]) for i in ("core", "fast"))
                what = "mnist" if width == 0 else f"width {width}"
                print(
                    f"{what:12} epoch {epoch:>2} {label:9} core {core:7.3f} s  fast {fast:7.3f} s  {fast / core:5.2f}×"
                )


if __name__ == "__main__":
    main()
