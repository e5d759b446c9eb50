"""Why a model of Keras on TensorFlow in float64 agrees with its file to 1e-6 only.

TensorFlow's `tf.cast(0.999, "float64")` makes a float32 of the Python number first: 0.99900001287. Keras on TensorFlow
casts the constants of its optimizers, losses and layers so; Keras on JAX, and the file, use 0.999.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import onward


@pytest.fixture
def doubles(keras):
    before = keras.config.floatx(), keras.config.dtype_policy().name
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    keras.utils.set_random_seed(0)
    yield keras
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


def network(keras):
    layers = keras.layers
    first = layers.Dense(8, kernel_regularizer=keras.regularizers.L2(1e-2), use_bias=False)
    parts = [first, layers.BatchNormalization(), layers.ReLU(), layers.Dense(3)]
    model = keras.Sequential([keras.Input((6,)), *parts], name="net")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(1e-2, global_clipnorm=1.0), loss=loss)
    return model


def train(model, batches) -> list[float]:
    model.make_train_function(force=True)
    losses = []
    for x, y in batches:
        model.reset_metrics()
        losses.append(float(np.ravel(model.train_on_batch(x, y, return_dict=True)["loss"])[0]))
    return losses


def test_the_difference_is_that_of_numbers_rounded_to_float32(doubles, monkeypatch):
    keras = doubles
    random = np.random.RandomState(0)
    batches = [(random.normal(size=(n, 6)), random.randint(0, 3, n).astype("int32")) for n in [8] * 12 + [3]]
    model = network(keras)
    train(model, batches[:3])
    variables = [*model.trainable_variables, *model.non_trainable_variables, *model.optimizer.variables]
    before = [v.numpy() for v in variables]
    trainer = onward.Trainer(onward.from_keras(model, *batches[0]))
    ours = [float(trainer.step({"x": x, "target": y})["loss"]) for x, y in batches[3:]]

    def worst() -> float:
        for variable, array in zip(variables, before, strict=True):
            variable.assign(array)
        theirs = train(model, batches[3:])
        errors = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
        return max(errors + [float(np.abs(trainer.state[v.path] - v.numpy()).max()) for v in variables])

    as_it_is = worst()
    rounding = tf.cast

    def exact(x, dtype, name=None):
        return tf.constant(x, dtype) if isinstance(x, float) else rounding(x, dtype, name)

    monkeypatch.setattr(tf, "cast", exact)

    assert float(rounding(0.999, "float64")) == float(np.float32(0.999)) != 0.999
    assert 1e-9 < as_it_is < 1e-5
    assert worst() < 1e-12
