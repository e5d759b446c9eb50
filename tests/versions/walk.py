"""Take a model through every command with whatever versions are here; needs Onward and what it depends on, no more.

    python walk.py FOLDER

Writes into FOLDER. Prints a JSON object: the versions, the losses of 20 steps, and numbers of the gradient graph and of
the stripped model. test_oldest.py compares what the oldest versions print with what the installed ones print.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import onward
from onward.cli import build_app

PACKAGES = ("numpy", "onnx", "onnx-ir", "onnxruntime", "protobuf", "rich", "safetensors", "typer")
STEPS = 20


def command(*arguments: str | Path) -> str:
    """Run one `onward` command in this process and return what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        build_app()([str(a) for a in arguments], standalone_mode=False)
    return printed.getvalue()


def run(path: Path, feeds: dict[str, np.ndarray]) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def main(folder: Path) -> None:
    random = np.random.default_rng(0)
    images = random.normal(size=(STEPS * 8, 1, 8, 8)).astype(np.float32)
    np.savez(folder / "data.npz", images=images, labels=random.integers(0, 10, len(images)))
    onward.save(onward.samples.images.digits_network(), folder / "network.onnx")
    model, log = folder / "model.onnx", folder / "log.jsonl"

    command("make-trainable", folder / "network.onnx", "--loss", "cross_entropy", "--optimizer", "adam", "-o", model)
    checked = command("check", model)
    command("grad", folder / "network.onnx", "--of", "logits", "--wrt", "fc1.weight", "-o", folder / "grad.onnx")
    command("compile", model, "-o", folder / "program")
    command("train", model, "-d", folder / "data.npz", "-b", "8", "--threads", "1", "--no-shuffle",
            "--log", log, "-o", folder / "trained.onnx", "-q")  # fmt: skip
    command("strip", folder / "trained.onnx", "-o", folder / "stripped.onnx")

    records = [json.loads(line) for line in log.read_text().splitlines()]
    gradients = run(folder / "grad.onnx", {"images": images[:4]})
    logits = run(folder / "stripped.onnx", {"images": images[:4]})["logits"]
    print(
        json.dumps(
            {
                "versions": {name: version(name) for name in PACKAGES},
                "checked": checked,
                "records": records,
                "gradient": np.ravel(gradients["grad/fc1.weight"])[::997].tolist(),
                "logits": logits.tolist(),
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
