"""`to_jax`: a model as a pure function, against ONNX Runtime, our own gradients and JAX's transformations."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onward
from backends.test_jax_session import cnn, lstm, weighted
from models import batch, dropout_network, perceptron
from onward.errors import ArgumentError, BackendError
from onward.model.roles import RANDOM_STEP

jax = pytest.importorskip("jax")


def ours(model: Any, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the gradients of a model's step on ONNX Runtime."""
    trainer = onward.Trainer(model, backend="onnxruntime")
    entry = onward.compile(model, split=True).first
    assert entry is not None
    assert entry.gradients is not None
    session = ort.InferenceSession(entry.gradients.proto().SerializeToString(), providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    given = {**trainer.session.get_state(), **trainer.program.settings, **feeds}
    found = dict(zip(entry.gradients.output_names, session.run(None, {n: given[n] for n in names}), strict=True))
    return {x: found[gradient] for gradient, (_, x) in entry.gradients.gradient_of.items()}


def assert_gradients(found: dict[str, Any], wanted: dict[str, np.ndarray], rtol: float = 1e-5) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=rtol * np.abs(value).max(), err_msg=name)


def images(rows: int = 6) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x": rng.standard_normal((rows, 2, 8, 8)).astype(np.float32), "labels": rng.integers(0, 3, rows)}


MODELS = {
    "mlp": (perceptron(), batch()),
    "dropout": (dropout_network(), batch()),
    "cnn": (cnn(), images()),
    "lstm": (lstm(), {"x": images()["x"].reshape(-1)[: 6 * 15].reshape(6, 5, 3), "labels": images()["labels"]}),
}


@pytest.mark.parametrize("gradients", ["jax", "graph"])
@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_of_the_loss_is_ours(name: str, gradients: str) -> None:
    model = onward.make_trainable(MODELS[name][0], loss="cross_entropy", optimizer=onward.SGD(0.1))
    feeds = MODELS[name][1]

    fn, params, state = onward.to_jax(model, gradients=gradients)
    (loss, new), found = jax.jit(jax.value_and_grad(fn, has_aux=True))(params, state, feeds)

    trainer = onward.Trainer(model, backend="onnxruntime")
    np.testing.assert_allclose(loss, trainer.step(feeds)["loss"], rtol=1e-5)
    assert_gradients(found, ours(model, feeds))
    after = trainer.session.get_state()
    for changed, value in new.items():
        if changed in after:
            np.testing.assert_allclose(value, after[changed], rtol=1e-5, err_msg=changed)


def test_the_state_counts_the_steps_and_a_key_decides_the_masks() -> None:
    model = onward.make_trainable(dropout_network(), loss="cross_entropy", optimizer=onward.SGD(0.1))
    fn, params, state = onward.to_jax(model)

    first, after = fn(params, state, batch())
    second, _ = fn(params, after, batch())
    other, _ = fn(params, state, batch(), 7)
    random, _ = fn(params, state, batch(), jax.random.key(8))
    again, _ = fn(params, state, batch(), 8)

    assert int(after[RANDOM_STEP]) == 1
    assert len({float(v) for v in (first, second, other, random)}) == 4
    assert float(random) == float(again)


