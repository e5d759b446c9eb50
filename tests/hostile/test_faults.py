"""Faults at bad moments: signals during validation and saving, a full disk, no permission, clocks that jump."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from onward.errors import CheckpointError
from onward.storage import atomic as fsio
from onward.train import Callback, CheckpointWarning, Trainer
from onward.train.checkpoint import CheckpointDirectory
from train.fake import linear_data, linear_program
from train.test_fit import digest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and mounts are those of POSIX")

COMMON = {"epochs": 4, "batch_size": 16, "seed": 2, "metrics": ["mae", "r2"], "progress": "none"}
TIMING = {"seconds", "samples_per_second"}


def make_trainer():
    return Trainer(linear_program(), backend="fake")


def fit(trainer, **more):
    return trainer.fit(*linear_data(), validation_data=linear_data(200, 1), **{**COMMON, **more})


def records(history):
    return [{k: v for k, v in r.items() if k not in TIMING} for r in history.epochs]


def send_at(number, calls, original):
    """Return `original` as a function that sends the signal to this process at its n-th call."""
    count = 0

    def called(*arguments, **more):
        nonlocal count
        count += 1
        if count == calls:
            os.kill(os.getpid(), number)
        return original(*arguments, **more)

    return called


@pytest.mark.parametrize("call", [1, 2, 5, 8])
def test_sigterm_during_validation_loses_nothing(tmp_path, call):
    whole = make_trainer()
    expected = records(fit(whole))
    stopped = make_trainer()
    stopped.session.evaluate = send_at(signal.SIGTERM, call, stopped.session.evaluate)

    with pytest.raises(SystemExit) as left:
        fit(stopped, checkpoint=tmp_path)
    resumed = Trainer.resume(tmp_path)
    history = resumed.fit(
        *linear_data(), validation_data=linear_data(200, 1), metrics=COMMON["metrics"], progress="none"
    )

    assert left.value.code == 0
    assert digest(resumed) == digest(whole)
    assert records(history) == expected


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6, 7, 9, 11, 14, 17, 20])
def test_sigterm_during_a_save_finishes_the_save(tmp_path, monkeypatch, at):
    whole, stopped = make_trainer(), make_trainer()
    fit(whole)
    monkeypatch.setattr(fsio, "boundary", send_at(signal.SIGTERM, at, lambda operation, path: None))

    with pytest.raises(SystemExit) as left:
        fit(stopped, checkpoint=tmp_path, checkpoint_every=3, keep=1)
    monkeypatch.undo()
    resumed = Trainer.resume(tmp_path)

    assert left.value.code == 0
    assert resumed.steps % 3 == 0
    resumed.fit(*linear_data(), validation_data=linear_data(200, 1), metrics=COMMON["metrics"], progress="none")
    assert digest(resumed) == digest(whole)
    assert not list(tmp_path.glob(fsio.TEMP_PREFIX + "*"))


class Twice(Callback):
    """Ctrl-C at a step, and again while what was done is saved."""

    def on_step_end(self, run, logs):
        if logs["step"] == 12:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("at", range(1, 9))
def test_a_second_ctrl_c_leaves_at_once_with_the_old_checkpoint_whole(tmp_path, monkeypatch, at):
    whole, stopped = make_trainer(), make_trainer()
    fit(whole)
    count = 0

    def interrupt(operation, path):
        nonlocal count
        count += stopped_at_12()
        if count == at and stopped_at_12():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0)  # the handler runs here

    def stopped_at_12():
        return "step-00000012" in " ".join(p.name for p in tmp_path.iterdir()) or bool(
            list(tmp_path.glob(fsio.TEMP_PREFIX + "*"))
        )

    fit(stopped, epochs=1, checkpoint=tmp_path, keep=2)
    resumed = Trainer.resume(tmp_path)
    monkeypatch.setattr(fsio, "boundary", interrupt)
    with pytest.raises(KeyboardInterrupt):
        resumed.fit(
            *linear_data(), validation_data=linear_data(200, 1), epochs=4, metrics=COMMON["metrics"], progress="none",
            callbacks=[Twice()], keep=2,
        )  # fmt: skip
    monkeypatch.undo()

    again = Trainer.resume(tmp_path)
    assert again.steps in (7, 12)
    again.fit(*linear_data(), validation_data=linear_data(200, 1), epochs=4, metrics=COMMON["metrics"], progress="none")
    assert digest(again) == digest(whole)


def test_clocks_that_jump_change_nothing(tmp_path, monkeypatch):
    whole, jumping = make_trainer(), make_trainer()
    fit(whole)
    clock = iter(np.random.default_rng(0).uniform(-1e9, 2e9, 100_000).tolist())
    monkeypatch.setattr(time, "time", lambda: next(clock))

    with contextlib.suppress(KeyboardInterrupt):
        fit(jumping, checkpoint=tmp_path, checkpoint_every=2, keep=3, callbacks=[Interrupt(15)])
    for i, path in enumerate(CheckpointDirectory(tmp_path).step_files()):  # the newest file looks the oldest
        os.utime(path, (i * 1e6, i * 1e6))
    resumed = Trainer.resume(tmp_path)

    assert resumed.steps == 14
    resumed.fit(*linear_data(), validation_data=linear_data(200, 1), metrics=COMMON["metrics"], progress="none")
    assert digest(resumed) == digest(whole)


class Interrupt(Callback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, run, logs):
        if logs["step"] == self.step:
            raise KeyboardInterrupt


def test_a_damaged_newest_checkpoint_and_a_damaged_manifest_at_once(tmp_path):
    whole, part = make_trainer(), make_trainer()
    fit(whole)
    fit(part, epochs=2, checkpoint=tmp_path)
    newest = CheckpointDirectory(tmp_path).step_files()[0]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    (tmp_path / "manifest.json").write_text("{")

    with pytest.warns(CheckpointWarning):
        resumed = Trainer.resume(tmp_path)

    assert resumed.steps == 7
    resumed.fit(
        *linear_data(), validation_data=linear_data(200, 1), epochs=4, metrics=COMMON["metrics"], progress="none"
    )
    assert digest(resumed) == digest(whole)


@pytest.fixture
def small_disk(tmp_path):
    """A file system with room for one checkpoint and a half; only root may mount it."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a file system of its own needs the right to mount one")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_disk_that_is_really_full_keeps_the_old_checkpoint(small_disk):
    trainer = make_trainer()
    trainer.step(dict(zip(("x", "t"), linear_data(8), strict=True)))
    trainer.save_checkpoint(small_disk)
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_bsize
    (small_disk / "other").write_bytes(b"x" * free)
    trainer.step(dict(zip(("x", "t"), linear_data(8), strict=True)))

    with pytest.raises(CheckpointError, match="No space left on device") as caught:
        trainer.save_checkpoint(small_disk)

    assert "free space on the disk" in str(caught.value)
    assert Trainer.resume(small_disk).steps == 1
    assert not list(small_disk.glob(fsio.TEMP_PREFIX + "*"))
    (small_disk / "other").unlink()
    trainer.save_checkpoint(small_disk)
    assert Trainer.resume(small_disk).steps == 2


