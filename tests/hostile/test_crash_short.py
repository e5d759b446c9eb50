"""A short run of crash.py, and the proof that it would notice a loss."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CRASH = Path(__file__).with_name("crash.py")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kill -9 and fork are POSIX")


def run(*arguments: str, breaking: str = "") -> subprocess.CompletedProcess[str]:
    """Run crash.py in a process of its own (it forks), after the lines of `breaking`."""
    start = f"import sys; sys.path.insert(0, {str(CRASH.parent)!r}); import crash"
    code = f"{start}\n{breaking}\nsys.exit(crash.main(sys.argv[1:]))"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=240)


def test_nothing_is_lost_when_killed():
    result = run("--kills", "60", "--resumes", "6", "--terms", "2")

    assert result.returncode == 0, result.stderr
    assert "0 unusable checkpoints" in result.stdout
    assert "all bytes equal" in result.stdout
    assert "all saved and left with 0" in result.stdout


def test_a_writer_that_is_not_atomic_would_be_caught():
    broken = """
def in_place(path, chunks):
    with open(path, "wb", buffering=0) as file:
        for chunk in crash.fsio._cut(chunks):
            crash.fsio.boundary("write", path)
            file.write(chunk)
    for name in ("open", "fsync", "rename"):
        crash.fsio.boundary(name, path)
    crash.fsio.sync_directory(path.parent)
crash.fsio.write_atomic = in_place
"""

    result = run("--kills", "60", "--resumes", "0", "--terms", "0", breaking=broken)

    assert result.returncode != 0
    assert "damaged" in result.stderr or "checksum" in result.stderr


def test_a_resume_that_forgets_its_place_would_be_caught():
    broken = """
from onward.train.loop import Run
whole = Run.set_state
def forgetful(self, data, arrays):
    whole(self, data, arrays)
    self.position.batch = 0
Run.set_state = forgetful
"""

    result = run("--kills", "0", "--resumes", "6", "--terms", "0", breaking=broken)

    assert result.returncode != 0
    assert "ended with other bytes" in result.stderr
