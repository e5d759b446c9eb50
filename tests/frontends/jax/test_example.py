"""examples/jax_roundtrip.py runs, and its curve is the one of JAX alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")
pytest.importorskip("optax")

ROOT = Path(__file__).parents[3]


def test_the_round_trip_follows_jax(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/jax_roundtrip.py"), "--output", str(tmp_path), "--steps", "20"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    found = re.search(r"largest difference from JAX alone: (\S+) of the loss", done.stdout)
    assert found is not None, done.stdout
    assert float(found.group(1)) < 1e-5
