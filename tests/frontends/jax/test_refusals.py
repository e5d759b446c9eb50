"""What cannot be converted is refused with words that name the place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp
import onnxruntime

import onward
from onward.errors import ArgumentError, BackendError
from onward.frontends.comparison import Comparison
from onward.frontends.jaxpr import versions

PARAMS = {"w": jnp.ones((3, 2))}
BATCH = {"x": np.ones((4, 3), np.float32), "y": np.zeros((4, 2), np.float32)}


def predict(params: Any, batch: Any) -> Any:
    return batch["x"] @ params["w"]


def loss(params: Any, batch: Any) -> Any:
    return ((predict(params, batch) - batch["y"]) ** 2).mean()


def convert(loss_fn: Any = loss, params: Any = PARAMS, state: Any = None, **changes: Any) -> onward.TrainingModel:
    arguments = {"optimizer": "sgd", "example_batch": BATCH, "predict": predict, **changes}
    return onward.from_jax(loss_fn, params, state, **arguments)


def refusal(*arguments: Any, **changes: Any) -> str:
    with pytest.raises(ArgumentError) as caught:
        convert(*arguments, **changes)
    return str(caught.value)


def test_every_primitive_without_a_rule_is_named_with_its_line_and_the_version():
    def solved(params: Any, batch: Any) -> Any:
        square = params["w"].T @ params["w"]
        lower = jnp.linalg.cholesky(square + jnp.eye(2))
        return jnp.linalg.qr(lower)[1].sum() + jax.lax.population_count(jnp.int32(batch["x"].sum())).astype(jnp.float32)

    text = refusal(solved)

    assert "`cholesky` cannot be captured: ONNX has no decomposition of matrices" in text
    assert "`geqrf` cannot be captured" in text or "`qr` cannot be captured" in text
    assert "`population_count` cannot be captured: ONNX does not count bits" in text
    assert "test_refusals.py line" in text
    assert f"JAX {versions.VERSION}" in text


def test_python_code_in_a_step_is_refused_with_the_line():
    def printed(params: Any, batch: Any) -> Any:
        jax.debug.print("{}", params["w"])
        return (batch["x"] @ params["w"]).sum()

    text = refusal(printed)

    assert "calls Python code in every step, and a file has none; leave it out" in text
    assert "test_refusals.py line" in text


def test_communication_between_devices_is_refused():
    def summed(params: Any, batch: Any) -> Any:
        return jax.pmap(lambda p: jax.lax.psum(p, "i"), axis_name="i")(params["w"][None]).sum() + loss(params, batch)

    text = refusal(summed)

    assert "error[A22" in text


def test_an_error_of_the_users_function_is_shown_with_its_line():
    def wrong(params: Any, batch: Any) -> Any:
        return (batch["x"] @ params["w"].T).mean()

    text = refusal(wrong)

    assert "error[A221]: loss `" in text
    assert "wrong` fails on the example: TypeError" in text
    assert 'return (batch["x"] @ params["w"].T).mean()' in text


def test_predict_gets_the_whole_batch():
    text = refusal(predict=lambda params, x: x @ params["w"])

    assert "error[A221]: predict `" in text
    assert "it is called as predict(params, batch), with the whole batch" in text


def test_predict_must_read_the_batch():
    assert "predict reads nothing of the batch" in refusal(predict=lambda params, batch: params["w"])


def test_a_loss_that_is_not_one_number_is_refused():
    text = refusal(lambda params, batch: predict(params, batch).mean(0))

    assert "error[A201]: the loss is not one number" in text
    assert "found: float32[2]" in text


def test_a_loss_that_reads_no_parameter_is_refused():
    assert "error[A208]" in refusal(lambda params, batch: batch["x"].mean())


def test_what_is_not_an_array_is_named():
    text = refusal(params={"w": jnp.ones((3, 2)), "activation": jnp.tanh})

    assert "error[A223]: `activation` is not an array" in text
    assert "equinox.partition" in text


def test_integers_cannot_be_trained():
    assert "parameter `n` cannot be trained" in refusal(params={"w": jnp.ones((3, 2)), "n": jnp.arange(3)})


def test_the_new_state_must_have_the_shape_of_the_old():
    text = refusal(
        lambda params, state, batch: (loss(params, batch), {"mean": batch["x"]}),
        PARAMS,
        {"mean": jnp.zeros(3)},
        predict=lambda params, state, batch: predict(params, batch),
        dynamic=False,
    )

    assert "the new state has another shape or type at `mean`" in text
    assert "found: float32[4, 3]" in text


def test_a_decision_over_the_batch_size_needs_a_fixed_one():
    def decided(params: Any, batch: Any) -> Any:
        return loss(params, batch) * (2.0 if batch["x"].shape[0] > 3 else 1.0)

    text = refusal(decided)

    assert "error[A226]: loss `" in text
    assert "pass dynamic=False" in text
    fixed = convert(decided, dynamic=False)
    np.testing.assert_allclose(onward.Trainer(fixed).step(BATCH)["loss"], decided(PARAMS, BATCH), rtol=1e-6)


def test_vmap_with_an_axis_name_needs_a_fixed_batch_size():
    def normalised(params: Any, batch: Any) -> Any:
        def one(x: Any) -> Any:
            y = x @ params["w"]
            return y - jax.lax.pmean(y, "batch")

        return (jax.vmap(one, axis_name="batch")(batch["x"]) ** 2).mean() + loss(params, batch)

    assert "error[A226]" in refusal(normalised)
    model = convert(normalised, dynamic=False)
    np.testing.assert_allclose(onward.Trainer(model).step(BATCH)["loss"], normalised(PARAMS, BATCH), rtol=1e-6)


def test_the_size_of_a_batch_is_read_from_an_input_of_inference():
    """The targets may come first in the batch; the inference graph does not have them."""

    def averaged(params: Any, batch: Any) -> Any:
        return predict(params, batch) / batch["x"].shape[0]

    batch = {"answer": BATCH["y"], "x": BATCH["x"]}
    model = convert(lambda params, batch: (averaged(params, batch) - batch["answer"]).sum() ** 2, predict=averaged,
                    example_batch=batch)  # fmt: skip

    assert model.inputs == ["x"]
    assert not onward.check(model.proto()).findings


def test_a_loss_in_a_tuple_is_refused():
    assert "error[A201]" in refusal(lambda params, batch: (loss(params, batch),))


def test_an_optimizer_that_evaluates_the_loss_again_is_refused():
    text = refusal(optimizer=optax.lbfgs())

    assert "error[A225]: the optimizer's `update` cannot be traced" in text
    assert "evaluates the loss again" in text


def test_a_state_of_another_optimizer_is_refused():
    text = refusal(optimizer=optax.adam(0.1), optimizer_state=optax.sgd(0.1).init(PARAMS))

    assert "error[A225]: the state is not one of this optimizer" in text


def test_an_optimizer_that_was_not_made_is_refused():
    assert "call it: optax.adam(1e-3)" in refusal(optimizer=optax.adam)


def test_a_batch_without_arrays_is_refused():
    assert "has no array with a batch dimension" in refusal(example_batch={})


def test_a_graph_that_differs_from_jax_is_refused_with_what_differs(monkeypatch: pytest.MonkeyPatch):
    original = Comparison.run

    def wrong(self: Comparison, graph: Any, data: Any) -> Any:
        return {n: v * 1.01 if n.startswith("grad/") else v for n, v in original(self, graph, data).items()}

    monkeypatch.setattr(Comparison, "run", wrong)

    text = refusal()

    assert "error[A222]: the gradient of the captured graph differs from JAX" in text
    assert "found: `w` by 1.0e-02" in text


def test_another_batch_size_is_compared_too(monkeypatch: pytest.MonkeyPatch):
    original = Comparison.run

    def wrong(self: Comparison, graph: Any, data: Any) -> Any:
        found = original(self, graph, data)
        fixed = "loss" in found and data["x"].shape[0] != 4
        return {n: v * 1.25 if fixed and n == "loss" else v for n, v in found.items()}

    monkeypatch.setattr(Comparison, "run", wrong)

    text = refusal()

    assert "error[A222]: the loss of the captured graph differs from JAX" in text
    assert "at a batch of 5" in text


def test_the_update_is_compared_from_a_second_state_too(monkeypatch: pytest.MonkeyPatch):
    original = Comparison.run

    def wrong(self: Comparison, graph: Any, data: Any) -> Any:
        found = original(self, graph, data)
        late = int(self.state.get("optimizer.0.count", 0)) == 1
        return {n: v * 2 if late and n == "next/optimizer.0.mu.w" else v for n, v in found.items()}

    monkeypatch.setattr(Comparison, "run", wrong)

    text = refusal(optimizer=optax.adam(0.1))

    assert "error[A222]: the optimizer's update of the captured graph differs from JAX" in text
    assert "`optimizer.0.mu.w`" in text


def test_a_capture_traces_and_loads_everything_once_for_each_need(monkeypatch: pytest.MonkeyPatch):
    traced, sessions = [], []
    original = onnxruntime.InferenceSession

    def counted(*args: Any, **kwargs: Any) -> Any:
        sessions.append(1)
        return original(*args, **kwargs)

    def counting(params: Any, batch: Any) -> Any:
        traced.append(1)
        return loss(params, batch)

    monkeypatch.setattr(onnxruntime, "InferenceSession", counted)

    convert(counting, optimizer=optax.adam(0.1))

    assert len(traced) == 3  # for the graph, and for the comparison on each of two batch sizes
    assert len(sessions) == 3  # inference, loss and gradients, update; each runs on both batches


def test_an_old_jax_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(versions, "VERSION", "0.4.30")

    with pytest.raises(BackendError, match=r"jax 0\.4\.30"):
        convert()
