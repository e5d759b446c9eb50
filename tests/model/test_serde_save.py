"""A save leaves the old model or the new one, whole, and nothing else."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import stat

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from hostile.files import canonical, rich_model, small_model
from onward.errors import ArgumentError, ModelError
from onward.model import files, serde
from onward.storage import atomic
from onward.storage.external_data import all_tensors
from whole import WHOLE


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def big_model(size: int = 3000, fill: float = 1.0) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "W"], ["y"])],
        "big",
        [helper.make_tensor_value_info("x", 1, [size])],
        [helper.make_tensor_value_info("y", 1, [size])],
        [numpy_helper.from_array(np.full(size, fill, np.float32), "W")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize("as_model", [True, False])
def test_a_saved_file_is_the_model(tmp_path, as_model):
    proto = rich_model()

    serde.save(serde.from_proto(proto) if as_model else proto, tmp_path / "m.onnx")

    assert canonical(onnx.load(tmp_path / "m.onnx")) == canonical(proto)
    assert list(contents(tmp_path)) == ["m.onnx"]


def test_the_same_model_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        serde.save(serde.from_proto(rich_model()), tmp_path / name)

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("as_model", [True, False])
def test_external_data_takes_the_tensors_of_every_graph(tmp_path, as_model):
    proto = rich_model()
    before = proto.SerializeToString(deterministic=True)

    serde.save(
        serde.from_proto(proto) if as_model else proto, tmp_path / "m.onnx", external_data=True, size_threshold=1
    )

    stored = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    outside = [p for p, t in all_tensors(stored) if t.data_location == TensorProto.EXTERNAL]
    assert any("algorithm" in p for p in outside)
    assert any("function" in p for p in outside)
    assert any("subgraph" in p or "then_branch" in p for p in outside)
    for (_, expected), (_, found) in zip(
        all_tensors(proto), all_tensors(serde.read_proto(tmp_path / "m.onnx")), strict=True
    ):
        if expected.data_type != TensorProto.STRING:
            assert numpy_helper.to_array(expected).tobytes() == numpy_helper.to_array(found).tobytes()
    assert proto.SerializeToString(deterministic=True) == before


def test_other_tools_read_our_external_data(tmp_path):
    serde.save(big_model(), tmp_path / "m.onnx", external_data="weights.bin")
    x = np.arange(3000, dtype=np.float32)

    by_onnx = numpy_helper.to_array(onnx.load(tmp_path / "m.onnx").graph.initializer[0])
    by_ort = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": x})[0]

    np.testing.assert_array_equal(by_onnx, np.ones(3000, np.float32))
    np.testing.assert_array_equal(by_ort, x + 1)
    assert list(contents(tmp_path)) == ["m.onnx", "weights.bin"]


def test_small_tensors_stay_in_the_model(tmp_path):
    serde.save(small_model(), tmp_path / "m.onnx", external_data=True)

    assert list(contents(tmp_path)) == ["m.onnx"]


def test_data_is_aligned_for_mapping(tmp_path):
    serde.save(small_model(), tmp_path / "m.onnx", external_data=True, size_threshold=1)

    stored = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    offsets = [int(e.value) for _, t in all_tensors(stored) for e in t.external_data if e.key == "offset"]
    assert len(offsets) > 3
    assert all(offset % 64 == 0 for offset in offsets)


def test_saving_again_uses_a_fresh_data_file_and_removes_the_old_one(tmp_path):
    serde.save(big_model(fill=1), tmp_path / "m.onnx", external_data=True)
    serde.save(big_model(fill=2), tmp_path / "m.onnx", external_data=True)

    assert list(contents(tmp_path)) == ["m.onnx", "m.onnx.1.data"]
    np.testing.assert_array_equal(
        serde.load(tmp_path / "m.onnx").graph.initializers["W"].const_value.numpy(), np.full(3000, 2, np.float32)
    )


def test_a_model_saved_over_itself_keeps_its_weights(tmp_path):
    serde.save(big_model(fill=5), tmp_path / "m.onnx", external_data=True)

    for _ in range(3):
        serde.save(serde.load(tmp_path / "m.onnx"), tmp_path / "m.onnx", external_data=True)

    assert len(contents(tmp_path)) == 2
    assert serde.load(tmp_path / "m.onnx").graph.initializers["W"].const_value.numpy()[0] == 5


def test_a_data_file_of_another_name_is_left_alone(tmp_path):
    serde.save(big_model(), tmp_path / "m.onnx", external_data="shared.bin")
    serde.save(big_model(), tmp_path / "m.onnx", external_data=True)

    assert list(contents(tmp_path)) == ["m.onnx", "m.onnx.data", "shared.bin"]


class Failing:
    """Fails the n-th call of a function of `os`."""

    def __init__(self, monkeypatch, name: str, at: int, number: int = errno.ENOSPC) -> None:
        self.real, self.at, self.number, self.calls = getattr(os, name), at, number, 0
        monkeypatch.setattr(os, name, self)

    def __call__(self, *arguments, **options):
        self.calls += 1
        if self.calls == self.at:
            raise OSError(self.number, os.strerror(self.number))
        return self.real(*arguments, **options)


@pytest.mark.parametrize(
    ("external", "name", "at"),
    [(False, "fsync", 1), (False, "replace", 1), *((True, "fsync", n) for n in (1, 2, 3)), (True, "replace", 1)],
)
def test_a_failed_save_leaves_the_old_file_and_no_temporary(tmp_path, monkeypatch, external, name, at):
    serde.save(big_model(fill=1), tmp_path / "m.onnx", external_data=external)
    before = contents(tmp_path)
    failing = Failing(monkeypatch, name, at)

    with pytest.raises(ModelError, match="No space left on device") as caught:
        serde.save(big_model(fill=2), tmp_path / "m.onnx", external_data=external)

    monkeypatch.undo()
    assert failing.calls >= at
    assert caught.value.code == "M111"
    assert contents(tmp_path) == before


class FailAt:
    """Fails at the n-th operation that changes the disk, and lists the operations."""

    def __init__(self, monkeypatch, at: int) -> None:
        self.at, self.operations = at, []
        monkeypatch.setattr(atomic, "boundary", self)

    def __call__(self, operation: str, path: pathlib.Path) -> None:
        self.operations.append(operation)
        if len(self.operations) == self.at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


PLAIN = ["open", "write", "fsync", "rename", "fsync_dir"]


@pytest.mark.parametrize(
    ("external", "expected"),
    [(False, PLAIN), (True, ["open", "open", "write", "fsync", "fsync_dir", *PLAIN, "remove"])],
)
def test_a_failure_at_any_operation_leaves_a_model_that_loads(tmp_path, monkeypatch, external, expected):
    path = tmp_path / "m.onnx"
    for at in range(1, len(expected) + 2):
        serde.save(big_model(fill=1), path, external_data=external)
        count = len(contents(tmp_path))
        failing = FailAt(monkeypatch, at)

        with contextlib.suppress(ModelError):
            serde.save(big_model(fill=2), path, external_data=external)
        monkeypatch.undo()

        assert failing.operations == expected[:at]
        renamed = at > expected.index("rename") + 1
        assert serde.load(path).graph.initializers["W"].const_value.numpy()[0] == (2 if renamed else 1)
        assert not list(tmp_path.glob(".*"))
        assert len(contents(tmp_path)) <= count + renamed
        for left in tmp_path.iterdir():
            left.unlink()


@pytest.mark.parametrize("external", [True, False])
def test_a_full_disk_leaves_the_old_file(tmp_path, external):
    """RLIMIT_FSIZE makes writes fail half way, as a full disk does."""
    import subprocess
    import sys

    serde.save(big_model(100_000, fill=1), tmp_path / "m.onnx", external_data=external)
    before = contents(tmp_path)
    code = f"""
