"""examples/keras_roundtrip.py and `onward convert` run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import onward
from frontends.keras.keras_models import linear
from onward.cli import build_app

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_the_round_trip_follows_keras(tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "keras_roundtrip.py")

    done = subprocess.run(
        [sys.executable, script, "--output", str(tmp_path), "--samples", "300"], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    found = re.search(r"largest difference from Keras alone: (\S+) of the loss", done.stdout)
    assert found is not None, done.stdout
    assert float(found.group(1)) < 1e-4


def test_convert_writes_a_training_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    linear().model.save("model.keras")
    np.save("x.npy", np.ones((5, 4), "float32"))
    np.save("y.npy", np.ones((5, 2), "float32"))
    line = "convert model.keras --example-inputs x.npy --example-targets y.npy -o model.train.onnx"

    done = CliRunner().invoke(build_app(), line.split(), catch_exceptions=False)

    assert done.exit_code == 0
    assert "2 parameters" in done.stdout
    assert onward.load("model.train.onnx").targets == ["target"]


def test_convert_refuses_another_kind_of_file_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "model.h5").write_bytes(b"")

    with pytest.raises(onward.OnwardError, match="cannot be converted"):
        CliRunner().invoke(
            build_app(),
            ["convert", str(tmp_path / "model.h5"), "-o", str(tmp_path / "out.onnx")],
            catch_exceptions=False,
        )

    assert not (tmp_path / "out.onnx").exists()
