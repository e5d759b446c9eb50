"""How much faster two processes train than one: `python benchmarks/processes.py`.

A perceptron of 1.9 million parameters on random data, one thread per process, the torch backend, the
same batches of 512 in each case; the median of the steps after the first five.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

STEPS, BATCH, WIDTH = 25, 512, 1024


def worker(folder: Path) -> None:
    import onward

    trainer = onward.Trainer(folder / "model.onnx", backend="torch", threads=1)
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(BATCH, 784)).astype(np.float32), "labels": rng.integers(0, 10, BATCH)}
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        trainer.session.step(feeds)
        seconds.append(time.perf_counter() - start)
    if trainer.is_writer:
        (folder / "result.json").write_text(json.dumps(float(np.median(seconds[5:]))))


def save_model(path: Path) -> None:
    import torch
    from torch import nn

    import onward

    net = nn.Sequential(nn.Linear(784, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    model = onward.from_torch(
        net,
        loss=nn.CrossEntropyLoss(),
        optimizer=torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9),
        example_inputs=(torch.zeros(4, 784),),
        example_targets=torch.zeros(4, dtype=torch.int64),
        input_names=["x"],
    )
    onward.save(model, path)


def main() -> None:
    source = Path(__file__).resolve().parent.parent / "src"
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder / "model.onnx")
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        for processes in (1, 2, 1, 2):
            command = [*launch, f"--nproc-per-node={processes}", __file__, "--worker", name]
            subprocess.run(command, env=environment, check=True)
            step = json.loads((folder / "result.json").read_text())
            print(f"{processes} process(es): {step * 1000:.0f} ms per step of {BATCH}, {BATCH / step:.0f} samples/s")


if __name__ == "__main__":
    if "--worker" in sys.argv:
        worker(Path(sys.argv[-1]))
    else:
        main()
