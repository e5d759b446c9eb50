"""Run a recipe of `examples/recipes` in a child process that finds packages of strangers, which pip installs aside.

The packages come without their dependencies: those that a recipe needs are named too, and torch, numpy and ONNX Runtime
stay those of the tests. They go into the folder of the environment variable ONWARD_ZOO, or `.zoo` at the root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fetch import cache

ROOT = Path(__file__).parents[2]


def installed(requirement: str) -> Path:
    """Return the folder of a package, `name==version`; the test is skipped if pip cannot get it."""
    folder = cache() / "installed" / requirement
    if not folder.exists():
        part = folder.with_name(f"{requirement}.{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps"]
        command = [*pip, "--only-binary=:all:", "--target", str(part), requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            shutil.rmtree(part, ignore_errors=True)
            pytest.skip(f"pip cannot get {requirement}: {done.stderr.strip()[-300:]}")
        if folder.exists():  # another process was faster
            shutil.rmtree(part)
        else:
            part.replace(folder)
    return folder


def run_recipe(name: str, requirements: list[str], *arguments: str) -> str:
    """Return what the recipe prints."""
    path = os.pathsep.join([str(ROOT / "src"), *(str(installed(r)) for r in requirements)])
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "recipes" / name), *arguments],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
