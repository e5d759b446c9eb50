"""`to_keras`: fifty steps are those of the file on other runtimes; saving, loading, converting back, and refusals."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import pytest

import onward
from backends.tensorflow_models import network as onnx_network
from backends.tensorflow_models import with_weights
from frontends.keras import to_keras_runs as runs
from models import batch as perceptron_batch
from models import perceptron
from onward.errors import ArgumentError

ROOT = Path(__file__).parents[3]
TOLERANCE = {"onnxruntime": 1e-5, "torch": 1e-10}


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **more}


def trainable(**options: Any) -> onward.TrainingModel:
    optimizer = onward.Adam(1e-2, epsilon=1e-4)
    return onward.make_trainable(perceptron(), **{"loss": "cross_entropy", "optimizer": optimizer, **options})


def step(model: Any, seed: int) -> float:
    model.reset_metrics()
    x, t = perceptron_batch(seed=seed).values()
    return float(np.ravel(model.train_on_batch(x, t, return_dict=True)["loss"])[0])


# -- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", runs.CASES)
def test_fifty_steps_are_those_of_another_runtime(name: str) -> None:
    case = runs.CASES[name]()

    found = runs.errors(case)

    assert max(found.values()) <= TOLERANCE[case.oracle], found


def test_dropout_masks_go_on_from_keras_through_a_file_to_jax(tmp_path: Path) -> None:
    case = runs.network("cnn")
    batches = case.batches([6] * 5)
    whole = onward.Trainer(case.model)
    wanted = [float(whole.step(batch)["loss"]) for batch in batches]

    model = onward.to_keras(case.model)
    found = [runs.train(model, case.model, batch) for batch in batches[:3]]
    onward.save(onward.from_keras(model), tmp_path / "half.train.onnx")
    trainer = onward.Trainer(tmp_path / "half.train.onnx", backend="jax")
    found += [float(trainer.step(batch)["loss"]) for batch in batches[3:]]

    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_the_same_on_the_other_backends(backend: str, tmp_path: Path) -> None:
    """Keras on torch computes its means, and so the loss that it shows, in float32: float32 is enough there."""
    pytest.importorskip(backend)
    names = list(runs.CASES) if backend == "tensorflow" else ["cnn", "between", "two"]
    command = [sys.executable, str(Path(runs.__file__)), str(tmp_path), *names]

    done = subprocess.run(command, capture_output=True, text=True, env=environment(KERAS_BACKEND=backend))

    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    saved = found.pop("saved")
    assert set(found) == set(names)
    for name, worst in found.items():
        assert max(worst.values()) <= TOLERANCE[runs.CASES[name]().oracle], (name, worst)
    np.testing.assert_allclose(saved["losses"], saved["alone"], rtol=1e-6)


ROUNDS = """net (float[N,4] x) => (float[N,3] logits) {
    scale = Constant <value = float {0.05}> ()
    zero = Constant <value = int8 {0}> ()
    a = Gemm(x, first)
    q = QuantizeLinear(a, scale, zero)
    b = DequantizeLinear(q, scale, zero)
    logits = Gemm(b, second)
}"""


def test_a_backward_pass_that_only_the_file_knows() -> None:
    """The slope of rounding is the file's choice; the gradients of the framework would be zero."""
    proto = with_weights(runs.HEAD + ROUNDS, {"first": (4, 5), "second": (5, 3)})
    with onward.straight_through():
        source = onward.make_trainable(proto, loss="cross_entropy", optimizer=onward.SGD(0.1, ema=0.5))
        model, trainer = onward.to_keras(source), onward.Trainer(source)
    start = model.onnx_variables["first"].numpy()

    for seed in range(6):
        feeds = {"x": perceptron_batch(seed=seed)["x"], "labels": perceptron_batch(seed=seed)["labels"]}
        wanted = float(trainer.step(feeds)["loss"])
        assert runs.train(model, source, feeds) == pytest.approx(wanted, rel=1e-5)

    assert runs.distance(runs.numbers(model), trainer.session.get_state()) < 1e-5
    assert np.abs(model.onnx_variables["first"].numpy() - start).max() > 1e-3


