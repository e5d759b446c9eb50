"""External data is read from the model's own folder only, and only as the tensor says. In every graph."""

from __future__ import annotations

import os
import stat
import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from hostile.files import externalise, floats, known_gap, rich_model, small_model
from onward.errors import ModelError
from onward.model import serde
from onward.storage.external_data import all_tensors

SECRET = b"the secret of another file, 24 bytes or more"


def point_at(tensor: onnx.TensorProto, location: str, **numbers: object) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    tensor.external_data.add(key="location", value=location)
    for key, number in numbers.items():
        tensor.external_data.add(key=key, value=str(number))


@pytest.fixture
def folder(tmp_path):
    """Return a model's folder with every kind of trap in it and the secret outside."""
    inside = tmp_path / "model"
    inside.mkdir()
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "data").write_bytes(SECRET)
    (inside / "good").write_bytes(SECRET)
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "link_inside").symlink_to("good")
    (inside / "parent").symlink_to(tmp_path / "elsewhere")
    (inside / "dangling").symlink_to(tmp_path / "missing")
    os.link(tmp_path / "secret", inside / "hard")
    os.mkfifo(inside / "fifo")
    (inside / "sub").mkdir()
    (inside / "sub" / "data").write_bytes(SECRET)
    (inside / "empty").write_bytes(b"")
    return inside


def in_initializer(model: onnx.ModelProto) -> onnx.TensorProto:
    return model.graph.initializer[0]


def in_algorithm(model: onnx.ModelProto) -> onnx.TensorProto:
    tensor = model.training_info[0].algorithm.initializer.add()
    tensor.CopyFrom(floats("extra", 3, 2))
    return tensor


def in_initialization(model: onnx.ModelProto) -> onnx.TensorProto:
    graph = model.training_info[0].initialization
    graph.node.append(onnx.helper.make_node("Constant", [], ["extra"], value=floats("extra", 3, 2)))
    return graph.node[-1].attribute[0].t


def in_function(model: onnx.ModelProto) -> onnx.TensorProto:
    node = onnx.helper.make_node("Constant", [], ["c"], value=floats("extra", 3, 2))
    model.functions.append(onnx.helper.make_function("my", "F", [], ["c"], [node], [onnx.helper.make_opsetid("", 18)]))
    return model.functions[0].node[0].attribute[0].t


def in_subgraph(model: onnx.ModelProto) -> onnx.TensorProto:
    inner = onnx.helper.make_graph([], "inner", [], [], [floats("extra", 3, 2)])
    model.graph.node.append(onnx.helper.make_node("If", ["c"], ["o"], then_branch=inner, else_branch=inner))
    return next(a.g for a in model.graph.node[-1].attribute if a.name == "then_branch").initializer[0]


PLACES = [in_initializer, in_algorithm, in_initialization, in_function, in_subgraph]
BAD_LOCATIONS = {
    "../secret": "leaves the folder through `..`",
    "sub/../../secret": "leaves the folder through `..`",
    "sub\\..\\..\\secret": "leaves the folder through `..`",
    "..\\secret": "leaves the folder through `..`",
    "ABSOLUTE": "absolute path",
    "C:/secret": "absolute path",
    "\\\\server\\secret": "absolute path",
    "link": "symbolic link",
    "link_inside": "symbolic link",
    "dangling": "symbolic link",
    "parent/data": "symbolic link",
    "hard": "hard link",
    "fifo": "not a regular file",
    "sub": "not a regular file",
    ".": "not a regular file",
    "": "it is empty",
    "goo\0d": "zero byte",
    "*/_ORT_MEM_ADDR_/*": "memory address",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("location", BAD_LOCATIONS)
@pytest.mark.parametrize("read", [serde.load, serde.read_proto])
def test_a_location_that_leaves_the_folder_is_refused(folder, location, place, read):
    model = small_model()
    target = str(folder.parent / "secret") if location == "ABSOLUTE" else location
    point_at(place(model), target)
    (folder / "m.onnx").write_bytes(model.SerializeToString())

    with pytest.raises(ModelError, match=BAD_LOCATIONS[location]) as caught:
        read(folder / "m.onnx")

    assert caught.value.code == "M107"
    assert SECRET.decode() not in str(caught.value)


def test_a_device_is_refused(folder):
    try:
        os.mknod(folder / "zero", stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except (PermissionError, AttributeError):
        pytest.skip(known_gap("devices"))
    model = small_model()
    point_at(in_algorithm(model), "zero")

    with pytest.raises(ModelError, match="not a regular file"):
        serde.from_proto(model, base_dir=folder)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ({"offset": -4}, "offset `-4`"),
        ({"length": -1}, "length `-1`"),
        ({"offset": "four"}, "offset `four`"),
        ({"offset": "0x10"}, "offset `0x10`"),
        ({"offset": "1" * 5000}, "offset `111"),
        ({"offset": 30}, "offset 30, length 24 in a file of 44 bytes"),
        ({"offset": 2**60}, "in a file of 44 bytes"),
        ({"length": 2**50}, "does not fit its shape"),
        ({"length": 23}, "needed: 24 bytes for FLOAT"),
        ({"length": 0}, "does not fit its shape"),
    ],
)
@pytest.mark.parametrize("place", [in_initializer, in_algorithm])
def test_wrong_offsets_and_lengths_are_refused(folder, numbers, text, place):
    model = small_model()
    point_at(place(model), "good", **numbers)

    with pytest.raises(ModelError, match=text) as caught:
        serde.from_proto(model, base_dir=folder)

    assert caught.value.code == "M108"


