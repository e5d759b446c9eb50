"""Make what is expensive once for all workers of pytest-xdist, which share no fixture."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]) -> tuple[Path, Any]:
    """Return a folder and what `make(folder)` returned, as JSON gives it back; the first worker makes them.

    `--dist worksteal`, which is the fastest here, splits a file's tests between workers and knows no groups: a fixture
    of the module then runs in both. Here the second worker waits for the first.
    """
    root = factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        root = root.parent
    folder, made = root / name, root / f"{name}.json"
    with open(root / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed
            folder.mkdir()
            made.write_text(json.dumps(make(folder)))
        return folder, json.loads(made.read_text())
