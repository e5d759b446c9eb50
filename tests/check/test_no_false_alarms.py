"""Models that are right have no findings: ours, and every model that ONNX tests itself with."""

from __future__ import annotations

import pathlib
import warnings

import onnx
import pytest
from onnx import TensorProto, helper
from onnx.backend.test.loader import load_model_tests

from check import models
from onward.check import check
from onward.samples import SAMPLES


@pytest.mark.parametrize(
    "build",
    [models.linear, models.two_entries, models.with_functions, models.with_if, models.with_loop],
    ids=lambda b: b.__name__,
)
def test_a_right_model_has_no_findings(build):
    assert check(build()).findings == ()


@pytest.mark.parametrize("build", [models.linear, models.two_entries, models.with_functions, models.with_loop])
def test_a_right_model_has_no_findings_in_pedantic_mode_either(build):
    assert check(build(), pedantic=True).findings == ()


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_the_samples_have_no_findings_in_pedantic_mode(name):
    assert check(SAMPLES[name](), pedantic=True).findings == ()


@pytest.mark.parametrize(
    "build", [models.linear, models.two_entries, models.with_functions, models.with_if], ids=lambda b: b.__name__
)
def test_onnx_accepts_the_combined_graph_of_a_right_model(build):
    model = build()

    for index in range(len(model.training_info)):
        onnx.checker.check_model(models.combined(model, index))


def test_an_inference_model_without_training_has_no_findings():
    model = models.linear()
    del model.training_info[:]

    assert check(model).findings == ()


def test_an_empty_training_entry_is_a_no_op():
    model = models.linear()
    model.training_info.add()

    assert check(model).findings == ()


def test_a_second_order_gradient_has_no_findings():
    model = models.linear()
    algorithm = model.training_info[0].algorithm
    algorithm.node.append(
        models.node(
            "Gradient", ["W", "X", "labels"], ["ddW"], domain=models.TRAINING, xs=["W"], zs=["X", "labels"], y="dW"
        )
    )

    assert check(model).findings == ()


def test_a_gradient_through_a_loop_depends_on_the_inputs_of_the_loop_only():
    model = models.linear()
    algorithm = model.training_info[0].algorithm
    body = onnx.helper.make_graph(
        [models.node("Add", ["sum", "square"], ["next"]), models.node("Identity", ["go_on"], ["go_out"])],
        "body",
        [models.info("i", [], models.INT64), models.info("go_on", [], models.BOOL), models.info("sum", ["N", 1])],
        [models.info("go_out", [], models.BOOL), models.info("next", ["N", 1])],
    )
    algorithm.node[2].input[0] = "looped"
    algorithm.node.insert(2, models.node("Loop", ["trips", "", "square"], ["looped"], body=body))
    algorithm.node.insert(2, models.node("Constant", [], ["trips"], value_int=2))

    assert check(model, pedantic=True).findings == ()


def test_a_gradient_at_an_intermediate_that_cuts_the_graph_has_no_findings():
    model = models.linear()
    algorithm = model.training_info[0].algorithm
    algorithm.node.append(
        models.node("Gradient", ["Y", "labels"], ["dY"], domain=models.TRAINING, xs=["Y"], zs=["labels"], y="loss")
    )

    assert check(model).findings == ()


def test_foreign_operators_leave_what_follows_them_without_findings():
    model = models.linear()
    model.opset_import.append(onnx.helper.make_opsetid("com.example", 1))
    model.graph.node[0].op_type = "Magic"
    model.graph.node[0].domain = "com.example"
    model.graph.output[0].name = "score"
    model.graph.node.append(models.node("Relu", ["Y"], ["h"]))
    model.graph.node.append(models.node("Neg", ["h"], ["score"]))

    report = check(model)

    assert report.codes == ("C138",)
    assert report.ok


@pytest.mark.parametrize(
    ("operator", "kind", "inputs", "shape"),
    [
        ("STFT", TensorProto.FLOAT, {"x": [1, 128, 1], "step": 8, "": None, "length": 16}, [1, 15, 9, 2]),
        ("MeanVarianceNormalization", TensorProto.DOUBLE, {"x": [1, 3, 4, 4]}, [1, 3, 4, 4]),
        ("MeanVarianceNormalization", TensorProto.FLOAT16, {"x": [1, 3, 4, 4]}, [1, 3, 4, 4]),
    ],
)
def test_what_onnx_infers_wrongly_has_no_findings(operator, kind, inputs, shape):
    graph = helper.make_graph(
        [helper.make_node(operator, list(inputs), ["y"])],
        "g",
        [helper.make_tensor_value_info(n, kind, dims) for n, dims in inputs.items() if isinstance(dims, list)],
        [helper.make_tensor_value_info("y", kind, shape)],
        [helper.make_tensor(n, TensorProto.INT64, [], [v]) for n, v in inputs.items() if isinstance(v, int)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)

    assert check(model).findings == ()


def test_a_size_below_zero_is_an_unknown_one_and_no_contradiction():
    graph = helper.make_graph(
        [helper.make_node("Squeeze", ["x", "axes"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [-1, -1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [-1])],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [0])],
    )
    report = check(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))

    assert report.ok
    assert set(report.codes) == {"C119"}


@pytest.mark.parametrize("operator", ["GroupNormalization", "MeanVarianceNormalization"])
def test_the_stand_in_of_an_operator_has_its_types(operator):
    names = ["x", "scale", "bias"] if operator == "GroupNormalization" else ["x"]
    attributes = {"num_groups": 2} if len(names) > 1 else {}
    graph = helper.make_graph(
        [helper.make_node(operator, names, ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.INT32, [1, 4, 4] if n == "x" else [4]) for n in names],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [1, 4, 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    assert {f.code for f in check(model).findings} == {"C401"}


@pytest.fixture(scope="module")
def onnx_node_tests():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the generators divide by zero on purpose
        return load_model_tests(kind="node")


@pytest.mark.slow
def test_no_finding_in_any_of_onnx_own_node_tests(onnx_node_tests):
    findings = {case.name: report.codes for case in onnx_node_tests if (report := check(case.model)).findings}

    assert len(onnx_node_tests) > 1500
    assert findings == {}


def test_no_finding_in_any_model_that_onnx_ships():
    data = pathlib.Path(onnx.__file__).parent / "backend" / "test" / "data"
    files = sorted(data.rglob("*.onnx"))

    findings = {file.name: report.codes for file in files if (report := check(file)).findings}

    assert len(files) > 100
    assert findings == {}


def test_an_output_without_a_shape_is_worth_a_warning_because_runtimes_find_it():
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    report = check(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))

    assert report.ok
    assert report.codes == ("C119",)
