"""JAX: the whole step, update included, as one jitted function whose state is donated; jax.numpy and lax only.

Images are NHWC and kernels HWIO, which XLA's CPU convolutions want; weights are PyTorch's, under PyTorch's names.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from workloads import LEARNING_RATE, MOMENTUM, Workload

from peers import Batches, Files, Step

Tree = dict[str, Any]
B1, B2, EPSILON = 0.9, 0.999, 1e-8


class Layers:
    """The layers of one forward pass, by the names of PyTorch's modules; `statistics` collects what changed."""

    def __init__(self, weights: Tree, statistics: Tree) -> None:
        self.weights = weights
        self.statistics = dict(statistics)

    relu = staticmethod(jax.nn.relu)

    @staticmethod
    def to_nhwc(x: Any) -> Any:
        return x.transpose(0, 2, 3, 1)

    @staticmethod
    def to_nchw(x: Any) -> Any:
        return x.transpose(0, 3, 1, 2)

    @staticmethod
    def max_pool(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    @staticmethod
    def mean(x: Any, axes: int | tuple[int, ...]) -> Any:
        return x.mean(axes)

    @staticmethod
    def flatten(x: Any) -> Any:
        return x.reshape(x.shape[0], -1)

    @staticmethod
    def concatenate(*parts: Any) -> Any:
        return jnp.concatenate(parts, -1)

    def linear(self, x: Any, name: str) -> Any:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def embedding(self, x: Any, name: str) -> Any:
        return self.weights[f"{name}.weight"][x]

    def conv(self, x: Any, name: str, *, stride: int = 1, padding: int = 0, groups: int = 1) -> Any:
        y = lax.conv_general_dilated(
            x, self.weights[f"{name}.weight"], (stride, stride), [(padding, padding)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups,
        )  # fmt: skip
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else y + bias

    def batch_norm(self, x: Any, name: str) -> Any:
        axes = tuple(range(x.ndim - 1))
        mean, variance = x.mean(axes), x.var(axes)
        count = x.size // x.shape[-1]
        for part, now in (("running_mean", mean), ("running_var", variance * count / (count - 1))):
            key = f"{name}.{part}"
            self.statistics[key] = 0.9 * self.statistics[key] + 0.1 * lax.stop_gradient(now)
        scale = self.weights[f"{name}.weight"] * lax.rsqrt(variance + 1e-5)
        return (x - mean) * scale + self.weights[f"{name}.bias"]

    def layer_norm(self, x: Any, name: str) -> Any:
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        normal = (x - mean) * lax.rsqrt(variance + 1e-5)
        return normal * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def attention(self, x: Any, name: str, heads: int) -> Any:
        batch, length, width = x.shape
        joint = x @ self.weights[f"{name}.in_proj_weight"].T + self.weights[f"{name}.in_proj_bias"]
        q, k, v = joint.reshape(batch, length, 3, heads, width // heads).transpose(2, 0, 3, 1, 4)
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(width // heads).astype(np.float32)
        y = jax.nn.softmax(scores) @ v
        return self.linear(y.transpose(0, 2, 1, 3).reshape(batch, length, width), f"{name}.out_proj")

    def lstm(self, x: Any, name: str, layer: int) -> Any:
        """Return all outputs of one layer, batch first."""
        x = x.swapaxes(0, 1)
        inward, recurrent, *biases = (
            self.weights[f"{name}.{part}_l{layer}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        gates = x @ inward.T + biases[0] + biases[1]

        def cell(carry: Any, gate: Any) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(gate + h @ recurrent.T, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        start = jnp.zeros((x.shape[1], recurrent.shape[1]), x.dtype)
        return lax.scan(cell, (start, start), gates)[1].swapaxes(0, 1)

    def gru(self, x: Any, name: str, layer: int) -> Any:
        """Return all outputs of one layer, batch first."""
        x = x.swapaxes(0, 1)
        inward, recurrent, before, after = (
            self.weights[f"{name}.{part}_l{layer}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        gates = x @ inward.T + before

        def cell(h: Any, gate: Any) -> Any:
            xr, xz, xn = jnp.split(gate, 3, axis=-1)
            hr, hz, hn = jnp.split(h @ recurrent.T + after, 3, axis=-1)
            z = jax.nn.sigmoid(xz + hz)
            h = (1 - z) * jnp.tanh(xn + jax.nn.sigmoid(xr + hr) * hn) + z * h
            return h, h

        start = jnp.zeros((x.shape[1], recurrent.shape[1]), x.dtype)
        return lax.scan(cell, start, gates)[1].swapaxes(0, 1)

    @staticmethod
    def enlarge(x: Any) -> Any:
        """Return images of twice the size, each pixel repeated."""
        return x.repeat(2, axis=1).repeat(2, axis=2)


def adam(weights: Tree, gradients: Tree, moments: list[Tree], t: Any) -> tuple[Tree, list[Tree]]:
    first = jax.tree.map(lambda m, g: B1 * m + (1 - B1) * g, moments[0], gradients)
    second = jax.tree.map(lambda v, g: B2 * v + (1 - B2) * g * g, moments[1], gradients)
    size, root = LEARNING_RATE / (1 - B1**t), jnp.sqrt(1 - B2**t)
    return jax.tree.map(lambda w, m, v: w - size * m / (jnp.sqrt(v) / root + EPSILON), weights, first, second), [
        first,
        second,
    ]


def sgd(weights: Tree, gradients: Tree, moments: list[Tree], t: Any) -> tuple[Tree, list[Tree]]:
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v + g, moments[0], gradients)
    return jax.tree.map(lambda w, v: w - LEARNING_RATE * v, weights, velocity), [velocity]


OPTIMIZERS = {"adam": (adam, 2), "sgd": (sgd, 1)}  # and how many moments it keeps


def build(workload: Workload, batches: Batches, files: Files, *, donate: bool = True) -> Step:
    update, moments = OPTIMIZERS[workload.optimizer]
    weights: Tree = {}
    statistics: Tree = {}
    with np.load(files.weights) as stored:
        for name, value in stored.items():
            if value.ndim == 4:
                value = value.transpose(2, 3, 1, 0)
            if "running_" in name:
                statistics[name] = jnp.array(value)
            elif value.dtype == np.float32:
                weights[name] = jnp.array(value)

    def loss_of(weights: Tree, statistics: Tree, x: Any, t: Any) -> Any:
        layers = Layers(weights, statistics)
        logits = jax.nn.log_softmax(workload.forward(layers, x))
        return -jnp.take_along_axis(logits, t[:, None], axis=1).mean(), layers.statistics

    def train(state: Any, x: Any, t: Any) -> Any:
        weights, statistics, moments, count = state
        (loss, statistics), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights, statistics, x, t)
        weights, moments = update(weights, gradients, moments, count + 1)
        return (weights, statistics, moments, count + 1), loss

    zeros = [jax.tree.map(jnp.zeros_like, weights) for _ in range(moments)]
    state: Any = (weights, statistics, zeros, jnp.array(0.0, jnp.float32))
    data = [(jnp.array(x), jnp.array(t)) for x, t in batches]
    jitted = jax.jit(train, donate_argnums=0 if donate else ())

    def step(k: int) -> float:
        nonlocal state
        state, loss = jitted(state, *data[k % len(data)])
        return float(loss)

    return step
