"""How much faster two processes train than one, beside PyTorch's own loop: `python benchmarks/processes.py`.

Two networks on random data, one thread per process, the same batches in each case, in turns; the median of the steps
after the first five. The perceptron has many parameters and little to compute, the convolutions the reverse. The peer
is the module itself, in DistributedDataParallel where there are two processes, as everybody writes it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

STEPS, WARM, ROUNDS = 25, 5, 3
BATCHES = {"perceptron": 512, "convolutions": 128}
ENGINES = ("onward", "torch")


def build(name: str):  # -> torch.nn.Module
    import torch
    from torch import nn

    torch.manual_seed(0)
    if name == "perceptron":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
                             nn.Linear(1024, 10))  # fmt: skip

    def block(inputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, 32, 3, padding=1), nn.ReLU()]

    return nn.Sequential(*block(1), *block(32), nn.MaxPool2d(2), *block(32), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(32 * 49, 10))  # fmt: skip


def optimizer_of(module):  # (torch.nn.Module) -> torch.optim.Optimizer
    import torch

    return torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)


def onward_step(folder: Path, name: str, images: np.ndarray, labels: np.ndarray) -> Callable[[], object]:
    import onward

    session = onward.Trainer(folder / f"{name}.onnx", backend="torch", threads=1).session
    feeds = {"x": images, "labels": labels}
    return lambda: session.step(feeds)


def torch_step(name: str, images: np.ndarray, labels: np.ndarray) -> Callable[[], object]:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    module, rank, size = build(name), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    optimizer = optimizer_of(module)
    if size > 1:
        dist.init_process_group("gloo")
        module = DistributedDataParallel(module)
    own = slice(len(images) * rank // size, len(images) * (rank + 1) // size)
    x, t = torch.from_numpy(images[own]), torch.from_numpy(labels[own])

    def step() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(x), t)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def worker(folder: Path, name: str, engine: str) -> None:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(BATCHES[name], 1, 28, 28)).astype(np.float32)
    labels = rng.integers(0, 10, BATCHES[name])
    step = torch_step(name, images, labels) if engine == "torch" else onward_step(folder, name, images, labels)
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    if os.environ["RANK"] == "0":
        (folder / "result.json").write_text(json.dumps(statistics.median(seconds[WARM:])))
    if engine == "torch" and int(os.environ["WORLD_SIZE"]) > 1:
        import torch.distributed as dist

        dist.destroy_process_group()  # without it PyTorch may abort at the end


def save_models(folder: Path) -> None:
    import torch

    import onward

    for name in BATCHES:
        module = build(name)
        model = onward.from_torch(
            module,
            loss=torch.nn.CrossEntropyLoss(),
            optimizer=optimizer_of(module),
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
        print("| network | samples per step | Onward, 1 process | 2 processes | PyTorch, 1 process | 2 processes |")
        print("|---|---|---|---|---|---|")
        for network, batch in BATCHES.items():
            found: dict[tuple[str, int], list[float]] = {}
            for _ in range(ROUNDS):
                for engine in ENGINES:
                    for processes in (1, 2):
                        arguments = [f"--nproc-per-node={processes}", __file__, "--worker", name, network, engine]
                        command = [*launch, *arguments]
                        subprocess.run(command, env=environment, check=True)
                        seconds = json.loads((folder / "result.json").read_text())
                        found.setdefault((engine, processes), []).append(seconds)
            cells = [f"{1000 * statistics.median(found[e, p]):.0f} ms" for e in ENGINES for p in (1, 2)]
            print(f"| {network} | {batch} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    if "--worker" in sys.argv:
        worker(Path(sys.argv[-3]), *sys.argv[-2:])
    else:
        main()
