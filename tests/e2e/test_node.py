"""A compiled program trains in Node.js with stock onnxruntime-node and gives Python's losses."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import onward
from models import batch, dropout_network
from onward.backends import open_session

EXAMPLE = Path(__file__).parents[2] / "examples" / "node"


@pytest.fixture(scope="module")
def node_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js is not installed")
    folder = tmp_path_factory.mktemp("node")
    for file in ("train.mjs", "package.json"):
        shutil.copy(EXAMPLE / file, folder)
    installed = subprocess.run(
        ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if installed.returncode:
        pytest.skip(f"npm cannot install onnxruntime-node here: {installed.stderr[-200:]}")
    return folder


def test_node_gives_the_same_losses_as_python(node_project: Path, tmp_path: Path) -> None:
    program = onward.compile(
        onward.make_trainable(dropout_network(), loss="cross_entropy", optimizer=onward.Adam(1e-2))
    )
    program.save(tmp_path / "program")
    data = [batch(seed=i) for i in range(20)]
    save_file({f"{i}/{k}": v for i, b in enumerate(data) for k, v in b.items()}, tmp_path / "batches.safetensors")
    session = open_session(program, "onnxruntime", threads=1)
    expected = [float(session.step(b)["loss"]) for b in data]

    command = ["node", "train.mjs", str(tmp_path / "program"), str(tmp_path / "batches.safetensors")]
    result = subprocess.run(command, cwd=node_project, capture_output=True, text=True, timeout=120, check=False)

    assert result.returncode == 0, result.stderr
    np.testing.assert_allclose([float(line) for line in result.stdout.split()], expected, rtol=1e-5)
