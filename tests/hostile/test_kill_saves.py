"""A process killed while it saves leaves a whole model."""

from __future__ import annotations

import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).parent / "kill_saves.py"


def test_a_killed_save_leaves_the_old_model_or_the_new_one():
    run = subprocess.run([sys.executable, str(SCRIPT), "15"], capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stdout + run.stderr
    assert "fill" in run.stdout
