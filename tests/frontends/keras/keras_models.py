"""Compiled Keras models that the tests convert, each with batches of any size."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
from keras import layers


@dataclasses.dataclass
class Case:
    """A compiled model, and a function that makes a batch of `size` samples: inputs and targets."""

    model: Any
    batch: Callable[[np.random.RandomState, int], tuple[Any, Any]]


def set_type(dtype: str) -> None:
    """Let Keras and JAX compute in float32 or float64."""
    jax.config.update("jax_enable_x64", dtype == "float64")
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)


def _classes(count: int, *shape: int) -> Callable[[np.random.RandomState, int], tuple[Any, Any]]:
    return lambda random, size: (
        random.normal(size=(size, *shape)).astype(keras.config.floatx()),
        random.randint(0, count, size).astype("int32"),
    )


def _logits_loss() -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def linear() -> Case:
    """The model of the first prototype of ONNX training: y = x W + b, mean squared error, Adagrad."""
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    model.compile(optimizer=keras.optimizers.Adagrad(0.1), loss="mse")

    def batch(random: np.random.RandomState, size: int) -> tuple[Any, Any]:
        x = random.normal(size=(size, 4)).astype(keras.config.floatx())
        return x, x[:, :2] * 3 - x[:, 2:]

    return Case(model, batch)


def mlp() -> Case:
    penalty = keras.regularizers.L2(1e-2)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="relu", kernel_regularizer=penalty),
            layers.Dense(3, activity_regularizer=keras.regularizers.L1(1e-3)),
        ]
    )
    model.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True), loss=_logits_loss())
    return Case(model, _classes(3, 6))


def cnn(rate: float = 0.0) -> Case:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Dropout(rate),
            layers.Flatten(),
            layers.Dense(5),
        ]
    )
    rates = keras.optimizers.schedules.CosineDecay(1e-3, 40, warmup_target=5e-3, warmup_steps=5)
    optimizer = keras.optimizers.AdamW(rates, weight_decay=0.05, global_clipnorm=1.0, epsilon=1e-4)
    model.compile(optimizer=optimizer, loss=_logits_loss(), metrics=["accuracy"])
    return Case(model, _classes(5, 8, 8, 3))


def depthwise() -> Case:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.DepthwiseConv2D(3, depth_multiplier=2, padding="same", activation="relu"),
            layers.SeparableConv2D(6, 3, strides=2, padding="same"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(4, activation="softmax"),
        ]
    )
    model.compile(optimizer=keras.optimizers.RMSprop(1e-3, epsilon=1e-3), loss="sparse_categorical_crossentropy")
    return Case(model, _classes(4, 8, 8, 3))


def lstm() -> Case:
    model = keras.Sequential(
        [keras.Input((6, 4)), layers.LSTM(5, return_sequences=True), layers.LSTM(4), layers.Dense(3)]
    )
    model.compile(optimizer=keras.optimizers.Adam(1e-2, epsilon=1e-4), loss=_logits_loss())
    return Case(model, _classes(3, 6, 4))


def gru() -> Case:
    model = keras.Sequential([keras.Input((6, 4)), layers.Bidirectional(layers.GRU(5)), layers.Dense(3)])
    model.compile(optimizer=keras.optimizers.Adam(1e-2, epsilon=1e-4), loss=_logits_loss())
    return Case(model, _classes(3, 6, 4))


def transformer(rate: float = 0.0, optimizer: Any = None) -> Case:
    tokens = keras.Input((7,), dtype="int32", name="tokens")
    h = layers.Embedding(11, 8, name="words")(tokens)
    a = layers.MultiHeadAttention(2, 4, dropout=rate, use_bias=False)(h, h, use_causal_mask=True)
    h = layers.LayerNormalization()(h + a)
    f = layers.Dense(8)(layers.Dense(16, activation="gelu")(h))
    h = layers.LayerNormalization()(h + f)
    model = keras.Model(tokens, layers.Dense(3)(layers.GlobalAveragePooling1D()(h)))
    model.compile(optimizer=optimizer or keras.optimizers.Adam(1e-3, epsilon=1e-4), loss=_logits_loss())
    return Case(
        model,
        lambda random, size: (
            random.randint(0, 11, (size, 7)).astype("int32"),
            random.randint(0, 3, size).astype("int32"),
        ),
    )


def two() -> Case:
    """Two inputs and two losses with weights."""
    a, b = keras.Input((6,), name="a"), keras.Input((4,), name="b")
    h = layers.Concatenate()([layers.Dense(5, activation="tanh")(a), layers.Dense(5, activation="selu")(b)])
    outputs = {"c": layers.Dense(3, name="c")(h), "d": layers.Dense(1, name="d")(h)}
    model = keras.Model({"a": a, "b": b}, outputs)
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2, epsilon=1e-4),
        loss={"c": _logits_loss(), "d": "mse"},
        loss_weights={"c": 1.0, "d": 0.5},
    )

    def batch(random: np.random.RandomState, size: int) -> tuple[Any, Any]:
        wide = keras.config.floatx()
        x = {"a": random.normal(size=(size, 6)).astype(wide), "b": random.normal(size=(size, 4)).astype(wide)}
        return x, {"c": random.randint(0, 3, size).astype("int32"), "d": random.normal(size=(size, 1)).astype(wide)}

    return Case(model, batch)


CASES: dict[str, Callable[[], Case]] = {
    "linear": linear, "mlp": mlp, "cnn": cnn, "depthwise": depthwise, "lstm": lstm, "gru": gru,
    "transformer": transformer, "two": two,
}  # fmt: skip