def test_an_optimizer_and_a_loss_of_your_own() -> None:
    def rule(op: Any, R: Any, T: Any, X: Any, G: Any, m: Any) -> Any:
        new = op.Add(op.Mul(m, 0.9), op.Sign(G))
        return op.Sub(X, op.Mul(op.Mul(R, 0.1), new)), new

    source = trainable(
        optimizer=onward.optimizers.Custom(1e-2, rule, state={"m": 0.0}, name="signed"),
        loss=onward.losses.CrossEntropy() + 0.1 * onward.losses.CrossEntropy(label_smoothing=0.3),
    )
    model, trainer = onward.to_keras(source), onward.Trainer(source)

    losses = [(step(model, s), float(trainer.step(perceptron_batch(seed=s))["loss"])) for s in range(10)]

    np.testing.assert_allclose(*np.array(losses).T, rtol=1e-5)
    assert "signed/m/W0" in model.optimizer.state


def test_an_update_that_draws_numbers_counts_as_the_model_does() -> None:
    def rule(op: Any, R: Any, T: Any, X: Any, G: Any) -> Any:
        return [op.Sub(X, op.Mul(R, op.Add(G, op.Mul(op.RandomNormalLike(G), 0.1))))]

    source = trainable(optimizer=onward.optimizers.Custom(0.1, rule, state={}, name="noisy"))
    model, trainer = onward.to_keras(source), onward.Trainer(source)

    losses = [(step(model, s), float(trainer.step(perceptron_batch(seed=s))["loss"])) for s in range(5)]

    np.testing.assert_allclose(*np.array(losses).T, rtol=1e-5)
    assert runs.distance(runs.numbers(model), trainer.session.get_state()) < 1e-5


# -- a real Keras model ----------------------------------------------------------------------------------------------


def test_variables_and_inputs_have_the_names_of_the_file() -> None:
    source = onward.make_trainable(
        onnx_network("cnn"), loss="cross_entropy", optimizer=onward.Momentum(0.05), train=["head", "offset"]
    )

    model = onward.to_keras(source)

    assert isinstance(model, keras.Model)
    assert [t.name for t in model.inputs] == ["x"]
    assert [v.path for v in model.trainable_variables] == ["head", "offset"]
    assert {"first", "second", "mean", "var"} <= {v.path for v in model.non_trainable_variables}
    assert "momentum/v/head" in {v.path for v in model.optimizer.variables}


def test_a_call_in_training_mode_updates_statistics_and_draws_other_masks() -> None:
    model = onward.to_keras(runs.network("cnn").model)
    x = runs.network("cnn").batches([4])[0]["x"]
    before = model.onnx_variables["mean"].numpy()

    first, second = (np.asarray(model(x, training=True)) for _ in range(2))

    assert not np.array_equal(before, model.onnx_variables["mean"].numpy())
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(np.asarray(model(x)), np.asarray(model(x)))


def test_fit_with_metrics_callbacks_and_validation() -> None:
    model = onward.to_keras(trainable())
    model.compile(optimizer=model.optimizer, metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")])
    data = [perceptron_batch(seed=s) for s in range(8)]
    x, t = (np.concatenate([list(d.values())[i] for d in data]) for i in (0, 1))
    halved = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)

    history = model.fit(x, t, batch_size=8, epochs=3, validation_split=0.2, callbacks=[halved], verbose=0).history

    assert history["loss"][-1] < history["loss"][0]
    assert set(history) >= {"accuracy", "val_loss", "val_accuracy"}
    assert float(model.optimizer.learning_rate.numpy()) == pytest.approx(1e-2 / 8)
    assert float(onward.from_keras(model).initializers()["learning_rate"].const_value.numpy()) == pytest.approx(
        1e-2 / 8
    )


