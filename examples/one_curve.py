"""One training run through three frameworks: PyTorch, Keras, JAX and PyTorch again, five steps in each.

    python examples/one_curve.py --output curve

It trains a small convolutional network with batch normalisation and Adam on scikit-learn's handwritten digits. Between
two frameworks there is one standard ONNX file, which holds the weights, the running statistics, the loss, and the
optimizer with its moments and its count of steps:

    steps 1 to 5     PyTorch: an nn.Module, torch.optim.Adam
    steps 6 to 10    Keras, on the backend that KERAS_BACKEND names: model.train_on_batch
    steps 11 to 15   JAX: onward.Trainer(model, backend="jax")
    steps 16 to 20   PyTorch: the module and the optimizer that the last file holds

For comparison it runs the same twenty steps in PyTorch alone. The two curves are equal.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import onward

STEPS, BATCH = 5, 32


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the images [N, 1, 8, 8] and labels of one step; each step has its own, and the last is smaller."""
    from sklearn import datasets

    digits = datasets.load_digits()
    chosen = np.random.default_rng(step).choice(len(digits.target), BATCH if step < 4 * STEPS - 1 else BATCH // 2)
    return (digits.images[chosen, None] / 16.0).astype(np.float32), digits.target[chosen].astype(np.int64)


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    )
    return module, torch.optim.Adam(module.parameters(), lr=3e-3)


def in_torch(module: nn.Module, optimizer: torch.optim.Optimizer, loss: Any, leg: int) -> list[float]:
    """Train five steps with a plain loop of PyTorch."""
    losses = []
    for step in range(leg * STEPS, (leg + 1) * STEPS):
        x, t = map(torch.as_tensor, batch(step))
        optimizer.zero_grad()
        value = loss(module, x, t)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


def cross_entropy(module: nn.Module, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(module(x), t)


def main(output: Path) -> float:
    output.mkdir(parents=True, exist_ok=True)
    files = [output / f"{name}.train.onnx" for name in ("torch", "keras", "jax")]

    # %% PyTorch
    module, optimizer = build()
    curve = in_torch(module, optimizer, cross_entropy, leg=0)
    x, t = map(torch.as_tensor, batch(0))
    captured = onward.from_torch(
        module, loss=nn.CrossEntropyLoss(), optimizer=optimizer, example_inputs=(x,), example_targets=t
    )
    onward.save(captured, files[0])

    # %% Keras
    keras_model = onward.to_keras(files[0])
    for step in range(STEPS, 2 * STEPS):
        keras_model.reset_metrics()  # without it, Keras reports a running mean
        found = keras_model.train_on_batch(*batch(step), return_dict=True)
        curve.append(float(np.ravel(found["loss"])[0]))
    onward.save(onward.from_keras(keras_model), files[1])

    # %% JAX
    trainer = onward.Trainer(files[1], backend="jax")
    for step in range(2 * STEPS, 3 * STEPS):
        images, labels = batch(step)
        feeds = dict(zip(trainer.input_names, (images, labels), strict=True))
        curve.append(float(trainer.step(feeds)["loss"]))
    onward.save(trainer.to_model(), files[2])

    # %% PyTorch again
    again, its_optimizer = onward.to_torch(files[2])
    again.train()
    curve += in_torch(again, its_optimizer, lambda module, x, t: module.loss(x, t), leg=3)

    # %% PyTorch alone
    alone, optimizer = build()
    wanted = [loss for leg in range(4) for loss in in_torch(alone, optimizer, cross_entropy, leg)]
    worst = max(abs(a - b) / abs(b) for a, b in zip(curve, wanted, strict=True))
    for name, part in zip(("PyTorch", "Keras", "JAX", "PyTorch"), np.array_split(np.array(curve), 4), strict=True):
        print(f"{name}: loss {part[0]:.4f} to {part[-1]:.4f}")
    print(f"largest difference from PyTorch alone: {worst:.1e} of the loss")
    return worst


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("curve"))
    main(parser.parse_args().output)
