"""Node.js and Chromium for tests: what js/package.json needs is installed once, and jobs run in either of them."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hostile.files import known_gap

ROOT = Path(__file__).parents[2]
JS = ROOT / "js"
MINIFIED = JS / "dist" / "onward-train.min.mjs"
CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)


def node_modules() -> Path:
    """Return js/node_modules with the pinned packages, and build the minified module; skip where npm cannot."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    (ROOT / "build").mkdir(exist_ok=True)
    with open(ROOT / "build" / "js.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers of pytest-xdist, and `make js`
        wanted, stamp = (JS / "package.json").read_text(), JS / "node_modules" / ".installed"
        if not stamp.exists() or stamp.read_text() != wanted:
            flags = ["--ignore-scripts", "--no-package-lock", "--no-audit", "--no-fund", "--silent"]
            done = subprocess.run(["npm", "install", *flags], cwd=JS, capture_output=True, text=True, timeout=600)
            if done.returncode:
                pytest.skip(f"npm cannot install what js/package.json names: {done.stderr[-300:]}")
            stamp.write_text(wanted)
        built = subprocess.run(["node", "build.mjs"], cwd=JS, capture_output=True, text=True, timeout=60)
        assert built.returncode == 0, built.stdout + built.stderr
    return JS / "node_modules"


def in_node(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run jobs of scenario.mjs in Node.js, on onnxruntime-node, and return what each made."""
    return _run("node.mjs", {"jobs": jobs})


def in_chromium(jobs: list[dict[str, Any]], root: Path, flags: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Run jobs of scenario.mjs in Chromium, on onnxruntime-web; their files are named relative to `root`."""
    if CHROMIUM is None:
        pytest.skip(known_gap("chromium"))
    return _run("chromium.mjs", {"jobs": jobs, "root": str(root), "chromium": CHROMIUM, "flags": flags})


def _run(script: str, given: dict[str, Any]) -> list[dict[str, Any]]:
    given |= {"modules": str(node_modules()), "module": str(MINIFIED)}
    command = ["node", str(Path(__file__).with_name(script))]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results
