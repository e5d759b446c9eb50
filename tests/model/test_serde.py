"""Reading and writing loses nothing."""

from __future__ import annotations

import pathlib
import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hostile.files import canonical, externalise, note, rich_model, small_model, value
from onward.errors import ModelError
from onward.model import serde
from onward.storage.external_data import all_tensors

DATA = pathlib.Path(onnx.__file__).parent / "backend" / "test" / "data"


def differences(proto: onnx.ModelProto) -> list[str]:
    again = serde.to_proto(serde.from_proto(proto))
    return [] if canonical(again) == canonical(proto) else [proto.graph.name]


def test_a_model_that_uses_everything_comes_back_equal():
    proto = rich_model()

    again = serde.to_proto(serde.from_proto(proto))

    assert str(canonical(again)) == str(canonical(proto))
    assert canonical(again) == canonical(proto)


def test_reading_leaves_the_message_as_it_was():
    proto = rich_model()
    before = proto.SerializeToString(deterministic=True)

    model = serde.from_proto(proto)
    model.graph.initializers["W"].name = "renamed"
    serde.to_proto(model)

    assert proto.SerializeToString(deterministic=True) == before


def test_the_comparison_notices_a_lost_doc_string():
    proto = rich_model()
    poorer = rich_model()
    poorer.training_info[1].algorithm.ClearField("doc_string")

    assert canonical(poorer) != canonical(proto)


@pytest.mark.parametrize("path", sorted(DATA.rglob("model.onnx")), ids=lambda p: p.parent.name)
def test_onnx_own_files_come_back_equal(path):
    proto = onnx.load(path)

    again = serde.to_proto(serde.load(path))

    assert canonical(again) == canonical(proto)


def test_onnx_own_node_tests_come_back_equal():
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx computes its own expected values with overflow
        cases = load_model_tests(kind="node")

    different = [c.name for c in cases if c.model is not None and differences(c.model)]

    assert len(cases) > 1500
    assert different == []


def test_two_entries_keep_their_graphs_and_bindings():
    model = serde.from_proto(rich_model())

    assert [e.name for e in model.entries] == ["train", "second/train"]
    assert list(model.entries[0].update_binding) == ["W", "b", "W_v", "b_v", "T"]
    assert list(model.parameters) == ["W", "b"]


def test_the_algorithm_reads_the_very_values_of_the_graph():
    model = serde.from_proto(small_model())

    subtract = model.entries[0].algorithm[0]

    assert subtract.inputs[0] is model.graph.outputs[0]


def test_overloads_of_a_function_stay_apart():
    model = serde.from_proto(rich_model())

    assert [key[2] for key in model.ir.functions] == ["a", "b"]


def test_external_data_of_every_graph_is_read(tmp_path):
    proto = rich_model()
    onnx.save(externalise(proto, tmp_path), tmp_path / "m.onnx")

    inlined = serde.read_proto(tmp_path / "m.onnx")

    pairs = list(zip(all_tensors(proto), all_tensors(inlined), strict=True))
    assert len(pairs) > 25
    for (place, expected), (_, found) in pairs:
        assert found.data_location == TensorProto.DEFAULT
        if expected.data_type != TensorProto.STRING:
            assert numpy_helper.to_array(expected).tobytes() == numpy_helper.to_array(found).tobytes(), place


def test_a_loaded_model_with_external_data_gives_the_same_references_back(tmp_path):
    external = externalise(rich_model(), tmp_path)
    onnx.save(external, tmp_path / "m.onnx")

    again = serde.to_proto(serde.load(tmp_path / "m.onnx"), keep_references=True)

    for tensor in (t for p in (external, again) for _, t in all_tensors(p)):
        for entry in list(tensor.external_data):
            if (entry.key, entry.value) == ("offset", "0"):
                tensor.external_data.remove(entry)
    assert canonical(again) == canonical(external)


