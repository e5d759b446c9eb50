"""examples/torch_roundtrip.py runs, and its curve is the one of PyTorch alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_the_round_trip_follows_pytorch(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "examples" / "torch_roundtrip.py"),
        "--output",
        str(tmp_path),
        "--samples",
        "640",
    ]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    found = re.search(r"largest difference from PyTorch alone: (\S+) of the loss", done.stdout)
    assert found is not None, done.stdout
    assert float(found.group(1)) < 1e-3
    assert (tmp_path / "loss.svg").read_text().startswith("<svg")
