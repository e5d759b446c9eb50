"""The numbered rules of a strict checker, broken one at a time in a model that is otherwise right."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from check import models
from check.broken import Cases, algorithm, assert_reported, initialization, then_branch
from check.models import FLOAT, INT64, TRAINING, info, node, tensor
from onward.check import check

CASES = Cases()
case = CASES.add


# Rule 1: the IR version


@case("C101", culprit="ir_version 6")
def rule_1_ir_version_before_training(model):
    model.ir_version = 6


# Rules 2 to 8: bindings


@case("C102", culprit="`Wx`")
def rule_2_initialization_key_is_no_initializer(model):
    model.training_info[0].initialization_binding[0].key = "Wx"


@case("C103", culprit="`W_strat`")
def rule_3_initialization_value_is_no_output(model):
    model.training_info[0].initialization_binding[0].value = "W_strat"


@case("C104", culprit="`W`")
def rule_4_initialization_key_twice(model):
    model.training_info[0].initialization_binding.add(key="W", value="H_start")


@case("C105", culprit="`X`")
def rule_5_update_key_is_an_input(model):
    model.training_info[0].update_binding[0].key = "X"


@case("C106", culprit="`W_mew`")
def rule_6_update_value_is_no_output(model):
    model.training_info[0].update_binding[0].value = "W_mew"


@case("C107", culprit="training_info[0].update_binding[0]")
def rule_7_update_key_twice_in_one_entry(model):
    model.training_info[0].update_binding.add(key="W", value="W_new")


@case("C107", culprit="`G` is updated twice", base=models.two_entries)
def rule_7_update_key_twice_over_entries(model):
    step = model.training_info[1].algorithm
    step.node.append(node("Neg", ["G"], ["G_other"]))
    step.output.append(info("G_other", [3, 2]))
    model.training_info[1].update_binding.add(key="G", value="G_other")


@case("C108", culprit="3 bindings")
def rule_8_initialization_bindings_without_initialization(model):
    model.training_info[0].ClearField("initialization")


# Rules 9 and 10: the initialization graph


@case("C109", culprit="`seed`")
def rule_9_initialization_has_inputs(model):
    initialization(model).input.append(info("seed", []))


@case("C110", culprit="`W`")
def rule_10_initialization_reads_the_inference_graph(model):
    initialization(model).node[0].CopyFrom(node("Identity", ["W"], ["W_start"]))


@case("C110", culprit="`R`")
def rule_10_initialization_outputs_a_value_of_the_algorithm(model):
    initialization(model).output.append(info("R", []))


@case("C130", culprit="training_info[0].initialization")
def rule_10_initialization_has_no_name(model):
    initialization(model).name = ""


@case("C131", culprit="`H_start`")
def rule_10_initialization_defines_a_name_twice(model):
    initialization(model).node.append(node("RandomNormal", [], ["H_start"], shape=[3, 1]))


@case("C132", culprit="`later` before it is computed")
def rule_10_initialization_is_out_of_order(model):
    initialization(model).node.insert(0, node("Identity", ["later"], ["unused"]))
    initialization(model).node.append(node("Constant", [], ["later"], value_float=1.0))


@case("C134", culprit="`RandomNormale`")
def rule_10_initialization_uses_an_unknown_operator(model):
    initialization(model).node[0].op_type = "RandomNormale"


@case("C133", culprit="`nowhere`")
def rule_10_initialization_output_is_not_made(model):
    initialization(model).output.append(info("nowhere", []))


@case("C401", culprit="training_info[0].initialization, the only Add")
def rule_10_initialization_types_do_not_fit(model):
    initialization(model).node.append(node("Add", ["W_start", "T_start"], ["sum"]))


# Rules 11 to 13, 15: the combined graph


@case("C111", culprit="input `X`")
def rule_11a_algorithm_input_is_an_inference_input(model):
    algorithm(model).input.append(info("X", ["N", 3]))


@case("C111", culprit="initializer `W`")
def rule_11b_algorithm_initializer_is_an_inference_initializer(model):
    algorithm(model).initializer.append(tensor("W", np.zeros((3, 1))))


@case("C111", culprit="node output `Y`")
def rule_11c_algorithm_node_redefines_an_inference_output(model):
    algorithm(model).node.append(node("Neg", ["loss"], ["Y"], name="again"))


@case("C111", culprit="`X` in a subgraph", base=models.with_if)
def rule_11c_subgraph_of_the_algorithm_hides_an_inference_name(model):
    branch = then_branch(model)
    branch.node.append(node("Neg", ["difference"], ["X"]))


@case("C131", culprit="`difference` in a subgraph", base=models.with_if)
def rule_11c_subgraph_hides_a_name_of_its_own_graph(model):
    branch = then_branch(model)
    branch.node.append(node("Neg", ["labels"], ["difference"]))


@case("C131", culprit="`square`")
def rule_11c_algorithm_defines_a_name_twice(model):
    algorithm(model).node.insert(2, node("Neg", ["labels"], ["square"], name="again"))


@case("C132", culprit="`difference` before it is computed")
def rule_11d_algorithm_is_out_of_order(model):
    first = onnx.NodeProto()
    first.CopyFrom(algorithm(model).node[0])
    del algorithm(model).node[0]
    algorithm(model).node.insert(1, first)


@case("C132", culprit="did you mean `labels`?")
def rule_11_algorithm_reads_an_undefined_name(model):
    algorithm(model).node[0].input[1] = "label"


@case("C133", culprit="`lss`")
def rule_11_algorithm_output_is_not_made(model):
    algorithm(model).output.append(info("lss", []))


@case("C112", culprit="`R`")
def rule_12_inference_graph_reads_a_training_initializer(model):
    model.graph.node.append(node("Mul", ["Y", "R"], ["scaled"]))


@case("C112", culprit="`loss`")
def rule_12_inference_graph_outputs_a_training_value(model):
    model.graph.output.append(info("loss", []))
    del algorithm(model).output[0]


@case("C113", culprit="`X`")
def rule_13_training_initializer_is_named_like_an_input(model):
    algorithm(model).initializer.append(tensor("X", np.zeros((2, 3))))


@case("C115", culprit="`Y`")
def rule_15_algorithm_lists_an_inference_output(model):
    algorithm(model).output.append(info("Y", ["N", 1]))


@case("C115", culprit="`loss`")
def rule_15_algorithm_lists_an_output_twice(model):
    algorithm(model).output.append(info("loss", []))


# Rule 14: types of bindings


@case("C114", culprit="`H` is")
def rule_14_update_of_another_shape(model):
    algorithm(model).output.append(info("square", ["N", 1]))
    algorithm(model).node.append(node("Transpose", ["H_new"], ["H_turned"]))
    algorithm(model).output.append(info("H_turned", [1, 3]))
    model.training_info[0].update_binding[1].value = "H_turned"


@case("C114", culprit="INT64[], as the initializer `T` is")
def rule_14_update_of_another_element_type(model):
    algorithm(model).node.append(node("Cast", ["T_new"], ["T_float"], to=FLOAT))
    algorithm(model).output.append(info("T_float", []))
    model.training_info[0].update_binding[2].value = "T_float"


@case("C114", culprit="`W_start` is FLOAT[4, 1]")
def rule_14_initialization_of_another_shape(model):
    initialization(model).node[0].attribute[0].CopyFrom(helper.make_attribute("shape", [4, 1]))
    initialization(model).output[0].CopyFrom(info("W_start", [4, 1]))


# Rule 16: opset imports


@case("C116", culprit=f"`{TRAINING}`")
def rule_16_training_domain_is_not_imported(model):
    del model.opset_import[1]


@case("C134", culprit="did you mean `Adagrad`?")
def rule_16_unknown_training_operator(model):
    algorithm(model).node[4].op_type = "AdaGrad"


@case("C116", culprit="the function's opset_import", base=models.with_functions)
def rule_16_function_does_not_import_what_it_uses(model):
    del model.functions[1].opset_import[1]


# Rule 17: tensors


@case("C117", culprit="initializer 2 `H`")
def rule_17_training_initializer_is_too_short(model):
    algorithm(model).initializer[2].raw_data = b"1234"


@case("C117", culprit="attribute `value`")
def rule_17_constant_in_the_initialization_is_too_short(model):
    initialization(model).node[1].attribute[0].t.raw_data = b"1234"


@case("C117", culprit="`int64_data`")
def rule_17_data_in_the_wrong_field(model):
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.int64_data.extend([1, 2, 3])


@case("C117", culprit="data_type = 99")
def rule_17_no_such_element_type(model):
    algorithm(model).initializer.append(onnx.TensorProto(name="odd", data_type=99, dims=[1], raw_data=b"1"))


# Rule 18: functions


@case("C118", culprit="`my::MSEE`", base=models.with_functions)
def rule_18_called_function_is_missing(model):
    algorithm(model).node[0].op_type = "MSEE"


@case("C118", culprit="overload", base=models.with_functions)
def rule_18_called_overload_is_missing(model):
    algorithm(model).node[0].overload = "half"


@case("C118", culprit="`my::Square` is defined twice", base=models.with_functions)
def rule_18_function_is_defined_twice(model):
    model.functions.append(model.functions[0])


@case("C144", culprit="`my::MSE` → `my::Square` → `my::MSE`", base=models.with_functions)
def rule_18_functions_are_recursive(model):
    model.functions[0].node.append(node("MSE", ["a", "a"], ["unused"], domain="my"))
    model.functions[0].opset_import.append(helper.make_opsetid("my", 1))


@case("C145", culprit="`ReduceMean`", base=models.with_functions)
def rule_18_function_and_model_disagree_on_the_opset(model):
    model.functions[1].opset_import[0].version = 13


@case("C146", culprit="ir_version 7", base=models.with_functions)
def rule_18_ir_version_before_functions(model):
    model.ir_version = 7


@case("C136", culprit="at most 2: `a`, `b`", base=models.with_functions)
def rule_18_function_is_called_with_too_many_inputs(model):
    algorithm(model).node[0].input.append("X")


@case("C137", culprit="did you mean `keepdims`?", base=models.with_functions)
def rule_18_function_is_called_with_an_unknown_attribute(model):
    algorithm(model).node[0].attribute[0].name = "keepdim"


@case("C132", culprit="`Y`, which nothing defines", base=models.with_functions)
def rule_18_function_reads_a_value_of_the_graph(model):
    model.functions[0].node[0].input[1] = "Y"


# Rule 19: types of inputs and outputs


@case("C119", culprit="`labels` has no shape")
def rule_19_training_input_without_shape(model):
    algorithm(model).input[0].CopyFrom(info("labels", None))


@case("C119", culprit="`W_start` has no type")
def rule_19_initialization_output_without_type(model):
    initialization(model).output[0].ClearField("type")


@case("C119", culprit="elem_type 99", base=models.with_if)
def rule_19_element_type_that_does_not_exist(model):
    then_branch(model).output[0].type.tensor_type.elem_type = 99


@case("C119", culprit="`labels` has a negative dim")
def rule_19_negative_dim(model):
    algorithm(model).input[0].CopyFrom(info("labels", [-1, 1]))


# Rule 22: warnings


@case("C122", culprit="`spare`")
def rule_22_state_that_nothing_reads(model):
    algorithm(model).initializer.append(tensor("spare", np.zeros((3, 1))))
    model.training_info[0].update_binding.add(key="spare", value="W_new")


@case("C124", culprit="`one`")
def rule_22_state_bound_to_itself(model):
    algorithm(model).output.append(info("one", [], INT64))
    model.training_info[0].update_binding.add(key="one", value="one")


@case("C125", culprit="training_info[0]")
def rule_22_training_without_update(model):
    del model.training_info[0].update_binding[:]


@case("C126", culprit="the data of `W`")
def rule_22_constant_copy_of_a_trained_tensor(model):
    weight = np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)
    model.graph.initializer[0].CopyFrom(tensor("W", weight))
    model.graph.input[0].CopyFrom(info("X", ["N", 4]))
    initialization(model).node[0].attribute[0].CopyFrom(helper.make_attribute("shape", [4, 1]))
    initialization(model).node[1].attribute[0].t.CopyFrom(tensor("", np.zeros((4, 1))))
    algorithm(model).initializer[2].CopyFrom(tensor("H", np.zeros((4, 1))))
    for graph in (initialization(model), algorithm(model)):
        for value in graph.output:
            if value.name in ("W_start", "H_start", "W_new", "H_new"):
                value.CopyFrom(info(value.name, [4, 1]))
    algorithm(model).node.append(node("Constant", [], ["folded"], value=tensor("", weight), name="copy"))


# Rule 23: ONNX 1.7


@case("C123", culprit="onward upgrade")
def rule_23_graph_call(model):
    call = node("GraphCall", ["X"], ["Y_again"], domain=TRAINING, graph_name="linear")
    algorithm(model).node.insert(0, call)


@pytest.mark.parametrize("broken", CASES, ids=lambda c: c.name)
def test_a_broken_rule_is_reported_with_its_code_and_culprit(broken):
    assert_reported(broken)


def test_each_numbered_rule_has_a_broken_case():
    numbers = {name.split("_")[1].rstrip("abcd") for c in CASES if (name := c.name).startswith("rule_")}

    assert {int(n) for n in numbers} == set(range(1, 24)) - {20, 21}  # 20 is Gradient (C2xx), 21 the optimizers (C3xx)


def test_many_broken_rules_are_reported_at_once():
    model = models.linear()
    for name in ("rule_1_ir_version_before_training", "rule_2_initialization_key_is_no_initializer",
                 "rule_6_update_value_is_no_output", "rule_9_initialization_has_inputs",
                 "rule_17_training_initializer_is_too_short"):  # fmt: skip
        CASES.named(name).break_it(model)

    codes = check(model).codes

    assert {"C101", "C102", "C106", "C109", "C117"} <= set(codes)


def test_a_second_assignment_over_entries_is_a_warning_and_an_error_in_pedantic_mode():
    model = models.two_entries()
    CASES.named("rule_7_update_key_twice_over_entries").break_it(model)

    assert [f.code for f in check(model).warnings] == ["C107"]
    assert [f.code for f in check(model, pedantic=True).errors] == ["C107"]


def test_a_binding_to_an_output_of_the_inference_graph_is_accepted_with_a_note():
    model = models.linear()
    model.graph.output.append(info("W_double", [3, 1]))
    model.graph.node.append(node("Add", ["W", "W"], ["W_double"]))
    model.training_info[0].update_binding[0].value = "W_double"

    report = check(model, pedantic=True)

    assert report.ok
    assert [f.code for f in report.notes] == ["C106"]


def test_the_use_of_a_sparse_initializer_as_state_is_explained():
    model = models.linear()
    values = tensor("S", [1.0])
    indices = tensor("", [0], np.int64)
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3]))
    model.training_info[0].update_binding.add(key="S", value="W_new")

    report = check(model)

    assert report.codes == ("C105",)
    assert "sparse" in report.findings[0].hint


def test_the_initializer_of_another_entry_is_not_seen():
    model = models.two_entries()
    model.training_info[1].update_binding.add(key="g_R", value="d_loss")

    report = check(model)

    assert report.codes == ("C105",)
    assert "training_info[0].algorithm" in report.findings[0].hint
