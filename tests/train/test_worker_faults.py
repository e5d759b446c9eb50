"""Faults of worker processes: errors, kills, broken images, Ctrl-C, scripts without a guard."""

from __future__ import annotations

import gc
import io
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from onward.errors import DataError
from onward.reading import pool
from onward.train import Trainer
from train import photos
from train.photos import fit, worker_processes

HERE = Path(__file__).parents[1]
pytestmark = pytest.mark.usefixtures("importable")


def test_an_error_of_a_worker_carries_its_traceback(folder):
    photos.failing.parent = os.getpid()

    error = problems_with_workers(folder, photos.failing)

    assert error.code == "T171"
    assert "KeyError" in str(error)
    assert "in failing" in str(error.__cause__)
    assert not worker_processes()


def problems_with_workers(folder, function):
    with pytest.raises(DataError) as caught:
        fit(folder, function, 2)
    return caught.value


def test_a_worker_that_is_killed_ends_the_run_with_our_error(folder, monkeypatch):
    monkeypatch.setenv("ONWARD_TEST_PARENT", str(os.getpid()))
    began = time.monotonic()

    error = problems_with_workers(folder, photos.dying)

    assert error.code == "T172"
    assert "signal SIGKILL" in str(error)
    assert time.monotonic() - began < 60
    assert not worker_processes()


def test_a_broken_image_is_named_before_the_first_step(tmp_path):
    folder = photos.write_photos(tmp_path / "photos", count=4)
    (folder / "petal" / "3.jpg").write_bytes(b"no image")

    with pytest.raises(DataError, match=r"T150.*3\.jpg"):
        fit(folder, None, 2, shuffle=False, checkpoint=tmp_path / "run")

    assert not any((tmp_path / "run").glob("*.safetensors"))


def test_a_broken_image_is_named_by_a_worker_and_the_steps_before_it_are_saved(tmp_path):
    """Its first and last bytes are right: only decoding it shows what is wrong."""
    folder = photos.write_photos(tmp_path / "photos", count=4)
    content = io.BytesIO()
    Image.fromarray(np.arange(3072, dtype=np.uint8).reshape(32, 32, 3)).save(content, "PNG")
    start = content.getvalue().index(b"IDAT") + 4
    spoiled = content.getvalue()[:start] + b"spoiled" + content.getvalue()[start + 7 :]
    (folder / "petal" / "3.jpg").write_bytes(spoiled)

    with pytest.raises(DataError, match=r"T150.*3\.jpg"):
        fit(folder, None, 2, shuffle=False, checkpoint=tmp_path / "run")

    assert Trainer.resume(tmp_path / "run").steps == 2
    assert not worker_processes()


def test_no_memory_to_share_is_our_error(folder, monkeypatch):
    from onward.reading import pool

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pool.os, "fdopen", full)

    error = problems_with_workers(folder, "flip")

    assert error.code == "T172"
    assert "No space left" in str(error)


def shared_memory(folder: Path) -> bool:
    """Return whether this process holds memory of a pool of workers whose files lie in `folder`."""
    return f"{folder}/onward-" in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("working", [False, True], ids=["while they start", "while they work"])
def test_ctrl_c_ends_a_run_with_workers_and_leaves_no_process_and_no_memory(folder, working, tmp_path, monkeypatch):
    def interrupt():
        while len(worker_processes()) < 2:
            time.sleep(0.02)
        # The file's name goes when every worker has opened it; the memory stays until the run ends.
        while working and not (shared_memory(tmp_path) and not list(tmp_path.iterdir())):
            time.sleep(0.02)
        held.append(shared_memory(tmp_path))
        os.kill(os.getpid(), signal.SIGINT)

    held: list[bool] = []
    monkeypatch.setattr(pool, "_SHARED", tmp_path)  # a folder that no other test writes into
    threading.Thread(target=interrupt, daemon=True).start()
    began = time.monotonic()

    with pytest.raises(KeyboardInterrupt):
        fit(folder, photos.slow, 2, epochs=100)

    assert time.monotonic() - began < 60
    assert not worker_processes()
    while left := [t.name for t in threading.enumerate() if t.name.startswith("onward")]:
        assert time.monotonic() - began < 70, left
        time.sleep(0.05)
    assert held == [True]
    assert not list(tmp_path.iterdir())
    gc.collect()  # the traceback holds the last batch
    assert not shared_memory(tmp_path)


SCRIPT = """
import sys
sys.path[:0] = [{here!r}]
from train import photos
from onward.train import Trainer

def own(sample, rng):
    sample["images"] = sample["images"] // 2
    return sample

def run():
    trainer = Trainer(photos.model(), threads=1)
    trainer.fit({folder!r}, preparation=photos.SCALED, progress="none", workers=1, augment={augment})
    print("steps", trainer.steps)

{guard}run()
"""


@pytest.mark.parametrize(
    ("guard", "aug", "code", "message"),
    [
        ("", "'flip'", 0, "steps 1"),
        ('if __name__ == "__main__": ', "own", 0, "steps 1"),
        ("", "own", 1, 'under `if __name__ == "__main__":`'),
    ],
    ids=["no function", "guarded", "not guarded"],
)
def test_a_script_needs_a_guard_only_for_a_function_of_its_own(folder, tmp_path, guard, aug, code, message):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(here=str(HERE), folder=str(folder), augment=aug, guard=guard))

    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)

    assert result.returncode == code, result.stderr
    assert message in result.stdout + result.stderr


def test_a_function_typed_at_a_prompt_is_refused_for_workers(folder):
    script = SCRIPT.format(here=str(HERE), folder=str(folder), augment="own", guard="")

    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)

    assert result.returncode == 1
    assert "move it to a .py file and import it, or use workers=0" in result.stderr
