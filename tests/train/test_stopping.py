"""Ctrl-C and SIGTERM: never lost, after a whole step, and what was asked for is written of the state reached."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import onnx
import pytest

import onward
from onward.backends.interrupts import InterruptsKept
from onward.train import Callback, Trainer
from onward.train.signals import Interrupted
from train.fake import linear_data
from train.test_backends import model, network, samples
from train.test_fit import make_trainer


class AtStep(Callback):
    """Calls a function after a step."""

    def __init__(self, step, function):
        self.step, self.function = step, function

    def on_step_end(self, run, logs):
        if logs["step"] == self.step:
            self.function()


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def interrupt_in_a_callback_of_c():
    """Send SIGINT while C code calls back into Python, as LLVM does: an exception there is printed and dropped."""

    def inside():
        interrupt()
        for _ in range(1000):
            pass  # Python runs the handler between two bytecodes

    ctypes.CFUNCTYPE(None)(inside)()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("send", [interrupt, interrupt_in_a_callback_of_c], ids=["python", "callback of C"])
def test_ctrl_c_ends_a_run_after_the_step(send):
    trainer = make_trainer()

    with pytest.raises(Interrupted):
        trainer.fit(*linear_data(96), batch_size=8, callbacks=[AtStep(5, send)], progress="none")

    assert trainer.steps == 5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_in_a_callback_of_c_would_be_lost_without_a_handler():
    interrupt_in_a_callback_of_c()  # does not raise: this is why a handler only sets a flag

    with pytest.raises(KeyboardInterrupt), InterruptsKept():
        interrupt_in_a_callback_of_c()


def test_a_second_ctrl_c_interrupts_at_once():
    trainer = make_trainer()

    def twice():
        interrupt()
        interrupt()
        time.sleep(10)

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.fit(*linear_data(96), batch_size=8, callbacks=[AtStep(5, twice)], progress="none")
    assert not isinstance(caught.value, Interrupted)
    assert time.monotonic() - began < 9


def test_a_handler_of_the_caller_stays_without_checkpoints():
    seen = []
    previous = signal.signal(signal.SIGINT, lambda *_: seen.append("mine"))
    try:
        make_trainer().fit(*linear_data(32), batch_size=8, callbacks=[AtStep(2, interrupt)], progress="none")
    finally:
        signal.signal(signal.SIGINT, previous)

    assert seen == ["mine"]


def test_interrupts_are_kept_in_the_main_thread_only():
    found = []

    def other():
        with InterruptsKept():
            found.append(True)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == [True]


def test_a_step_of_onnxruntime_is_whole_or_not_there(monkeypatch):
    """Ctrl-C between two parts of the update must not leave half of it."""
    from onward.backends.onnxruntime.session import OnnxRuntimeSession

    x, y = samples(16)
    whole, stopped = Trainer(model()), Trainer(model())
    whole.step({"x": x, "labels": y})
    update = OnnxRuntimeSession._update

    def interrupted(self, *arguments):
        interrupt()
        update(self, *arguments)

    monkeypatch.setattr(OnnxRuntimeSession, "_update", interrupted)

    with pytest.raises(KeyboardInterrupt):
        stopped.step({"x": x, "labels": y})

    for name, value in whole.state.items():
        np.testing.assert_array_equal(stopped.state[name], value)


@pytest.fixture
def work(tmp_path):
    onward.save(model(), tmp_path / "m.onnx")
    x, y = samples(120)
    np.savez(tmp_path / "d.npz", x=x, labels=y)
    return tmp_path


def stop_after_some_steps(work, number, *options):
    """Run `onward train` in a process of its own, send the signal after some epochs, and return (code, stderr)."""
    command = [sys.executable, "-m", "onward", "train", "m.onnx", "--data", "d.npz", "--epochs", "1000000"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command += ["--log", "log.jsonl", *options]
    with subprocess.Popen(command, cwd=work, env=environment, stderr=subprocess.PIPE, text=True) as process:
        log, deadline = work / "log.jsonl", time.monotonic() + 120
        while time.monotonic() < deadline and not (log.exists() and log.read_text().count('"epoch"') > 3):
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        return process.returncode, errors


@pytest.mark.parametrize(
    ("number", "options", "code"),
    [
        (signal.SIGINT, (), 130),
        (signal.SIGINT, ("--checkpoint", "run"), 130),
        (signal.SIGTERM, (), 143),
        (signal.SIGTERM, ("--checkpoint", "run"), 0),
    ],
    ids=["SIGINT", "SIGINT, checkpoints", "SIGTERM", "SIGTERM, checkpoints"],
)
def test_what_was_asked_for_is_written_of_the_state_reached(work, number, options, code):
    returned, errors = stop_after_some_steps(work, number, *options, "--inference", "i.onnx", "-o", "t.onnx", "-q")

    assert returned == code, errors
    assert "writing `t.onnx` and `i.onnx` of that state" in errors
    assert "Traceback" not in errors
    start = onnx.numpy_helper.to_array(network().graph.initializer[0])
    for name in ("i.onnx", "t.onnx"):
        assert not np.array_equal(onnx.numpy_helper.to_array(onnx.load(work / name).graph.initializer[0]), start)
    if options:
        saved = Trainer.resume(work / "run").parameters
        trained = Trainer(work / "t.onnx").parameters
        for parameter, value in saved.items():
            np.testing.assert_array_equal(trained[parameter], value)


def test_nothing_is_written_before_the_first_step(work, monkeypatch):
    from typer.testing import CliRunner

    from onward.cli import build_app

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("onward.train.loop.Run.fit", stop)
    monkeypatch.chdir(work)

    result = CliRunner().invoke(build_app(), ["train", "m.onnx", "--data", "d.npz", "--inference", "i.onnx"])

    assert result.exit_code == 130
    assert "stopped at step 0; nothing was saved" in result.stderr
    assert not (work / "i.onnx").exists()
