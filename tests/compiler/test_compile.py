"""A training model becomes plain graphs: standard operators only, state as pure inputs, nothing folded in."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onward
from compiler.zoo import ZOO
from models import batch, dropout_network, perceptron
from onward.backends import open_session
from onward.backends.reference import Evaluator
from onward.errors import ArgumentError, ModelError, OnwardError


@pytest.fixture(scope="module")
def program() -> onward.Program:
    return onward.compile(onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.Adam(1e-2)))


def graphs_of(program: onward.Program) -> list[onnx.ModelProto]:
    found = [program.step, program.infer, program.evaluate, program.initialize]
    return [g for g in found if g is not None]


def test_every_graph_uses_only_standard_operators(program: onward.Program) -> None:
    for model in graphs_of(program):
        assert {n.domain for n in model.graph.node} <= {""}
        assert [i.domain for i in model.opset_import] == [""]
        assert not model.functions
        assert not model.training_info


def test_every_graph_passes_the_checker_with_strict_shape_inference(program: onward.Program) -> None:
    for model in graphs_of(program):
        onnx.checker.check_model(model, full_check=True)


def test_state_is_a_pure_input_and_never_an_initializer(program: onward.Program) -> None:
    names = {i.name for i in program.step.graph.input}
    constants = {i.name for i in program.step.graph.initializer}

    assert {"W0", "b0", "W1", "b1"} <= names
    assert not constants & set(program.state)


def test_every_state_is_replaced_by_an_output_of_its_own(program: onward.Program) -> None:
    step = program.entries["train"].step
    outputs = step.output_names

    assert set(step.replaces.values()) == set(program.state)
    assert len(outputs) == len(set(outputs))
    assert set(step.replaces) <= set(outputs)


def test_the_batch_dimension_stays_unknown(program: onward.Program) -> None:
    x = next(i for i in program.step.graph.input if i.name == "x")

    assert x.type.tensor_type.shape.dim[0].dim_param


def test_two_equal_biases_stay_two_states() -> None:
    model = onward.make_trainable(perceptron((4, 4, 4)), loss="mse", optimizer="sgd")

    program = onward.compile(model)

    assert {"b0", "b1"} <= set(program.state)


def test_the_opset_is_the_lowest_that_fits(program: onward.Program) -> None:
    newer = onward.compile(onward.make_trainable(perceptron(opset=23), loss="cross_entropy", optimizer="adam"))

    assert program.step.opset_import[0].version == 18
    assert newer.step.opset_import[0].version == 18
    assert newer.step.ir_version == 8


def test_a_target_opset_that_is_too_low_is_refused_with_the_lowest_one() -> None:
    model = onward.make_trainable(perceptron(), loss="mse", optimizer="sgd")

    with pytest.raises(ArgumentError, match="needed: 18"):
        onward.compile(model, target_opset=11)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"target_opset": 99}, "target opset 99 is too high"),
        ({"target_ir": 1}, "target IR version 1 is too low"),
        ({"target_ir": 99}, "target IR version 99 is too high"),
    ],
)
def test_a_target_that_no_runtime_reads_is_refused(target: dict[str, int], message: str) -> None:
    model = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.Adam(1e-2))

    with pytest.raises(ArgumentError, match=message):
        onward.compile(model, **target)


def test_a_model_that_is_not_valid_is_explained() -> None:
    proto = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.Adam(1e-2)).proto()
    (loss,) = [n for n in proto.training_info[0].algorithm.node if n.op_type == "SoftmaxCrossEntropyLoss"]
    loss.attribute.append(onnx.helper.make_attribute("ignore_index", "none"))

    with pytest.raises(OnwardError, match="attribute `ignore_index` of `SoftmaxCrossEntropyLoss` has the wrong type"):
        onward.compile(proto)


def test_a_node_that_does_not_fit_the_target_opset_is_named() -> None:
    model = perceptron(opset=20)
    model.graph.node[1].op_type = "Gelu"
    model.graph.node[1].name = "act"
    training = onward.make_trainable(model, loss="mse", optimizer="sgd")

    with pytest.raises(ModelError, match=r"`Gelu` does not fit opset 19.*introduced in opset 20"):
        onward.compile(training, target_opset=19)


def test_compiling_leaves_the_model_as_it_was() -> None:
    model = onward.make_trainable(perceptron(), loss="mse", optimizer="sgd")
    before = model.proto().SerializeToString(deterministic=True)

    onward.compile(model)

    assert model.proto().SerializeToString(deterministic=True) == before


def test_the_loss_falls() -> None:
    program = onward.compile(onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.Adam(1e-2)))
    session = open_session(program, "onnxruntime")
    data = batch()

    losses = [float(session.step(data)["loss"]) for _ in range(50)]

    assert losses[-1] < 0.5 * losses[0]


def test_evaluate_is_in_inference_mode_and_step_is_not() -> None:
    program = onward.compile(onward.make_trainable(dropout_network(), loss="cross_entropy", optimizer="sgd"))
    session = open_session(program, "onnxruntime")
    data = batch()

    first = session.evaluate(data)["loss"]
    second = session.evaluate(data)["loss"]
    step = session.step(data)["loss"]

    assert first == second
    assert step != first


def test_dropout_masks_are_equal_on_every_backend_and_differ_from_step_to_step() -> None:
    model = onward.make_trainable(dropout_network(), loss="cross_entropy", optimizer=onward.SGD(0.0))
    program = onward.compile(model, seed=3)
    data = batch()
    sessions = [open_session(program, name) for name in ("onnxruntime", "reference")]

    losses = [[float(s.step(data)["loss"]) for _ in range(4)] for s in sessions]

    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert len(set(losses[0])) == 4


def test_the_random_key_changes_the_masks() -> None:
    model = onward.make_trainable(dropout_network(), loss="cross_entropy", optimizer=onward.SGD(0.0))
    data = batch()

    losses = {float(open_session(onward.compile(model, seed=s), "onnxruntime").step(data)["loss"]) for s in range(4)}

    assert len(losses) == 4


def test_split_halves_make_the_whole_step() -> None:
    model = onward.make_trainable(dropout_network(), loss="cross_entropy", optimizer=onward.Adam(1e-2))
    program = onward.compile(model, split=True)
    state = dict(program.state)
    data = batch()
    whole = open_session(program, "reference")

    half = run(program.entries["train"].gradients.proto(), {**state, **program.settings, **data})
    other = run(program.entries["train"].update.proto(), {**state, **program.settings, **half})
    outputs = whole.step(data)

    np.testing.assert_array_equal(half["loss"], outputs["loss"])
    expected = whole.get_state()
    parts = {**program.entries["train"].gradients.replaces, **program.entries["train"].update.replaces}
    assert set(parts.values()) == set(state) - {"random/key"}
    for output, name in parts.items():
        np.testing.assert_array_equal({**half, **other}[output], expected[name], err_msg=name)


def test_the_update_half_needs_no_batch() -> None:
    program = onward.compile(onward.make_trainable(perceptron(), loss="mse", optimizer="adam"), split=True)

    inputs = {i.name for i in program.entries["train"].update.proto().graph.input}

    assert not inputs & set(program.input_names)


@pytest.mark.parametrize("name", ZOO)
def test_state_that_the_batch_changes_is_replaced_with_the_gradients(name: str) -> None:
    program = onward.compile(ZOO[name](), split=True)

    for entry in program.entries.values():
        assert entry.gradients is not None
        assert entry.update is not None
        early, late, all_state = (set(g.replaces.values()) for g in (entry.gradients, entry.update, entry.step))
        assert early | late == all_state
        assert not early & late
        assert early & {"mean", "variance"} == all_state & {"mean", "variance"}


@pytest.mark.parametrize("name", ZOO)
def test_no_update_needs_the_batch(name: str) -> None:
    program = onward.compile(ZOO[name](), split=True)

    for entry in program.entries.values():
        assert entry.update is not None
        assert not set(entry.update.input_names) & set(program.input_names)


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    wanted = {i.name for i in model.graph.input}
    return Evaluator(model).run({k: v for k, v in feeds.items() if k in wanted})
