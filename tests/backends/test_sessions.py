"""Sessions: one contract for all backends, and what is special to ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

import onward
from models import batch, perceptron
from onward.backends import Session, open_session
from onward.errors import ArgumentError, BackendError, DataError

BACKENDS = ("onnxruntime", "reference", "torch")


@pytest.fixture(scope="module")
def program() -> onward.Program:
    return onward.compile(onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.Adam(1e-2)))


@pytest.fixture(params=BACKENDS)
def session(request: pytest.FixtureRequest, program: onward.Program) -> Session:
    return open_session(program, request.param)


def test_all_backends_give_the_same_losses(program: onward.Program) -> None:
    sessions = [open_session(program, name) for name in BACKENDS]

    losses = [[float(s.step(batch(seed=i))["loss"]) for i in range(10)] for s in sessions]

    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    np.testing.assert_allclose(losses[0], losses[2], rtol=1e-5)


def test_evaluate_and_infer_leave_the_state_alone(session: Session) -> None:
    before = session.get_state()

    session.evaluate(batch())
    session.infer({"x": batch()["x"]})

    for name, value in session.get_state().items():
        np.testing.assert_array_equal(value, before[name])


def test_infer_uses_the_current_parameters(session: Session) -> None:
    before = session.infer({"x": batch()["x"]})["logits"]

    session.step(batch())

    assert not np.array_equal(session.infer({"x": batch()["x"]})["logits"], before)


def test_setting_the_state_repeats_a_step_exactly(session: Session) -> None:
    start = session.get_state()
    first = session.step(batch())
    end = session.get_state()

    session.set_state(start)
    second = session.step(batch())

    np.testing.assert_array_equal(first["loss"], second["loss"])
    for name, value in session.get_state().items():
        np.testing.assert_array_equal(value, end[name])


def test_a_setting_fed_at_a_step_holds_for_that_step_only(session: Session) -> None:
    start = session.get_state()["W0"]

    session.step({**batch(), "learning_rate": np.array(0.0, np.float32)})
    unmoved = session.get_state()["W0"]
    session.step(batch())

    np.testing.assert_array_equal(unmoved, start)
    assert not np.array_equal(session.get_state()["W0"], start)


def test_batches_may_have_any_size_and_outputs_stay_what_they_were(session: Session) -> None:
    sizes = (16, 16, 16, 5, 5, 16, 1)

    outputs = [session.step(batch(n))["logits"] for n in sizes]

    assert [o.shape for o in outputs] == [(n, 3) for n in sizes]
    assert not np.array_equal(outputs[0], outputs[2])


def test_a_missing_input_is_named_with_those_that_are_needed(session: Session) -> None:
    with pytest.raises(DataError, match=r"no value for input `labels`[\s\S]*inputs: x, labels"):
        session.step({"x": batch()["x"]})


def test_a_state_that_does_not_fit_shows_both_sides(session: Session) -> None:
    with pytest.raises(ArgumentError, match=r"state `W0` does not fit[\s\S]*float32\[2\][\s\S]*float32\[4, 8\]"):
        session.set_state({"W0": np.zeros(2, np.float32), "b0": np.zeros(8, np.float32)})


def test_an_unknown_backend_lists_the_known_ones(program: onward.Program) -> None:
    with pytest.raises(ArgumentError, match=r"no such backend `onnxrunt`[\s\S]*did you mean `onnxruntime`"):
        open_session(program, "onnxrunt")


def test_a_model_without_a_training_entry_cannot_step() -> None:
    session = open_session(onward.compile(perceptron()), "onnxruntime")

    with pytest.raises(BackendError, match="make_trainable"):
        session.step(batch())


def test_an_execution_provider_that_is_not_built_in_is_named(program: onward.Program) -> None:
    with pytest.raises(ArgumentError, match="CPUExecutionProvider"):
        open_session(program, "onnxruntime", providers=["NoSuchExecutionProvider"])
