"""Keras 3 on JAX: Keras's own layers and optimizers, in the training loop that its guide gives for JAX.

The whole step is one jitted function whose state is donated (https://keras.io/guides/writing_a_custom_training_loop_in_jax),
which is faster than `train_on_batch`. Keras's LSTM has one bias where PyTorch has two, so its later losses differ.
"""

from __future__ import annotations

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import numpy as np
from workloads import LEARNING_RATE, MOMENTUM, Workload

from peers import Batches, Files, Step

Arrays = dict[str, np.ndarray]


class Layers:
    """The layers of one model, with PyTorch's weights under PyTorch's names; images are NHWC."""

    def __init__(self, weights: Arrays) -> None:
        self.weights = weights

    @staticmethod
    def relu(x: Any) -> Any:
        return keras.layers.ReLU()(x)

    @staticmethod
    def to_nhwc(x: Any) -> Any:
        return keras.layers.Permute((2, 3, 1))(x)

    @staticmethod
    def to_nchw(x: Any) -> Any:
        return keras.layers.Permute((3, 1, 2))(x)

    @staticmethod
    def flatten(x: Any) -> Any:
        return keras.layers.Reshape((-1,))(x)

    @staticmethod
    def max_pool(x: Any) -> Any:
        return keras.layers.MaxPooling2D(2)(x)

    @staticmethod
    def enlarge(x: Any) -> Any:
        return keras.layers.UpSampling2D(2)(x)

    @staticmethod
    def mean(x: Any, axes: int | tuple[int, ...]) -> Any:
        return keras.ops.mean(x, axes)

    @staticmethod
    def concatenate(*parts: Any) -> Any:
        return keras.layers.Concatenate()(parts)

    def _apply(self, layer: Any, weights: list[np.ndarray], *inputs: Any) -> Any:
        result = layer(*inputs)
        layer.set_weights(weights)
        return result

    def linear(self, x: Any, name: str) -> Any:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return self._apply(keras.layers.Dense(len(bias)), [weight.T, bias], x)

    def embedding(self, x: Any, name: str) -> Any:
        table = self.weights[f"{name}.weight"]
        return self._apply(keras.layers.Embedding(*table.shape), [table], x)

    def conv(self, x: Any, name: str, *, stride: int = 1, padding: int = 0, groups: int = 1) -> Any:
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        size = weight.shape[2]
        same = stride == 1 and padding == size // 2
        if padding and not same:  # Keras pads more at the end than at the beginning
            x = keras.layers.ZeroPadding2D(padding)(x)
        options = {"padding": "same" if same else "valid", "use_bias": bias is not None}
        if groups == 1:
            layer = keras.layers.Conv2D(len(weight), size, stride, **options)
            kernel = weight.transpose(2, 3, 1, 0)
        else:
            layer = keras.layers.DepthwiseConv2D(size, stride, **options)
            kernel = weight.transpose(2, 3, 0, 1)
        return self._apply(layer, [kernel] if bias is None else [kernel, bias], x)

    def batch_norm(self, x: Any, name: str) -> Any:
        parts = [self.weights[f"{name}.{p}"] for p in ("weight", "bias", "running_mean", "running_var")]
        return self._apply(keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5), parts, x)

    def layer_norm(self, x: Any, name: str) -> Any:
        parts = [self.weights[f"{name}.{p}"] for p in ("weight", "bias")]
        return self._apply(keras.layers.LayerNormalization(epsilon=1e-5), parts, x)

    def attention(self, x: Any, name: str, heads: int) -> Any:
        joint, bias = self.weights[f"{name}.in_proj_weight"], self.weights[f"{name}.in_proj_bias"]
        width = joint.shape[1]
        size = width // heads
        parts: list[np.ndarray] = []
        for kernel, offset in zip(np.split(joint, 3), np.split(bias, 3), strict=True):
            parts += [kernel.T.reshape(width, heads, size), offset.reshape(heads, size)]
        out = self.weights[f"{name}.out_proj.weight"]
        parts += [out.T.reshape(heads, size, width), self.weights[f"{name}.out_proj.bias"]]
        return self._apply(keras.layers.MultiHeadAttention(heads, size), parts, x, x)

    def lstm(self, x: Any, name: str, layer: int) -> Any:
        inward, recurrent, before, after = self._recurrent(name, layer)
        made = keras.layers.LSTM(recurrent.shape[1], return_sequences=True)
        return self._apply(made, [inward.T, recurrent.T, before + after], x)

    def gru(self, x: Any, name: str, layer: int) -> Any:
        def order(gates: np.ndarray) -> np.ndarray:  # PyTorch: reset, update, new; Keras: update, reset, new
            r, z, n = np.split(gates, 3)
            return np.concatenate([z, r, n])

        inward, recurrent, before, after = map(order, self._recurrent(name, layer))
        made = keras.layers.GRU(recurrent.shape[1], return_sequences=True)
        return self._apply(made, [inward.T, recurrent.T, np.stack([before, after])], x)

    def _recurrent(self, name: str, layer: int) -> list[np.ndarray]:
        return [self.weights[f"{name}.{p}_l{layer}"] for p in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]


def build(workload: Workload, batches: Batches, files: Files) -> Step:
    with np.load(files.weights) as stored:
        layers = Layers(dict(stored))
    x, _ = batches[0]
    given = keras.Input(batch_shape=workload.shape, dtype=x.dtype.name)
    model = keras.Model(given, workload.forward(layers, given))
    if workload.optimizer == "adam":
        optimizer = keras.optimizers.Adam(LEARNING_RATE, epsilon=1e-8)
    else:
        optimizer = keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)
    optimizer.build(model.trainable_variables)
    loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def loss_of(trainable: Any, other: Any, x: Any, t: Any) -> Any:
        logits, other = model.stateless_call(trainable, other, x, training=True)
        return loss_function(t, logits), other

    def train(state: Any, x: Any, t: Any) -> Any:
        trainable, other, memory = state
        (loss, other), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable, other, x, t)
        trainable, memory = optimizer.stateless_apply(memory, gradients, trainable)
        return (trainable, other, memory), loss

    variables = (model.trainable_variables, model.non_trainable_variables, optimizer.variables)
    state: Any = [[jnp.array(v.value) for v in part] for part in variables]
    jitted = jax.jit(train, donate_argnums=0)
    data = [(jnp.array(x), jnp.array(t)) for x, t in batches]

    def step(k: int) -> float:
        nonlocal state
        state, loss = jitted(state, *data[k % len(data)])
        return float(loss)

    return step
