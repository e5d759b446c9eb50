"""What the journeys begin with: a shell, real handwritten digits, and a classifier that somebody else trained."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import onward
from journeys.pictures import Shell, write_photos


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Return a function that runs `onward …` in the folder of the test and expects an exit code."""

    def run(*words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "onward", *map(str, words)],
            cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
            env={**os.environ, "COLUMNS": "120", "NO_COLOR": "1"},
        )  # fmt: skip
        assert done.returncode == code, f"onward {' '.join(map(str, words))}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's 1,797 handwritten digits: images of 0 to 255 (N, 8, 8), and labels."""
    from sklearn import datasets

    data = datasets.load_digits()
    return np.round(data.images * 255 / 16).astype(np.uint8), data.target.astype(np.int64)


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory, digits: tuple[np.ndarray, np.ndarray]) -> Path:
    """Return an inference file that knows the digits 0 to 4, and ends in a Softmax: what a stranger publishes."""
    images, labels = digits
    known = labels < 5
    source = onward.to_inference(onward.samples.build("digits"))
    model = onward.make_trainable(source, loss="cross_entropy", optimizer=onward.Adam(3e-3))
    trainer = onward.Trainer(model)
    trainer.fit(images[known][:, None] / np.float32(255), labels[known], epochs=6, progress="none")
    proto = trainer.to_inference()
    logits = proto.graph.output[0]
    proto.graph.node.append(helper.make_node("Softmax", [logits.name], ["probabilities"], axis=-1))
    logits.name = "probabilities"
    del proto.metadata_props[:]
    path = tmp_path_factory.mktemp("stranger") / "digits04.onnx"
    onnx.save(proto, path)
    return path


@pytest.fixture
def photos(tmp_path: Path, digits: tuple[np.ndarray, np.ndarray]) -> Path:
    """Return a folder of class folders: 30 pictures each of the digits 5 to 9, which the classifier never saw."""
    return write_photos(tmp_path / "photos", digits, range(0, 30))