def test_external_weights_are_mapped_and_correct(tmp_path):
    onnx.save(externalise(small_model(), tmp_path), tmp_path / "m.onnx")

    model = serde.load(tmp_path / "m.onnx")

    expected = numpy_helper.to_array(small_model().graph.initializer[0])
    np.testing.assert_array_equal(model.graph.initializers["W"].const_value.numpy(), expected)
    assert model.entries[0].algorithm.initializers["W_v"].const_value.numpy().shape == (3, 2)


def test_four_bit_weights_in_external_data_keep_their_values(tmp_path):
    graph = helper.make_graph([], "g", [], [], [helper.make_tensor("i4", TensorProto.INT4, [5], [1, -2, 7, -8, 3])])
    onnx.save(externalise(helper.make_model(graph), tmp_path), tmp_path / "m.onnx")

    tensor = serde.load(tmp_path / "m.onnx").graph.initializers["i4"].const_value

    assert tensor.numpy().astype(int).tolist() == [1, -2, 7, -8, 3]


def test_an_input_that_is_an_output_keeps_both_descriptions():
    graph = helper.make_graph([], "pass", [note(value("x", ["n"]), "in")], [value("x", ["m"])])

    assert differences(helper.make_model(graph)) == []


def test_an_attribute_of_an_old_file_without_a_type_gets_the_one_it_has():
    node = helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])
    node.attribute[0].ClearField("type")
    proto = helper.make_model(helper.make_graph([node], "g", [value("x", [1, 2])], [value("y", [2, 1])]))

    again = serde.to_proto(serde.from_proto(proto))

    assert again.graph.node[0].attribute[0].type == onnx.AttributeProto.INTS
    assert list(again.graph.node[0].attribute[0].ints) == [1, 0]


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda m: m.graph.initializer.append(m.graph.initializer[0]), "initializer `W` is given twice"),
        (lambda m: m.graph.node.append(m.graph.node[0]), "output `xW` is defined twice"),
        (lambda m: m.graph.input.append(m.graph.input[0]), "input `x` is defined twice"),
        (lambda m: m.functions.append(m.functions[0]), "function `Scale` is given twice"),
        (
            lambda m: m.opset_import.add(domain="", version=3),
            "operator set `` is imported twice, in different versions",
        ),
        (lambda m: m.training_info[0].update_binding.add(key="W", value="q"), "`W` is bound twice"),
        (lambda m: m.graph.node[0].attribute.append(m.graph.node[0].attribute[0]), "an attribute is given twice"),
        (lambda m: m.functions[0].output.append("zz"), "function output `zz` is not defined"),
        (lambda m: m.graph.initializer[0].ClearField("name"), "initializer 0 has no name"),
    ],
)
def test_what_has_no_one_meaning_is_refused(spoil, text):
    proto = rich_model()
    spoil(proto)

    with pytest.raises(ModelError, match=text) as caught:
        serde.from_proto(proto)

    assert caught.value.code == "M110"


def test_an_operator_set_that_is_imported_twice_in_one_version_is_that_version():
    """skl2onnx writes such files, and onnx.checker and ONNX Runtime take them."""
    proto = small_model()
    version = proto.opset_import[0].version
    proto.opset_import.add(domain="", version=version)

    assert serde.from_proto(proto).opset == version


def test_all_problems_are_reported_at_once():
    proto = rich_model()
    proto.graph.initializer[0].dims[0] = 5
    proto.training_info[0].algorithm.initializer[0].data_type = 99
    proto.functions[0].output.append("zz")

    with pytest.raises(ModelError) as caught:
        serde.from_proto(proto)

    assert sorted(d.code for d in caught.value.diagnostics) == ["M106", "M106", "M110"]


def test_a_model_of_its_own_kind_is_returned_as_it_is():
    model = serde.from_proto(small_model())

    assert serde.load(model) is model


def test_bytes_are_a_source_too():
    assert serde.load(small_model().SerializeToString()).inputs == ["x"]
