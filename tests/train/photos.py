"""A folder of small photos, models for it, and augmentation functions that worker processes can import."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import onnx
from PIL import Image

import onward
from onward.train import Preparation, Trainer

NETWORK = """
<ir_version: 8, opset_import: ["": 18]>
net (float[N, 3, 12, 12] images) => (float[N, 3] logits) {
    flat = Flatten(images)
    logits = Gemm <transB = 1> (flat, weight, bias)
}"""


def write_photos(folder: Path, count: int = 8, suffix: str = "jpg") -> Path:
    """Write `count` photos for each of three classes: parts of the flower that scikit-learn ships."""
    from sklearn.datasets import load_sample_image

    flower = Image.fromarray(load_sample_image("flower.jpg"))
    rng = np.random.default_rng(0)
    for name in ("bud", "leaf", "petal"):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            x, y = rng.integers(0, 500), rng.integers(0, 350)
            flower.crop((x, y, x + 60, y + 45)).save(folder / name / f"{i}.{suffix}")
    return folder


def model(loss: object = "cross_entropy") -> object:
    proto = onnx.parser.parse_model(NETWORK)
    rng = np.random.default_rng(0)
    for name, shape in (("weight", (3, 432)), ("bias", (3,))):
        values = (0.05 * rng.standard_normal(shape)).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return onward.make_trainable(proto, loss=loss, optimizer=onward.Adam(1e-2))


def soft_model() -> object:
    return model(onward.losses.CrossEntropy(targets="probability"))


SCALED = Preparation(scale=1 / 255)


def darker(sample: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    sample["images"] = (sample["images"] * rng.uniform(0.5, 1.0)).astype(np.uint8)
    return sample


def failing(sample: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    if os.getpid() != failing.parent:  # it works in the process of the test, so the run begins
        raise KeyError("no such key")
    return sample


failing.parent = 0


def dying(sample: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    if "ONWARD_TEST_PARENT" in os.environ and os.environ["ONWARD_TEST_PARENT"] != str(os.getpid()):
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def slow(sample: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    time.sleep(0.05)
    return sample


def returns_nothing(sample: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    sample["images"] = sample["images"][::-1]


def returns_floats(sample: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"images": sample["images"] / 255, "labels": sample["labels"][None]}


def fit(folder: Path, aug: object, workers: int = 0, network: object = None, **options: object) -> Trainer:
    """Return a trainer that was trained on the folder, by default for two epochs."""
    trainer = Trainer(network or model(), threads=1)
    settings = {"epochs": 2, "batch_size": 5, "preparation": SCALED, "progress": "none", **options}
    trainer.fit(str(folder), augment=aug, workers=workers, **settings)
    return trainer


def worker_processes() -> list[str]:
    """Return the processes of workers that this process started."""
    listed = subprocess.run(
        ["ps", "-ww", "-eo", "pid,ppid,stat,args"], capture_output=True, text=True, check=True
    ).stdout
    lines = [line.split(None, 3) for line in listed.splitlines()[1:]]
    return [" ".join(line) for line in lines if line[1] == str(os.getpid()) and "onward.reading.worker" in line[3]]
