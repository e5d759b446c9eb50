"""What a compiled model carries besides its layers: penalties, weights of samples, frozen layers, counters, draws."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import onward
from frontends.keras.keras_models import Case, cnn, linear, transformer, two
from frontends.keras.keras_runs import differences, errors, feeds, train
from onward.model.roles import entry_roles

layers, ops = keras.layers, keras.ops
TOLERANCE = 1e-5


def classifier(*parts: Any, loss: str = "sparse_categorical_crossentropy", optimizer: Any = "adam") -> Case:
    head = layers.Dense(3, activation="softmax", name="head")
    model = keras.Sequential([keras.Input((4,)), *parts, head], name="net")
    model.compile(optimizer=optimizer, loss=loss)

    def batch(random: np.random.RandomState, size: int) -> tuple[Any, Any]:
        labels = random.randint(0, 3, size)
        targets = np.eye(3, dtype="float32")[labels] if loss == "categorical_crossentropy" else labels.astype("int32")
        return random.normal(size=(size, 4)).astype("float32"), targets

    return Case(model, batch)


class Counted(layers.Layer):
    """Adds a loss of its own and counts the samples it has seen."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(4,), initializer="ones", name="scale")
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen", dtype="float32")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.seen.assign_add(ops.cast(ops.shape(x)[0], "float32"))
        self.add_loss(0.1 * ops.mean(ops.square(x * self.scale)))
        return x * self.scale


def test_a_layer_may_add_a_loss_and_count() -> None:
    case = classifier(Counted())

    found = errors(case, before=2, steps=10)

    assert max(found.values()) <= TOLERANCE, found
    assert float(case.model.layers[0].seen.value) == 2 * 8 + 9 * 8 + 3


def test_a_layer_without_weights_that_is_never_called_does_not_matter() -> None:
    class Spare(layers.Layer):
        def call(self, x: Any) -> Any:
            return x

    class WithSpare(layers.Dense):
        def __init__(self, units: int) -> None:
            super().__init__(units)
            self.spare = Spare()

    case = classifier(WithSpare(3))
    assert not case.model.layers[0].spare.built  # Keras has no reason to

    assert len(onward.from_keras(case.model).parameters) == 4


def test_frozen_layers_are_weights_that_no_step_changes() -> None:
    frozen = layers.Dense(5, name="frozen", trainable=False)
    case = classifier(frozen, layers.BatchNormalization(name="norm"))
    before = np.array(frozen.kernel.value)

    model = onward.from_keras(case.model)
    trainer = onward.Trainer(model)
    trainer.step(feeds(model, *case.batch(np.random.RandomState(0), 4)))

    assert set(model.parameters) == {f"net/{n}" for n in ("norm/gamma", "norm/beta", "head/kernel", "head/bias")}
    np.testing.assert_array_equal(model.initializers()["net/frozen/kernel"].const_value.numpy(), before)
    assert {"net/norm/moving_mean", "net/norm/moving_variance"} <= set(trainer.state)


@pytest.mark.parametrize("kind", ["sample", "class"])
def test_weights_of_samples_and_of_classes(kind: str) -> None:
    case = classifier(layers.Dense(5, activation="tanh"), loss="categorical_crossentropy")
    random = np.random.RandomState(1)
    classes = {0: 0.5, 2: 4.0}
    weighted = {"sample_weight": True} if kind == "sample" else {"class_weight": classes}

    model = onward.from_keras(case.model, **weighted)
    trainer = onward.Trainer(model)

    assert model.targets == (["target", "sample_weight"] if kind == "sample" else ["target"])
    for size in (8, 8, 3):
        x, y = case.batch(random, size)
        weights = random.uniform(0.1, 3.0, size).astype("float32") if kind == "sample" else None
        given = {"class_weight": classes} if kind == "class" else {"sample_weight": weights}
        ours = float(trainer.step(feeds(model, x, y, weights))["loss"])
        assert ours == pytest.approx(train(case.model, x, y, **given), rel=TOLERANCE)
    assert max(differences(trainer.state, case.model).values()) <= TOLERANCE


def test_constraints_are_applied_after_each_step() -> None:
    constraint = keras.constraints.MaxNorm(0.5)
    case = classifier(layers.Dense(5, kernel_constraint=constraint, name="tied"), optimizer=keras.optimizers.SGD(0.5))

    assert max(errors(case, before=0, steps=5).values()) <= TOLERANCE
    assert np.linalg.norm(case.model.get_layer("tied").kernel.value, axis=0).max() <= 0.5 + 1e-6


