"""What a captured module becomes: roles, names, state, outputs, random numbers, control flow, SavedModels."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tensorflow as tf

import onward
from frontends.tensorflow.tf_models import Linear, attention, classes, normed, perceptron, squared
from onward.model import serde

X = np.random.RandomState(0).randn(4, 3).astype("float32")
T = np.random.RandomState(1).randn(4, 3).astype("float32")


def weight(name: str = "w", **options: object) -> tf.Variable:
    return tf.Variable(np.random.RandomState(2).randn(3, 3).astype("float32"), name=name, **options)


def capture(function, **options):
    given = {"loss": squared, "optimizer": "sgd", "example_inputs": X, "example_targets": T, **options}
    return onward.from_tensorflow(function, **given)


def roles(model) -> dict[str, str]:
    return {n: v.metadata_props.get("onward.role", "") for n, v in model.graph.initializers.items()}


def test_variables_become_parameters_frozen_weights_and_state():
    case = perceptron()
    x, t = case.batch(np.random.RandomState(0), 4)

    model = onward.from_tensorflow(case.module, loss=case.loss, optimizer="adam", example_inputs=x, example_targets=t)

    assert roles(model) == {
        "first/b": "parameter", "first/w": "parameter", "last/b": "parameter", "last/w": "parameter",
        "scale": "frozen",
    }  # fmt: skip
    assert np.array_equal(model.graph.initializers["first/b"].const_value.numpy(), np.zeros(7))  # zeros stay a weight
    assert (model.inputs, model.targets, [v.name for v in model.graph.outputs]) == (["x"], ["target"], ["output"])
    assert onward.check(model).ok


def test_every_node_is_onnx_and_the_file_comes_back(tmp_path):
    case = attention()
    x, t = case.batch(np.random.RandomState(0), 4)
    model = onward.from_tensorflow(case.module, loss=case.loss, optimizer="adam", example_inputs=x, example_targets=t)

    onward.save(model, tmp_path / "model.onnx")
    proto = onnx.load(tmp_path / "model.onnx")

    nodes = [*proto.graph.node, *proto.training_info[0].algorithm.node]
    assert all(onnx.defs.has(n.op_type, 18, n.domain) for n in nodes if n.domain in ("", "ai.onnx"))
    assert {n.domain for n in nodes} <= {"", "ai.onnx.preview.training", "onward.gradients"}
    onnx.checker.check_model(serde.to_proto(serde.load(onward.to_inference(model))))
    losses = [
        float(onward.Trainer(m).step({"tokens": x, "target": t})["loss"]) for m in (model, tmp_path / "model.onnx")
    ]
    assert losses[0] == losses[1] == pytest.approx(float(case.loss(case.module(x), t)), rel=1e-5)


def test_what_the_function_assigns_is_state():
    case = normed()
    x, t = case.batch(np.random.RandomState(0), 4)

    model = onward.from_tensorflow(case.module, loss=case.loss, optimizer="sgd", example_inputs=x, example_targets=t)

    found = roles(model)
    assert {n for n, role in found.items() if role == "state"} == {"mean", "variance", "batches"}
    trainer = onward.Trainer(model)
    trainer.step({"x": x, "target": t})
    assert int(trainer.state["batches"]) == 1
    before = case.module.mean.numpy()
    case.module(x, training=True)
    np.testing.assert_allclose(trainer.state["mean"], case.module.mean.numpy(), rtol=1e-5)
    assert not np.array_equal(before, case.module.mean.numpy())


def test_gradients_do_not_go_through_an_assignment():
    mean, w = tf.Variable([0.5, -0.5], trainable=False, name="mean"), tf.Variable([[1.0, 2.0], [0.5, -1.0]], name="w")

    @tf.function
    def centred(x):
        y = tf.tanh(x @ w)
        mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(y, 0))
        return y - mean  # the new mean, which is a constant for TensorFlow

    rows = tf.constant([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]])
    with tf.GradientTape() as tape:
        wanted = tape.gradient(tf.reduce_mean(tf.square(centred(rows))), w)
    mean.assign([0.5, -0.5])
    before = w.numpy()

    model = onward.from_tensorflow(centred, loss="mse", optimizer=onward.SGD(1.0), example_inputs=rows)
    trainer = onward.Trainer(model)
    trainer.step({"x": rows.numpy(), "target": np.zeros((3, 2), np.float32)})

    np.testing.assert_allclose(before - trainer.state["w"], wanted, rtol=1e-5)


def test_variables_chooses_and_names():
    w, f = weight(), weight(trainable=False)

    model = capture(lambda x: x @ w @ f, variables={"mine": f})

    assert roles(model) == {"w": "frozen", "mine": "parameter"}


def test_variables_without_a_name_are_named_by_their_attribute():
    module = tf.Module()
    module.layers = [tf.Variable(tf.eye(3)), tf.Variable(tf.zeros(3))]

    model = capture(lambda x: x @ module.layers[0] + module.layers[1])
    owned = capture(_Owner(module))

    assert sorted(model.parameters) == ["Variable", "Variable_2"]  # a function has no attributes
    assert sorted(owned.parameters) == ["inner/layers/0", "inner/layers/1"]


class _Owner(tf.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __call__(self, x):
        return x @ self.inner.layers[0] + self.inner.layers[1]


def test_names_of_inputs_and_outputs_come_from_the_function():
    w = weight()

    model = capture(
        lambda left, right: {"total": left @ w + right["a"], "other": left},
        example_inputs={"left": X, "right": {"a": X}},
        loss=lambda y, t: squared(y["total"], t["t"]),
        example_targets={"t": T},
        label="wanted",
    )

    assert model.inputs == ["left", "right.a"]
    assert [v.name for v in model.graph.outputs] == ["other", "total"]
    assert model.targets == ["wanted.t"]


@pytest.mark.parametrize("loss", ["mse", onward.losses.CrossEntropy()], ids=["name", "object"])
def test_a_loss_of_onward_needs_no_targets(loss):
    model = capture(Linear(3, 3), loss=loss, example_targets=None)

    assert model.targets == ["target"]
    assert sorted(model.parameters) == ["linear/b", "linear/w"]


def test_a_loss_of_keras_takes_the_targets_first(keras):
    module = Linear(3, 3)

    model = capture(module, loss=keras.losses.Huber())

    wanted = float(keras.losses.Huber()(T, module(X)))
    assert float(onward.Trainer(model).step({"x": X, "target": T})["loss"]) == pytest.approx(wanted, rel=1e-6)


def test_the_batch_size_is_free_unless_it_is_fixed():
    module = Linear(3, 3)
    fixed = tf.function(module.__call__).get_concrete_function(tf.TensorSpec([4, 3]))

    sizes = [m.graph.inputs[0].shape[0] for m in (capture(module), capture(module, dynamic=False), capture(fixed))]

    assert [getattr(s, "value", s) for s in sizes] == ["batch", 4, 4]


def test_random_numbers_are_keyed_and_new_in_every_step():
    w = weight()
    generator = tf.random.Generator.from_seed(1)

    def function(x, training=False):
        if training:
            x = x + tf.random.normal(tf.shape(x)) * generator.uniform(tf.shape(x))
        return x @ w

    model = capture(function)

    kinds = sorted(n.op_type for n in model.entries[0].algorithm if n.op_type.startswith("Random"))
    assert kinds == ["RandomNormalLike", "RandomUniformLike"]
    assert set(model.graph.initializers) == {"w"}  # the state of the generator is left out
    trainer = onward.Trainer(model)
    losses = [float(trainer.step({"x": X, "target": T})["loss"]) for _ in range(3)]
    assert len(set(losses)) == 3


def test_branches_and_loops_read_variables():
    w, u = weight(), weight("u")

    def function(x):
        y = tf.cond(tf.reduce_sum(x) > 0, lambda: x @ w, lambda: x @ w * 2.0)
        for _ in tf.range(3):
            y = tf.tanh(y @ u)
        return y

    model = capture(function)

    assert list(model.parameters) == ["w", "u"]
    for x in (X, -X):
        loss = float(onward.Trainer(model).step({"x": x, "target": T})["loss"])
        assert loss == pytest.approx(float(squared(tf.function(function)(tf.constant(x)), T)), rel=1e-5)


def test_what_is_not_chosen_does_not_spoil_what_is():
    """tf2onnx writes tf.where as products, and 0 · ∞ is not a number."""
    w = weight()
    model = capture(lambda x: tf.where(x > 0, tf.math.log(x), 0.0) @ w)
    x = np.array([[1.0, 0.0, 2.0]], np.float32)

    loss = float(onward.Trainer(model).step({"x": x, "target": T[:1]})["loss"])

    assert np.isfinite(loss)


def test_a_hopeless_class_has_a_finite_loss():
    """tf2onnx writes the logarithm of a softmax that is zero in float32."""
    w = weight()
    labels = np.array([0, 1, 2, 0], np.int64)
    model = capture(lambda x: x @ w, loss=classes, example_targets=labels)

    loss = float(onward.Trainer(model).step({"x": 400 * X, "target": labels})["loss"])

    assert loss == pytest.approx(float(classes(400 * X @ w.numpy(), labels)), rel=1e-5)


def test_fused_batch_normalisation_trains():
    scale, offset = tf.Variable(tf.ones(3), name="scale"), tf.Variable(tf.zeros(3), name="offset")
    mean = tf.Variable(tf.zeros(3), trainable=False, name="mean")
    variance = tf.Variable(tf.ones(3), trainable=False, name="variance")

    def function(x, training=False):
        image = tf.reshape(x, [-1, 1, 1, 3])
        given = {} if training else {"mean": mean, "variance": variance}
        y, batch_mean, _ = tf.compat.v1.nn.fused_batch_norm(image, scale, offset, is_training=training, **given)
        if training:
            mean.assign(0.9 * mean + 0.1 * batch_mean)
        return tf.reshape(y, [-1, 3])

    model = capture(function)

    trainer = onward.Trainer(model)
    trainer.step({"x": X, "target": T})
    np.testing.assert_allclose(trainer.state["mean"], 0.1 * X.mean(0), rtol=1e-5, atol=1e-6)


def test_a_saved_model_is_captured_in_both_modes(tmp_path):
    case = normed()
    spec = tf.TensorSpec([None, 6, 6, 2])
    for training in (False, True):
        case.module.__call__.get_concrete_function(spec, training=training)
    tf.saved_model.save(case.module, str(tmp_path / "saved"))
    x, t = case.batch(np.random.RandomState(0), 4)

    direct, loaded = (
        onward.from_tensorflow(m, loss=case.loss, optimizer="sgd", example_inputs=x, example_targets=t)
        for m in (case.module, tmp_path / "saved")
    )

    assert set(loaded.parameters) == set(direct.parameters)
    assert set(loaded.entries[0].update_binding) == set(direct.entries[0].update_binding)
    feeds = {"x": x, "target": t}
    losses = [float(onward.Trainer(m).step(feeds)["loss"]) for m in (direct, loaded)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_signature_alone_is_enough(tmp_path):
    module, holder = Linear(3, 2), tf.Module()
    holder.inner = module
    function = tf.function(module.__call__).get_concrete_function(tf.TensorSpec([None, 3], name="rows"))
    tf.saved_model.save(holder, str(tmp_path / "saved"), signatures={"serving_default": function})

    model = onward.from_tensorflow(tmp_path / "saved", loss="mse", optimizer="sgd")

    assert model.inputs == ["rows"]
    assert sorted(model.parameters) == ["linear/b", "linear/w"]


def test_the_function_in_training_mode_may_be_another_one():
    w = weight()

    model = capture(lambda x: x @ w, training=lambda x: tf.nn.dropout(x, 0.5) @ w)

    assert "Dropout" in {n.op_type for n in model.entries[0].algorithm}
    assert "Dropout" not in {n.op_type for n in model.graph}


def test_tensorflow_returns_to_tensorflow():
    case = perceptron()
    x, t = case.batch(np.random.RandomState(0), 4)
    model = onward.from_tensorflow(case.module, loss=squared, optimizer="adam", example_inputs=x, example_targets=t)

    module = onward.to_tensorflow(model)

    np.testing.assert_allclose(module(x), case.module(x), rtol=1e-5, atol=1e-6)
    assert float(module.train_step(x, t)["loss"]) == pytest.approx(float(squared(case.module(x), t)), rel=1e-5)


def test_rows_of_a_variable_are_counted():
    w, seen = weight(), tf.Variable(tf.zeros(5), trainable=False, name="seen")

    def function(x, places):
        seen.scatter_add(tf.IndexedSlices(tf.ones_like(places, tf.float32), places))
        return x @ w + tf.gather(seen, places)[:, None]

    places = np.array([0, 3, 3, 4], np.int64)
    model = capture(function, example_inputs=(X, places))

    trainer = onward.Trainer(model)
    for _ in range(2):
        trainer.step({"x": X, "places": places, "target": T})
    assert trainer.state["seen"].tolist() == [2.0, 0.0, 0.0, 4.0, 2.0]


def test_a_size_that_depends_on_the_data_stays_free():
    w = weight()
    model = capture(lambda x: tf.boolean_mask(x @ w, x[:, 0] > 0), loss=lambda y, t: tf.reduce_sum(y**2))

    for x in (X, -X):
        wanted = float(tf.reduce_sum(tf.boolean_mask(x @ w.numpy(), x[:, 0] > 0) ** 2))
        feeds = {"x": x, "target": T} if "target" in model.targets else {"x": x}
        assert float(onward.Trainer(model).step(feeds)["loss"]) == pytest.approx(wanted, rel=1e-5)


def test_stop_gradient_cuts_inside_of_a_loop():
    w = weight()

    def function(x):
        return tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, tf.stop_gradient(tf.tanh(y)) @ w), [0, x])[1]

    model = capture(function)

    assert ("onward.gradients", "StopGradient", "") in model.ir.functions


class _Lazy(tf.Module):
    def __call__(self, x):
        if not hasattr(self, "w"):
            self.w = weight("lazy")
        return x @ self.w


def test_a_module_may_make_its_variables_in_the_first_call():
    assert list(capture(_Lazy()).parameters) == ["lazy"]
