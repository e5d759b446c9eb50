"""Checkpoints: whole or not there, every damage noticed, one writer, clear errors, nothing left behind."""

from __future__ import annotations

import errno
import json
import os
import random
import warnings

import numpy as np
import pytest
from safetensors.numpy import load_file

from onward.errors import CheckpointError
from onward.storage import atomic as fsio
from onward.storage.tensor_file import Damaged, read_tensor_bytes, read_tensor_file, tensor_file_chunks
from onward.train import Trainer
from onward.train.checkpoint import CheckpointDirectory, CheckpointWarning
from train.fake import linear_data
from train.test_fit import digest, make_trainer


@pytest.fixture
def run(tmp_path):
    """A finished run with checkpoints of steps 4, 8 and 12."""
    trainer = make_trainer()
    trainer.fit(
        *linear_data(96), batch_size=8, checkpoint=tmp_path / "run", checkpoint_every=4, keep=3, progress="none"
    )
    return tmp_path / "run"


def step_names(directory):
    return sorted(p.name for p in directory.iterdir() if p.name.startswith("step-"))


def test_the_last_k_stay(run):
    assert step_names(run) == [f"step-{s:08d}.safetensors" for s in (4, 8, 12)]


def test_saving_again_prunes_to_the_last_k(tmp_path):
    trainer = make_trainer()
    x, t = linear_data(8)
    for _ in range(5):
        trainer.step({"x": x, "t": t})
        trainer.save_checkpoint(tmp_path, keep=2)

    assert step_names(tmp_path) == ["step-00000004.safetensors", "step-00000005.safetensors"]


def test_any_safetensors_reader_opens_a_checkpoint(run):
    tensors = load_file(run / "step-00000012.safetensors")

    assert tensors["w"].shape == (3, 1)
    assert tensors["count"] == 12


def test_the_manifest_lists_what_is_there(run):
    manifest = json.loads((run / "manifest.json").read_text())

    assert manifest["latest"] == 12
    assert [c["step"] for c in manifest["checkpoints"]] == [12, 8, 4]
    assert manifest["backend"]["describe"].items() >= {"backend": "fake", "threads": 1}.items()


def test_resume_needs_nothing_but_the_directory(run):
    resumed = Trainer.resume(run)

    assert resumed.steps == 12
    assert resumed.state["count"] == 12


def test_saved_and_resumed_in_one_process(tmp_path):
    trainer = make_trainer()
    x, t = linear_data(8)
    trainer.step({"x": x, "t": t})

    trainer.save_checkpoint(tmp_path)
    resumed = Trainer.resume(tmp_path)

    assert digest(resumed) == digest(trainer)
    resumed.step({"x": x, "t": t})
    resumed.save_checkpoint(tmp_path)


def test_every_kind_of_array_survives(tmp_path):
    import ml_dtypes

    tensors = {
        "scalar": np.array(3, np.int64),
        "empty": np.zeros((0, 4), np.float32),
        "half": np.arange(6, dtype=np.float16).reshape(2, 3),
        "brain": np.arange(4).astype(ml_dtypes.bfloat16),
        "flag": np.array([True, False]),
        "strided": np.arange(12, dtype=np.float64).reshape(3, 4).T,
    }

    read, data = read_tensor_bytes(b"".join(tensor_file_chunks(tensors, {"note": "ü"})))

    assert data == {"note": "ü"}
    for name, array in tensors.items():
        assert read[name].dtype == array.dtype
        assert read[name].shape == array.shape
        assert read[name].tobytes() == array.tobytes()


def test_every_flipped_bit_of_a_step_file_is_noticed(run):
    path = run / "step-00000012.safetensors"
    good = path.read_bytes()
    rng = random.Random(0)
    for position in [*range(8), *(rng.randrange(len(good)) for _ in range(1000))]:
        bad = bytearray(good)
        bad[position] ^= 1 << rng.randrange(8)
        with pytest.raises(Damaged):
            read_tensor_bytes(bytes(bad))


def test_every_truncation_of_a_step_file_is_noticed(run):
    good = (run / "step-00000012.safetensors").read_bytes()
    rng = random.Random(1)
    for length in [0, 1, 7, 8, 9, len(good) - 1, *(rng.randrange(len(good)) for _ in range(500))]:
        with pytest.raises(Damaged):
            read_tensor_bytes(good[:length])


def forged(header, data=b"", body=None):
    """Return a file with right checksums and a header that someone made up."""
    import hashlib

    body = body if body is not None else {"data": {}, "tensors": {"w": hashlib.sha256(data).hexdigest()}}
    header = {"__metadata__": {"sha256": "0" * 64, "onward": json.dumps(body)}, **header}
    raw = json.dumps(header, separators=(",", ":")).encode()
    length = len(raw).to_bytes(8, "little")
    digest = hashlib.sha256(length + raw).hexdigest()
    return length + raw.replace(b"0" * 64, digest.encode(), 1) + data


