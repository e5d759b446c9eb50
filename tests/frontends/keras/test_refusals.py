"""What cannot be captured is refused, with its place and a remedy."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import onward
from frontends.keras.keras_models import linear
from onward.errors import ArgumentError
from onward.frontends.keras.files import read_model
from onward.frontends.keras.versions import save

layers = keras.layers


def compiled(*parts: Any, shape: tuple[int | None, ...] = (4,), loss: Any = "mse", **options: Any) -> Any:
    model = keras.Sequential([keras.Input(shape), *parts], name="net")
    model.compile(optimizer="sgd", loss=loss, **options)
    return model


def refused(model: Any, *example: Any, **options: Any) -> str:
    with pytest.raises(ArgumentError) as caught:
        onward.from_keras(model, *example, **options)
    return str(caught.value)


def test_a_model_that_is_not_compiled() -> None:
    message = refused(keras.Sequential([keras.Input((4,)), layers.Dense(1)], name="net"))

    assert "A240" in message
    assert "at model `net`" in message
    assert "model.compile(optimizer=..., loss=...)" in message


def test_a_model_without_weights_yet() -> None:
    model = keras.Sequential([layers.Dense(1)], name="net")
    model.compile(optimizer="sgd", loss="mse")

    assert "call it once on a batch" in refused(model, np.zeros((2, 4)), np.zeros((2, 1)))


def test_a_step_of_its_own() -> None:
    class Own(keras.Model):
        def train_step(self, state: Any, data: Any) -> Any:
            return super().train_step(state, data)

    x = keras.Input((4,))
    model = Own(x, layers.Dense(1)(x))
    model.compile(optimizer="sgd", loss="mse")

    message = refused(model)
    assert "A242" in message
    assert "Own.train_step" in message
    assert "compute_loss" in message


def test_an_optimizer_that_was_built_for_other_variables() -> None:
    model = compiled(layers.Dense(3, name="first"), layers.Dense(1))
    model.train_on_batch(np.zeros((2, 4)), np.zeros((2, 1)))
    model.get_layer("first").trainable = False

    message = refused(model)
    assert "`first/kernel`" in message or "first/kernel" in message
    assert "compile the model again" in message


def test_nothing_to_train() -> None:
    dense = layers.Dense(1)
    dense.trainable = False

    assert "has no trainable variable" in refused(compiled(dense))


def test_a_layer_in_numpy_or_tensorflow_code() -> None:
    @keras.saving.register_keras_serializable("tests")
    class Outside(layers.Layer):
        inside = True

        def call(self, x: Any) -> Any:
            return x * 2 if Outside.inside else np.asarray(x) * 2

    model = compiled(Outside(name="mine"), layers.Dense(1))
    Outside.inside = False

    message = refused(model)
    assert "A241" in message
    assert "computes outside of JAX" in message
    assert "test_refusals.py line" in message
    assert "np.asarray(x)" in message
    assert "keras.ops" in message


def test_a_shape_that_depends_on_the_data() -> None:
    class Selects(layers.Layer):
        inside = True

        def call(self, x: Any) -> Any:
            return x if Selects.inside else x + keras.ops.sum(x[x > 0])

    model = compiled(Selects(), layers.Dense(1))
    Selects.inside = False

    message = refused(model)
    assert "a shape or a decision depends on the data" in message
    assert "keras.ops.where" in message


def test_half_precision() -> None:
    model = compiled(layers.Dense(1, dtype="mixed_float16", name="half"))

    message = refused(model)
    assert "A246" in message
    assert "layer `half` computes in float16" in message


def test_inputs_of_unknown_size_need_an_example() -> None:
    model = compiled(layers.LSTM(2), layers.Dense(1), shape=(None, 3))

    assert "pass example_inputs=" in refused(model)


def test_a_model_that_declares_no_inputs_needs_an_example() -> None:
    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

    model = Net()
    model.compile(optimizer="sgd", loss="mse")
    model(np.zeros((2, 4)))

    assert "pass example_inputs= and example_targets=" in refused(model)


def test_an_example_that_does_not_fit() -> None:
    message = refused(compiled(layers.Dense(1)), np.zeros((2, 5)), np.zeros((2, 1)))

    assert "A241" in message
    assert "example_inputs=" in message


def test_texts_are_no_example() -> None:
    assert "apply the preprocessing layers" in refused(compiled(layers.Dense(1)), np.array(["a", "b"]))


def test_class_weights_and_sample_weights_exclude_each_other() -> None:
    assert "sample_weight= as well" in refused(linear().model, sample_weight=True, class_weight={0: 1.0})


def test_numbers_drawn_from_one_seed_would_be_the_same_in_every_step() -> None:
    class Noise(layers.Layer):
        def call(self, x: Any) -> Any:
            return x + keras.random.normal((4,), seed=3)

    message = refused(compiled(Noise(), layers.Dense(1)))
    assert "A220" in message
    assert "constant key" in message


def test_an_optimizer_in_numpy_code() -> None:
    class Own(keras.optimizers.SGD):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            variable.assign(variable - 0.1 * np.asarray(gradient))

    model = compiled(layers.Dense(1))
    model.compile(optimizer=Own(), loss="mse")

    message = refused(model)
    assert "A247" in message
    assert "keras.ops" in message


@pytest.mark.parametrize(
    ("what", "hint"), [(3, ".keras file"), ("net.keras", "no file"), (__file__, "not a file of Keras")]
)
def test_what_is_no_model(what: Any, hint: str) -> None:
    assert hint in refused(what)


def test_a_layer_is_no_model() -> None:
    assert "keras.Sequential" in refused(layers.Dense(1))


def test_a_class_that_is_not_registered(tmp_path: Path) -> None:
    class Unknown(layers.Layer):
        def call(self, x: Any) -> Any:
            return x

    compiled(Unknown(), layers.Dense(1)).save(tmp_path / "net.keras")

    message = refused(tmp_path / "net.keras")
    assert "A243" in message
    assert "the class `Unknown` is not registered with Keras" in message
    assert "register_keras_serializable" in message


def test_a_lambda_in_a_file(tmp_path: Path) -> None:
    compiled(layers.Lambda(lambda x: x * 2), layers.Dense(1)).save(tmp_path / "net.keras")

    message = refused(tmp_path / "net.keras")
    assert "a Python lambda" in message
    assert "a layer class" in message


def test_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "net.keras").write_bytes(b"not a model")

    assert "cannot be loaded" in refused(tmp_path / "net.keras")


def test_an_optimizer_whose_state_does_not_come_back() -> None:
    case = linear()
    case.model.train_on_batch(*case.batch(np.random.RandomState(0), 4))
    data = save(case.model)
    import zipfile

    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "config.json":  # the file of one optimizer with the settings of another
                content = content.replace(b'"Adagrad"', b'"SGD"').replace(b'"initial_accumulator_value": 0.1, ', b"")
                content = content.replace(b', "epsilon": 1e-07', b"")
            new.writestr(name, content)

    with pytest.raises(ArgumentError, match="A243.*the state of the optimizer cannot be loaded"):
        read_model(changed.getvalue(), "net.keras")


def test_a_file_of_a_model_that_was_never_trained_is_complete() -> None:
    model = read_model(save(linear().model), "net.keras")

    assert int(model.optimizer.iterations) == 0
