"""`make demo`: train a digit classifier on stock ONNX Runtime, in under a minute, without any framework.

It extends the README's first example with a plot, a report and commands to try next.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console

import onward
from onward.train.watchers import LossPlot, Report

WANTED = 0.97


def load_digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (images, labels, held-out images, held-out labels) of scikit-learn's 1,797 handwritten digits."""
    from sklearn import datasets

    digits = datasets.load_digits()
    images = (digits.images[:, None] / 16.0).astype(np.float32)
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    train, held_out = order[:1437], order[1437:]
    return images[train], labels[train], images[held_out], labels[held_out]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("demo-output"))
    parser.add_argument("--epochs", type=int, default=12)
    arguments = parser.parse_args()
    out: Path = arguments.output
    out.mkdir(parents=True, exist_ok=True)
    console = Console(soft_wrap=True, highlight=False)
    began = time.perf_counter()

    console.rule("[bold]1. a standard ONNX file that can train")
    model = onward.samples.build("digits")
    onward.save(model, out / "digits.train.onnx")
    report = onward.check(out / "digits.train.onnx")
    console.print(
        f"wrote {out / 'digits.train.onnx'}: {len(model.parameters)} parameters, {len(model.state)} state tensors"
    )
    console.print(f"onward check: {'no problems' if report.ok else report.render()}")

    console.rule("[bold]2. train it on stock ONNX Runtime")
    images, labels, held_out, held_out_labels = load_digits()
    trainer = onward.Trainer(model, backend="onnxruntime")
    trainer.fit(
        images,
        labels,
        epochs=arguments.epochs,
        batch_size=32,
        validation_data=(held_out, held_out_labels),
        metrics=["accuracy"],
        callbacks=[LossPlot(out / "loss.svg"), Report(out / "report.html")],
    )
    result = trainer.evaluate(held_out, held_out_labels, metrics=["accuracy"])

    console.rule("[bold]3. export it")
    onward.save(trainer.to_inference(), out / "digits.onnx")
    onward.compile(model).save(out / "program")
    console.print(f"{out / 'digits.onnx'}      the trained inference model, for any ONNX runtime")
    console.print(f"{out / 'program'}/         the training step as plain ONNX, for training with any ONNX runtime")
    console.print(f"{out / 'loss.svg'}         the loss curve")
    console.print(f"{out / 'report.html'}      curves, settings, environment")
    seconds = time.perf_counter() - began
    good = result["accuracy"] >= WANTED
    console.print(
        f"\n[bold {'green' if good else 'red'}]{result['accuracy']:.2%}[/] of the held-out digits are correct "
        f"after {seconds:.0f} s on {trainer.session.describe()['threads']} threads"
    )
    console.print("\nNext, try:")
    for command in (
        f"onward show {out / 'digits.train.onnx'}",
        f"onward show {out / 'digits.train.onnx'} --html {out / 'digits.html'}",
        f"onward check {out / 'digits.train.onnx'}",
        "onward make-trainable YOUR.onnx --loss cross_entropy --optimizer adam -o YOUR.train.onnx",
        "onward train YOUR.train.onnx --data DATA --epochs 3",
    ):
        console.print(f"  .venv/bin/{command}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
