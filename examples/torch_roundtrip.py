"""Train in PyTorch, continue in ONNX Runtime without PyTorch, and return: one continuous loss curve.

    python examples/torch_roundtrip.py --output roundtrip

It trains a small convolutional network with batch normalisation and Adam on scikit-learn's handwritten digits:

    epoch 1   PyTorch
    epoch 2   ONNX Runtime, in a separate process that never imports torch, from the file of epoch 1
    epoch 3   PyTorch again, from the file of epoch 2

For comparison it also runs the same three epochs in PyTorch alone. The two curves are equal.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

BATCH = 64


def load_digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images [N, 1, 8, 8] and labels."""
    from sklearn import datasets

    digits = datasets.load_digits()
    images = (digits.images[:count, None] / 16.0).astype(np.float32)
    return images, digits.target[:count].astype(np.int64)


def batches(images: np.ndarray, labels: np.ndarray, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the batches of one epoch, in an order that depends only on the number of the epoch."""
    order = np.random.default_rng(epoch).permutation(len(images))
    for start in range(0, len(order) - BATCH + 1, BATCH):
        chosen = order[start : start + BATCH]
        yield images[chosen], labels[chosen]


# %% Part 2, in a separate process: ONNX Runtime without PyTorch.
def continue_without_torch(source: Path, target: Path, log: Path, count: int) -> None:
    import onward

    images, labels = load_digits(count)
    trainer = onward.Trainer(source)
    losses = [
        float(trainer.step(dict(zip(trainer.input_names, batch, strict=True)))["loss"])
        for batch in batches(images, labels, epoch=2)
    ]
    onward.save(trainer.to_model(), target)
    log.write_text(json.dumps(losses))
    assert "torch" not in sys.modules


# %% Parts 1 and 3: PyTorch.
def main(output: Path, count: int) -> float:
    import torch
    from torch import nn

    import onward
    from onward.train.plot import Line, line_chart

    output.mkdir(parents=True, exist_ok=True)
    images, labels = load_digits(count)

    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(128, 10),
        )  # fmt: skip

    def train(module: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> list[float]:
        module.train()
        losses = []
        for x, t in batches(images, labels, epoch):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(t))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    module = build()
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    first = train(module, optimizer, epoch=1)
    x, t = next(batches(images, labels, 1))
    model = onward.from_torch(
        module,
        loss=nn.CrossEntropyLoss(),
        optimizer=optimizer,
        example_inputs=torch.from_numpy(x),
        example_targets=torch.from_numpy(t),
    )
    onward.save(model, output / "after_1.onnx")  # weights, running statistics and Adam's state: all in one file

    command = [sys.executable, __file__, "--middle", "--output", str(output), "--samples", str(count)]
    subprocess.run(command, check=True)
    second = json.loads((output / "losses_2.json").read_text())

    back, its_optimizer = onward.to_torch(output / "after_2.onnx")
    third = train(back, its_optimizer, epoch=3)

    alone = build()
    its_own = torch.optim.Adam(alone.parameters(), lr=3e-3)
    expected = [loss for epoch in (1, 2, 3) for loss in train(alone, its_own, epoch)]
    found = [*first, *second, *third]
    difference = max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))

    steps = np.arange(1, len(found) + 1, dtype=float)
    parts = [("PyTorch", first, 0), ("ONNX Runtime", second, 1), ("PyTorch again", third, 2)]
    lines, start = [], 0
    for name, losses, colour in parts:
        points = list(zip(steps[start : start + len(losses)], losses, strict=True))
        lines.append(Line(f"{name}", points, colour))
        start += len(losses)
    lines.append(Line("PyTorch alone", list(zip(steps, expected, strict=True)), 3, faint=True))
    chart = line_chart(lines, title="One training run, two engines", x_label="step", y_label="loss")
    (output / "loss.svg").write_text(chart)

    back.eval()
    with torch.no_grad():
        right = (back(torch.from_numpy(images)).argmax(1).numpy() == labels).mean()
    print(f"{len(found)} steps: loss {found[0]:.3f} to {found[-1]:.3f}, accuracy {right:.1%} on the training data")
    print(f"largest difference from PyTorch alone: {difference:.1e} of the loss; the curve is in {output / 'loss.svg'}")
    return float(difference)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("roundtrip"))
    parser.add_argument("--samples", type=int, default=1797)
    parser.add_argument("--middle", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.middle:
        folder = given.output
        continue_without_torch(
            folder / "after_1.onnx", folder / "after_2.onnx", folder / "losses_2.json", given.samples
        )
    else:
        main(given.output, given.samples)
