"""Models that live on TensorFlow or torch are captured by a child process; nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from frontends.keras.keras_models import linear
from onward.errors import ArgumentError
from onward.frontends.keras.process import capture_elsewhere

HERE = Path(__file__).parent


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder), **more}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_model_on_another_backend_continues(backend: str, tmp_path: Path) -> None:
    pytest.importorskip(backend)
    command = [sys.executable, str(HERE / "on_another_backend.py")]

    done = subprocess.run(command, capture_output=True, text=True, env=environment(tmp_path, KERAS_BACKEND=backend))

    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["continued"]["worst"] <= 1e-5
    assert "net/dense/kernel" in found["continued"]["names"]
    warned = [text for text in found["warned"] if "layer `words`" in text]
    assert bool(warned) == (backend == "tensorflow")
    assert "the class `Unregistered` is not registered with Keras" in found["unregistered"]
    assert "a Python lambda" in found["lambda"]
    assert [name for name in found["left"] if not name.startswith("torchinductor_")] == []  # a cache of PyTorch
    if backend == "tensorflow":
        assert "A241" in found["raw"]
        assert "write it with keras.ops" in found["raw"]


def test_a_process_that_ends_without_an_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    start = "import sys; print('out of paper', file=sys.stderr); sys.exit(7)"
    monkeypatch.setattr("onward.frontends.keras.process._START", start)

    with pytest.raises(ArgumentError, match=r"A244(.|\n)*exit code 7; it said: out of paper"):
        capture_elsewhere(b"", "net.keras", (None, None), {"sample_weight": False})


def test_a_file_is_captured_without_importing_keras_here_and_a_kill_leaves_nothing(tmp_path: Path) -> None:
    linear().model.save(tmp_path / "net.keras")
    (tmp_path / "temporary").mkdir()
    code = "import onward, sys; onward.from_keras('net.keras'); print('keras' in sys.modules)"
    env = environment(tmp_path / "temporary")
    env.pop("KERAS_BACKEND", None)

    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    killed = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=env, stdout=subprocess.DEVNULL)
    child = _child(killed)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    _ended(child)

    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
    assert [name for name in os.listdir(tmp_path / "temporary") if name != ".ses"] == []  # which some library leaves


def _child(process: Any) -> int:
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not path.exists():
        pytest.skip("this system does not list child processes")
    for _ in range(600):
        if found := path.read_text().split():
            return int(found[0])
        time.sleep(0.1)
    raise AssertionError("no child process")


def _ended(pid: int) -> None:
    for _ in range(600):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.1)
    raise AssertionError(f"process {pid} goes on after its parent was killed")
