"""What every ONNX graph has to meet, broken one thing at a time: versions, operators, attributes, types."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from check import models
from check.broken import Cases, algorithm, assert_reported, initialization, then_branch
from check.models import BOOL, INT64, info, node, tensor
from onward.check import check

CASES = Cases()
case = CASES.add


# The conditions of every ONNX graph


@case("C136", culprit="`MatMul` has too few inputs")
def node_with_too_few_inputs(model):
    del model.graph.node[0].input[1]


@case("C136", culprit="too many outputs")
def node_with_too_many_outputs(model):
    algorithm(model).node[5].output.append("more")


@case("C136", culprit="input 0 (`A`)")
def required_input_is_left_out(model):
    algorithm(model).node[0].input[0] = ""


@case("C137", culprit="`keepdim`")
def node_with_an_unknown_attribute(model):
    algorithm(model).node[2].attribute[0].name = "keepdim"


@case("C137", culprit="found: FLOAT")
def attribute_of_the_wrong_type(model):
    algorithm(model).node[2].attribute[0].CopyFrom(helper.make_attribute("keepdims", 1.5))


@case("C137", culprit="required attribute `shape`")
def required_attribute_is_missing(model):
    del initialization(model).node[0].attribute[:]


@case("C137", culprit="given twice")
def attribute_is_given_twice(model):
    algorithm(model).node[2].attribute.append(algorithm(model).node[2].attribute[0])


@case("C137", culprit="this node is not in a function")
def attribute_reference_outside_a_function(model):
    algorithm(model).node[2].attribute[0].ref_attr_name = "keepdims"


@case("C137", culprit="`keepdim`, which is not an attribute of the function", base=models.with_functions)
def attribute_reference_to_nothing(model):
    model.functions[1].node[2].attribute[0].ref_attr_name = "keepdim"


@case("C137", culprit="has no value")
def attribute_without_value(model):
    algorithm(model).node[2].attribute[0].ClearField("i")


@case("C137", culprit="has its value in the field `f`")
def attribute_with_its_value_in_another_field(model):
    attribute = algorithm(model).node[2].attribute[0]
    attribute.f = 1.0


@case("C133", culprit="use an Identity", base=models.with_if)
def subgraph_gives_out_a_value_of_the_graph_around_it(model):
    then_branch(model).output[0].name = "difference"


@case("C118", culprit="declares its attribute `keepdims` twice", base=models.with_functions)
def function_declares_an_attribute_twice(model):
    model.functions[1].attribute.append("keepdims")


@case("C135", culprit="`Upsample`")
def deprecated_operator(model):
    algorithm(model).node.append(node("Upsample", ["labels", "R"], ["up"]))


@case("C138", culprit="`Magic` of `com.example`")
def operator_of_a_foreign_domain(model):
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    algorithm(model).node.append(node("Magic", ["labels"], ["magic"], domain="com.example"))


@case("C139", culprit="versions 21 and 13")
def opset_is_imported_twice(model):
    model.opset_import.append(helper.make_opsetid("ai.onnx", 13))


@case("C139", culprit="newer than the installed onnx")
def opset_of_the_future(model):
    model.opset_import[0].version = 999


@case("C140", culprit="no ir_version")
def ir_version_is_missing(model):
    model.ClearField("ir_version")


@case("C130", culprit="initializer 1 has no name")
def initializer_without_name(model):
    model.graph.initializer.append(tensor("", 1.0))


@case("C401", culprit="`labels` FLOAT[5]")
def shapes_do_not_fit_in_the_algorithm(model):
    model.graph.input[0].CopyFrom(info("X", [4, 3]))
    model.graph.output[0].CopyFrom(info("Y", [4, 2]))
    model.graph.initializer[0].CopyFrom(tensor("W", np.ones((3, 2))))
    model.training_info[0].CopyFrom(
        helper.make_training_info(
            helper.make_graph(
                [node("Sub", ["Y", "labels"], ["difference"]), node("Neg", ["W"], ["W_new"])],
                "step",
                [info("labels", [5])],
                [info("W_new", [3, 2])],
            ),
            [("W", "W_new")],
            None,
            None,
        )
    )


@case("C401", culprit="(called from training_info[0].algorithm, node 0", base=models.with_functions)
def types_do_not_fit_in_a_function(model):
    algorithm(model).input[0].CopyFrom(info("labels", ["N", 1], INT64))


@case("C401", culprit=".then_branch, the only Add", base=models.with_if)
def types_do_not_fit_in_a_subgraph(model):
    branch = then_branch(model)
    branch.node.append(node("Add", ["s", "T"], ["odd"]))


@case("C401", culprit="`Y`")
def declared_output_is_of_another_type(model):
    model.graph.output[0].CopyFrom(info("Y", ["N", 1], INT64))


@case("C401", culprit="`Y` is declared as FLOAT[4, 4], and is FLOAT[N, 1] in graph")
def algorithm_declares_an_inference_value_as_another_type(model):
    algorithm(model).value_info.append(info("Y", [4, 4]))


@case("C402", culprit="needed: FLOAT[4, 1]")
def default_does_not_fit_its_input(model):
    model.graph.input.append(info("W", [4, 1]))


@case("C402", culprit="the value_info of the same name")
def initializer_is_declared_as_another_type(model):
    algorithm(model).value_info.append(info("T", []))


@case("C141", culprit="warning[C141]: initializers are missing from the inputs")
def initializer_is_no_input_in_ir_3(model):
    model.ir_version = 3
    del model.training_info[:]


@case("C131", culprit="warning[C131]: `A` in a subgraph", base=models.with_loop)
def input_of_a_subgraph_hides_a_name(model):
    model.graph.node.insert(0, node("Neg", ["X"], ["A"]))
    body = model.graph.node[1].attribute[0].g
    body.input[2].name = body.node[0].input[0] = "A"


@pytest.mark.parametrize("broken", CASES, ids=lambda c: c.name)
def test_a_broken_condition_is_reported_with_its_code_and_culprit(broken):
    assert_reported(broken)


def test_shapes_of_a_bool_initializer_are_known():
    model = models.with_if()
    model.training_info[0].algorithm.output.append(info("use_square", [], BOOL))

    assert check(model).codes == ()


def test_what_only_onnx_checker_refuses_is_reported_at_its_node(monkeypatch):
    def refuse(model):
        raise onnx.checker.ValidationError(f"Bad node spec for node. Name: {model.graph.node[0].name} OpType: MatMul")

    monkeypatch.setattr(onnx.checker, "check_model", refuse)

    report = check(models.with_loop())

    assert report.codes == ("C410",)
    assert report.findings[0].place == "graph, the only Loop"