@pytest.mark.parametrize(
    "content",
    [
        forged({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1 << 60]}}),
        forged({"w": {"dtype": "F32", "shape": [1], "data_offsets": [-8, 4]}}, b"1234"),
        forged({"w": {"dtype": "OBJECT", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
        forged({"w": {"dtype": "F32", "shape": [7], "data_offsets": [0, 4]}}, b"1234"),
        forged({"w": {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]}}, b"1234"),
        forged({"w": {"dtype": "F32"}}, b"1234"),
        forged({"w": 3}, b"1234"),
        forged({}, body=[]),
        (1 << 62).to_bytes(8, "little") + b"{}",
    ],
)
def test_a_forged_file_is_one_clear_error(content):
    with pytest.raises(Damaged):
        read_tensor_bytes(content)


def test_a_checkpoint_without_what_it_needs_is_passed_over(run):
    (run / "step-00000099.safetensors").write_bytes(
        b"".join(tensor_file_chunks({}, {"format": "onward-checkpoint", "version": 1, "step": 99}))
    )

    with pytest.warns(CheckpointWarning, match="lacks run, steps, backend, model"):
        assert Trainer.resume(run).steps == 12


def test_something_appended_is_noticed(run):
    with pytest.raises(Damaged, match="after the last tensor"):
        read_tensor_bytes((run / "step-00000012.safetensors").read_bytes() + b"\0")


def test_a_damaged_checkpoint_is_passed_over(run):
    path = run / "step-00000012.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)

    with pytest.warns(CheckpointWarning, match="step-00000008.safetensors` is used instead"):
        resumed = Trainer.resume(run)

    assert resumed.steps == 8


def test_a_run_resumed_behind_a_damaged_checkpoint_ends_with_the_same_bytes(run):
    whole = Trainer.resume(run)
    path = run / "step-00000012.safetensors"
    path.write_bytes(path.read_bytes()[:100])

    with pytest.warns(CheckpointWarning):
        resumed = Trainer.resume(run)
    resumed.fit(*linear_data(96), checkpoint_every=4, progress="none")

    assert digest(resumed) == digest(whole)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Trainer.resume(run).steps == 12


def test_all_damaged_lists_every_file(run):
    for path in run.glob("step-*"):
        path.write_bytes(b"")

    with pytest.raises(CheckpointError) as caught:
        Trainer.resume(run)

    assert len(caught.value.diagnostics) == 4
    assert caught.value.code == "K100"


def test_no_checkpoint_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="no such directory"):
        Trainer.resume(tmp_path / "nowhere")


def test_every_flipped_bit_of_the_manifest_is_noticed(run):
    path = run / "manifest.json"
    good = path.read_bytes()
    rng = random.Random(2)
    for position in (rng.randrange(len(good)) for _ in range(200)):
        bad = bytearray(good)
        bad[position] ^= 1 << rng.randrange(8)
        path.write_bytes(bad)
        with pytest.warns(CheckpointWarning, match=r"manifest\.json"):
            assert CheckpointDirectory(run).load().step == 12


def test_a_damaged_model_is_noticed_and_can_be_replaced(run):
    from train.fake import linear_program

    path = next(p for p in run.iterdir() if p.name in ("model.onnx", "program.safetensors"))
    content = bytearray(path.read_bytes())
    content[100] ^= 4
    path.write_bytes(content)

    with pytest.raises(CheckpointError, match="the checksum does not match"):
        Trainer.resume(run)
    assert Trainer.resume(run, model=linear_program()).steps == 12


def test_another_thread_count_is_refused_and_can_be_accepted(run):
    with pytest.raises(CheckpointError, match=r"threads has changed.*\n  found: 2\n  needed: 1"):
        Trainer.resume(run, threads=2)

    assert Trainer.resume(run, threads=2, allow_changes=True).steps == 12


def test_a_program_that_compiles_to_something_else_is_refused(run):
    from train.fake import linear_program

    program = linear_program()
    program.entries["train"].step.model.graph[0].op_type = "Gemm"

    with pytest.raises(CheckpointError, match="compiled program has changed"):
        Trainer.resume(run, model=program)


def test_two_writers_are_refused(tmp_path):
    first, second = make_trainer(), make_trainer()
    x, t = linear_data(8)
    first.step({"x": x, "t": t})
    directory = CheckpointDirectory(tmp_path)

    with directory.writing(), pytest.raises(CheckpointError, match=f"in use by process {os.getpid()}") as caught:
        second.save_checkpoint(tmp_path)

    assert caught.value.code == "K104"
    first.save_checkpoint(tmp_path)


