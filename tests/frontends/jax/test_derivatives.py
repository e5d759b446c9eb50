"""Derivatives that somebody wrote by hand are those of the graph too, or are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp

import onward
from frontends.jax.test_primitives import W, X, agree, graph_of, normal, run
from onward.errors import ArgumentError


@jax.custom_jvp
def cubed(x: Any) -> Any:
    return x**3


cubed.defjvp(lambda primals, tangents: (cubed(primals[0]), 7.0 * tangents[0] * primals[0]))


@jax.custom_vjp
def product(x: Any, y: Any) -> Any:
    return x * y


product.defvjp(lambda x, y: (x * y, (x, y)), lambda kept, g: (g * kept[1] * 3, g * kept[0] * 5))


@jax.custom_vjp
def clipped(x: Any) -> Any:
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.01, 0.01),))


def test_a_custom_jvp_is_honoured():
    agree(lambda w, x: (cubed(x @ w) * x[:, :1]).mean(), W, X, free=(1,))


def test_a_custom_vjp_is_honoured():
    agree(lambda w, x: product(x @ w, (x @ w) ** 2).mean(), W, X, free=(1,))


def test_custom_derivatives_inside_a_scan_are_honoured():
    def function(w: Any, x: Any) -> Any:
        return jax.lax.scan(lambda c, t: (jnp.logaddexp(c @ w, t), cubed(c).sum()), jnp.zeros(3), x)[1].sum()

    agree(function, normal(3, 3), X)


def test_stop_gradient_cuts_also_at_a_parameter():
    agree(lambda w, x: (jax.lax.stop_gradient(w).sum() * (x @ w)).mean(), W, X)


def test_a_backward_rule_that_is_not_linear_is_refused_with_the_line():
    with pytest.raises(ArgumentError) as caught:
        graph_of(lambda w, x: clipped(x @ w).sum(), W, X)

    text = str(caught.value)
    assert "error[A220]: `custom_vjp_call` cannot be captured: its backward rule is not linear" in text
    assert "test_derivatives.py line" in text


def test_where_only_values_matter_own_derivatives_leave_no_trace():
    proto = graph_of(lambda w, x: (clipped(x @ w) + jax.lax.stop_gradient(w).sum()).sum(), W, X, differentiable=False)

    assert not proto.functions
    np.testing.assert_allclose(run(proto, (W, X))["y"], (X @ W + W.sum()).sum(), rtol=1e-5)


def test_a_runtime_without_onward_computes_the_values():
    proto = graph_of(lambda w, x: cubed(x @ w).sum(), W, X)

    assert {f.name for f in proto.functions} == {"StopGradient", "Tangent", "Attach"}
    np.testing.assert_allclose(run(proto, (W, X))["y"], ((X @ W) ** 3).sum(), rtol=1e-5)


def test_the_function_of_a_user_is_not_taken_for_one_of_jax_of_the_same_name():
    @jax.custom_jvp
    def relu(x: Any) -> Any:
        return jnp.maximum(x, 0)

    relu.defjvp(lambda primals, tangents: (relu(primals[0]), 2.0 * tangents[0]))

    agree(lambda w, x: relu(x @ w).sum(), W, X)


def test_the_torch_backend_takes_the_written_derivative():
    pytest.importorskip("torch")
    proto = graph_of(lambda w, x: cubed(x @ w).mean(), W, X)
    model = onward.make_trainable(
        _with_weight(proto), loss=lambda op, output, labels: op.Identity(output), optimizer="sgd", label=None
    )
    losses = {}
    for backend in ("onnxruntime", "torch"):
        trainer = onward.Trainer(model, backend=backend)
        losses[backend] = [float(trainer.step({"x1": X})["loss"]) for _ in range(3)]

    np.testing.assert_allclose(losses["torch"], losses["onnxruntime"], rtol=1e-5)


def _with_weight(proto: Any) -> Any:
    from onnx import numpy_helper

    proto.graph.initializer.append(numpy_helper.from_array(W, "x0"))
    del proto.graph.input[0]
    return proto
