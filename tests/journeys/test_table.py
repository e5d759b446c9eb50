"""A table with text and empty cells: from the frame to a file that takes raw rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "finetune_table.py"


def test_the_example_learns_and_its_file_takes_raw_rows(tmp_path):
    """Journey 12: a table with text and empty cells becomes a file that takes raw rows, on stock ONNX Runtime."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--output", str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "Origin: 3 categories" in done.stdout
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["error"] < 0.5 * result["guess"]
    assert result["difference"] < 1e-4