def test_the_weights_of_samples_go_to_their_target() -> None:
    plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    plain.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    model = onward.to_keras(onward.from_keras(plain, sample_weight=True))
    rng = np.random.default_rng(0)

    for _ in range(3):
        x, y, w = rng.normal(size=(5, 4)), rng.normal(size=(5, 2)), rng.uniform(size=5)
        losses = []
        for each in (plain, model):
            each.reset_metrics()
            losses.append(float(np.ravel(each.train_on_batch(x, y, sample_weight=w, return_dict=True)["loss"])[0]))
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)

    other = onward.to_keras(trainable())
    with pytest.raises(ArgumentError, match="takes no weights of samples"):
        other.train_on_batch(*perceptron_batch(seed=0).values(), sample_weight=np.ones(8))


def test_an_inference_model_predicts() -> None:
    model = onward.to_keras(perceptron())
    x = perceptron_batch(seed=0)["x"]

    wanted = onward.Trainer(trainable()).session.infer({"x": x})["logits"]

    assert not model.compiled
    np.testing.assert_allclose(model.predict(x, verbose=0), wanted, rtol=1e-5, atol=1e-6)


# -- files -----------------------------------------------------------------------------------------------------------


def test_a_saved_model_goes_on_in_another_process(tmp_path: Path) -> None:
    found = runs.saved_and_loaded(tmp_path)

    assert found["class"] == "OnnxModel"
    np.testing.assert_allclose(found["losses"], found["alone"], rtol=1e-6)


