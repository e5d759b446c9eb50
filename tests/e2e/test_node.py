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


def two_entries() -> tuple[onward.Program, list[dict[str, np.ndarray]]]:
    """Return a program with two training entries, and batches for both."""
    model = onward.make_trainable(
        dropout_network(), loss="cross_entropy", optimizer=onward.Adam(1e-2), train=["W1", "b1"]
    )
    first = batch(seed=0)
    width = model.graph.outputs[0].shape[1]
    model = onward.make_trainable(
        model,
        loss="mse",
        optimizer=onward.SGD(1e-2),
        train="*1*",
        entry="second",
        loss_name="second_loss",
        label="goal",
    )
    rng = np.random.default_rng(0)
    goals = [rng.normal(size=(len(first["labels"]), int(width))).astype(np.float32) for _ in range(10)]
    return onward.compile(model), [{**batch(seed=i), "goal": goal} for i, goal in enumerate(goals)]


def one_entry() -> tuple[onward.Program, list[dict[str, np.ndarray]]]:
    model = onward.make_trainable(dropout_network(), loss="cross_entropy", optimizer=onward.Adam(1e-2))
    return onward.compile(model), [batch(seed=i) for i in range(20)]


READ_BATCHES = """
const batches = [];
for (const [name, tensor] of Object.entries(readTensors(readFileSync("batches.safetensors")))) {
  const [index, ...input] = name.split("/");
  (batches[index] ??= {})[input.join("/")] = tensor;
}
"""


@pytest.mark.parametrize("make", [one_entry, two_entries])
def test_the_loop_of_the_readme_gives_the_same_losses_as_python(node_project: Path, tmp_path: Path, make) -> None:
    program, data = make()
    program.save(tmp_path / "program")
    expected = losses(program, data)
    folder = tmp_path / "program"
    code = (folder / "README.md").read_text().split("```js\n")[1].split("```")[0]
    head, loop = code.split("\nfor (const batch of batches)")
    (node_project / "readme.mjs").write_text(head + READ_BATCHES + "\nfor (const batch of batches)" + loop)
    for path in folder.iterdir():
        shutil.copy(path, node_project)
    save_batches(data, node_project / "batches.safetensors")

    result = subprocess.run(
        ["node", "readme.mjs"], cwd=node_project, capture_output=True, text=True, timeout=120, check=False
    )

    assert result.returncode == 0, result.stderr
    np.testing.assert_allclose([float(line) for line in result.stdout.split()], expected, rtol=1e-5)


def losses(program: onward.Program, data: list[dict[str, np.ndarray]]) -> list[float]:
    """Return the losses of all entries, step by step."""
    session = open_session(program, "onnxruntime", threads=1)
    names = [entry.loss for entry in program.entries.values()]
    return [float(outputs[name]) for outputs in map(session.step, data) for name in names]


def save_batches(data: list[dict[str, np.ndarray]], path: Path) -> None:
    save_file({f"{i}/{name}": value for i, b in enumerate(data) for name, value in b.items()}, path)


def test_node_gives_the_same_losses_as_python(node_project: Path, tmp_path: Path) -> None:
    program, data = one_entry()
    program.save(tmp_path / "program")
    save_batches(data, tmp_path / "batches.safetensors")
    expected = losses(program, data)

    command = ["node", "train.mjs", str(tmp_path / "program"), str(tmp_path / "batches.safetensors")]
    result = subprocess.run(command, cwd=node_project, capture_output=True, text=True, timeout=120, check=False)

    assert result.returncode == 0, result.stderr
    np.testing.assert_allclose([float(line) for line in result.stdout.split()], expected, rtol=1e-5)
