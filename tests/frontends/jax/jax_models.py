"""Models in JAX, flax and equinox, each with its loss, its prediction and batches that change."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax


@dataclasses.dataclass
class Case:
    """What `from_jax` takes, and how to make a batch of n samples from a random state."""

    loss: Callable[..., Any]
    predict: Callable[..., Any]
    params: Any
    state: Any
    optimizer: Any
    batch: Callable[[np.random.RandomState, int], Any]


def cross_entropy(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def _normal(seed: int, dtype: Any, *shape: int, scale: float = 0.5) -> Any:
    return jnp.asarray(np.random.RandomState(seed).randn(*shape) * scale, dtype)


def linear(dtype: Any) -> Case:
    def predict(params: Any, batch: Any) -> Any:
        return batch["x"] @ params["W"] + params["b"]

    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean((predict(params, batch) - batch["y"]) ** 2)

    params = {"W": _normal(0, dtype, 4, 2), "b": jnp.zeros(2, dtype)}
    return Case(loss, predict, params, None, optax.adagrad(0.1), _regression(dtype, 4, 2))


def _regression(dtype: Any, inputs: int, outputs: int) -> Any:
    def batch(random: np.random.RandomState, n: int) -> Any:
        return {"x": random.randn(n, inputs).astype(dtype), "y": random.randn(n, outputs).astype(dtype)}

    return batch


def mlp(dtype: Any) -> Case:
    def predict(params: Any, batch: Any) -> Any:
        x = batch[0]
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return x @ params[-1]["w"] + params[-1]["b"]

    def loss(params: Any, batch: Any) -> Any:
        penalty = sum(jnp.sum(p["w"] ** 2) for p in params)
        return cross_entropy(predict(params, batch), batch[1]) + 1e-3 * penalty

    sizes = [5, 16, 8, 3]
    params = [
        {"w": _normal(i, dtype, a, b), "b": jnp.zeros(b, dtype)} for i, (a, b) in enumerate(itertools.pairwise(sizes))
    ]
    schedule = optax.warmup_cosine_decay_schedule(1e-3, 1e-2, 10, 60)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.05))

    def batch(random: np.random.RandomState, n: int) -> Any:
        return random.randn(n, 5).astype(dtype), random.randint(0, 3, n).astype(np.int32)

    return Case(loss, predict, params, None, optimizer, batch)


def cnn(dtype: Any, rate: float = 0.0) -> Case:
    def forward(params: Any, state: Any, x: Any, train: bool, key: Any) -> Any:
        x = jax.lax.conv_general_dilated(x, params["conv"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        if train:
            mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
            new = {k: 0.9 * state[k] + 0.1 * v for k, v in (("mean", mean), ("var", var))}
        else:
            mean, var, new = state["mean"], state["var"], state
        x = (x - mean) * jax.lax.rsqrt(var + 1e-5) * params["scale"] + params["bias"]
        x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        if train and rate:
            x = jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)
        x = jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "SAME") / 4
        return x.reshape(x.shape[0], -1) @ params["dense"], new

    def predict(params: Any, state: Any, batch: Any) -> Any:
        return forward(params, state, batch["image"], False, None)[0]

    def loss(params: Any, state: Any, batch: Any, key: Any) -> Any:
        logits, new = forward(params, state, batch["image"], True, key)
        return cross_entropy(logits, batch["label"]), new

    params = {
        "conv": _normal(0, dtype, 3, 3, 2, 4),
        "scale": jnp.ones(4, dtype),
        "bias": jnp.zeros(4, dtype),
        "dense": _normal(1, dtype, 16, 3),
    }
    state = {"mean": jnp.zeros(4, dtype), "var": jnp.ones(4, dtype)}

    def batch(random: np.random.RandomState, n: int) -> Any:
        return {"image": random.randn(n, 8, 8, 2).astype(dtype), "label": random.randint(0, 3, n).astype(np.int32)}

    return Case(loss, predict, params, state, optax.sgd(0.05, momentum=0.9, nesterov=True), batch)


def depthwise(dtype: Any) -> Case:
    """A convolution for each channel and a mix of the channels, in NHWC."""

    def predict(params: Any, batch: Any) -> Any:
        x = batch["image"]
        numbers = ("NHWC", "HWIO", "NHWC")
        for layer in params["layers"]:
            groups = x.shape[-1]
            x = jax.lax.conv_general_dilated(
                x, layer["depth"], (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=groups
            )
            x = jax.nn.relu(jax.lax.conv_general_dilated(x, layer["mix"], (2, 2), "SAME", dimension_numbers=numbers))
        return x.mean((1, 2)) @ params["head"]

    def loss(params: Any, batch: Any) -> Any:
        return cross_entropy(predict(params, batch), batch["label"])

    def layer(seed: int, channels: int, width: int) -> Any:
        return {
            "depth": _normal(seed, dtype, 3, 3, 1, channels),
            "mix": _normal(seed + 1, dtype, 1, 1, channels, width),
        }

    params = {"layers": [layer(0, 2, 4), layer(2, 4, 6)], "head": _normal(4, dtype, 6, 3)}
    return Case(loss, predict, params, None, optax.adam(1e-2, eps=1e-4), cnn(dtype).batch)


def two(dtype: Any) -> Case:
    """Two inputs and two losses, one of classes and one of numbers."""

    def predict(params: Any, batch: Any) -> Any:
        hidden = jnp.tanh(batch["left"] @ params["left"] + batch["right"] @ params["right"])
        return {"class": hidden @ params["class"], "number": hidden @ params["number"]}

    def loss(params: Any, batch: Any) -> Any:
        outputs = predict(params, batch)
        return cross_entropy(outputs["class"], batch["label"]) + 0.3 * jnp.mean(
            (outputs["number"][:, 0] - batch["wanted"]) ** 2
        )

    params = {
        "left": _normal(0, dtype, 4, 6), "right": _normal(1, dtype, 3, 6), "class": _normal(2, dtype, 6, 3),
        "number": _normal(3, dtype, 6, 1),
    }  # fmt: skip

    def batch(random: np.random.RandomState, n: int) -> Any:
        return {
            "left": random.randn(n, 4).astype(dtype), "right": random.randn(n, 3).astype(dtype),
            "label": random.randint(0, 3, n).astype(np.int32), "wanted": random.randn(n).astype(dtype),
        }  # fmt: skip

    return Case(loss, predict, params, None, optax.adam(1e-2, eps=1e-4), batch)


def lstm(dtype: Any) -> Case:
    size = 6

    def predict(params: Any, batch: Any) -> Any:
        def cell(carry: Any, x: Any) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(jnp.concatenate([x, h], -1) @ params["w"] + params["b"], 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        x = batch["x"]
        start = jnp.zeros((x.shape[0], size), x.dtype)
        (h, _), _ = jax.lax.scan(cell, (start, start), x.transpose(1, 0, 2))
        return h @ params["out"]

    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean((predict(params, batch) - batch["y"]) ** 2)

    params = {
        "w": _normal(0, dtype, 3 + size, 4 * size),
        "b": jnp.zeros(4 * size, dtype),
        "out": _normal(1, dtype, size, 2),
    }

    def batch(random: np.random.RandomState, n: int) -> Any:
        return {"x": random.randn(n, 5, 3).astype(dtype), "y": random.randn(n, 2).astype(dtype)}

    return Case(loss, predict, params, None, optax.rmsprop(1e-2), batch)


def gru(dtype: Any) -> Case:
    size = 5

    def predict(params: Any, batch: Any) -> Any:
        def one(sequence: Any) -> Any:
            def cell(h: Any, x: Any) -> Any:
                z, r = jnp.split(jax.nn.sigmoid(jnp.concatenate([x, h]) @ params["gates"]), 2)
                new = jnp.tanh(jnp.concatenate([x, r * h]) @ params["new"])
                h = (1 - z) * h + z * new
                return h, h

            return jax.lax.scan(cell, jnp.zeros(size, sequence.dtype), sequence, reverse=True)[1].mean(0)

        return jax.vmap(one)(batch["x"]) @ params["out"]

    def loss(params: Any, batch: Any) -> Any:
        return optax.huber_loss(predict(params, batch), batch["y"]).mean()

    params = {
        "gates": _normal(0, dtype, 3 + size, 2 * size),
        "new": _normal(1, dtype, 3 + size, size),
        "out": _normal(2, dtype, size, 2),
    }

    def batch(random: np.random.RandomState, n: int) -> Any:
        return {"x": random.randn(n, 5, 3).astype(dtype), "y": random.randn(n, 2).astype(dtype)}

    return Case(loss, predict, params, None, optax.nadam(1e-2), batch)


def transformer(dtype: Any) -> Case:
    size, heads, words = 8, 2, 11

    def norm(x: Any, scale: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        return (x - mean) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale

    def predict(params: Any, batch: Any) -> Any:
        tokens = batch["tokens"]
        x = params["embed"][tokens] + params["position"][: tokens.shape[1]]
        for layer in params["layers"]:
            q, k, v = jnp.split(norm(x, layer["n1"]) @ layer["qkv"], 3, -1)
            q, k, v = (t.reshape(*t.shape[:2], heads, -1) for t in (q, k, v))
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(size // heads)
            mask = jnp.tril(jnp.ones((tokens.shape[1], tokens.shape[1]), bool))
            weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
            x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ layer["out"]
            x = x + jax.nn.gelu(norm(x, layer["n2"]) @ layer["up"]) @ layer["down"]
        return x @ params["embed"].T

    def loss(params: Any, batch: Any) -> Any:
        logits = predict(params, batch)
        return cross_entropy(logits[:, :-1], batch["tokens"][:, 1:])

    layers = [
        {
            "n1": jnp.ones(size, dtype), "n2": jnp.ones(size, dtype), "qkv": _normal(10 + i, dtype, size, 3 * size),
            "out": _normal(20 + i, dtype, size, size), "up": _normal(30 + i, dtype, size, 16),
            "down": _normal(40 + i, dtype, 16, size),
        }
        for i in range(2)
    ]  # fmt: skip
    params = {"embed": _normal(0, dtype, words, size), "position": _normal(1, dtype, 6, size), "layers": layers}

    def batch(random: np.random.RandomState, n: int) -> Any:
        return {"tokens": random.randint(0, words, (n, 6)).astype(np.int32)}

    return Case(loss, predict, params, None, optax.adam(1e-2), batch)


def linen(dtype: Any, rate: float = 0.0) -> Case:
    import flax.linen as nn

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any, train: bool) -> Any:
            x = nn.Conv(4, (3, 3), use_bias=False, dtype=dtype, param_dtype=dtype)(x)
            x = nn.BatchNorm(use_running_average=not train, dtype=dtype, param_dtype=dtype)(x)
            x = nn.max_pool(nn.relu(x), (2, 2), (2, 2))
            x = nn.Dropout(rate, deterministic=not train)(x)
            x = nn.LayerNorm(dtype=dtype, param_dtype=dtype)(x.reshape(x.shape[0], -1))
            return nn.Dense(3, dtype=dtype, param_dtype=dtype)(x)

    variables = Net().init(jax.random.key(0), jnp.zeros((1, 8, 8, 2), dtype), False)

    def predict(params: Any, state: Any, batch: Any) -> Any:
        return Net().apply({"params": params, **state}, batch["image"], False)

    def loss(params: Any, state: Any, batch: Any, key: Any) -> Any:
        logits, new = Net().apply(
            {"params": params, **state}, batch["image"], True, mutable=["batch_stats"], rngs={"dropout": key}
        )
        return cross_entropy(logits, batch["label"]), new

    state = jax.tree.map(lambda a: a.astype(dtype), {"batch_stats": variables["batch_stats"]})  # flax begins in float32
    return Case(loss, predict, variables["params"], state, optax.adam(3e-3), cnn(dtype).batch)


def nnx(dtype: Any, rate: float = 0.0) -> Case:
    from flax import nnx as flax

    class Block(flax.Module):
        def __init__(self, size: int, rngs: Any) -> None:
            self.conv = flax.Conv(size, size, (3, 3), use_bias=False, rngs=rngs, dtype=dtype, param_dtype=dtype)
            self.norm = flax.BatchNorm(size, rngs=rngs, dtype=dtype, param_dtype=dtype)

        def __call__(self, x: Any) -> Any:
            return x + flax.relu(self.norm(self.conv(x)))

    class ResNet(flax.Module):
        def __init__(self, rngs: Any) -> None:
            self.stem = flax.Conv(2, 4, (3, 3), strides=2, rngs=rngs, dtype=dtype, param_dtype=dtype)
            self.blocks = flax.List([Block(4, rngs) for _ in range(2)])
            self.drop = flax.Dropout(rate, rngs=rngs)
            self.head = flax.Linear(4, 3, rngs=rngs, dtype=dtype, param_dtype=dtype)

        def __call__(self, x: Any) -> Any:
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)
            return self.head(self.drop(x.mean((1, 2))))

    graph, params, state = flax.split(ResNet(flax.Rngs(0)), flax.Param, ...)
    state = jax.tree.map(lambda a: a.astype(dtype) if a.dtype == np.float32 else a, state)  # flax begins in float32

    def run(params: Any, state: Any, x: Any, train: bool) -> Any:
        model = flax.merge(graph, params, state, copy=True)
        model.train() if train else model.eval()
        logits = model(x)
        return logits, flax.split(model, flax.Param, ...)[2]

    def predict(params: Any, state: Any, batch: Any) -> Any:
        return run(params, state, batch["image"], False)[0]

    def loss(params: Any, state: Any, batch: Any) -> Any:
        logits, new = run(params, state, batch["image"], True)
        return cross_entropy(logits, batch["label"]), new

    return Case(loss, predict, params, state, optax.lion(1e-3), cnn(dtype).batch)


def equinox(dtype: Any) -> Case:
    import equinox as eqx

    model = eqx.nn.MLP(4, 2, 8, 2, key=jax.random.key(0), dtype=dtype)
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def predict(params: Any, batch: Any) -> Any:
        return jax.vmap(eqx.combine(params, static))(batch["x"])

    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean((predict(params, batch) - batch["y"]) ** 2)

    return Case(loss, predict, params, None, optax.adamw(1e-2), _regression(dtype, 4, 2))


CASES = {f.__name__: f for f in (linear, mlp, cnn, depthwise, two, lstm, gru, transformer, linen, nnx, equinox)}