def test_several_outputs_with_weights_need_no_example() -> None:
    model = onward.from_keras(two().model)

    assert (model.inputs, model.outputs, model.targets) == (["a", "b"], ["c", "d"], ["target.c", "target.d"])


def test_a_fixed_batch_size_stays_fixed() -> None:
    model = keras.Sequential([keras.Input(batch_shape=(4, 3)), layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")

    made = onward.from_keras(model, np.ones((4, 3)), np.ones((4, 1)))

    assert list(made.graph.inputs[0].shape) == [4, 3]


def test_an_evaluation_is_that_of_keras() -> None:
    """With moving averages, and without dropout."""
    case = cnn(0.5)
    x, y = case.batch(np.random.RandomState(0), 7)
    for variable in case.model.non_trainable_variables:
        if "moving" in variable.path:
            variable.assign(variable.value * 2 + 0.3)
    case.model.reset_metrics()

    model = onward.from_keras(case.model, x, y)

    wanted = np.ravel(case.model.evaluate(x, y, batch_size=3, verbose=0))[0]  # the loss, then metrics
    found = onward.Trainer(model).evaluate(x, y, batch_size=3)
    np.testing.assert_allclose(found["loss"], wanted, rtol=1e-5)


def test_the_learning_rate_is_a_setting() -> None:
    case = linear()

    model = onward.from_keras(case.model)

    assert entry_roles(model, model.entries[0]).learning_rates == (case.model.optimizer.learning_rate.path,)


def test_dropout_drops_its_share_and_is_left_out_of_inference() -> None:
    rate, width = 0.3, 64
    model = keras.Sequential([keras.Input((width,)), layers.Dropout(rate), layers.Dense(1, use_bias=False)])
    model.compile(optimizer=keras.optimizers.SGD(1.0), loss=lambda y, p: p)  # the gradient of a weight is its input
    model.layers[-1].kernel.assign(np.zeros((width, 1)))
    made = onward.from_keras(model, np.ones((4, width)), np.zeros((4, 1)))

    trainer, kernel = onward.Trainer(made), model.layers[-1].kernel.path
    kept = []
    for _ in range(20):
        old = trainer.state[kernel].copy() if kept else np.zeros((width, 1), "float32")
        trainer.step({"x": np.ones((1, width), "float32"), "target": np.zeros((1, 1), "float32")})
        kept.append((old - trainer.state[kernel]).ravel())

    drawn = np.array(kept)
    share, count = np.mean(np.abs(drawn) < 1e-5), drawn.size
    assert abs(share - rate) <= 4 * np.sqrt(rate * (1 - rate) / count)
    np.testing.assert_allclose(drawn[np.abs(drawn) >= 1e-5], 1 / (1 - rate), rtol=1e-4)
    assert len({tuple(row < 0.5) for row in drawn}) == 20  # another mask in each step
    assert not {"Dropout", "RandomUniformLike"} & {n.op_type for n in made.graph}
    assert not [n for n in trainer.state if "seed" in n]


@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_models_with_dropout_are_captured(name: str) -> None:
    case = {"cnn": cnn, "transformer": transformer}[name](0.2)

    model = onward.from_keras(case.model)

    (entry,) = model.entries
    assert [n.op_type for n in entry.algorithm.all_nodes()].count("Dropout") == 1
    assert onward.check(model).ok
    ours = float(onward.Trainer(model).step(feeds(model, *case.batch(np.random.RandomState(0), 5)))["loss"])
    assert np.isfinite(ours)


def test_a_file_that_may_be_tensorflows_warns_of_repeated_rows(tmp_path: Path) -> None:
    transformer().model.save(tmp_path / "net.keras")

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        onward.from_keras(tmp_path / "net.keras")

    wanted = "layer `words`: Keras on TensorFlow, if this model was trained with it"
    assert any(wanted in str(w.message) for w in said)


def test_a_model_on_jax_and_plain_sgd_do_not_warn(tmp_path: Path) -> None:
    case = transformer(optimizer=keras.optimizers.SGD(0.1))
    case.model.save(tmp_path / "net.keras")

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model = onward.from_keras(tmp_path / "net.keras")

    assert "words/embeddings" in model.parameters
