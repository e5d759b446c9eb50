"""A compiled program trains in Node.js with stock onnxruntime-node and gives Python's losses."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import onward
from js import packages, programs
from onward.backends import open_session

EXAMPLE = Path(__file__).parents[2] / "examples" / "node"


@pytest.fixture(scope="module")
def node_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, with what npm installs for it: the packages of js/, and js/ itself."""
    modules = packages.node_modules()
    folder = tmp_path_factory.mktemp("node")
    shutil.copy(EXAMPLE / "train.mjs", folder)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "node_modules" / "@onward").mkdir(parents=True)
    for name in ("onnxruntime-node", "onnxruntime-common"):
        (folder / "node_modules" / name).symlink_to(modules / name)
    (folder / "node_modules" / "@onward" / "train").symlink_to(packages.JS)
    return folder


READ_BATCHES = """
const batches = [];
for (const [name, tensor] of Object.entries(readTensors(readFileSync("batches.safetensors")))) {
  const [index, ...input] = name.split("/");
  (batches[index] ??= {})[input.join("/")] = tensor;
}
"""


@pytest.mark.parametrize("make", ["dropout", "two_entries"])
def test_the_loop_of_the_readme_gives_the_same_losses_as_python(node_project: Path, tmp_path: Path, make: str) -> None:
    program, data = programs.PROGRAMS[make]()
    program.save(tmp_path / "program")
    expected = native(program, data)
    folder = tmp_path / "program"
    code = (folder / "README.md").read_text().split("```js\n")[1].split("```")[0]
    head, loop = code.split("\nfor (const batch of batches)")
    (node_project / "readme.mjs").write_text(head + READ_BATCHES + "\nfor (const batch of batches)" + loop)
    for path in folder.iterdir():
        shutil.copy(path, node_project)
    programs.save_batches(data, node_project / "batches.safetensors")

    result = subprocess.run(
        ["node", "readme.mjs"], cwd=node_project, capture_output=True, text=True, timeout=120, check=False
    )

    assert result.returncode == 0, result.stderr
    np.testing.assert_allclose([float(line) for line in result.stdout.split()], expected, rtol=1e-5)


def native(program: onward.Program, data: programs.Batches) -> list[float]:
    """Return the losses of all entries, step by step."""
    session = open_session(program, "onnxruntime", threads=1, native=False)
    return [loss for losses in programs.losses(session, data) for loss in losses.values()]


def test_node_gives_the_same_losses_as_python(node_project: Path, tmp_path: Path) -> None:
    program, data = programs.PROGRAMS["dropout"]()
    program.save(tmp_path / "program")
    programs.save_batches(data, tmp_path / "batches.safetensors")
    expected = native(program, data)

    command = ["node", "train.mjs", str(tmp_path / "program"), str(tmp_path / "batches.safetensors")]
    result = subprocess.run(command, cwd=node_project, capture_output=True, text=True, timeout=120, check=False)

    assert result.returncode == 0, result.stderr
    np.testing.assert_allclose([float(line) for line in result.stdout.split()], expected, rtol=1e-5)
