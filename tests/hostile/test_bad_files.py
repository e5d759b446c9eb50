"""A bad file gives one clear error of ours: never another exception, a crash or a hang."""

from __future__ import annotations

import os
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hostile.files import floats, known_gap, rich_model, small_model, value
from onward.errors import ModelError
from onward.model import serde
from onward.storage.limits import Limits

LOADERS = [serde.load, serde.read_proto]


def code_of(source: object, read=serde.load, **options) -> str:
    with pytest.raises(ModelError) as caught:
        read(source, **options)
    return caught.value.code


@pytest.mark.parametrize("read", LOADERS)
@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "an empty file"),
        (b"\xff" * 100, "bytes that do not parse"),
        (b"PK\x03\x04" + b"\0" * 50, "a ZIP archive"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"\x80\x02}q\x00", "pickle"),
        (b"\x1c\0\0\0TFL3" + b"\0" * 20, "TensorFlow Lite"),
    ],
)
def test_what_is_not_a_model_is_named(tmp_path, data, text, read):
    (tmp_path / "m.onnx").write_bytes(data)

    with pytest.raises(ModelError, match=text) as caught:
        read(tmp_path / "m.onnx")

    assert caught.value.code == "M100"
    assert len(caught.value.diagnostics) == 1


@pytest.mark.parametrize("read", LOADERS)
def test_a_file_cut_anywhere_is_an_error_or_a_smaller_model(read):
    data = rich_model().SerializeToString()
    outcomes = {"loaded": 0, "refused": 0}

    for end in range(0, len(data), 7):
        try:
            read(data[:end])
        except ModelError:
            outcomes["refused"] += 1
        else:
            outcomes["loaded"] += 1

    assert outcomes["refused"] > 0.9 * sum(outcomes.values())


@pytest.mark.parametrize("read", LOADERS)
def test_a_missing_file_suggests_near_names(tmp_path, read):
    (tmp_path / "mnist.onnx").write_bytes(b"")

    with pytest.raises(ModelError, match=r"did you mean `.*mnist\.onnx`") as caught:
        read(tmp_path / "minst.onnx")

    assert caught.value.code == "M101"


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ModelError, match="there is no folder"):
        serde.load(tmp_path / "no" / "m.onnx")


def test_a_directory_lists_the_models_in_it(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"")

    with pytest.raises(ModelError, match="is a directory, not a model file\n\nhint: it contains `m.onnx`"):
        serde.load(tmp_path)


def test_a_fifo_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "m.onnx")

    assert code_of(tmp_path / "m.onnx") == "M101"


@pytest.mark.skipif(os.geteuid() == 0, reason=known_gap("permissions"))
def test_a_file_without_permission_says_so(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"")
    (tmp_path / "m.onnx").chmod(0)

    assert code_of(tmp_path / "m.onnx") == "M101"


def test_an_unreadable_file_says_so(tmp_path, monkeypatch):
    (tmp_path / "m.onnx").write_bytes(b"x")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)

    with pytest.raises(ModelError, match="Permission denied") as caught:
        serde.load(str(tmp_path / "m.onnx"))

    assert caught.value.code == "M101"


def test_a_path_with_a_zero_byte_is_an_error_of_ours():
    assert code_of("a\0b") == "M101"


@pytest.mark.parametrize("source", [None, 3, ["m.onnx"], np.zeros(3)])
def test_other_objects_are_refused_with_what_is_needed(source):
    with pytest.raises(ModelError, match="needed: a path, bytes, an onnx.ModelProto or a TrainingModel"):
        serde.load(source)


@pytest.mark.parametrize("read", LOADERS)
def test_text_that_is_not_utf8_is_an_error_of_ours(read):
    data = small_model().SerializeToString()

    for word in (b"matmul", b"labels", b"loss", b"small", b"Momentum"):
        broken = data.replace(word, b"\xff\xfe" + word[2:])

        with pytest.raises(ModelError, match="not UTF-8") as caught:
            read(broken)

        assert caught.value.code == "M109"


@pytest.mark.parametrize("read", LOADERS)
def test_a_file_above_the_limit_is_refused_before_it_is_read(tmp_path, read):
    with open(tmp_path / "m.onnx", "wb") as file:
        file.truncate(2**31)  # a hole: no bytes on the disk

    assert code_of(tmp_path / "m.onnx", read) == "M102"


def nested(depth: int) -> onnx.ModelProto:
    graph = helper.make_graph([], "innermost", [], [])
    for _ in range(depth):
        node = onnx.NodeProto(op_type="If", input=["c"], output=["y"])
        node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g.CopyFrom(graph)
        graph = onnx.GraphProto(name="g")
        graph.node.append(node)
    return helper.make_model(graph)


def test_graphs_may_be_nested_31_deep_but_not_more():
    assert serde.from_proto(nested(31)).graph is not None
    assert code_of(nested(32)) == "M103"


def test_a_file_nested_deeper_than_protobuf_allows_is_an_error_of_ours():
    def length(number: int) -> bytes:
        out = b""
        while number >= 128:
            out, number = out + bytes([number & 127 | 128]), number >> 7
        return out + bytes([number])

    data = b""
    for _ in range(2000):  # graph → node → attribute → graph, written by hand
        for field in (6, 5, 1):
            data = bytes([field << 3 | 2]) + length(len(data)) + data

    assert code_of(bytes([7 << 3 | 2]) + length(len(data)) + data) == "M100"