def test_another_run_is_not_overwritten(run):
    before = {p.name: p.read_bytes() for p in run.iterdir()}

    with pytest.raises(CheckpointError, match="already holds a run, at step 12"):
        make_trainer().fit(*linear_data(), checkpoint=run, progress="none")
    with pytest.raises(CheckpointError, match="already holds a run, at step 12"):
        make_trainer().save_checkpoint(run)

    assert {p.name: p.read_bytes() for p in run.iterdir()} == before


def test_stale_temporary_files_are_removed(run):
    stale = run / f"{fsio.TEMP_PREFIX}step-00000013.safetensors-4711"
    stale.write_bytes(b"half")

    trainer = Trainer.resume(run)
    trainer.save_checkpoint(run)

    assert not stale.exists()


class Fail:
    """Fails at the n-th operation that changes the disk."""

    def __init__(self, at, code):
        self.at, self.code, self.count = at, code, 0

    def __call__(self, operation, path):
        self.count += 1
        if self.count == self.at:
            raise OSError(self.code, os.strerror(self.code), str(path))


def operations_of_a_save(tmp_path, monkeypatch):
    counter = Fail(-1, 0)
    trainer = make_trainer()
    x, t = linear_data(8)
    trainer.step({"x": x, "t": t})
    trainer.save_checkpoint(tmp_path / "probe", keep=1)
    trainer.step({"x": x, "t": t})
    monkeypatch.setattr(fsio, "boundary", counter)
    trainer.save_checkpoint(tmp_path / "probe", keep=1)
    monkeypatch.undo()
    return counter.count


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_failure_at_any_operation_leaves_the_old_checkpoint(tmp_path, monkeypatch, code):
    count = operations_of_a_save(tmp_path, monkeypatch)
    assert count >= 10
    x, t = linear_data(8)
    for at in range(1, count + 1):
        directory = tmp_path / f"{code}-{at}"
        trainer = make_trainer()
        trainer.step({"x": x, "t": t})
        trainer.save_checkpoint(directory, keep=1)
        trainer.step({"x": x, "t": t})

        monkeypatch.setattr(fsio, "boundary", Fail(at, code))
        with pytest.raises(CheckpointError, match=os.strerror(code)) as caught:
            trainer.save_checkpoint(directory, keep=1)
        monkeypatch.undo()

        assert caught.value.code == "K101"
        assert Trainer.resume(directory).steps in (1, 2)
        assert not list(directory.glob(fsio.TEMP_PREFIX + "*"))
        trainer.save_checkpoint(directory, keep=1)
        assert Trainer.resume(directory).steps == 2


def test_a_file_size_limit_leaves_the_old_checkpoint(tmp_path):
    resource = pytest.importorskip("resource")
    trainer = make_trainer()
    x, t = linear_data(8)
    trainer.step({"x": x, "t": t})
    path = trainer.save_checkpoint(tmp_path)
    size = path.stat().st_size
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    trainer.step({"x": x, "t": t})
    for limit in np.linspace(0, size - 1, 50).astype(int):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), old[1]))
        try:
            with pytest.raises(CheckpointError, match="File too large"):
                trainer.save_checkpoint(tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)

        assert Trainer.resume(tmp_path).steps == 1
        assert not list(tmp_path.glob(fsio.TEMP_PREFIX + "*"))


def test_a_file_in_the_place_of_the_directory(tmp_path):
    (tmp_path / "run").write_text("x")

    with pytest.raises(CheckpointError, match="File exists"):
        make_trainer().save_checkpoint(tmp_path / "run")


def test_killed_between_rename_and_manifest_the_new_one_counts(run):
    manifest = (run / "manifest.json").read_bytes()
    trainer = Trainer.resume(run)
    x, t = linear_data(8)
    trainer.step({"x": x, "t": t})
    trainer.save_checkpoint(run)
    (run / "manifest.json").write_bytes(manifest)

    assert Trainer.resume(run).steps == 13


def test_no_pickle_and_no_eval_in_the_package():
    import re
    from pathlib import Path

    import onward.train

    folder = Path(onward.train.__file__).parent
    pattern = re.compile(r"\b(import pickle|pickle\.|eval\(|exec\(|allow_pickle=True|torch\.load)")
    found = [f"{p.name}: {m[0]}" for p in folder.rglob("*.py") for m in pattern.finditer(p.read_text())]

    assert found == []


def test_read_tensor_file_reads_from_disk(run):
    tensors, data = read_tensor_file(run / "step-00000012.safetensors")

    assert data["step"] == 12
    assert "w" in tensors
