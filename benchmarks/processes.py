"""How much faster two processes train than one: `python benchmarks/processes.py`.

Two networks on random data, one thread per process, the torch backend, the same batches in each case; the median of the
steps after the first five. The perceptron has many parameters and little to compute, the convolutions the reverse.
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

STEPS = 25
BATCHES = {"perceptron": 512, "convolutions": 128}


def worker(folder: Path, name: str) -> None:
    import onward

    trainer = onward.Trainer(folder / f"{name}.onnx", backend="torch", threads=1)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(BATCHES[name], 1, 28, 28)).astype(np.float32)
    feeds = {"x": images, "labels": rng.integers(0, 10, BATCHES[name])}
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        trainer.session.step(feeds)
        seconds.append(time.perf_counter() - start)
    if trainer.is_writer:
        (folder / "result.json").write_text(json.dumps(float(np.median(seconds[5:]))))


def save_models(folder: Path) -> None:
    import torch
    from torch import nn

    import onward

    def block(inputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, 32, 3, padding=1), nn.ReLU()]

    networks = {
        "perceptron": [nn.Flatten(), nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
                       nn.Linear(1024, 10)],
        "convolutions": [*block(1), *block(32), nn.MaxPool2d(2), *block(32), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(32 * 49, 10)],
    }  # fmt: skip
    for name, layers in networks.items():
        net = nn.Sequential(*layers)
        model = onward.from_torch(
            net,
            loss=nn.CrossEntropyLoss(),
            optimizer=torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9),
            example_inputs=(torch.zeros(4, 1, 28, 28),),
            example_targets=torch.zeros(4, dtype=torch.int64),
            input_names=["x"],
        )
        onward.save(model, folder / f"{name}.onnx")


def main() -> None:
    source = Path(__file__).resolve().parent.parent / "src"
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_models(folder)
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        for network, batch in BATCHES.items():
            for processes in (1, 2, 1, 2):
                command = [*launch, f"--nproc-per-node={processes}", __file__, "--worker", name, network]
                subprocess.run(command, env=environment, check=True)
                step = json.loads((folder / "result.json").read_text())
                rate = f"{step * 1000:.0f} ms per step of {batch}, {batch / step:.0f} samples/s"
                print(f"{network}, {processes} process(es): {rate}")


if __name__ == "__main__":
    if "--worker" in sys.argv:
        worker(Path(sys.argv[-2]), sys.argv[-1])
    else:
        main()
