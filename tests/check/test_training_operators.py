"""Gradient, Adagrad and Momentum, broken one thing at a time."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from check import models
from check.broken import Cases, algorithm, assert_reported, set_names
from check.models import FLOAT, INT64, TRAINING, info, node, tensor
from onward.check import check

CASES = Cases()
case = CASES.add


# Gradient


@case("C137", "C201", culprit="no xs")
def gradient_without_xs(model):
    gradient = algorithm(model).node[3]
    del gradient.attribute[0]


@case("C201", culprit="no xs")
def gradient_with_empty_xs(model):
    gradient = algorithm(model).node[3]
    gradient.attribute[0].ClearField("strings")


@case("C202", culprit="no y")
def gradient_with_empty_y(model):
    set_names(algorithm(model).node[3], "y", "")


@case("C203", culprit="`X` more than once")
def gradient_names_a_tensor_twice(model):
    set_names(algorithm(model).node[3], "zs", "X", "X")


@case("C204", culprit="2 inputs for 1 name in xs and 2 in zs")
def gradient_with_too_few_inputs(model):
    del algorithm(model).node[3].input[2]


@case("C205", culprit="2 outputs for 1 name")
def gradient_with_too_many_outputs(model):
    algorithm(model).node[3].output.append("dX")


@case("C206", culprit="`Loss` in y is not a tensor")
def gradient_of_an_unknown_y(model):
    set_names(algorithm(model).node[3], "y", "Loss")


@case("C206", culprit="did you mean `labels`?")
def gradient_with_an_unknown_z(model):
    set_names(algorithm(model).node[3], "zs", "X", "label")


@case("C206", culprit="`W_new` in y is computed only after")
def gradient_of_a_later_value(model):
    set_names(algorithm(model).node[3], "y", "W_new")


@case("C207", culprit="`T_copy` does not depend on `W`")
def gradient_of_something_independent(model):
    algorithm(model).node.insert(0, node("Identity", ["R"], ["T_copy"]))
    set_names(algorithm(model).node[4], "y", "T_copy")


@case("C207", culprit="`loss` does not depend on `unused`: that derivative is zero")
def gradient_with_one_useless_x(model):
    algorithm(model).initializer.append(tensor("unused", 1.0))
    gradient = algorithm(model).node[3]
    set_names(gradient, "xs", "W", "unused")
    gradient.input.insert(1, "unused")
    gradient.output.append("d_unused")


@case("C208", culprit="`Y` is computed from `W`, `X`")
def gradient_with_dependent_names(model):
    gradient = algorithm(model).node[3]
    set_names(gradient, "xs", "W", "Y")
    gradient.input.insert(1, "Y")


@case("C209", culprit="`H2` is FLOAT[3, 2]")
def gradient_input_of_another_shape(model):
    algorithm(model).initializer.append(tensor("H2", np.zeros((3, 2))))
    algorithm(model).node[3].input[0] = "H2"


@case("C210", culprit="`T`, which is INT64[]")
def gradient_with_respect_to_an_integer(model):
    algorithm(model).node.insert(2, node("Cast", ["T"], ["T_float"], to=FLOAT))
    algorithm(model).node.insert(3, node("Add", ["square", "T_float"], ["square_T"]))
    algorithm(model).node[4].input[0] = "square_T"
    gradient = algorithm(model).node[5]
    set_names(gradient, "xs", "W", "T")
    gradient.input.insert(1, "T")


@case("C401", "C304", culprit="`wrong` INT64[3, 1]")
def gradient_output_declared_as_another_type(model):
    algorithm(model).node[3].output[0] = "wrong"
    algorithm(model).node[4].input[3] = "wrong"
    algorithm(model).output.append(info("wrong", [3, 1], INT64))


# Optimizers


@case("C301", culprit="2 + 3n inputs")
def adagrad_with_one_tensor_too_many(model):
    algorithm(model).node[4].input.append("H")


@case("C302", culprit="found: 1 output")
def adagrad_with_an_output_missing(model):
    del algorithm(model).node[4].output[1]
    del algorithm(model).output[2]
    del model.training_info[0].update_binding[1]


@case("C303", culprit="`R`")
def learning_rate_with_three_elements(model):
    algorithm(model).initializer[0].CopyFrom(tensor("R", [0.1, 0.2, 0.3]))


@case("C303", culprit="T of `Adagrad`, `steps`")
def count_with_two_elements(model):
    algorithm(model).initializer.append(tensor("steps", [0, 1], np.int64))
    algorithm(model).node[4].input[1] = "steps"


@case("C304", culprit="`R`")
def learning_rate_that_is_an_integer(model):
    algorithm(model).initializer[0].CopyFrom(tensor("R", 1, np.int64))


@case("C304", culprit="needed: INT64")
def count_that_is_a_float(model):
    algorithm(model).node[4].input[1] = "R"


@case("C306", culprit="G1 `dW` is FLOAT[3, 1]")
def state_of_another_shape_than_the_weight(model):
    algorithm(model).node[4].input[2] = "wide"
    algorithm(model).initializer.append(tensor("wide", np.zeros((3, 2))))
    algorithm(model).node[4].output[0] = "wide_new"
    algorithm(model).node.append(node("Neg", ["W"], ["W_new"]))


@case("C307", culprit="`nestrov`", base=models.two_entries)
def momentum_with_an_unknown_mode(model):
    momentum = model.training_info[1].algorithm.node[2]
    next(a for a in momentum.attribute if a.name == "mode").s = b"nestrov"


@case("C137", culprit="required attribute `mode`", base=models.two_entries)
def momentum_without_mode(model):
    momentum = model.training_info[1].algorithm.node[2]
    del momentum.attribute[[a.name for a in momentum.attribute].index("mode")]


def with_adam() -> onnx.ModelProto:
    """Return the linear model with Adam in place of Adagrad."""
    model = models.linear()
    step = algorithm(model)
    step.node[4].CopyFrom(
        node("Adam", ["R", "T", "W", "dW", "V", "H"], ["W_new", "V_new", "H_new"], name="update", domain=TRAINING)
    )
    step.initializer.append(tensor("V", np.zeros((3, 1))))
    step.output.append(info("V_new", [3, 1]))
    model.training_info[0].update_binding.add(key="V", value="V_new")
    return model


@case("C301", "C122", culprit="2 + 4n inputs: R, T, X1…Xn, G1…Gn, V1…Vn, H1…Hn", base=with_adam)
def adam_without_its_second_moment(model):
    del algorithm(model).node[4].input[5]


@case("C302", culprit="4 outputs", base=with_adam)
def adam_with_too_many_outputs(model):
    algorithm(model).node[4].output.append("more")


@case("C306", culprit="H1 `H` is DOUBLE[3, 1]", base=with_adam)
def adam_with_a_moment_in_another_precision(model):
    algorithm(model).initializer[2].CopyFrom(tensor("H", np.zeros((3, 1)), np.float64))
    del model.training_info[0].update_binding[1]
    del model.training_info[0].initialization_binding[1]
    del algorithm(model).output[2]


def test_a_right_adam_has_no_findings():
    assert check(with_adam(), pedantic=True).findings == ()


def test_tensors_in_the_order_of_tensors_instead_of_kinds_are_explained():
    model = with_adam()
    update = algorithm(model).node[4]
    algorithm(model).initializer.append(tensor("b", 0.0))
    del update.input[:]
    update.input.extend(["R", "T", "W", "dW", "V", "H", "b", "b", "b", "b"])
    del update.output[:]
    update.output.extend(["W_new", "x", "V_new", "y", "H_new", "z"])

    hints = [f.hint for f in check(model).findings if f.code == "C306"]

    assert hints
    assert all("grouped by kind" in hint for hint in hints)


@pytest.mark.parametrize("broken", CASES, ids=lambda c: c.name)
def test_a_broken_training_operator_is_reported_with_its_code_and_culprit(broken):
    assert_reported(broken)


def test_pedantic_mode_asks_for_every_dependency_of_y():
    model = models.with_if()

    assert check(model).findings == ()
    assert check(model, pedantic=True).codes == ("C212",)
