"""The rules on types, broken inside function bodies, where a value has a type at each call only."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from check import models
from check.broken import Cases, algorithm, assert_reported, set_names
from check.models import FLOAT, info, node, tensor
from onward.check import check
from onward.check.inference_copies import Copier

CASES = Cases()


def case(*codes: str, culprit: str):
    return CASES.add(*codes, culprit=culprit, base=models.with_training_function)


@case("C306", "C114", culprit='node 5 "update" (Adagrad) (called from functions[1] `my::Outer`, the only Step)')
def state_of_another_shape_than_the_weight(model):
    algorithm(model).initializer[2].CopyFrom(tensor("H", np.zeros((3, 2))))
    algorithm(model).output[2].CopyFrom(info("H_new", [3, 2]))


@case("C304", culprit="T of `Adagrad`, `n`")
def count_that_is_a_float(model):
    algorithm(model).node[0].input[4] = "R"


@case("C303", culprit="R of `Adagrad`, `r`")
def learning_rate_with_two_elements(model):
    algorithm(model).initializer[0].CopyFrom(tensor("R", [0.1, 0.2]))


@case("C209", culprit="the input `h2` does not match `w`")
def gradient_input_of_another_shape(model):
    model.functions[0].node.insert(4, node("Concat", ["w", "w"], ["h2"], axis=0))
    model.functions[0].node[5].input[0] = "h2"


@case("C210", culprit="`n`, which is INT64[]")
def gradient_with_respect_to_an_integer(model):
    model.functions[0].node.insert(2, node("Cast", ["n"], ["n_float"], to=FLOAT))
    model.functions[0].node.insert(3, node("Add", ["d", "n_float"], ["e"]))
    model.functions[0].node[4].input[0] = "e"
    gradient = model.functions[0].node[6]
    set_names(gradient, "xs", "w", "n")
    gradient.input.insert(1, "n")


@case("C304", culprit="T of `Adagrad`, `n_cast`")
def count_cast_to_the_type_of_an_attribute(model):
    step, outer = model.functions
    step.attribute.append("to")
    outer.attribute.append("to")
    step.node.insert(0, node("Cast", ["n"], ["n_cast"]))
    step.node[0].attribute.add(name="to", type=onnx.AttributeProto.INT).ref_attr_name = "to"
    step.node[6].input[1] = "n_cast"
    outer.node[0].attribute.add(name="to", type=onnx.AttributeProto.INT).ref_attr_name = "to"
    algorithm(model).node[0].attribute.append(helper.make_attribute("to", FLOAT))


@pytest.mark.parametrize("broken", CASES, ids=lambda c: c.name)
def test_a_rule_broken_in_a_function_is_reported_with_its_code_and_culprit(broken):
    assert_reported(broken)


def test_a_step_in_a_function_has_no_findings():
    assert check(models.with_training_function(), pedantic=True).findings == ()


def _call_again(model, weight, state):
    """Let the algorithm call the step once more, with another weight and state."""
    again = ["W2", "X2", "labels", "R", "T", "H2"]
    algorithm(model).node.append(node("Step", again, ["loss_2", "W2_new", "H2_new"], name="again", domain="my"))
    algorithm(model).initializer.extend([tensor("W2", weight), tensor("H2", state), tensor("X2", np.ones((5, 2)))])


def test_a_function_is_checked_with_the_types_of_each_call():
    model = models.with_training_function()
    _call_again(model, np.ones((2, 1)), np.zeros((2, 2)))

    (finding,) = check(model).findings

    assert finding.code == "C306"
    assert '(called from training_info[0].algorithm, node 2 "again" (Step))' in finding.place
    assert "`h` is FLOAT[2, 2]" in finding.found


def test_a_rule_broken_at_each_of_two_signatures_is_reported_once():
    model = models.with_training_function()
    _call_again(model, np.ones((2, 1)), np.zeros((2, 2)))
    state_of_another_shape_than_the_weight(model)

    assert check(model).codes.count("C306") == 1


def test_a_function_without_a_call_has_no_types_and_no_findings():
    model = models.with_training_function()
    model.functions[0].node[5].input[1] = "r"  # wrong at every call
    model.functions.append(model.functions[0])
    model.functions[2].name = "Unused"
    model.functions[0].node[5].input[1] = "n"

    assert check(model).codes == ()


def test_an_optional_input_that_is_left_out_is_not_taken_for_a_value():
    model = models.with_training_function()
    for function in model.functions:
        function.input.append("low")
    model.functions[0].node.insert(2, node("Clip", ["d", "low"], ["clipped"]))
    model.functions[0].node[3].input[0] = "clipped"
    model.functions[1].node[0].input.append("low")

    assert check(model).codes == ()


def test_every_mistake_in_a_function_is_reported_with_the_types_at_the_call():
    model = models.with_functions()
    square = model.functions[0]
    square.node.insert(0, node("MatMul", ["wide", "wide"], ["one"]))
    square.node.insert(0, node("Constant", [], ["wide"], value=tensor("", np.ones((2, 3)))))
    square.node.append(node("Not", ["a"], ["other"]))

    findings = check(model).findings

    assert [f.code for f in findings] == ["C401", "C401"]
    assert {f.found.split(" → ")[0] for f in findings} == {"`wide` FLOAT[2, 3], `wide` FLOAT[2, 3]", "`a` FLOAT[?, 1]"}


def _doubling(levels: int) -> onnx.ModelProto:
    """A step behind functions that each call the one before twice, with the same types."""
    model = models.with_training_function()
    imports = model.functions[1].opset_import
    inputs = list(model.functions[1].input)
    below = "Outer"
    for level in range(levels):
        name = f"F{level}"
        body = [
            node(below, inputs, ["l1", "w1", "h1"], domain="my"),
            node(below, ["w1", *inputs[1:5], "h1"], ["l", "w_new", "h_new"], domain="my"),
        ]
        model.functions.append(helper.make_function("my", name, inputs, ["l", "w_new", "h_new"], body, imports))
        below = name
    algorithm(model).node[0].op_type = below
    return model


def test_functions_that_double_at_each_level_are_inferred_once_for_each_signature(monkeypatch):
    inferred = []
    copy_call = Copier.copy_call
    monkeypatch.setattr(
        Copier, "copy_call", lambda self, call, dropped: inferred.append(call) or copy_call(self, call, dropped)
    )

    report = check(_doubling(10))

    assert report.findings == ()
    assert len(inferred) == 12  # Step, Outer and ten more


def test_a_rule_broken_behind_functions_that_double_is_reported_once():
    model = _doubling(10)
    algorithm(model).node[0].input[4] = "R"

    assert check(model).codes == ("C304",)


def test_functions_that_double_thirty_times_are_refused_without_being_inferred():
    assert check(_doubling(30)).codes == ("C508",)


def test_more_signatures_than_can_be_inferred_are_announced(monkeypatch):
    monkeypatch.setattr("onward.check.calls.MAX_INFERRED_NODES", 5)

    report = check(models.with_training_function())

    assert report.codes == ("C411",)
    assert report.ok