NOBODY = """
import os, sys
sys.path[:0] = {path!r}
import numpy as np
from onward.errors import CheckpointError
from onward.train import Trainer
from train.fake import linear_data, linear_program
trainer = Trainer(linear_program(), backend="fake")
trainer.fit(*linear_data(), progress="none")
# One save that works and one that does not: later, nothing is imported from folders that the other user cannot read.
trainer.save_checkpoint({spare!r})
try:
    trainer.save_checkpoint({spare!r} + "/manifest.json")
except CheckpointError:
    pass
else:
    sys.exit("a file was taken for a folder")
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    trainer.save_checkpoint({directory!r})
except CheckpointError as error:
    print(error)
    sys.exit(3)
"""


@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_no_permission_is_one_clear_error(tmp_path, mode):
    directory = tmp_path / "run"
    Trainer(linear_program(), backend="fake").save_checkpoint(directory)
    before = {p.name: p.read_bytes() for p in directory.iterdir()}
    for parent in (tmp_path, *list(tmp_path.parents)[:2]):
        if parent.stat().st_uid == os.getuid():
            parent.chmod(0o755)
    directory.chmod(mode)
    path = [str(Path(__file__).parents[1]), *sys.path]

    result = subprocess.run(
        [sys.executable, "-c", NOBODY.format(path=path, directory=str(directory), spare=str(tmp_path / "spare"))],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    directory.chmod(0o755)
    assert result.returncode == 3, result.stderr
    assert "Permission denied" in result.stdout
    assert {p.name: p.read_bytes() for p in directory.iterdir()} == before


def test_a_reader_does_without_the_right_to_write(tmp_path):
    fit(make_trainer(), epochs=1, checkpoint=tmp_path)
    (tmp_path / ".lock").unlink()
    before = sorted(p.name for p in tmp_path.iterdir())

    Trainer.resume(tmp_path)

    assert sorted(p.name for p in tmp_path.iterdir()) == before
