"""`to_tensorflow`: a tf.Module with real variables that trains, differentiates and is saved."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onward
from models import batch, dropout_network, perceptron, stock_session

tf = pytest.importorskip("tensorflow")

from backends.tensorflow_models import NETWORKS, batches, network, trained, with_weights  # noqa: E402
from onward.errors import ArgumentError, BackendError  # noqa: E402


@pytest.fixture(scope="module")
def model() -> onward.TrainingModel:
    return onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.Adam(1e-2))


def values(feeds: dict[str, np.ndarray]) -> tuple[Any, Any]:
    return tf.constant(feeds["x"]), tf.constant(feeds["labels"])


def test_inference_is_the_models_own_for_any_batch_size() -> None:
    module = onward.to_tensorflow(network("cnn"), mode="inference")
    session = stock_session(network("cnn"))

    for feeds in batches("cnn", [5, 2]):
        (expected,) = session.run(None, {"x": feeds["x"]})
        np.testing.assert_allclose(module(feeds["x"]), expected, rtol=1e-5, atol=1e-5)


def test_a_training_step_is_that_of_the_trainer(model: onward.TrainingModel) -> None:
    module, trainer = onward.to_tensorflow(model), onward.Trainer(model)

    for seed, rows in enumerate([16, 16, 5]):
        feeds = batch(rows, seed=seed)
        loss = module.train_step(*values(feeds))["loss"]
        np.testing.assert_allclose(loss, trainer.step(feeds)["loss"], rtol=1e-5)

    for name, value in trainer.session.get_state().items():
        np.testing.assert_allclose(module.get_state()[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_traced_once_for_all_batch_sizes(name: str) -> None:
    made = trained(name)
    module, trainer = onward.to_tensorflow(made), onward.Trainer(made)

    for feeds in batches(name, [4, 6, 3]):
        found = module.train_step(*values(feeds))
        np.testing.assert_allclose(found["loss"], trainer.step(feeds)["loss"], rtol=1e-5)

    assert module.train_step.experimental_get_tracing_count() == 1
    (feeds,) = batches(name, [2])
    expected = trainer.session.infer({"x": feeds["x"]})["logits"]
    np.testing.assert_allclose(module(feeds["x"]), expected, rtol=1e-4, atol=1e-5)


def test_only_what_is_trained_is_trainable_and_constants_stay_constants() -> None:
    made = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.Adam(1e-2), train=["W1", "b1"])
    module = onward.to_tensorflow(made)

    assert sorted(v.name for v in module.trainable_variables) == ["W1:0", "b1:0"]
    assert "W0" not in module.state  # nothing changes it
    assert {n for n in module.state if n.startswith("adam/")} == {"adam/v/W1", "adam/h/W1", "adam/v/b1", "adam/h/b1"}
    assert not module.state["adam/v/W1"].trainable


LINEAR = """<ir_version: 10, opset_import: ["" : 18]>
net (float[N,2] x) => (float[N,2] y) { y = MatMul(x, W) }"""


def test_bindings_apply_after_the_step_all_at_once() -> None:
    """Momentum's new velocity and the new weight are both made from the old ones."""
    made = onward.make_trainable(
        with_weights(LINEAR, {"W": (2, 2)}), loss="mse", optimizer=onward.Momentum(0.1, momentum=0.9)
    )
    module, trainer = onward.to_tensorflow(made), onward.Trainer(made, backend="reference")
    x, y = np.eye(2, dtype=np.float32), np.ones((2, 2), np.float32)

    for _ in range(3):
        module.train_step(x, y)
        trainer.step({"x": x, "labels": y})

    for name, value in trainer.session.get_state().items():
        np.testing.assert_allclose(module.get_state()[name], value, rtol=1e-6, err_msg=name)


def test_a_setting_is_a_variable(model: onward.TrainingModel) -> None:
    module = onward.to_tensorflow(model)
    before = module.get_state()["W0"]

    module.settings["learning_rate"].assign(0.0)
    module.train_step(*values(batch()))

    np.testing.assert_array_equal(module.get_state()["W0"], before)