def spoil(how: str, tensor: onnx.TensorProto) -> None:
    if how == "twice":
        tensor.external_data.add(key="location", value="sub/data")
    elif how == "nowhere":
        del tensor.external_data[:]
    elif how == "raw too":
        tensor.raw_data = b"\0" * 24
    elif how == "missing":
        tensor.external_data[0].value = "missing"
    elif how == "empty":
        tensor.external_data[0].value = "empty"


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("twice", "key `location` is given twice"),
        ("nowhere", "no `location`"),
        ("raw too", "`raw_data` beside"),
        ("missing", "No such file"),
        ("empty", "a file of 0 bytes"),
    ],
)
def test_a_wrong_description_is_refused(folder, how, text):
    model = small_model()
    point_at(in_algorithm(model), "good")
    spoil(how, model.training_info[0].algorithm.initializer[-1])

    with pytest.raises(ModelError, match=text) as caught:
        serde.from_proto(model, base_dir=folder)

    assert caught.value.code == "M108"


def test_keys_of_the_file_never_become_attributes(folder):
    model = small_model()
    point_at(in_initializer(model), "good", **{"__class__": "x", "checksum": "0"})

    tensor = serde.from_proto(model, base_dir=folder).graph.initializers["W"].const_value

    assert tensor.reference.extra == (("__class__", "x"), ("checksum", "0"))


def test_a_plain_file_in_a_folder_below_is_read(folder):
    model = small_model()
    point_at(in_algorithm(model), "./sub/data", offset=4, length=24)

    loaded = serde.from_proto(model, base_dir=folder)

    assert loaded.entries[0].algorithm.initializers["extra"].const_value.tobytes() == SECRET[4:28]


def test_bytes_and_messages_do_not_read_from_the_working_directory(folder, monkeypatch):
    monkeypatch.chdir(folder)
    model = small_model()
    point_at(in_initializer(model), "good")

    with pytest.raises(ModelError, match="the model has no folder"):
        serde.load(model)
    with pytest.raises(ModelError, match="the model has no folder"):
        serde.load(model.SerializeToString())
    with pytest.raises(ModelError, match="the model has no folder"):
        serde.read_proto(model.SerializeToString())


def test_every_bad_tensor_is_reported_at_once(folder):
    model = externalise(rich_model(), folder)
    tensors = [t for _, t in all_tensors(model) if t.data_location == TensorProto.EXTERNAL]
    for tensor in tensors:
        tensor.external_data[0].value = "../secret"

    with pytest.raises(ModelError) as caught:
        serde.from_proto(model, base_dir=folder)

    assert [d.code for d in caught.value.diagnostics] == ["M107"] * len(tensors)


def test_swapping_the_file_for_a_link_while_it_is_opened_never_reads_the_secret(tmp_path):
    """Promise 6: 1,000 tries against a thread that swaps a good file and a link as fast as it can."""
    inside = tmp_path / "model"
    inside.mkdir()
    (tmp_path / "secret").write_bytes(b"S" * 24)
    (inside / "real").write_bytes(b"G" * 24)
    (inside / "trap").symlink_to(tmp_path / "secret")
    model = small_model()
    point_at(in_initializer(model), "data")
    done = threading.Event()

    def swap() -> None:
        turn = 0
        while not done.is_set():
            turn += 1
            if turn % 2:
                (inside / "next").symlink_to(tmp_path / "secret")
            else:
                (inside / "next").write_bytes(b"G" * 24)
            os.replace(inside / "next", inside / "data")

    thread = threading.Thread(target=swap)
    thread.start()
    outcomes = {"read": 0, "refused": 0}
    try:
        for _ in range(1000):
            try:
                data = serde.from_proto(model, base_dir=inside).graph.initializers["W"].const_value.tobytes()
            except ModelError:
                outcomes["refused"] += 1
            else:
                assert data == b"G" * 24
                outcomes["read"] += 1
    finally:
        done.set()
        thread.join()
    assert sum(outcomes.values()) == 1000
    os.replace(inside / "trap", inside / "data")
    with pytest.raises(ModelError, match="symbolic link"):
        serde.from_proto(model, base_dir=inside)


def test_saving_does_not_write_outside_the_folder(tmp_path):
    model = serde.from_proto(small_model())

    for name in ["../out", "/elsewhere/out", "sub/out", "a\\..\\b", "m.onnx", ""]:
        with pytest.raises(ValueError, match="cannot be called"):
            serde.save(model, tmp_path / "m.onnx", external_data=name or "..", size_threshold=0)

    assert list(tmp_path.iterdir()) == []


def test_mapped_weights_survive_the_removal_of_their_file(tmp_path):
    onnx.save(externalise(small_model(), tmp_path), tmp_path / "m.onnx")

    model = serde.load(tmp_path / "m.onnx")
    (tmp_path / "weights.bin").unlink()

    np.testing.assert_array_equal(model.graph.initializers["b"].const_value.numpy(), np.array([0.1, 0.11], np.float32))
