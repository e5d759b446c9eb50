"""A model as MLIR text and back is the same model, bit by bit, also if MLIR itself read and printed it in between."""

from __future__ import annotations

import functools
import pathlib
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onward
from hostile.files import rich_model, small_model, value
from hostile.mutate import function_model, legacy_model, nested_model
from mlir.readers import read_by_xdsl, reprinted
from whole import WHOLE
from zoo.fetch import Unreachable, fetch, manifest, title

MODELS = {
    "rich": rich_model, "small": small_model, "functions": function_model, "nested": nested_model,
    "legacy": legacy_model,
    **{n: functools.partial(lambda name: onward.samples.build(name).proto(), n) for n in ("linear", "digits", "mnist")},
}  # fmt: skip
LIGHT = sorted((pathlib.Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"))
STRANGERS = {
    "silero-vad 6.2.3: silero_vad_half.onnx": "nested If, half precision",
    "rapidocr-onnxruntime 1.4.4: ch_ppocr_mobile_v2.0_cls_infer.onnx": "PaddlePaddle",
    "basic-pitch 0.4.0: nmp.onnx": "TensorFlow",
    "qonnx 1.0.0: model.onnx": "CNTK, operator set 8",
    "onnxruntime 1.31.1: mul_1.onnx": "IR version 3, initializers that are no inputs",
}
# What xDSL does not read: a list of texts in a tensor.
NOT_XDSL = {"test_ai_onnx_ml_label_encoder_tensor_mapping"}


def data(proto: onnx.ModelProto) -> bytes:
    return proto.SerializeToString(deterministic=True)


def assert_same_after(proto: onnx.ModelProto, text: str, what: str = "") -> None:
    assert data(onward.mlir.from_text(text)) == data(proto), what


@functools.cache
def node_tests() -> dict[str, onnx.ModelProto]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case.model for case in collect_testcases(None)}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_comes_back_bit_by_bit(name: str) -> None:
    proto = MODELS[name]()

    assert_same_after(proto, onward.mlir.to_text(proto))


@pytest.mark.parametrize("name", ["rich", "functions", "nested", "linear"])
def test_what_mlir_itself_prints_is_the_same_model(name: str) -> None:
    proto = MODELS[name]()

    for text in reprinted(onward.mlir.to_text(proto)):
        assert_same_after(proto, text)


def test_xdsl_reads_a_training_model() -> None:
    read_by_xdsl(onward.mlir.to_text(onward.samples.build("digits")))


def test_the_node_tests_of_onnx_come_back_bit_by_bit() -> None:
    models = node_tests()
    names = sorted(models) if WHOLE else sorted(models)[::30]
    assert len(models) > 1800

    for index, name in enumerate(names):
        text = onward.mlir.to_text(models[name])
        assert_same_after(models[name], text, name)
        if WHOLE or index % 8 == 0:
            for printed in reprinted(text):
                assert_same_after(models[name], printed, name)
            if name not in NOT_XDSL:
                read_by_xdsl(text)


@pytest.mark.parametrize("path", LIGHT if WHOLE else LIGHT[6:7], ids=lambda p: p.stem)
def test_a_real_network_comes_back_bit_by_bit(path: pathlib.Path) -> None:
    proto = onnx.load(path)

    text = onward.mlir.to_text(proto)

    assert_same_after(proto, text)
    for printed in reprinted(text):
        assert_same_after(proto, printed)


@pytest.mark.skipif(not WHOLE, reason="make test-whole fetches them")
@pytest.mark.parametrize("name", STRANGERS)
def test_the_file_of_a_stranger_comes_back_bit_by_bit(name: str) -> None:
    try:
        path = fetch(next(e for e in manifest() if title(e) == name))
    except Unreachable as error:
        pytest.skip(f"the registry is not reachable: {error}")

    assert data(onward.mlir.from_text(onward.mlir.to_text(path))) == path.read_bytes()


@pytest.mark.parametrize("weights", ["inline", "resource", "external"])
def test_weights_come_back_from_each_place(weights: str, tmp_path: pathlib.Path) -> None:
    model = onward.samples.build("digits")

    onward.mlir.save(model, tmp_path / "net.mlir", weights=weights)

    assert data(onward.mlir.load(tmp_path / "net.mlir")) == data(model.proto())
    assert (tmp_path / "net.safetensors").exists() == (weights == "external")


def test_resources_are_what_mlir_reads() -> None:
    proto = onward.samples.build("digits").proto()

    for text in reprinted(onward.mlir.to_text(proto, weights="resource")):
        assert "dense_resource<" in text
        assert_same_after(proto, text)


def odd(change: Any) -> onnx.ModelProto:
    """Return a small model with something unusual in it."""
    proto = small_model()
    del proto.training_info[:]
    change(proto)
    return proto


def _floats(proto: onnx.ModelProto) -> None:
    node = proto.graph.node.add(op_type="Custom", domain="me", output=["z"], input=["y", "", ""])
    numbers = [np.nan, np.inf, -np.inf, -0.0, 1e-45, 3.4028235e38, 0.1]
    node.attribute.append(helper.make_attribute("many", numbers))
    node.attribute.append(helper.make_attribute("one", float("nan")))
    node.attribute.append(helper.make_attribute("none", [], attr_type=onnx.AttributeProto.FLOATS))
    node.attribute.append(helper.make_attribute("bytes", b'\x00\xff"\\\n'))
    node.attribute.append(helper.make_attribute("onnx_node_name", "not the name"))
    node.attribute.append(helper.make_attribute("onward.order", 3))
    node.attribute.append(helper.make_attribute("with space", [1, -(2**63), 2**63 - 1]))
    node.attribute.append(helper.make_attribute("texts", ["", "ä"]))
    node.attribute.append(helper.make_attribute("tensors", [numpy_helper.from_array(np.ones(2))]))


def _presence(proto: onnx.ModelProto) -> None:
    proto.producer_name = ""
    proto.graph.doc_string = ""
    proto.graph.node[0].doc_string = ""
    proto.graph.node[0].domain = ""
    proto.graph.node[1].domain = "ai.onnx"
    proto.graph.node[1].name = ""
    proto.graph.initializer[0].doc_string = ""
    proto.graph.initializer[0].data_location = onnx.TensorProto.DEFAULT
    proto.graph.input[0].doc_string = ""
    proto.graph.input[0].type.denotation = "IMAGE"
    proto.graph.input[0].type.tensor_type.shape.dim[0].denotation = "BATCH"


def _stated(proto: onnx.ModelProto) -> None:
    infos = [value("b", [2]), value("xW", ["a,b:c", 2]), value("x", [9]), value("xW", [1]), value("nothing", [])]
    proto.graph.value_info.extend(infos)
    proto.graph.value_info.add(name="W")
    proto.graph.input.append(value("W", [3, 2]))
    proto.graph.input.append(value("late", [-1, 0]))
    proto.graph.quantization_annotation.add(tensor_name="W")


def _unknown(proto: onnx.ModelProto) -> None:
    node = proto.graph.node.add(op_type="Relu", output=["z"], input=["y"])
    node.attribute.add(name="a").ParseFromString(b"\x0a\x01a\x98\x75\x2a")  # field 1875, which onnx does not define
    node.attribute.add(name="b", i=3)  # without a type, as before IR version 2
    node.attribute.add(name="c", ref_attr_name="d", type=onnx.AttributeProto.INT)


@pytest.mark.parametrize("change", [_floats, _presence, _stated, _unknown])
def test_what_is_unusual_comes_back_too(change: Any) -> None:
    proto = odd(change)

    text = onward.mlir.to_text(proto)

    assert_same_after(proto, text)
    for printed in reprinted(text):
        assert_same_after(proto, printed)


def test_every_element_type_comes_back() -> None:
    import onnx_ir as ir

    graph = helper.make_graph([], "types", [], [])
    for kind in ir.DataType:
        if kind.name in ("UNDEFINED", "STRING"):
            continue
        size = (5 * kind.bitwidth + 7) // 8
        raw = bytes(range(3, 3 + size)) if kind.name != "BOOL" else b"\0\1\0\1\1"
        if kind.bitwidth < 8:  # what is left of the last byte is zero
            raw = raw[:-1] + bytes([raw[-1] & (2 ** (5 * kind.bitwidth % 8) - 1)])
        graph.initializer.add(name=kind.name, data_type=kind.value, dims=[5], raw_data=raw)
        graph.initializer.add(name=f"{kind.name}_none", data_type=kind.value, dims=[2, 0], raw_data=b"")
    graph.initializer.append(helper.make_tensor("texts", onnx.TensorProto.STRING, [2, 1], [b"a\xff\0", "✓".encode()]))
    proto = helper.make_model(graph)

    text = onward.mlir.to_text(proto)

    assert_same_after(proto, text)
    for printed in reprinted(text):
        assert_same_after(proto, printed)