def test_a_file_of_one_backend_goes_on_on_another(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    case = runs.network("cnn", optimizer=onward.Adam(1e-2, epsilon=1e-4))
    model = onward.to_keras(case.model)
    batches = case.batches([6] * 8)
    for feeds in batches[:4]:
        runs.train(model, case.model, feeds)
    model.save(tmp_path / "net.keras")
    command = [sys.executable, "-c", runs.LOADED, str(tmp_path / "net.keras")]

    done = subprocess.run(command, capture_output=True, text=True, env=environment(KERAS_BACKEND="tensorflow"))

    assert done.returncode == 0, done.stderr[-3000:]
    wanted = [runs.train(model, case.model, feeds) for feeds in batches[4:]]
    np.testing.assert_allclose(json.loads(done.stdout.strip().splitlines()[-1])["losses"], wanted, rtol=1e-5)


@pytest.mark.parametrize("way", ["model", "file"])
def test_from_keras_gives_the_file_back(way: str, tmp_path: Path) -> None:
    source = trainable()
    model, alone = onward.to_keras(source), onward.Trainer(source)
    for seed in range(4):
        step(model, seed)
        alone.step(perceptron_batch(seed=seed))
    model.save(tmp_path / "net.keras")

    back = onward.from_keras(model if way == "model" else tmp_path / "net.keras")

    assert onward.check(back).ok
    assert (list(back.parameters), list(back.state)) == (list(source.parameters), list(source.state))
    trainer = onward.Trainer(back)
    for seed in range(4, 8):
        losses = [float(t.step(perceptron_batch(seed=seed))["loss"]) for t in (trainer, alone)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_search_for_keras_before_its_import_does_not_lose_the_classes_of_files() -> None:
    code = """import importlib.util, onward
importlib.util.find_spec("keras")
import keras
print(keras.saving.get_registered_object("onward>OnnxModel").__name__)"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())

    assert done.stdout.split() == ["OnnxModel"], done.stderr


def test_a_model_with_another_loss_and_optimizer_is_traced_again() -> None:
    model = onward.to_keras(trainable())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss=loss)
    x, t = perceptron_batch(seed=0).values()

    trainer = onward.Trainer(onward.from_keras(model, x, t))

    for seed in range(5):
        x, t = perceptron_batch(seed=seed).values()
        feeds = dict(zip(trainer.input_names, (x, t.astype(np.int32)), strict=True))
        assert float(trainer.step(feeds)["loss"]) == pytest.approx(step(model, seed), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_one_curve_through_three_frameworks(backend: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    pytest.importorskip(backend)
    command = [sys.executable, str(ROOT / "examples" / "one_curve.py"), "--output", str(tmp_path)]

    done = subprocess.run(command, capture_output=True, text=True, env=environment(KERAS_BACKEND=backend))

    assert done.returncode == 0, done.stderr[-3000:]
    found = re.search(r"largest difference from PyTorch alone: (\S+) of the loss", done.stdout)
    assert found is not None, done.stdout
    assert float(found.group(1)) < 1e-5


# -- refusals --------------------------------------------------------------------------------------------------------


def test_several_entries_need_a_choice() -> None:
    phases = [onward.Phase(train=["W1"], epochs=1), onward.Phase(train=["W0", "W1"], epochs=2)]
    source = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.SGD(0.1), phases=phases)
    first = next(iter(onward.compile(source).entries))

    with pytest.raises(ArgumentError, match=r"several training entries(.|\n)*choose one with entry="):
        onward.to_keras(source)

    assert [v.path for v in onward.to_keras(source, entry=first).trainable_variables] == ["W1"]


def test_a_step_that_is_no_loss_gradient_and_optimizer_is_refused() -> None:
    optax = pytest.importorskip("optax")
    optimizer = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=2))
    x = np.ones((4, 3), np.float32)
    source = onward.from_jax(
        lambda params, batch: ((batch["x"] @ params["w"] - batch["y"]) ** 2).mean(),
        {"w": np.ones((3, 1), np.float32)},
        optimizer=optimizer,
        example_batch={"x": x, "y": x[:, :1]},
        predict=lambda params, batch: batch["x"] @ params["w"],
    )

    with pytest.raises(ArgumentError, match=r"A248(.|\n)*reads more than gradients(.|\n)*onward.Trainer"):
        onward.to_keras(source)


def test_float64_needs_64_bits() -> None:
    with pytest.raises(ArgumentError, match="jax_enable_x64"):
        onward.to_keras(runs.network("transformer", np.float64).model)


def test_data_that_does_not_fit_is_refused_with_the_names() -> None:
    model = onward.to_keras(trainable())
    x, t = perceptron_batch(seed=0).values()

    with pytest.raises(ArgumentError, match=r"targets do not fit(.|\n)*labels"):
        model.train_on_batch(x)
    with pytest.raises(ArgumentError, match="`labels` has the wrong type"):
        model.train_on_batch(x, t.astype(np.float32))
    with pytest.raises(ArgumentError, match="no such option of `to_keras`"):
        onward.to_keras(trainable(), backend="jax")


def test_sequences_at_the_boundary_are_refused() -> None:
    text = "net (seq(float[K,3]) rows) => (int64 count) { count = SequenceLength(rows) }"

    with pytest.raises(ArgumentError, match=r"A248(.|\n)*`rows`: a sequence"):
        onward.to_keras(onnx.parser.parse_model(runs.HEAD + text))


def test_a_keras_file_whose_graph_is_damaged_is_told() -> None:
    config = onward.to_keras(trainable()).get_config()
    model = type(onward.to_keras(trainable()))

    for damaged in ({**config, "onnx": {"model": "AAAA", "tensors": []}}, {"name": "net"}):
        with pytest.raises(onward.OnwardError):
            model.from_config(damaged)


def test_an_optimizer_of_a_file_trains_all_of_its_variables() -> None:
    model = onward.to_keras(trainable())
    gradients = [np.zeros(v.shape, "float32") for v in model.trainable_variables]

    with pytest.raises(ArgumentError, match="compile the model with an optimizer of Keras"):
        model.optimizer.apply(gradients[:1], model.trainable_variables[:1])
