"""Transposes that cancel and batch normalisations that become one node; the numbers are compared with JAX's."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp
from jax import lax

import onward
from frontends.jax.jax_models import CASES
from onward.graph.walk import all_nodes

LAYOUT = ("NHWC", "HWIO", "NHWC")
EPSILON = 1e-3


def convolved(x: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=LAYOUT)


def usual(x: Any, scale: Any, bias: Any) -> tuple[Any, Any, Any]:
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) * lax.rsqrt(var + EPSILON) * scale + bias, mean, var


def of_squares(x: Any, scale: Any, bias: Any) -> tuple[Any, Any, Any]:
    """As flax writes it."""
    mean, squares = x.mean((0, 1, 2)), (x * x).mean((0, 1, 2))
    var = jnp.maximum(0.0, squares - mean * mean)
    return (x - mean) * (lax.rsqrt(var + EPSILON) * scale) + bias, mean, var


def offset(x: Any, scale: Any, bias: Any) -> tuple[Any, Any, Any]:
    """As Keras writes it."""
    mean, var = x.mean((0, 1, 2), keepdims=True), x.var((0, 1, 2), keepdims=True)
    inverse = lax.rsqrt(var + EPSILON) * scale.reshape(1, 1, 1, -1)
    return x * inverse + (bias.reshape(1, 1, 1, -1) - mean * inverse), mean.reshape(-1), var.reshape(-1)


def divided(x: Any, scale: Any, bias: Any) -> tuple[Any, Any, Any]:
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) / jnp.sqrt(EPSILON + var) + bias, mean, var


def unbiased(x: Any, scale: Any, bias: Any) -> tuple[Any, Any, Any]:
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2), ddof=1)
    return (x - mean) * lax.rsqrt(var + EPSILON) * scale + bias, mean, var


def over_channels(x: Any, scale: Any, bias: Any) -> tuple[Any, Any, Any]:
    """A layer normalisation."""
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + EPSILON) * scale + bias, mean.mean((0, 1, 2)), var.mean((0, 1, 2))


def model_of(normalised: Any, size: int = 4) -> onward.TrainingModel:
    """Return a network with one normalisation, in which every axis has the same size."""

    def forward(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        x, mean, var = normalised(convolved(x, params["first"]), params["scale"], params["bias"])
        new = {"mean": 0.9 * state["mean"] + 0.1 * mean, "var": 0.9 * state["var"] + 0.1 * var}
        x = jax.nn.relu(x)
        return convolved(x, params["second"]).mean((1, 2)), new

    def loss(params: Any, state: Any, batch: Any) -> tuple[Any, Any]:
        y, new = forward(params, state, batch["x"])
        return ((y - batch["y"]) ** 2).mean(), new

    random = np.random.RandomState(0)
    kernels = [jnp.asarray(random.randn(3, 3, size, size), jnp.float32) for _ in range(2)]
    params = {
        "first": kernels[0], "second": kernels[1], "scale": jnp.asarray(random.rand(size), jnp.float32),
        "bias": jnp.asarray(random.rand(size), jnp.float32),
    }  # fmt: skip
    batch = {"x": random.randn(size, size, size, size).astype(np.float32), "y": np.ones((size, size), np.float32)}
    return onward.from_jax(
        loss, params, {"mean": jnp.zeros(size), "var": jnp.ones(size)}, optimizer=optax.sgd(0.1), example_batch=batch,
        predict=lambda params, state, batch: forward(params, state, batch["x"])[0],
    )  # fmt: skip


def operators(graph: Any) -> collections.Counter[str]:
    return collections.Counter(n.op_type for n in all_nodes(graph))


@pytest.mark.parametrize("written", [usual, of_squares, offset, divided])
def test_a_batch_normalisation_is_one_node_however_it_is_written(written: Any):
    """`from_jax` compares loss, gradients and statistics with JAX."""
    model = model_of(written)

    found = operators(model.entries[0].algorithm)
    assert found["BatchNormalization"] == 1
    assert not {"Sqrt", "Reciprocal"} & set(found)
    entry = onward.compile(model).first
    assert operators(entry.step.model.graph)["BatchNormalization"] == 1


@pytest.mark.parametrize("written", [unbiased, over_channels])
def test_other_normalisations_stay_arithmetic(written: Any):
    assert operators(model_of(written).entries[0].algorithm)["BatchNormalization"] == 0


def test_transposes_remain_only_where_the_layouts_meet():
    """Around the images and the kernels: four axes of one size tell nothing apart."""
    model = model_of(usual)

    assert operators(model.entries[0].algorithm)["Transpose"] == 3
    assert operators(model.graph)["Transpose"] == 3


def test_a_network_of_flax_has_one_node_for_each_batch_normalisation():
    pytest.importorskip("flax")
    case = CASES["nnx"](np.float32)
    batch = case.batch(np.random.RandomState(0), 8)
    model = onward.from_jax(
        case.loss, case.params, case.state, optimizer=case.optimizer, example_batch=batch, predict=case.predict
    )

    assert operators(model.entries[0].algorithm)["BatchNormalization"] == 2


def test_a_value_that_the_loss_reads_in_both_layouts_is_right():
    """`from_jax` would refuse other numbers."""

    def loss(params: Any, batch: Any) -> Any:
        y = convolved(batch["x"], params["w"])
        z = jnp.concatenate([y, jnp.sin(y) * params["v"]], -1)
        return (z.reshape(z.shape[0], -1)[:, 3] * y.sum((1, 2, 3)) + y.max((1, 3))[:, 0]).mean() + jnp.exp(
            -(y.min((0, 2)) ** 2)
        ).sum()

    random = np.random.RandomState(0)
    params = {"w": jnp.asarray(random.randn(3, 3, 4, 4), jnp.float32), "v": jnp.asarray(random.randn(4), jnp.float32)}
    onward.from_jax(
        loss, params, optimizer="sgd", example_batch={"x": random.randn(4, 4, 4, 4).astype(np.float32)},
        predict=lambda params, batch: convolved(batch["x"], params["w"]),
    )  # fmt: skip
