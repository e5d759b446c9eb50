"""Train in Keras, continue in ONNX Runtime without Keras, and return: one continuous loss curve.

    python examples/keras_roundtrip.py --output roundtrip

It trains a small convolutional network with batch normalisation and AdamW on scikit-learn's handwritten digits:

    epoch 1   Keras, on the backend that KERAS_BACKEND names
    epoch 2   ONNX Runtime, in a separate process that never imports keras, from the file of epoch 1
    epoch 3   Keras again: the variables of the file have the names and shapes of the model's

For comparison it also runs the same three epochs in Keras alone. The two curves are equal.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 64


def load_digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images [N, 8, 8, 1] and labels."""
    from sklearn import datasets

    digits = datasets.load_digits()
    return (digits.images[:count, ..., None] / 16.0).astype(np.float32), digits.target[:count].astype(np.int32)


def batches(images: np.ndarray, labels: np.ndarray, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the batches of one epoch, in an order that depends only on the number of the epoch."""
    order = np.random.default_rng(epoch).permutation(len(images))
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        yield images[chosen], labels[chosen]


# %% Part 2, in a separate process: ONNX Runtime without Keras.
def continue_without_keras(source: Path, target: Path, log: Path, count: int) -> None:
    import onward

    images, labels = load_digits(count)
    trainer = onward.Trainer(source)
    losses = [float(trainer.step({"image": x, "target": t})["loss"]) for x, t in batches(images, labels, epoch=2)]
    np.savez(target, **trainer.state)
    log.write_text(json.dumps(losses))
    assert "keras" not in sys.modules


# %% Parts 1 and 3: Keras.
def main(output: Path, count: int) -> float:
    import keras
    from keras import layers

    import onward

    output.mkdir(parents=True, exist_ok=True)
    images, labels = load_digits(count)

    def build() -> Any:
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1), name="image"),
                layers.Conv2D(16, 3, padding="same", use_bias=False), layers.BatchNormalization(), layers.ReLU(),
                layers.MaxPooling2D(), layers.Flatten(), layers.Dense(10),
            ],
            name="digits",
        )  # fmt: skip
        rates = keras.optimizers.schedules.CosineDecay(3e-3, 100)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.AdamW(rates, epsilon=1e-4), loss=loss)
        return model

    def train(model: Any, epoch: int) -> list[float]:
        losses = []
        for x, t in batches(images, labels, epoch):
            model.reset_metrics()  # without it, Keras reports a running mean
            losses.append(float(np.ravel(model.train_on_batch(x, t, return_dict=True)["loss"])[0]))
        return losses

    model = build()
    curve = train(model, epoch=1)
    onward.save(onward.from_keras(model), output / "epoch1.train.onnx")

    command = [sys.executable, __file__, "--continue", "--output", str(output), "--samples", str(count)]
    subprocess.run(command, check=True)
    curve += json.loads((output / "epoch2.json").read_text())

    state = np.load(output / "epoch2.npz")
    for variable in [*model.variables, *model.optimizer.variables]:
        if variable.path in state:
            variable.assign(state[variable.path])
    curve += train(model, epoch=3)

    alone = build()
    wanted = [loss for epoch in (1, 2, 3) for loss in train(alone, epoch)]
    worst = max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(curve, wanted, strict=True))
    for epoch, part in enumerate(np.array_split(np.array(curve), 3), start=1):
        print(f"epoch {epoch}: loss {part[0]:.4f} to {part[-1]:.4f}")
    print(f"largest difference from Keras alone: {worst:.1e} of the loss")
    return worst


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("roundtrip"))
    parser.add_argument("--samples", type=int, default=1797)
    parser.add_argument("--continue", dest="resume", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.resume:
        folder = given.output
        continue_without_keras(
            folder / "epoch1.train.onnx", folder / "epoch2.npz", folder / "epoch2.json", given.samples
        )
    else:
        main(given.output, given.samples)
