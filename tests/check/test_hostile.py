"""Files made to hurt: each gives a finding or one ModelError, quickly, and never a traceback of someone else."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from check import models
from check.models import info, node, tensor
from onward.check import check
from onward.errors import ArgumentError, ModelError


def external(name: str, location: str, **entries: str) -> onnx.TensorProto:
    made = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[3, 1], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        made.external_data.add(key=key, value=value)
    return made


def with_external(graph: str, location: str, **entries: str) -> onnx.ModelProto:
    """Return the linear model with external data in one of its graphs."""
    model = models.linear()
    made = external({"graph": "W", "algorithm": "H", "initialization": "extra"}[graph], location, **entries)
    if graph == "graph":
        model.graph.initializer[0].CopyFrom(made)
    elif graph == "algorithm":
        model.training_info[0].algorithm.initializer[2].CopyFrom(made)
    else:
        model.training_info[0].initialization.initializer.append(made)
    return model


@pytest.mark.parametrize("graph", ["graph", "algorithm", "initialization"])
@pytest.mark.parametrize(
    "location",
    ["/etc/passwd", "../secret", "a/../../secret", "..", "C:\\secret", "..\\secret", "\\\\host\\share", "~/secret",
     "*/_ORT_MEM_ADDR_/*"],
)  # fmt: skip
def test_external_data_outside_the_folder_is_an_error_in_every_graph(graph, location):
    report = check(with_external(graph, location))

    assert report.codes == ("C501",)
    assert report.findings[0].place.startswith(graph if graph == "graph" else f"training_info[0].{graph}")


@pytest.fixture
def saved(tmp_path):
    def save(model: onnx.ModelProto) -> str:
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        return str(path)

    return save


def test_external_data_next_to_the_model_is_accepted(saved, tmp_path):
    (tmp_path / "weights.bin").write_bytes(bytes(12))

    assert check(saved(with_external("algorithm", "weights.bin", offset="0", length="12"))).codes == ()


def test_external_data_that_is_missing_is_an_error(saved):
    assert check(saved(with_external("algorithm", "weights.bin"))).codes == ("C502",)


def test_external_data_that_is_too_short_is_an_error(saved, tmp_path):
    (tmp_path / "weights.bin").write_bytes(bytes(12))

    report = check(saved(with_external("graph", "weights.bin", offset="8")))

    assert report.codes == ("C502",)
    assert report.findings[0].needed == "at least 20"


def test_external_data_through_a_symbolic_link_is_an_error(saved, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(bytes(12))
    inside = tmp_path / "inside"
    inside.mkdir()
    os.symlink(outside / "secret", inside / "weights.bin")
    path = inside / "m.onnx"
    path.write_bytes(with_external("algorithm", "weights.bin").SerializeToString())

    assert check(path).codes == ("C501",)


def test_external_data_through_a_linked_folder_is_an_error(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "weights.bin").write_bytes(bytes(12))
    inside = tmp_path / "inside"
    inside.mkdir()
    os.symlink(outside, inside / "data")
    path = inside / "m.onnx"
    path.write_bytes(with_external("graph", "data/weights.bin").SerializeToString())

    assert check(path).codes == ("C501",)


def test_external_data_through_a_hard_link_is_an_error(saved, tmp_path):
    (tmp_path / "secret").write_bytes(bytes(12))
    os.link(tmp_path / "secret", tmp_path / "weights.bin")

    assert check(saved(with_external("graph", "weights.bin"))).codes == ("C502",)


def test_external_data_that_is_a_folder_is_an_error(saved, tmp_path):
    (tmp_path / "weights.bin").mkdir()

    assert "C502" in check(saved(with_external("graph", "weights.bin"))).codes


@pytest.mark.parametrize(
    "entries", [{"offset": "-4"}, {"length": "-1"}, {"offset": "1e3"}, {"length": str(2**50)}, {"length": "９"}]
)
def test_external_data_with_impossible_numbers_is_an_error(entries):
    assert check(with_external("algorithm", "weights.bin", **entries)).codes == ("C503",)


def test_external_data_without_location_is_an_error():
    assert check(with_external("graph", "")).codes == ("C503",)


@pytest.mark.parametrize("dims", [[2**62, 2**62], [-1, 3], [2**40, 2**40, 0], [2**63 - 1, 2]])
def test_dims_whose_product_overflows_are_an_error(dims):
    model = models.linear()
    model.training_info[0].algorithm.initializer.append(
        TensorProto(name="huge", data_type=TensorProto.FLOAT, dims=dims)
    )

    report = check(model)

    assert report.codes == ("C506",)
    assert "`huge`" in report.findings[0].place


def test_overflowing_dims_of_a_used_weight_do_not_stop_the_check():
    model = models.linear()
    model.graph.initializer[0].CopyFrom(TensorProto(name="W", data_type=TensorProto.FLOAT, dims=[2**62, 2**62]))

    assert "C506" in check(model).codes


@pytest.mark.parametrize(
    ("marker", "place"),
    [(b"MatMul", "graph.node[0].op_type"), (b"labels", "training_info[0].algorithm.node[0].input"),
     (b"W_new", "training_info[0].update_binding[0].value")],
)  # fmt: skip
def test_text_that_is_not_utf8_is_named_by_its_field(marker, place):
    data = models.linear().SerializeToString().replace(marker, b"\xff" * len(marker))

    report = check(data)

    assert set(report.codes) == {"C509"}
    assert place in [f.place for f in report.findings]


def nested(depth: int) -> onnx.ModelProto:
    """Return If in If in If: `depth` graphs, built in place, since protobuf refuses to parse that much."""
    model = models.model_of(helper.make_graph([], "g", [info("X", [2]), info("c", [], TensorProto.BOOL)], []))
    graph = model.graph
    for level in range(depth - 1):
        graph.name = f"g{level}"
        graph.output.append(info(f"y{level}", [2]))
        made = graph.node.add(op_type="If", input=["c"], output=[f"y{level}"])
        other = helper.make_graph([node("Identity", ["X"], [f"z{level}"])], "else", [], [info(f"z{level}", [2])])
        made.attribute.append(helper.make_attribute("else_branch", other))
        graph = made.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g
    graph.name = "innermost"
    graph.node.append(node("Identity", ["X"], ["y"]))
    graph.output.append(info("y", [2]))
    return model


@pytest.mark.parametrize("depth", [33, 60, 2000])
def test_graphs_nested_too_deeply_are_one_error(depth):
    model = nested(depth)

    report = check(model)

    assert report.codes == ("C507",)


@pytest.mark.parametrize("depth", [10, 31, 32])
def test_graphs_nested_up_to_the_limit_are_checked(depth):
    model = nested(depth)

    assert check(model).codes == ()


def test_doubling_functions_are_counted_and_not_expanded():
    functions = []
    for level in range(30):
        body = [node("Relu", ["a"], ["b"])] if level == 0 else [
            node(f"F{level - 1}", ["a"], ["m"], domain="bomb"), node(f"F{level - 1}", ["m"], ["b"], domain="bomb")
        ]  # fmt: skip
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("bomb", 1)]
        functions.append(helper.make_function("bomb", f"F{level}", ["a"], ["b"], body, imports))
    graph = helper.make_graph([node("F29", ["X"], ["Y"], domain="bomb")], "g", [info("X", [2])], [info("Y", [2])])

    report = check(models.model_of(graph, functions=tuple(functions), domains=("bomb",)))

    assert report.codes == ("C508",)
    assert "1,610,612,735" in report.findings[0].message


def test_a_long_chain_of_functions_is_an_error_and_not_a_stack_overflow():
    functions = []
    for level in range(5000):
        body = [node("Relu", ["a"], ["b"])] if level == 0 else [node(f"F{level - 1}", ["a"], ["b"], domain="chain")]
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("chain", 1)]
        functions.append(helper.make_function("chain", f"F{level}", ["a"], ["b"], body, imports))
    graph = helper.make_graph([node("F4999", ["X"], ["Y"], domain="chain")], "g", [info("X", [2])], [info("Y", [2])])

    report = check(models.model_of(graph, functions=tuple(functions), domains=("chain",)))

    assert set(report.codes) == {"C507"}


def test_a_function_that_calls_itself_is_an_error():
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("me", 1)]
    function = helper.make_function("me", "F", ["a"], ["b"], [node("F", ["a"], ["b"], domain="me")], imports)
    graph = helper.make_graph([node("F", ["X"], ["Y"], domain="me")], "g", [info("X", [2])], [info("Y", [2])])

    report = check(models.model_of(graph, functions=(function,), domains=("me",)))

    assert report.codes == ("C144",)


def test_an_empty_model_proto_has_findings():
    assert not check(onnx.ModelProto()).ok


def test_an_empty_graph_is_named():
    report = check(helper.make_model(onnx.GraphProto()))

    assert report.codes == ("C130",)


NOISE = np.random.default_rng(0).bytes(64)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00", b"hello world, this is no model", b"\x08\x07\x3a\xff", NOISE],
    ids=["empty", "zero", "text", "cut", "noise"],
)
def test_bytes_that_are_no_model_raise_model_error(data):
    with pytest.raises(ModelError):
        check(data)


def test_a_file_that_does_not_exist_raises_model_error(tmp_path):
    with pytest.raises(ModelError, match="nothing.onnx"):
        check(tmp_path / "nothing.onnx")


def test_a_folder_raises_model_error(tmp_path):
    with pytest.raises(ModelError):
        check(tmp_path)


def test_a_truncated_file_raises_model_error():
    data = models.linear().SerializeToString()

    with pytest.raises(ModelError):
        check(data[: len(data) // 2])


def test_a_source_of_the_wrong_kind_names_the_valid_ones():
    with pytest.raises(ArgumentError, match="a path, bytes, an onnx.ModelProto or a TrainingModel"):
        check(42)


def test_control_characters_in_names_do_not_reach_the_terminal():
    model = models.linear()
    model.graph.node[0].input[0] = "\x1b[2Jgone"

    text = check(model).render()

    assert "\x1b" not in text
    assert "\\x1b[2Jgone" in text


def test_thousands_of_unknown_names_do_not_take_long():
    nodes = [node("Relu", [f"missing{i}"], [f"y{i}"]) for i in range(3000)]
    graph = helper.make_graph(nodes, "g", [info("X", [2])], [info("y0", [2])])

    report = check(models.model_of(graph))

    assert len(report.errors) == 3000


def test_many_gradients_over_a_long_chain_are_bounded(monkeypatch):
    monkeypatch.setattr("onward.check.gradient_nodes._VISITS", 10)
    model = models.linear()

    report = check(model)

    assert report.ok
    assert report.codes == () or report.codes == ("C213",)


def test_check_leaves_the_model_as_it_was():
    model = models.with_if()
    before = model.SerializeToString(deterministic=True)

    check(model)

    assert model.SerializeToString(deterministic=True) == before


def test_large_initializers_are_not_copied_and_still_typed():
    model = models.linear()
    model.graph.input[0].CopyFrom(info("X", ["N", 3000]))
    model.graph.initializer[0].CopyFrom(tensor("W", np.ones((3000, 2))))

    codes = set(check(model).codes)

    assert codes == {"C114", "C306", "C412"}  # W_new, dW and H are of the old shape, and so is the stated shape of Y


def test_hundreds_of_type_errors_are_bounded_and_the_rest_is_announced():
    nodes = [node("Add", ["X", "I"], [f"y{i}"]) for i in range(200)]
    graph = helper.make_graph(nodes, "g", [info("X", [2]), info("I", [2], TensorProto.INT64)], [info("y0", [2])])

    report = check(models.model_of(graph))

    assert len(report.errors) == 40
    assert set(report.codes) == {"C401", "C411"}
    assert "not every type" in report.notes[0].message


def test_thousands_of_calls_are_checked_without_the_inference_that_would_take_minutes(monkeypatch):
    monkeypatch.setattr("onward.check.types._COPIED_NAMES", 2)
    model = models.with_if()

    report = check(model)

    assert report.ok
    assert set(report.codes) == {"C411"}
