"""A model goes through every command with the oldest versions that Onward admits, and has today's numbers.

The environment is `.venv/oldest`, made by `make test`: the packages of pyproject.toml's `dependencies` in their lower
bounds, no torch. All tests with the oldest versions are `nox -s "tests(versions='oldest')"`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from versions.test_versions import PROJECT, ROOT, bounds_of, pinned, series

PYTHON = ROOT / ".venv" / "oldest" / "bin" / "python"
WALK = Path(__file__).with_name("walk.py")
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no .venv/oldest: `make .venv/oldest/.made` makes it")


def walk(python: str | Path, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [str(python), "-W", "error", str(WALK), str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return walk(PYTHON, tmp_path_factory.mktemp("oldest") / "walk")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return walk(sys.executable, tmp_path_factory.mktemp("installed") / "walk")


def losses(found: dict[str, Any]) -> list[float]:
    return [record["loss"] for record in found["records"] if record["event"] == "step"]


def test_the_environment_has_the_lower_bound_of_every_dependency(oldest: dict[str, Any]) -> None:
    needed = bounds_of(PROJECT["dependencies"])

    assert {n: series(v) for n, v in oldest["versions"].items()} == {n: series(b) for n, b in needed.items()}
    assert oldest["versions"] == {n: pinned("constraints-oldest.txt")[n] for n in needed}


def test_training_has_the_losses_of_the_installed_versions(oldest: dict[str, Any], installed: dict[str, Any]) -> None:
    assert len(losses(oldest)) == 20

    np.testing.assert_allclose(losses(oldest), losses(installed), rtol=1e-6)


@pytest.mark.parametrize("what", ["gradient", "logits"])
def test_written_graphs_have_the_numbers_of_the_installed_versions(
    what: str, oldest: dict[str, Any], installed: dict[str, Any]
) -> None:
    np.testing.assert_allclose(oldest[what], installed[what], rtol=1e-4, atol=1e-5)


def test_the_checker_finds_no_problem(oldest: dict[str, Any]) -> None:
    assert oldest["checked"].endswith("model.onnx: no problems found\n")