import resource, signal, sys
sys.path[:0] = {[str(pathlib.Path(__file__).parents[1]), *(p for p in __import__("sys").path if p)]!r}
from onward.model import serde
from onward.errors import ModelError
import onnx
proto = onnx.load({str(tmp_path / "m.onnx")!r})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    serde.save(proto, {str(tmp_path / "m.onnx")!r}, external_data={external})
except ModelError as error:
    print(error.code)
"""

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout.strip() == "M111"
    assert contents(tmp_path) == before


def test_an_error_while_writing_data_leaves_nothing_behind(tmp_path, monkeypatch):
    def explode(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files._DataFile, "_refer", explode)

    with pytest.raises(KeyboardInterrupt):
        serde.save(big_model(), tmp_path / "m.onnx", external_data=True)

    assert contents(tmp_path) == {}


def test_a_missing_folder_is_an_error_of_ours(tmp_path):
    with pytest.raises(ModelError, match="there is no directory") as caught:
        serde.save(small_model(), tmp_path / "no" / "m.onnx")

    assert caught.value.code == "M111"


def test_a_zero_byte_in_the_path_is_an_error_of_ours(tmp_path):
    with pytest.raises(ModelError, match="embedded null byte") as caught:
        serde.save(small_model(), f"{tmp_path}/m\0.onnx")

    assert caught.value.code == "M111"


@pytest.mark.parametrize("kind", ["directory", "fifo", "device"])
def test_only_regular_files_are_replaced(tmp_path, kind):
    target = tmp_path / "m.onnx"
    if kind == "directory":
        target.mkdir()
    elif kind == "fifo":
        os.mkfifo(target)
    else:
        target = pathlib.Path("/dev/null")

    with pytest.raises(ModelError, match="directory|not a regular file"):
        serde.save(small_model(), target)

    assert not stat.S_ISREG(target.stat().st_mode)


def test_saving_through_a_link_replaces_the_file_behind_it(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "m.onnx").write_bytes(b"old")
    (tmp_path / "link.onnx").symlink_to(tmp_path / "real" / "m.onnx")

    serde.save(small_model(), tmp_path / "link.onnx")

    assert (tmp_path / "link.onnx").is_symlink()
    assert serde.load(tmp_path / "real" / "m.onnx").inputs == ["x"]


def test_the_mode_of_the_old_file_is_kept(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"old")
    (tmp_path / "m.onnx").chmod(0o640)

    serde.save(small_model(), tmp_path / "m.onnx")

    assert stat.S_IMODE((tmp_path / "m.onnx").stat().st_mode) == 0o640


def test_a_model_too_large_for_one_file_goes_to_external_data_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_INLINE_LIMIT", 5000)

    serde.save(big_model(), tmp_path / "m.onnx")

    assert list(contents(tmp_path)) == ["m.onnx", "m.onnx.data"]


@pytest.mark.skipif(not WHOLE, reason="writes 2.2 GB and reads them: `make test-whole` runs it")
@pytest.mark.slow
def test_more_than_two_gigabytes_survive_a_round_trip(tmp_path):
    """The weights are a hole in a file: 2.2 GB that cost no disk until they are written once."""
    with open(tmp_path / "w", "wb") as file:
        file.truncate(2_200_000_000)
        file.seek(2_199_999_996)
        file.write(np.float32(7).tobytes())
    proto = small_model()
    big = proto.training_info[0].algorithm.initializer.add(
        name="huge", data_type=1, dims=[550_000_000], data_location=1
    )
    big.external_data.add(key="location", value="w")
    model = serde.from_proto(proto, base_dir=tmp_path)

    serde.save(model, tmp_path / "m.onnx")

    assert (tmp_path / "m.onnx").stat().st_size < 10_000
    again = serde.load(tmp_path / "m.onnx").entries[0].algorithm.initializers["huge"].const_value
    assert again.numpy()[-1] == 7
    with pytest.raises(ModelError, match="does not fit into one file"):
        serde.save(model, tmp_path / "n.onnx", external_data=False)
    for large in (tmp_path / "w", tmp_path / "m.onnx.data"):  # pytest keeps the folder
        large.unlink()


def test_what_cannot_be_saved_is_named():
    with pytest.raises(ArgumentError, match="needed: a TrainingModel or an onnx.ModelProto"):
        serde.save("m.onnx", "n.onnx")  # type: ignore[arg-type]
