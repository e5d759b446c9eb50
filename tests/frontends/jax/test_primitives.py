"""Each family of primitives: values and gradients of the graph against those of JAX, for two batch sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import onnx_ir as ir
import onnxruntime
from jax import lax

import onward
from onward.frontends.jaxpr.sizes import shape_of
from onward.frontends.jaxpr.translator import Translator, trace
from onward.graph.builder import Builder, Names
from onward.model.serde import to_proto
from onward.model.training_model import TrainingModel


def graph_of(function: Callable[..., Any], *structs: Any, differentiable: bool = True) -> Any:
    """Return the ONNX model of a function: inputs x0, x1, …, output y."""
    closed, _ = trace(function, *structs)
    inputs = [
        ir.Value(
            name=f"x{i}",
            type=ir.TensorType(ir.DataType.from_numpy(np.dtype(v.aval.dtype))),
            shape=shape_of(v.aval.shape),
        )
        for i, v in enumerate(closed.jaxpr.invars)
    ]
    op = Builder(20, Names([v.name or "" for v in inputs] + ["y"]))
    translator = Translator("function", differentiable=differentiable)
    (result,) = translator.translate(closed, inputs, op)
    output = op.Identity(result)
    output.name, output.type = "y", ir.TensorType(ir.DataType.from_numpy(np.dtype(closed.jaxpr.outvars[0].aval.dtype)))
    output.shape = shape_of(closed.jaxpr.outvars[0].aval.shape)
    functions = list(translator.functions.values())
    model = ir.Model(
        ir.Graph(inputs, [output], nodes=op.nodes, opset_imports={"": 20}, name="g"), ir_version=10, functions=functions
    )
    for function_ in functions:
        model.opset_imports[function_.domain] = 1
    return to_proto(TrainingModel(model))


def run(proto: Any, arrays: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = {i.name for i in session.get_inputs()}
    found = session.run(None, {f"x{i}": a for i, a in enumerate(arrays) if f"x{i}" in wanted})
    return dict(zip([o.name for o in session.get_outputs()], found, strict=True))


def agree(function: Callable[..., Any], *arrays: np.ndarray, free: tuple[int, ...] = ()) -> None:
    """Check value and gradient of a scalar function; arguments in `free` have a free first dimension."""
    symbol = jax.export.symbolic_shape("batch")[0]
    structs = [
        jax.ShapeDtypeStruct((symbol, *a.shape[1:]) if i in free else a.shape, a.dtype) for i, a in enumerate(arrays)
    ]
    proto = graph_of(function, *structs)
    gradient = onward.gradient(proto, of="y", wrt=["x0"])
    for given in [arrays] + ([tuple(a[:2] if i in free else a for i, a in enumerate(arrays))] if free else []):
        value, slope = jax.jit(jax.value_and_grad(function))(*given)

        np.testing.assert_allclose(run(proto, given)["y"], value, rtol=2e-5, atol=1e-6)
        wanted = np.asarray(slope)
        found = run(gradient, given)["grad/x0"]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * max(np.abs(wanted).max(), 1e-3))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randn(*shape).astype(np.float32)


IDS = np.random.RandomState(0).randint(0, 6, (4, 5)).astype(np.int32)
W, X = normal(3, 4), normal(5, 3, seed=1)

OF_A_BATCH = {
    "relu": lambda w, x: jax.nn.relu(x @ w).sum(),
    "activations": lambda w, x: sum(
        f(x @ w).mean() for f in (jax.nn.gelu, jax.nn.silu, jax.nn.elu, jax.nn.selu, jax.nn.relu6, jax.nn.mish)
    ),
    "softmax": lambda w, x: (jax.nn.softmax(x @ w) ** 2).mean() + jax.nn.log_softmax(x @ w)[:, 0].mean(),
    "logsumexp and softplus": lambda w, x: (jax.nn.logsumexp(x @ w, -1) + jax.nn.softplus(x @ w).sum(-1)).mean(),
    "logaddexp": lambda w, x: jnp.logaddexp(x @ w, (x @ w) ** 2).mean(),
    "log1p and expm1": lambda w, x: (jnp.log1p(jnp.exp(x @ w)) + jnp.expm1(x @ w) + jnp.log1p(1e-6 * x @ w)).mean(),
    "sizes": lambda w, x: (x.reshape(-1)[:3] @ w).sum() + (x.reshape(x.shape[0] * 3, 1) * w[0]).mean() * x.shape[0],
    "a gradient inside": lambda w, x: (jax.grad(lambda v: jnp.tanh(v @ w).sum())(x) ** 2).mean(),
    "checkpoint": lambda w, x: jax.checkpoint(lambda v: jnp.sin(jnp.tanh(x @ v)))(w).sum(),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_A_BATCH)
def test_a_function_of_a_batch_of_free_size(name: str):
    agree(OF_A_BATCH[name], W, X, free=(1,))


NHWC = ("NHWC", "HWIO", "NHWC")
ODD = np.array([0.0, -0.0, 1.0, np.nan, np.inf], np.float32)
OTHERS: dict[str, tuple[Any, ...]] = {
    "conv": (
        lambda w, x: (lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=NHWC) ** 2).mean(),
        normal(3, 3, 2, 4), normal(3, 7, 7, 2, seed=1),
    ),
    "grouped and dilated conv": (
        lambda w, x: (
            lax.conv_general_dilated(x, w, (1, 1), "SAME", rhs_dilation=(2, 2), feature_group_count=2) ** 2
        ).mean(),
        normal(4, 1, 3, 3), normal(3, 2, 6, 6, seed=1),
    ),
    "transposed conv": (
        lambda w, x: (lax.conv_transpose(x, w, (2, 2), "SAME") ** 2).mean(),
        normal(3, 3, 2, 4), normal(3, 5, 5, 2, seed=1),
    ),
    "pools": (
        lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME") ** 2).mean()
        + (lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "VALID") ** 2).mean(),
        normal(3, 7, 7, 2),
    ),
    "embedding": (lambda w, i: (w[i] ** 2).mean() + (jnp.take(w, i, axis=0) ** 3).mean(), normal(6, 3), IDS),
    "take along": (
        lambda x, i: (jnp.take_along_axis(x[:4], i % 5, axis=-1) ** 2).mean()
        + (jnp.take_along_axis(x, i, axis=0) ** 3).sum(),
        normal(6, 5), IDS,
    ),
    "scatter": (
        lambda w, i: (jnp.zeros((6, 3)).at[i[:, 0]].add(w[:4]) ** 2).mean()
        + (jnp.asarray(w).at[1].set(5.0).at[2:4].multiply(2.0) ** 2).mean(),
        normal(6, 3), IDS,
    ),
    "tile": (lambda w: (jnp.tile(w, (2, 3)) * jnp.arange(9.0)).sum() + (jnp.tile(w, 2) ** 2).sum(), normal(6, 3)),
    "bins": (
        lambda w: (jnp.interp(w, jnp.array([-1.0, 0.0, 1.0]), jnp.array([1.0, 3.0, -2.0])) ** 2).sum()
        + (jnp.digitize(w, jnp.array([-1.0, 0.0, 0.5])) * w).sum()
        + (jnp.searchsorted(jnp.array([0.0, 1.0, jnp.nan]), ODD) * w[0, 0]).sum(),
        normal(6, 3),
    ),
    "subtract": (lambda w, i: (jnp.ones((6, 3)).at[i[:, 0]].subtract(w[:4]) ** 2).sum(), normal(6, 3), IDS),
    "signed shifts": (lambda w, i: (((i - 3) >> 1) * w[:4, :1]).sum(), normal(6, 3), IDS),
    "fancy": (lambda w: (w[jnp.array([0, 2]), jnp.array([1, 1])] ** 2).mean() + w[1, :, None].sum(), normal(6, 3)),
    "dynamic slices": (
        lambda w, i: (lax.dynamic_update_slice(w, w[:2, :2] * 3, (i[0, 0], 1)) ** 2).mean()
        + lax.dynamic_slice(w, (i[0, 1], 0), (2, 2)).sum(),
        normal(6, 3), IDS,
    ),
    "sort": (
        lambda w: (jnp.sort(w, axis=0) * jnp.arange(6.0)[:, None]).sum()
        + (lax.top_k(w, 2)[0] ** 2).sum() + (w[jnp.argsort(w[:, 0])] * jnp.arange(6.0)[:, None]).sum(),
        normal(6, 3),
    ),
    "cumulative": (
        lambda w: (jnp.cumsum(w, axis=0) ** 2).sum() + jnp.cumprod(w, axis=1).sum() + lax.cummax(w, axis=0).sum()
        + lax.cumlogsumexp(w, axis=0).sum(),
        normal(6, 3),
    ),
    "einsum": (
        lambda w, x: jnp.einsum("bhqd,bhkd->bhqk", w, x).sum() + jnp.einsum("abcd,abce->de", w, x).sum(),
        normal(2, 3, 4, 5), normal(2, 3, 4, 5, seed=1),
    ),
    "reductions": (
        lambda w: jnp.linalg.norm(w) + jnp.var(w, axis=0).sum() + jnp.prod(w, axis=1).sum() + jnp.max(w) + jnp.min(w),
        normal(6, 3),
    ),
    "powers": (
        lambda w: (jnp.abs(w) ** 2.5).sum() + (w**3).sum() + (w**-2).sum() + jnp.cbrt(w).sum()
        + jnp.arctan2(w, w**2).sum() + jnp.exp2(w).sum(),
        normal(6, 3),
    ),
    "pads": (
        lambda w: (jnp.pad(w, ((1, 2), (0, 1))) ** 2).sum() + (jnp.roll(w, 2, axis=0) * w).sum()
        + (lax.pad(w, 0.0, ((1, -1, 2), (0, 0, 1))) ** 2).sum(),
        normal(6, 3),
    ),
    "clamp at its bounds": (lambda w: (lax.clamp(-1.0, w, 1.0) * 3).sum(), np.array([-2, -1, 0, 1, 2], np.float32)),
    "inverse of erf": (lambda w: jax.scipy.special.erfinv(jnp.tanh(w)).sum(), normal(6, 3)),
    "scan": (
        lambda w, x: lax.scan(lambda c, t: (jnp.tanh(c @ w + t), c.sum()), jnp.zeros(3), x, reverse=True)[1].sum(),
        normal(3, 3), normal(5, 3, seed=1),
    ),
    "fori": (lambda w, x: lax.fori_loop(0, 4, lambda i, c: jnp.tanh(c @ w) + i, x).sum(), normal(3, 3), X),
    "while": (
        lambda w, x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 1.5), (0, x))[1].sum() * w.sum(),
        normal(3, 3), X,
    ),
    "switch": (
        lambda w, x: lax.switch(
            jnp.int32(x.sum() > 0) + 1, [jnp.sin, lambda v: v * 2, lambda v: v**2], w
        ).sum() + lax.cond(x.sum() > 9, jnp.sin, jnp.cos, w).sum(),
        normal(3, 3), X,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_family_of_primitives(name: str):
    function, *arrays = OTHERS[name]

    agree(function, *arrays)