def test_the_share_of_dropped_values_is_the_ratio() -> None:
    net = weighted(
        "net (float[N,2] x) => (float[N,2] y) { d = Dropout (x, ratio) y = MatMul (d, w) }", ratio=(), w=(2, 2)
    )
    fn, _, state = onward.to_jax(onward.make_trainable(net, loss="mse", optimizer=onward.SGD(0.1)))
    count = 20_000
    ones = np.ones((count // 2, 2), np.float32)

    loss, _ = fn({"w": np.eye(2, dtype=np.float32)}, state, (ones, 0 * ones))

    kept = float(loss) * (0.75**2)  # each kept value is 1 / 0.75
    assert abs(kept - 0.75) < 4 * (0.25 * 0.75 / count) ** 0.5


def test_vmap_gives_the_gradient_of_each_sample() -> None:
    model = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.SGD(0.1))
    fn, params, state = onward.to_jax(model)
    feeds = batch(rows=8)
    gradient = jax.grad(lambda p, x, t: fn(p, state, {"x": x[None], "labels": t[None]})[0])

    each = jax.vmap(gradient, (None, 0, 0))(params, feeds["x"], feeds["labels"])

    assert each["W0"].shape == (8, 4, 8)
    assert_gradients({n: v.mean(0) for n, v in each.items()}, ours(model, feeds))


def test_shard_map_sums_the_shares_of_two_devices() -> None:
    """In a process of its own, because the number of devices is decided when JAX starts."""
    code = """
import jax, numpy as np, onward
from jax.sharding import Mesh, PartitionSpec as P
from models import batch, perceptron
fn, params, state = onward.to_jax(onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.SGD(0.1)))
feeds = batch(rows=8)
whole = jax.grad(lambda p: fn(p, state, feeds)[0])(params)
mesh = Mesh(jax.devices(), "d")
def share(p, b):
    return jax.lax.pmean(jax.grad(lambda q: fn(q, state, b)[0])(jax.lax.pcast(p, "d", to="varying")), "d")
found = jax.jit(jax.shard_map(share, mesh=mesh, in_specs=(P(), P("d")), out_specs=P()))(params, feeds)
for name, value in whole.items():
    np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)
mapped = jax.pmap(lambda b: fn(params, state, b)[0])({n: v.reshape(2, 4, *v.shape[1:]) for n, v in feeds.items()})
np.testing.assert_allclose(mapped.mean(), fn(params, state, feeds)[0], rtol=1e-5)
"""
    paths = os.pathsep.join(str(Path(f).parents[1]) for f in (__file__, onward.__file__))
    two = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    two["PYTHONPATH"] = paths

    run = subprocess.run([sys.executable, "-c", code], env=two, capture_output=True, text=True)

    assert run.returncode == 0, run.stderr


def test_an_optax_loop_trains_as_our_trainer() -> None:
    optax = pytest.importorskip("optax")
    model = onward.make_trainable(cnn(), loss="cross_entropy", optimizer=onward.SGD(0.1))
    fn, params, state = onward.to_jax(model)
    optimizer = optax.sgd(0.1)
    memory = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, memory: Any, feeds: Any) -> Any:
        (loss, state), gradients = jax.value_and_grad(fn, has_aux=True)(params, state, feeds)
        updates, memory = optimizer.update(gradients, memory)
        return loss, optax.apply_updates(params, updates), state, memory

    trainer = onward.Trainer(model, backend="onnxruntime")
    for rows in (6, 6, 4):
        loss, params, state, memory = step(params, state, memory, images(rows))

        np.testing.assert_allclose(loss, trainer.step(images(rows))["loss"], rtol=1e-5)
    after = trainer.session.get_state()
    for name, value in {**state, **params}.items():
        if name in after:
            np.testing.assert_allclose(value, after[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_the_inference_graph_gives_the_outputs_of_onnx_runtime() -> None:
    model = onward.make_trainable(cnn(), loss="cross_entropy", optimizer=onward.SGD(0.1))
    fn, params, state = onward.to_jax(model)
    x = images()["x"]

    found = jax.jit(fn.predict)(params, state, x)

    wanted = onward.Trainer(model, backend="onnxruntime").session.infer({"x": x})
    np.testing.assert_allclose(found["logits"], wanted["logits"], rtol=1e-5, atol=1e-6)


def looped(trips: str, condition: str = "on = Identity (going)") -> onnx.ModelProto:
    """Return a network that multiplies by a matrix in a Loop of `trips` steps: a name or a number."""
    return weighted(
        f"""net (float[N,3] x, int64 n) => (float[N,3] y) {{
            limit = Constant <value_floats = [4.0]> ()
            five = Constant <value_int = 5> ()
            y = Loop ({trips}, , x) <body = step (int64 i, bool going, float[N,3] v) => (bool on, float[N,3] w) {{
                m = MatMul (v, W)
                w = Tanh (m)
                s = ReduceSumSquare <keepdims = 0> (w)
                {condition}
            }}>
        }}""",
        W=(3, 3),
    )


def loop_batch(fn: Any) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    values = {"x": x, "n": np.array(3)}
    return {n: values.get(n, 0 * x) for n in [*fn.input_names, *fn.target_names]}


@pytest.mark.parametrize("condition", ["on = Identity (going)", "g = Greater (s, limit) on = Squeeze (g)"])
@pytest.mark.parametrize("jit", [True, False])
def test_a_bounded_loop_is_differentiable(condition: str, jit: bool) -> None:
    model = onward.make_trainable(looped("five", condition), loss="mse", optimizer=onward.SGD(0.1))
    fn, params, state = onward.to_jax(model)
    feeds = loop_batch(fn)
    gradient = jax.grad(lambda p, b: fn(p, state, b)[0])

    found = (jax.jit(gradient) if jit else gradient)(params, feeds)

    assert_gradients(found, ours(model, feeds))


def test_a_loop_whose_steps_depend_on_data_runs_and_refuses_its_gradient() -> None:
    model = onward.make_trainable(looped("n"), loss="mse", optimizer=onward.SGD(0.1))
    fn, params, state = onward.to_jax(model)
    feeds = loop_batch(fn)

    loss, _ = jax.jit(fn)(params, state, feeds)

    np.testing.assert_allclose(loss, onward.Trainer(model, backend="onnxruntime").step(feeds)["loss"], rtol=1e-5)
    with pytest.raises(BackendError, match=r"B304.*no gradient of a Loop whose number of steps has no bound"):
        jax.jit(jax.grad(lambda p, b: fn(p, state, b)[0]))(params, feeds)


def test_an_if_whose_condition_depends_on_data_runs_and_is_differentiable() -> None:
    net = weighted(
        """net (float[N,3] x) => (float[N,3] y) {
            m = MatMul (x, W)
            s = ReduceSum <keepdims = 0> (m)
            zero = Constant <value_float = 0.0> ()
            c = Greater (s, zero)
            y = If (c) <then_branch = yes () => (float[N,3] a) { a = Tanh (m) },
                        else_branch = no () => (float[N,3] b) { b = Mul (m, m) }>
        }""",
        W=(3, 3),
    )
    model = onward.make_trainable(net, loss="mse", optimizer=onward.SGD(0.1))
    fn, params, state = onward.to_jax(model)
    gradient = jax.jit(jax.grad(lambda p, b: fn(p, state, b)[0]))

    for sign in (1, -1):
        feeds = {n: sign * v for n, v in loop_batch(fn).items()}

        assert_gradients(gradient(params, feeds), ours(model, feeds))


def test_sizes_that_depend_on_data_are_refused_under_jit_and_train_in_a_session() -> None:
    net = weighted(
        """net (float[N,3] x) => (float[M,3] y) {
            m = MatMul (x, W)
            zero = Constant <value_float = 0.0> ()
            s = ReduceSum <keepdims = 0> (x, one)
            c = Greater (s, zero)
            y = Compress <axis = 0> (m, c)
        }""".replace("s = ReduceSum", "one = Constant <value_ints = [1]> () s = ReduceSum"),
        W=(3, 3),
    )
    model = onward.make_trainable(net, loss="mse", optimizer=onward.SGD(0.1))
    fn, params, state = onward.to_jax(model)
    x = loop_batch(fn)["x"]
    feeds = {"x": x, fn.target_names[0]: np.zeros((int((x.sum(1) > 0).sum()), 3), np.float32)}

    with pytest.raises(BackendError, match=r"B304.*depends on data, and JAX traces without data"):
        jax.jit(fn)(params, state, feeds)

    loss = onward.Trainer(model, backend="jax").step(feeds)["loss"]
    np.testing.assert_allclose(loss, onward.Trainer(model, backend="onnxruntime").step(feeds)["loss"], rtol=1e-5)


def test_a_batch_that_does_not_fit_is_refused_with_what_is_needed() -> None:
    fn, params, state = onward.to_jax(onward.samples.build("linear"))

    with pytest.raises(ArgumentError, match=r"the batch does not fit the model"):
        fn(params, state, {"pictures": np.zeros((2, 4), np.float32)})
    with pytest.raises(ArgumentError, match=r"no value for `W` in params or state"):
        fn({}, {}, [np.zeros((2, 4), np.float32)] * len([*fn.input_names, *fn.target_names]))


def test_weights_of_another_type_are_refused_with_the_setting_of_jax() -> None:
    model = onward.make_trainable(perceptron(dtype=np.float64), loss="cross_entropy", optimizer=onward.SGD(0.1))
    fn, params, state = onward.to_jax(model)
    feeds = {"x": np.zeros((2, 4)), "labels": np.zeros(2, np.int64)}

    with pytest.raises(ArgumentError, match=r"weight `W0` has the wrong type(.|\n)*jax_enable_x64"):
        fn({n: v.astype(np.float32) for n, v in params.items()}, state, feeds)

    assert jax.jit(fn)(params, state, feeds)[0].dtype == np.float64  # without any setting


def test_a_model_without_a_loss_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"no training information"):
        onward.to_jax(perceptron())
    with pytest.raises(ArgumentError, match=r"option of `to_jax`"):
        onward.to_jax(onward.samples.build("linear"), mode="both")
