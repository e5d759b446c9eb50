"""Models in plain TensorFlow, with the user's own training loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


@dataclasses.dataclass
class Case:
    """A module, its loss, and batches: a random state and a size in, inputs and targets out."""

    module: Any
    loss: Callable[..., Any]
    batch: Callable[[np.random.RandomState, int], tuple[Any, Any]]


def weight(random: np.random.RandomState, *shape: int, dtype: str = "float32", name: str = "w") -> tf.Variable:
    scale = 1.0 / np.sqrt(max(np.prod(shape[:-1]), 1))
    return tf.Variable((random.randn(*shape) * scale).astype(dtype), name=name)


class Linear(tf.Module):
    def __init__(self, inputs: int, outputs: int, dtype: str = "float32", name: str = "linear") -> None:
        super().__init__(name=name)
        with self.name_scope:
            self.w = weight(np.random.RandomState(len(name)), inputs, outputs, dtype=dtype)
            self.b = tf.Variable(tf.zeros(outputs, dtype), name="b")

    def __call__(self, x: Any) -> Any:
        return x @ self.w + self.b


def squared(y: Any, t: Any) -> Any:
    return tf.reduce_mean(tf.square(y - t))


def rows(inputs: int, outputs: int, dtype: str = "float32") -> Callable[..., Any]:
    def batch(random: np.random.RandomState, size: int) -> tuple[Any, Any]:
        return random.randn(size, inputs).astype(dtype), random.randn(size, outputs).astype(dtype)

    return batch


def linear(dtype: str = "float32") -> Case:
    return Case(Linear(4, 2, dtype), squared, rows(4, 2, dtype))


class Perceptron(tf.Module):
    """Two layers; one is frozen, one weight is a constant of TensorFlow."""

    def __init__(self, dtype: str = "float32") -> None:
        super().__init__(name="perceptron")
        self.first, self.last = Linear(5, 7, dtype, "first"), Linear(7, 3, dtype, "last")
        self.scale = tf.Variable(tf.fill([5], tf.constant(1.5, dtype)), trainable=False, name="scale")
        self.shift = tf.constant(np.linspace(-1, 1, 5).astype(dtype))

    @tf.function
    def __call__(self, x: Any) -> Any:
        return self.last(tf.tanh(self.first(x * self.scale + self.shift)))


def perceptron(dtype: str = "float32") -> Case:
    module = Perceptron(dtype)

    def loss(y: Any, t: Any) -> Any:
        penalty = tf.add_n([tf.nn.l2_loss(v) for v in module.trainable_variables if "w" in v.name])
        return squared(y, t) + tf.cast(1e-2, y.dtype) * penalty

    return Case(module, loss, rows(5, 3, dtype))


class Normed(tf.Module):
    """A convolutional network, channels last, with batch normalisation and dropout."""

    def __init__(self, dtype: str = "float32", rate: float = 0.0) -> None:
        super().__init__(name="normed")
        random = np.random.RandomState(1)
        self.rate = rate
        self.kernel = weight(random, 3, 3, 2, 4, dtype=dtype, name="kernel")
        self.gamma = tf.Variable(tf.ones(4, dtype), name="gamma")
        self.beta = tf.Variable(tf.zeros(4, dtype), name="beta")
        self.mean = tf.Variable(tf.zeros(4, dtype), trainable=False, name="mean")
        self.variance = tf.Variable(tf.ones(4, dtype), trainable=False, name="variance")
        self.batches = tf.Variable(0, trainable=False, dtype=tf.int64, name="batches")
        self.last = Linear(4, 3, dtype, "last")

    @tf.function
    def __call__(self, x: Any, training: bool = False) -> Any:
        x = tf.nn.conv2d(x, self.kernel, 1, "SAME")
        mean, variance = self.mean, self.variance
        if training:
            mean, variance = tf.nn.moments(x, [0, 1, 2])
            momentum = tf.cast(0.9, x.dtype)
            self.mean.assign(self.mean * momentum + mean * (1 - momentum))
            self.variance.assign_add((variance - self.variance) * (1 - momentum))
            self.batches.assign_add(1)
        x = tf.nn.batch_normalization(x, mean, variance, self.beta, self.gamma, tf.cast(1e-3, x.dtype))
        x = tf.nn.max_pool2d(tf.nn.relu(x), 2, 2, "VALID")
        if training and self.rate:
            x = tf.nn.dropout(x, self.rate)
        return self.last(tf.reduce_mean(x, [1, 2]))


def images(dtype: str = "float32") -> Callable[..., Any]:
    def batch(random: np.random.RandomState, size: int) -> tuple[Any, Any]:
        return random.randn(size, 6, 6, 2).astype(dtype), random.randint(0, 3, size).astype("int64")

    return batch


def classes(y: Any, t: Any) -> Any:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(t, y))


def normed(dtype: str = "float32", rate: float = 0.0) -> Case:
    return Case(Normed(dtype, rate), classes, images(dtype))


class Recurrent(tf.Module):
    """A loop over time, whose body reads variables."""

    def __init__(self, dtype: str = "float32") -> None:
        super().__init__(name="recurrent")
        random = np.random.RandomState(2)
        self.w = weight(random, 3, 4, dtype=dtype, name="input")
        self.u = weight(random, 4, 4, dtype=dtype, name="recurrent")
        self.last = Linear(4, 2, dtype, "last")

    def __call__(self, x: Any) -> Any:
        def body(step: Any, state: Any) -> Any:
            return step + 1, tf.tanh(tf.gather(x, step, axis=1) @ self.w + state @ self.u)

        start = tf.zeros([tf.shape(x)[0], 4], x.dtype)
        _, state = tf.while_loop(
            lambda step, state: step < 5, body, [tf.constant(0), start],
            shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 4])],
        )  # fmt: skip
        return self.last(state)


def recurrent(dtype: str = "float32") -> Case:
    def batch(random: np.random.RandomState, size: int) -> tuple[Any, Any]:
        return random.randn(size, 5, 3).astype(dtype), random.randn(size, 2).astype(dtype)

    return Case(Recurrent(dtype), squared, batch)


class Attention(tf.Module):
    """Rows of a table, attention, exact GELU, normalisation of layers; two outputs by name."""

    def __init__(self, dtype: str = "float32") -> None:
        super().__init__(name="attention")
        random = np.random.RandomState(3)
        self.table = weight(random, 11, 8, dtype=dtype, name="table")
        self.query, self.key, self.value = (weight(random, 8, 8, dtype=dtype, name=n) for n in ("q", "k", "v"))
        self.gain = tf.Variable(tf.ones(8, dtype), name="gain")
        self.last = Linear(8, 3, dtype, "last")

    @tf.function
    def __call__(self, tokens: Any) -> Any:
        x = tf.nn.embedding_lookup(self.table, tokens)
        scores = tf.einsum("btd,bsd->bts", x @ self.query, x @ self.key) / tf.cast(np.sqrt(8.0), x.dtype)
        x = x + tf.nn.softmax(scores) @ (x @ self.value)
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        x = (x - mean) * tf.math.rsqrt(variance + tf.cast(1e-5, x.dtype)) * self.gain
        x = tf.nn.gelu(x, approximate=False)
        return {"logits": self.last(x[:, 0]), "mean": tf.stop_gradient(tf.reduce_mean(x, 1))}


def attention(dtype: str = "float32") -> Case:
    def batch(random: np.random.RandomState, size: int) -> tuple[Any, Any]:
        return random.randint(0, 11, (size, 6)).astype("int32"), random.randint(0, 3, size).astype("int64")

    return Case(Attention(dtype), lambda y, t: classes(y["logits"], t) + tf.reduce_mean(y["mean"] ** 2), batch)


CASES = {"linear": linear, "perceptron": perceptron, "normed": normed, "recurrent": recurrent, "attention": attention}