def test_types_nested_without_end_are_refused():
    info = onnx.ValueInfoProto(name="x")
    inner = info.type
    for _ in range(40):
        inner = inner.sequence_type.elem_type
    inner.tensor_type.elem_type = 1

    assert code_of(helper.make_model(helper.make_graph([], "g", [info], []))) == "M103"


def doubling(count: int, last: str | None = None) -> onnx.ModelProto:
    """Return functions F0 … Fn-1, each of which calls the next one twice."""
    functions = []
    for index in range(count):
        callee = f"F{index + 1}" if index + 1 < count else last
        nodes = [
            helper.make_node(callee or "Relu", [a], [b], domain="d" if callee else "")
            for a, b in (("x", "h"), ("h", "y"))
        ]
        functions.append(helper.make_function("d", f"F{index}", ["x"], ["y"], nodes, [helper.make_opsetid("", 18)]))
    graph = helper.make_graph(
        [helper.make_node("F0", ["x"], ["y"], domain="d")], "g", [value("x", [1])], [value("y", [1])]
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("d", 1)]
    return helper.make_model(graph, functions=functions, opset_imports=imports)


@pytest.mark.parametrize("count", [30, 5000])
def test_doubling_functions_are_counted_not_expanded(count):
    start = time.perf_counter()

    code = code_of(doubling(count))

    assert code == "M104"
    assert time.perf_counter() - start < 5


def test_functions_within_the_limit_are_loaded():
    model = serde.from_proto(doubling(10))

    assert len(model.ir.functions) == 10


@pytest.mark.parametrize("back_to", ["F0", "F7"])
def test_a_recursive_function_is_refused_with_its_cycle(back_to):
    with pytest.raises(ModelError, match=f"→ `{back_to}`|`{back_to}` →") as caught:
        serde.from_proto(doubling(8, last=back_to))

    assert caught.value.code == "M105"


def test_the_training_graphs_count_too():
    proto = doubling(10)
    proto.training_info.add().algorithm.node.extend([proto.graph.node[0]] * 1000)

    assert code_of(proto) == "M104"


def test_the_limits_can_be_raised():
    proto = doubling(21)

    assert code_of(proto) == "M104"
    assert serde.from_proto(proto, limits=Limits(nodes=10**8)).inputs == ["x"]


def tensor(**fields) -> onnx.TensorProto:
    return onnx.TensorProto(name="t", **fields)


BAD_TENSORS = {
    "overflowing dims": tensor(dims=[2**62, 2**62], data_type=1, raw_data=b"\0" * 4),
    "dims that overflow to 4": tensor(dims=[2**32, 2**32, 4], data_type=1, raw_data=b"\0" * 16),
    "huge without data": tensor(dims=[2**40], data_type=1),
    "huge beside a zero": tensor(dims=[2**62, 0], data_type=1),
    "negative": tensor(dims=[-1], data_type=1, raw_data=b"\0" * 4),
    "too few bytes": tensor(dims=[2], data_type=1, raw_data=b"\0" * 4),
    "too many bytes": tensor(dims=[2], data_type=1, raw_data=b"\0" * 12),
    "too few elements": tensor(dims=[2], data_type=1, float_data=[1.0]),
    "no type": tensor(dims=[1], float_data=[1.0]),
    "unknown type": tensor(dims=[1], data_type=77, float_data=[1.0]),
    "wrong field": tensor(dims=[1], data_type=1, int64_data=[1]),
    "raw strings": tensor(dims=[1], data_type=TensorProto.STRING, raw_data=b"a"),
    "external strings": tensor(dims=[1], data_type=TensorProto.STRING, data_location=1),
    "too many dims": tensor(dims=[1] * 100, data_type=1, float_data=[1.0]),
    "half a byte short": tensor(dims=[3], data_type=TensorProto.INT4, raw_data=b"\0"),
}


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_a_malformed_tensor_is_refused_in_every_graph(name):
    bad = BAD_TENSORS[name]
    proto = small_model()
    proto.graph.initializer.append(bad)
    proto.training_info[0].algorithm.initializer.append(bad)
    proto.training_info[0].initialization.node.append(helper.make_node("Constant", [], ["z"], value=bad))

    with pytest.raises(ModelError) as caught:
        serde.from_proto(proto)

    assert [d.code for d in caught.value.diagnostics] == ["M106"] * 3
    assert "training_info[0].algorithm" in caught.value.diagnostics[1].place


def test_an_unknown_element_type_of_a_value_is_refused():
    proto = small_model()
    proto.graph.input[0].type.tensor_type.elem_type = 99

    assert code_of(proto) == "M106"


def test_overlapping_external_tensors_cannot_claim_more_than_the_budget(tmp_path):
    (tmp_path / "w").write_bytes(b"\0" * 4000)
    graph = helper.make_graph([], "g", [], [])
    for index in range(30):
        bad = graph.initializer.add(name=f"t{index}", data_type=1, dims=[1000], data_location=1)
        bad.external_data.add(key="location", value="w")
    proto = helper.make_model(graph)

    assert code_of(proto, base_dir=tmp_path, limits=Limits(tensor_bytes=100_000)) == "M102"


def test_reading_everything_into_one_message_is_bounded(tmp_path):
    (tmp_path / "w").write_bytes(b"\0" * 4000)
    graph = helper.make_graph([], "g", [], [], [floats("a", 2)])
    for index in range(30):
        tensor_proto = graph.initializer.add(name=f"t{index}", data_type=1, dims=[1000], data_location=1)
        tensor_proto.external_data.add(key="location", value="w")
    (tmp_path / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())

    assert code_of(tmp_path / "m.onnx", serde.read_proto, limits=Limits(file_bytes=100_000)) == "M102"
