"""What might go wrong in silence: repeated keys, wrong types, lost digits, gone arrays, communication."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp
from jax import lax

import onward
from frontends.jax.test_primitives import agree, graph_of, normal, run
from frontends.jax.test_random import losses, model_of
from frontends.jax.test_refusals import BATCH, PARAMS, convert, loss, predict, refusal
from onward.backends.reference.evaluator import Evaluator
from onward.errors import ArgumentError


def draw_refusal(draw: Any) -> str:
    with pytest.raises(ArgumentError) as caught:
        model_of(draw)
    return str(caught.value)


# -- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "repeat",
    [
        lambda key: jnp.broadcast_to(key, (40,)),
        lambda key: jax.random.split(key, 3)[jnp.zeros(40, jnp.int32)],
        lambda key: jnp.concatenate([key[None]] * 40),
    ],
    ids=["broadcast", "gather", "concatenate"],
)
def test_one_key_in_several_places_is_refused(repeat: Any):
    """JAX gives every row the same numbers; a draw of all rows would not."""
    text = draw_refusal(lambda key, x: x * jax.vmap(lambda k: jax.random.normal(k, ()))(repeat(key)))

    assert "it may repeat a key" in text


def test_a_key_that_a_scan_carries_without_changing_it_draws_the_same_in_each_iteration():
    def draw(key: Any, x: Any) -> Any:
        return x * lax.scan(lambda k, _: (k, jax.random.normal(k, x.shape)), key, None, length=4)[1].std(0).max()

    assert np.abs(losses(model_of(draw), 2)).max() < 1e-5


def test_a_key_from_outside_of_a_scan_draws_the_same_in_each_iteration():
    def draw(key: Any, x: Any) -> Any:
        return x * lax.scan(lambda c, _: (c, jax.random.normal(key, x.shape)), 0.0, None, length=4)[1].std(0).max()

    assert np.abs(losses(model_of(draw), 2)).max() < 1e-5


def test_a_key_from_a_counter_of_the_state_moves_with_it():
    def loss_fn(params: Any, state: Any, batch: Any) -> Any:
        noise = jax.random.normal(jax.random.key(state["step"]), batch["x"].shape)
        return (params["w"] * noise).mean(), {"step": state["step"] + 1} if moves else state

    arguments = {
        "optimizer": "sgd", "example_batch": {"x": np.ones((5, 4), np.float32)},
        "predict": lambda params, state, batch: batch["x"] * params["w"],
    }  # fmt: skip
    moves = True
    model = onward.from_jax(loss_fn, {"w": jnp.ones(())}, {"step": jnp.int32(0)}, **arguments)
    trainer = onward.Trainer(model)

    assert len({float(trainer.step({"x": np.ones((5, 4), np.float32)})["loss"]) for _ in range(3)}) == 3
    moves = False
    with pytest.raises(ArgumentError, match=r"A224.*never changes"):
        onward.from_jax(loss_fn, {"w": jnp.ones(())}, {"step": jnp.int32(0)}, **arguments)


def test_inference_that_draws_is_refused():
    def noisy(params: Any, state: Any, batch: Any) -> Any:
        return predict(params, batch) + 1e-9 * jax.random.normal(state["key"], ())

    text = refusal(
        lambda params, state, batch: (loss(params, batch), {"key": jax.random.split(state["key"])[0]}),
        PARAMS,
        {"key": jax.random.key(0)},
        predict=noisy,
    )

    assert "error[A224]: inference draws random numbers" in text


# -- numbers ---------------------------------------------------------------------------------------------------------


def test_the_tail_of_erfc_keeps_its_digits():
    x = np.linspace(-6, 9, 61).astype(np.float32)
    proto = graph_of(lambda v: jax.scipy.special.erfc(v), x)

    np.testing.assert_allclose(run(proto, (x,))["y"], jax.scipy.special.erfc(x), rtol=2e-5, atol=1e-37)
    agree(lambda v: jax.scipy.stats.norm.logcdf(v).sum(), np.linspace(-9, 3, 13).astype(np.float32))
    agree(lambda v: jax.nn.gelu(v, approximate=False).sum(), x)


@pytest.mark.usefixtures("double")
def test_the_tail_of_erfc_in_float64():
    x = np.linspace(-6, 20, 105)
    proto = graph_of(lambda v: jax.scipy.special.erfc(v), x)

    found = Evaluator(proto).run({"x0": x})["y"]  # ONNX Runtime has no Erf in float64
    np.testing.assert_allclose(found, jax.scipy.special.erfc(x), rtol=1e-11)


def test_a_choice_in_bfloat16_is_not_rounded_to_integers():
    def function(w: Any, x: Any) -> Any:
        half = (x * w).astype(jnp.bfloat16)
        return jnp.where(half > 0, half, jnp.bfloat16(0.25)).astype(jnp.float32).sum()

    x, w = normal(5, 3, seed=1), normal(5, 3)
    proto = graph_of(function, w, x)

    found = Evaluator(proto).run({"x0": w, "x1": x})["y"]  # ONNX Runtime has no kernels for bfloat16 on a CPU
    np.testing.assert_allclose(found, function(w, x), rtol=1e-2)


def test_the_bits_of_integers_are_not_taken_for_truth_values():
    def bitwise(params: Any, batch: Any) -> Any:
        bits = lax.reduce(jnp.int32(batch["x"]), np.int32(0), lax.bitwise_or, (0, 1))
        return loss(params, batch) + bits.astype(jnp.float32)

    assert "`reduce_or` cannot be captured: a reduction of the bits of integers" in refusal(bitwise)


@pytest.mark.parametrize("masked", [False, True])
def test_softmax_over_any_axis_and_with_a_mask(masked: bool):
    mask = np.random.RandomState(3).rand(4, 5, 6) > 0.4 if masked else None

    def function(w: Any) -> Any:
        parts = [jax.nn.softmax(w, axis=a, where=mask) for a in (0, 1, -1, (0, 2))]
        return sum((p**2).sum() for p in parts)

    agree(function, normal(4, 5, 6))


# -- arrays ----------------------------------------------------------------------------------------------------------


def test_an_array_that_was_donated_is_named():
    params = {"w": jnp.ones((3, 2)) * 2}
    jax.jit(lambda p: jax.tree.map(lambda a: a + 1, p), donate_argnums=0)(params)
    if not params["w"].is_deleted():
        pytest.skip("this device does not take donations")

    assert "error[A223]: the array `w` was donated to a jitted function and is gone" in refusal(params=params)


def test_a_capture_inside_of_a_trace_is_refused():
    def inside(w: Any) -> Any:
        convert(params={"w": w})
        return w

    with pytest.raises(ArgumentError, match=r"A223.*`w` is being traced"):
        jax.jit(inside)(jnp.ones((3, 2)))


def test_bfloat16_cannot_be_trained_or_multiplied():
    assert "parameter `w` cannot be trained" in refusal(params={"w": jnp.ones((3, 2), jnp.bfloat16)})

    def mixed(params: Any, batch: Any) -> Any:
        half = batch["x"].astype(jnp.bfloat16) @ params["w"].astype(jnp.bfloat16)
        return (half.astype(jnp.float32) ** 2).mean()

    assert "a product of bfloat16 matrices; cast them to floats" in refusal(mixed)


def test_one_array_twice_empty_arrays_and_an_empty_state_train():
    w = jnp.ones((3, 2))

    def loss_fn(params: Any, state: Any, batch: Any) -> Any:
        y = batch["x"] @ params["a"] + batch["x"] @ params["b"] * 2 + params["none"].sum()
        return ((y - batch["y"]) ** 2).mean(), state

    params = {"a": w, "b": w, "none": jnp.zeros((0, 2))}
    model = convert(
        loss_fn, params, {}, predict=lambda params, state, batch: batch["x"] @ params["a"], optimizer=optax.sgd(0.1)
    )
    trainer = onward.Trainer(model)
    trainer.step(BATCH)

    slopes = jax.grad(lambda p: loss_fn(p, {}, BATCH)[0])(params)
    for name in ("a", "b"):
        np.testing.assert_allclose(trainer.parameters[name], w - 0.1 * slopes[name], rtol=1e-5)


def test_the_free_size_is_that_of_most_arrays():
    table = np.arange(7, dtype=np.float32)

    def loss_fn(params: Any, batch: Any) -> Any:
        return loss(params, batch) * batch["a table"].sum()

    model = convert(loss_fn, example_batch={"a table": table, **BATCH})

    assert str(model.graph.inputs[0].shape[0]) == "batch"


# -- structure -------------------------------------------------------------------------------------------------------


def test_a_sum_over_devices_is_refused_with_a_remedy():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("i",))
    part = jax.sharding.PartitionSpec

    def shared(params: Any, batch: Any) -> Any:
        def one(x: Any) -> Any:
            return lax.psum((x @ params["w"]).sum(), "i")

        return jax.shard_map(one, mesh=mesh, in_specs=part("i"), out_specs=part())(batch["x"]) ** 2

    text = refusal(shared)

    assert "`shard_map` cannot be captured: it communicates between devices; capture the function of one device" in text


def test_a_name_of_devices_that_nothing_binds_is_refused_with_a_remedy():
    text = refusal(lambda params, batch: lax.pmean(loss(params, batch), "i"))

    assert "leave sums over devices out" in text


@pytest.mark.parametrize(
    "choose", [lambda rows: jnp.nonzero(rows)[0], lambda rows: rows > 0, lambda rows: 1 if rows[0] > 0 else 0]
)
def test_a_shape_or_a_choice_that_depends_on_data_is_refused_with_the_line_and_a_remedy(choose: Any):
    def chosen(params: Any, batch: Any) -> Any:
        return predict(params, batch)[choose(batch["x"][:, 0])].mean()

    text = refusal(chosen)

    assert "error[A221]: loss `" in text
    assert "test_hostile.py line" in text
    assert "use a mask with jnp.where" in text


def test_jax_refuses_the_gradient_of_a_while_loop_over_parameters():
    def endless(params: Any, batch: Any) -> Any:
        return lax.while_loop(lambda w: w.sum() > 1.0, lambda w: w / 2, params["w"]).sum() + loss(params, batch)

    text = refusal(endless)

    assert "Reverse-mode differentiation does not work for lax.while_loop" in text


def test_jit_checkpoint_scan_and_cond_inside_each_other():
    @jax.jit
    def block(c: Any, w: Any) -> Any:
        inner = jax.checkpoint(lambda v: jnp.tanh(v @ w))
        return lax.cond(c.sum() > 0, inner, lambda v: jnp.sin(inner(v)), c)

    def function(w: Any, x: Any) -> Any:
        @jax.checkpoint
        def body(c: Any, t: Any) -> Any:
            c = lax.fori_loop(0, 2, lambda _, v: block(v, w), c + t)
            return c, lax.stop_gradient(c) * c

        return lax.scan(body, jnp.zeros(3), x)[1].sum()

    agree(function, normal(3, 3), normal(5, 3, seed=1))


# -- branches in loops -----------------------------------------------------------------------------------------------


def _one_branch(w: Any, h: Any, i: Any) -> Any:
    return lax.cond(i % 2 == 0, lambda h: jnp.tanh(h @ w) + h.sum(-1, keepdims=True), jnp.zeros_like, h)


def _branches_in_a_branch(w: Any, h: Any, i: Any) -> Any:
    return lax.cond(i < 3, lambda h: _one_branch(w, h, i), lambda h: jnp.exp(h * 0.1), h)


@pytest.mark.parametrize("branch", [_one_branch, _branches_in_a_branch])
def test_a_branch_in_a_scan_has_residuals_of_one_shape_for_any_batch_size(branch: Any):
    """The branch that is not taken once returned empty residuals, which a Scan cannot stack beside others."""

    def predict(params: Any, batch: Any) -> Any:
        def body(h: Any, i: Any) -> Any:
            return branch(params["w"], h, i), h.sum(0)

        last, sums = lax.scan(body, batch["x"], jnp.arange(4))
        return last + 0.1 * sums.sum(0)

    def loss(params: Any, batch: Any) -> Any:
        return ((predict(params, batch) - batch["y"]) ** 2).mean()

    params = {"w": jnp.asarray(normal(3, 3)) * 0.3}
    batch = {"x": normal(4, 3), "y": normal(4, 3)}
    model = onward.from_jax(loss, params, optimizer=onward.SGD(0.1), example_batch=batch, predict=predict)
    smaller = {name: array[:2] for name, array in batch.items()}

    trainer = onward.Trainer(model)
    trainer.step(smaller)

    wanted = params["w"] - 0.1 * jax.grad(loss)(params, smaller)["w"]
    np.testing.assert_allclose(trainer.parameters["w"], wanted, rtol=1e-5, atol=1e-6)