def test_an_own_loop_differentiates_the_loss(model: onward.TrainingModel) -> None:
    """SGD by hand over `module.loss` inside a tf.function equals SGD in the file."""
    plain = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.SGD(0.1))
    module, trainer = onward.to_tensorflow(model), onward.Trainer(plain)

    @tf.function
    def step(x: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = module.loss(x, labels)
        for variable, gradient in zip(
            module.trainable_variables, tape.gradient(loss, module.trainable_variables), strict=True
        ):
            variable.assign_sub(0.1 * gradient)
        return loss

    for seed in range(3):
        feeds = batch(seed=seed)
        np.testing.assert_allclose(step(*values(feeds)), trainer.step(feeds)["loss"], rtol=1e-5)


def test_second_derivatives_of_the_loss_are_those_of_finite_differences() -> None:
    text = LINEAR.replace("y = MatMul(x, W)", "a = MatMul(x, W) b = Tanh(a) y = MatMul(b, V)")
    text = text.replace("float[", "double[")
    proto = with_weights(text, {"W": (2, 2), "V": (2, 2)}, np.float64)
    module = onward.to_tensorflow(onward.make_trainable(proto, loss="mse", optimizer=onward.SGD(0.1)))
    x, y = np.random.default_rng(0).standard_normal((2, 3, 2))
    W = module.state["W"]

    def gradient() -> Any:
        with tf.GradientTape() as tape:
            loss = module.loss(x, y)
        return tape.gradient(loss, W)

    with tf.GradientTape(persistent=True) as outer:
        first = gradient()
    hessian = outer.jacobian(first, W, experimental_use_pfor=False).numpy()
    start, expected = W.numpy(), np.zeros((2, 2, 2, 2))
    for place in np.ndindex(2, 2):
        ends = []
        for sign in (1, -1):
            moved = start.copy()
            moved[place] += sign * 1e-5
            W.assign(moved)
            ends.append(gradient().numpy())
        expected[(..., *place)] = (ends[0] - ends[1]) / 2e-5

    np.testing.assert_allclose(hessian, expected, rtol=1e-6, atol=1e-8)


def test_dropout_draws_a_new_mask_at_each_step_and_none_in_inference() -> None:
    made = onward.make_trainable(dropout_network(), loss="cross_entropy", optimizer=onward.SGD(0.0))
    module, feeds = onward.to_tensorflow(made), batch()

    losses = [float(module.loss(*values(feeds))) for _ in range(3)]
    evaluated = [float(module.evaluate(*values(feeds))["loss"]) for _ in range(2)]

    assert len(set(losses)) == 3
    assert evaluated[0] == evaluated[1]


LOAD = """
import sys
sys.modules["onward"] = None  # as if it were not installed
import numpy as np, tensorflow as tf
module = tf.saved_model.load(sys.argv[1])
data = np.load(sys.argv[2])
x, labels = tf.constant(data["x"]), tf.constant(data["labels"])
print(float(module.train_step(x, labels)["loss"]))
print(float(module.signatures["train_step"](x=x, labels=labels)["loss"]))
print(*np.asarray(module(x))[0])
"""


def test_a_saved_model_goes_on_training_without_onward(model: onward.TrainingModel, tmp_path: Path) -> None:
    module, feeds = onward.to_tensorflow(model), batch(7)
    module.train_step(*values(feeds))

    module.save(tmp_path / "saved")
    np.savez(tmp_path / "data.npz", **feeds)
    command = [sys.executable, "-c", LOAD, str(tmp_path / "saved"), str(tmp_path / "data.npz")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)

    first, second, outputs = done.stdout.strip().splitlines()
    expected = [float(module.train_step(*values(feeds))["loss"]) for _ in range(2)]
    np.testing.assert_allclose([float(first), float(second)], expected, rtol=1e-6)
    np.testing.assert_allclose([float(v) for v in outputs.split()], module(feeds["x"])[0], rtol=1e-5)


@pytest.mark.parametrize(("mode", "call", "message"), [
    ("inference", lambda m: m.train_step(), "this module cannot train"),
    ("inference", lambda m: m.loss(), "this module cannot train"),
    ("inference", lambda m: m.evaluate(), "no loss to evaluate"),
    ("training", lambda m: m(1), 'use mode="both"'),
    ("training", lambda m: m.infer(1), "for training only"),
])  # fmt: skip
def test_a_mode_says_what_it_lacks(model: onward.TrainingModel, mode: str, call: Any, message: str) -> None:
    module = onward.to_tensorflow(model, mode=mode)

    with pytest.raises(ArgumentError, match=message):
        call(module)


def test_inference_has_only_the_variables_that_it_reads(model: onward.TrainingModel) -> None:
    assert set(onward.to_tensorflow(model, mode="inference").state) == {"W0", "b0", "W1", "b1"}


def test_bad_arguments_are_named(model: onward.TrainingModel) -> None:
    with pytest.raises(ArgumentError, match="one of: both, inference, training"):
        onward.to_tensorflow(model, mode="eval")
    with pytest.raises(ArgumentError, match="no such option of `to_tensorflow` `layout`"):
        onward.to_tensorflow(model, layout="NCHW")
    with pytest.raises(ArgumentError, match="no such size in `sizes` `rows`"):
        onward.to_tensorflow(model, sizes={"rows": 4})
    with pytest.raises(ArgumentError, match="no training information"):
        onward.to_tensorflow(perceptron(), mode="training")


UNKNOWN = """<ir_version: 10, opset_import: ["" : 18]>
net (float[N] x) => (float[M] y, int64[M] i) { y, i, j, c = Unique(x) }"""


def test_a_size_that_depends_on_data_cannot_be_traced() -> None:
    module = onward.to_tensorflow(onnx.parser.parse_model(UNKNOWN))

    with pytest.raises(BackendError, match="depends on data, and TensorFlow traces without data") as caught:
        module(np.ones(3, np.float32))

    assert caught.value.code == "B304"


def test_fixed_sizes_are_traced_as_constants() -> None:
    module = onward.to_tensorflow(trained("cnn"), mode="inference", sizes={"N": 4})

    assert module.infer.input_signature[0].shape.as_list() == [4, 3, 8, 8]


@pytest.mark.parametrize("noop", [0, 1])
def test_axes_that_are_data_are_reduced(noop: int) -> None:
    module = onward.to_tensorflow(
        onnx.parser.parse_model(
            f"""<ir_version: 10, opset_import: ["": 18]> g (float[2, 3] x, int64[K] axes) => (float[A, B] y)
                {{ y = ReduceL2 <noop_with_empty_axes = {noop}> (x, axes) }}"""
        )
    )
    x = np.array([[3, -4, 0], [-6, 8, 1]], np.float32)
    nothing = abs(x) if noop else np.linalg.norm(x).reshape(1, 1)

    for axes, wanted in (([], nothing), ([1], np.linalg.norm(x, axis=1, keepdims=True))):
        np.testing.assert_allclose(module(x, np.array(axes, np.int64)), wanted, rtol=1e-6)
