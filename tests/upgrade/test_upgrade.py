"""Old files in today's form, with the same numbers."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import onward
from hostile.files import TRAINING, floats, momentum_entry, small_model, value
from onward.backends import open_session
from onward.errors import ArgumentError, ModelError
from onward.model import serde
from onward.upgrade import normalise, upgrade


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], outputs: list[str] | None = None) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(outputs, feeds)


def old_model() -> onnx.ModelProto:
    """Return an opset 10 model whose nodes nearly all changed since, in every kind of graph."""
    branch = helper.make_graph(
        [
            helper.make_node("Clip", ["h"], ["inner"], min=-0.5, max=0.5),
            helper.make_node("Softmax", ["inner"], ["t"], axis=1),
        ],
        "then",
        [],
        [value("t", ["batch", 4])],
    )
    other = helper.make_graph([helper.make_node("Relu", ["h"], ["e"])], "else", [], [value("e", ["batch", 4])])
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["h"], "matmul"),
        helper.make_node("If", ["flag"], ["chosen"], "if", then_branch=branch, else_branch=other),
        helper.make_node("Unsqueeze", ["chosen"], ["u"], "unsqueeze", axes=[0]),
        helper.make_node("Squeeze", ["u"], ["s"], "squeeze", axes=[0]),
        helper.make_node("Dropout", ["s"], ["d"], "dropout", ratio=0.25),
        helper.make_node("ReduceSum", ["d"], ["y"], "sum", axes=[1], keepdims=1),
    ]
    nodes[3].doc_string = "kept"
    nodes[3].metadata_props.add(key="source", value="squeeze.py")
    big = numpy_helper.from_array(np.linspace(-1, 1, 3 * 4, dtype=np.float32).reshape(3, 4), "W")
    graph = helper.make_graph(
        nodes, "old", [value("x", ["batch", 3]), value("flag", [], TensorProto.BOOL)], [value("y", ["batch", 1])], [big]
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 10), helper.make_opsetid(TRAINING, 1)], ir_version=7
    )
    entry = momentum_entry(["W"], shapes={"W": [3, 4]})
    mean = next(n for n in entry.algorithm.node if n.op_type == "ReduceMean")
    mean.op_type = "ReduceSum"
    mean.attribute.append(helper.make_attribute("axes", [0, 1]))
    entry.algorithm.node.append(helper.make_node("Unsqueeze", ["loss"], ["loss_u"], "lu", axes=[0]))
    entry.initialization.node.append(helper.make_node("Unsqueeze", ["W_init"], ["W_init2"], "iu", axes=[0]))
    entry.initialization.node.append(helper.make_node("Squeeze", ["W_init2"], ["W_init3"], "is", axes=[0]))
    entry.initialization.output.append(value("W_init3", [3, 4]))
    model.training_info.append(entry)
    return model


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("opset", [13, 18, 21])
def test_an_old_model_computes_the_same_at_a_newer_opset(opset, flag):
    proto = old_model()
    feeds = {"x": np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32), "flag": np.array(flag)}

    new = upgrade(proto, opset).proto()

    np.testing.assert_array_equal(run(new, feeds)[0], run(proto, feeds)[0])
    assert new.opset_import[0].version == opset
    onnx.checker.check_model(new, full_check=True)


def test_the_training_graph_is_converted_with_the_inference_graph():
    new = upgrade(old_model()).proto()

    algorithm = new.training_info[0].algorithm
    reduce = next(n for n in algorithm.node if n.op_type == "ReduceSum")
    unsqueeze = next(n for n in algorithm.node if n.name == "lu")
    assert (len(reduce.input), len(unsqueeze.input)) == (2, 2)
    assert next(n for n in new.training_info[0].initialization.node if n.name == "iu").input[1]


def test_the_combined_graph_is_valid_after_the_upgrade():
    new = upgrade(old_model()).proto()

    combined = onnx.ModelProto()
    combined.CopyFrom(new)
    for field in ("input", "initializer", "output", "node"):
        getattr(combined.graph, field).extend(getattr(new.training_info[0].algorithm, field))
    onnx.checker.check_model(combined)


def test_bindings_gradient_attributes_and_names_are_kept():
    old = old_model()

    new = upgrade(old).proto()

    before, after = old.training_info[0], new.training_info[0]
    gradient = next(n for n in after.algorithm.node if n.op_type == "Gradient")
    assert gradient == next(n for n in before.algorithm.node if n.op_type == "Gradient")
    assert list(after.update_binding) == list(before.update_binding)
    assert {o for n in before.algorithm.node for o in n.output} <= {o for n in after.algorithm.node for o in n.output}


def test_documentation_and_metadata_of_converted_nodes_are_kept():
    new = upgrade(old_model()).proto()

    squeeze = next(n for n in new.graph.node if n.name == "squeeze")
    assert (squeeze.doc_string, squeeze.metadata_props[0].value) == ("kept", "squeeze.py")


def test_weights_are_shared_not_copied():
    graph = helper.make_graph(
        [helper.make_node("Squeeze", ["W"], ["y"], axes=[0])], "g", [], [value("y", [5000])], [floats("W", 1, 5000)]
    )
    model = serde.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)]))

    new = upgrade(model)

    assert new.graph.initializers["W"].const_value is model.graph.initializers["W"].const_value
    assert model.opset == 11


def with_function(body: list[onnx.NodeProto], opset: int = 11) -> onnx.ModelProto:
    function = helper.make_function("my", "F", ["a"], ["b"], body, [helper.make_opsetid("", opset)])
    graph = helper.make_graph(
        [helper.make_node("F", ["x"], ["y"], domain="my")], "g", [value("x", [1, 3])], [value("y", None)]
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("my", 1)]
    return helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=8)


def test_a_function_is_converted_with_the_model():
    proto = with_function([helper.make_node("Squeeze", ["a"], ["b"], axes=[0])])
    x = np.ones((1, 3), np.float32)

    new = upgrade(proto).proto()

    assert new.functions[0].opset_import[0].version == 18
    np.testing.assert_array_equal(
        ReferenceEvaluator(new).run(None, {"x": x})[0], ReferenceEvaluator(proto).run(None, {"x": x})[0]
    )


def test_a_function_whose_changed_attribute_is_the_callers_keeps_its_own_opset():
    proto = with_function([helper.make_node("Squeeze", ["a"], ["b"])])
    proto.functions[0].attribute.append("axes")
    proto.functions[0].node[0].attribute.add(name="axes", ref_attr_name="axes", type=onnx.AttributeProto.INTS)
    proto.graph.node[0].attribute.append(helper.make_attribute("axes", [0]))

    new = upgrade(proto).proto()

    assert new.opset_import[0].version == 18
    assert new.functions[0] == proto.functions[0]


def test_a_reference_in_an_unchanged_node_of_a_converted_function_is_kept():
    transpose = helper.make_node("Identity", ["s"], ["b"])
    transpose.attribute.add(name="odd", ref_attr_name="odd", type=onnx.AttributeProto.INTS)
    transpose.domain = "my"
    proto = with_function([helper.make_node("Squeeze", ["a"], ["s"], axes=[0]), transpose])

    new = upgrade(proto).proto()

    assert new.functions[0].node[-1] == transpose


def test_nodes_that_cannot_be_converted_are_all_named():
    nodes = [
        helper.make_node("Add", ["x", "x"], ["a"], "first", broadcast=1, axis=0),
        helper.make_node("Abs", ["a"], ["b"], "fine"),
        helper.make_node("Mul", ["b", "x"], ["y"], "second", broadcast=1, axis=0),
    ]
    graph = helper.make_graph(nodes, "g", [onnx.ValueInfoProto(name="x")], [onnx.ValueInfoProto(name="y")])

    with pytest.raises(ModelError) as caught:
        upgrade(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)]))

    places = ["graph, node `first`", "graph, node `second`"]
    assert [(d.code, d.place) for d in caught.value.diagnostics] == [("M121", p) for p in places]


def test_a_model_that_is_new_enough_is_returned_as_it_is():
    model = serde.from_proto(small_model())

    assert upgrade(model) is model
    assert normalise(model) is model


@pytest.mark.parametrize("opset", [9, 1000])
def test_an_impossible_opset_is_refused(opset):
    with pytest.raises(ArgumentError, match="needed: a version from 18 to"):
        upgrade(small_model(), opset)


def legacy(call: onnx.NodeProto, inputs: list[str], rename: dict[str, str] | None = None) -> onnx.ModelProto:
    """Return the small model in the form of ONNX 1.7."""
    proto = small_model()
    proto.ir_version = 7
    algorithm = proto.training_info[0].algorithm
    algorithm.node.insert(0, call)
    for name in inputs:
        algorithm.input.append(value(name, ["batch", 3]))
    for node in algorithm.node[1:]:
        for index, name in enumerate(node.input):
            node.input[index] = (rename or {}).get(name, name)
    return proto


def graph_call(inputs: list[str], outputs: list[str]) -> onnx.NodeProto:
    return helper.make_node("GraphCall", inputs, outputs, "call", domain=TRAINING, graph_name="small")


def loss_of(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """Return the loss of the combined graph, Gradient and the optimizer left out."""
    combined = onnx.ModelProto()
    combined.CopyFrom(proto)
    algorithm = proto.training_info[0].algorithm
    combined.ClearField("training_info")
    for field in ("input", "initializer", "node"):
        getattr(combined.graph, field).extend(getattr(algorithm, field))
    wanted = [n for n in combined.graph.node if n.domain != TRAINING]
    del combined.graph.node[:]
    combined.graph.node.extend(wanted)
    del combined.graph.output[:]
    combined.graph.output.append(value("loss", []))
    return run(combined, feeds)[0]


def test_a_call_with_the_graphs_own_names_is_removed():
    proto = legacy(graph_call(["x"], ["y"]), ["x"])

    new = upgrade(proto).proto()

    expected = small_model()
    expected.ir_version = new.ir_version
    assert new.training_info[0] == expected.training_info[0]


def test_a_call_with_other_names_is_removed_and_its_values_renamed():
    proto = legacy(graph_call(["batch_x"], ["prediction"]), ["batch_x"], {"y": "prediction"})

    new = upgrade(proto).proto()

    algorithm = new.training_info[0].algorithm
    assert [v.name for v in algorithm.input] == ["labels"]
    assert list(algorithm.node[0].input) == ["y", "labels"]


def test_data_may_use_the_names_of_the_algorithm_or_those_of_the_graph(tmp_path):
    proto = legacy(graph_call(["batch_x"], ["prediction"]), ["batch_x"], {"y": "prediction"})
    rng = np.random.default_rng(1)
    x, t = rng.normal(size=(4, 3)).astype(np.float32), rng.normal(size=(4, 2)).astype(np.float32)
    onward.save(upgrade(proto), tmp_path / "upgraded.onnx")
    program = onward.compile(proto)
    program.save(tmp_path / "program")

    def losses(source, name):
        trainer = onward.Trainer(source)
        first = float(trainer.step({name: x, "labels": t})["loss"])
        trainer.fit({name: x, "labels": t}, epochs=1, batch_size=4)
        return first, float(trainer.step({name: x, "labels": t})["loss"])

    wanted = losses(proto, "x")

    assert losses(proto, "batch_x") == wanted
    assert losses(tmp_path / "upgraded.onnx", "batch_x") == wanted
    assert onward.Program.load(tmp_path / "program").inputs[0].also == ("batch_x",)
    with pytest.raises(onward.OnwardError, match="the step has no input `batch`"):
        losses(proto, "batch")


def test_a_call_on_a_computed_value_is_inlined_with_the_same_numbers():
    proto = legacy(graph_call(["doubled"], ["prediction"]), ["raw"], {"y": "prediction"})
    proto.training_info[0].algorithm.node.insert(0, helper.make_node("Add", ["raw", "raw"], ["doubled"]))
    rng = np.random.default_rng(1)
    x, t = rng.normal(size=(4, 3)).astype(np.float32), rng.normal(size=(4, 2)).astype(np.float32)

    new = upgrade(proto).proto()

    plain = loss_of(upgrade(legacy(graph_call(["x"], ["y"]), ["x"])).proto(), {"x": 2 * x, "labels": t})
    np.testing.assert_allclose(loss_of(new, {"x": x, "raw": x, "labels": t}), plain, rtol=1e-6)
    assert not [n for n in new.training_info[0].algorithm.node if n.op_type == "GraphCall"]


def test_two_calls_become_the_graph_and_a_copy():
    proto = legacy(graph_call(["x"], ["y"]), ["x", "other"])
    second = graph_call(["other"], ["second_y"])
    second.name = "again"
    proto.training_info[0].algorithm.node.insert(1, second)

    new = upgrade(proto).proto()

    algorithm = new.training_info[0].algorithm
    assert [n.op_type for n in algorithm.node][:3] == ["MatMul", "Add", "Sub"]
    assert algorithm.node[1].output[0] == "second_y"
    assert [v.name for v in algorithm.input] == ["labels", "other"]


def test_names_that_the_algorithm_could_not_see_are_renamed_in_attributes_and_bindings():
    proto = legacy(graph_call(["x"], ["y"]), ["x"])
    info = proto.training_info[0]
    for node in info.algorithm.node:  # the loss is called `xW`, as a hidden value of the graph is
        for field in (node.input, node.output):
            for index, name in enumerate(field):
                field[index] = "xW" if name == "loss" else name
        for attribute in node.attribute:
            if attribute.name == "y":
                attribute.s = b"xW"
    info.algorithm.output[0].name = "xW"

    new = upgrade(proto).proto()

    gradient = next(n for n in new.training_info[0].algorithm.node if n.op_type == "Gradient")
    assert onnx.helper.get_node_attr_value(gradient, "y") == b"train/xW"
    assert new.training_info[0].algorithm.output[0].name == "train/xW"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: c.attribute[0].__setattr__("s", b"other"), "the call names another graph"),
        (lambda c: c.input.extend(["x", "x"]), "the call does not fit the graph"),
        (lambda c: c.ClearField("input"), "the call leaves out input `x`"),
    ],
)
def test_a_call_that_onnx_1_7_does_not_allow_is_refused(change, text):
    call = graph_call(["x"], ["y"])
    change(call)

    with pytest.raises(ModelError, match=text) as caught:
        upgrade(legacy(call, ["x"]))

    assert caught.value.code == "M120"


def test_a_malformed_node_is_refused_before_it_crashes_the_converter():
    node = helper.make_node("ReduceSum", ["x"], ["y"], "sum", axes=[0])
    node.attribute[0].type = onnx.AttributeProto.FLOAT
    node.attribute[0].f = 1.0
    node.attribute[0].ClearField("ints")
    graph = helper.make_graph([node], "g", [value("x", [2])], [value("y", [1])])

    with pytest.raises(ModelError) as caught:
        upgrade(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)]))

    assert caught.value.code == "M121"


@pytest.mark.parametrize("opset", [7, 9, 11, 12])
def test_weights_in_large_constants_are_kept(opset: int) -> None:
    """All PaddlePaddle exports and many scripted PyTorch ones store their weights so."""
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    nodes = [
        helper.make_node("Constant", [], ["W"], value=numpy_helper.from_array(weight, "W")),
        helper.make_node("MatMul", ["x", "W"], ["h"]),
        helper.make_node("Softmax", ["h"], ["y"], axis=1),
    ]
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N", 64]) for n in "xy")
    old = helper.make_model(
        helper.make_graph(nodes, "net", [x], [y]), opset_imports=[helper.make_opsetid("", opset)], ir_version=7
    )

    model = onward.make_trainable(old, loss="mse")

    np.testing.assert_array_equal(model.parameters["W"].const_value.numpy(), weight)
    batch = np.ones((2, 64), np.float32)
    expected = ReferenceEvaluator(old).run(None, {"x": batch})[0]
    np.testing.assert_allclose(onward.Trainer(model).predict(batch), expected, rtol=1e-5, atol=1e-7)


def test_a_size_of_minus_one_is_unknown_as_in_onnxruntime() -> None:
    nodes = [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("MatMul", ["flat", "W"], ["y"])]
    weights = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)
    graph = helper.make_graph(
        nodes, "net", [value("x", [-1, 2, 2])], [value("y", [-1, 2])], [numpy_helper.from_array(weights, "W")]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7)
    loaded = onward.load(proto)
    x, labels = np.arange(12, dtype=np.float32).reshape(3, 2, 2) / 10, np.ones((3, 2), np.float32)

    model = onward.make_trainable(loaded, loss="mse", optimizer=onward.SGD(0.5))
    session = open_session(onward.compile(model), "onnxruntime")
    loss = session.step({"x": x, "labels": labels})["loss"]

    error = x.reshape(3, 4) @ weights - labels
    np.testing.assert_allclose(loss, (error**2).mean(), rtol=1e-6)
    slope = x.reshape(3, 4).T @ error * 2 / error.size
    np.testing.assert_allclose(session.get_state()["W"], weights - 0.5 * slope, rtol=1e-5)
    assert [d.dim_value for d in loaded.proto().graph.input[0].type.tensor_type.shape.dim] == [-1, 2, 2]  # unchanged


def batched_scan(sequence_lens: str) -> onnx.ModelProto:
    """Return a Scan of operator set 8, which works on a batch, from the end of the sequences to their beginning."""
    body = onnx.parser.parse_graph(
        "b (float[2] s, float[2] n) => (float[2] t, float[2] o) { t = Mul(s, n) o = Add(t, n) }"
    )
    inputs = [sequence_lens, "first", "x"]
    node = helper.make_node("Scan", inputs, ["last", "all"], body=body, num_scan_inputs=1, directions=[1])
    given = [value("first", [3, 2]), value("x", [3, 4, 2])]
    given += [value("lengths", [3], TensorProto.INT64)] if sequence_lens else []
    graph = helper.make_graph([node], "g", given, [value("last", [3, 2]), value("all", [3, 4, 2])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=3)


def test_a_scan_over_a_batch_becomes_two_scans_with_the_numbers_of_onnxruntime():
    proto = batched_scan("")
    feeds = {n: numpy_helper.to_array(floats(n, *shape)) for n, shape in (("first", [3, 2]), ("x", [3, 4, 2]))}

    new = upgrade(proto).proto()

    for found, wanted in zip(run(new, feeds), run(proto, feeds), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_scan_over_sequences_of_several_lengths_is_refused():
    with pytest.raises(ModelError, match="sequence_lens"):
        upgrade(batched_scan("lengths"))
