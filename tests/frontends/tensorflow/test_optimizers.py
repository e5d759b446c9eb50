"""Every class of `keras.optimizers`, traced on TensorFlow: 12 steps, the last batch smaller, follow the user's loop."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import onward
from frontends.tensorflow.tf_models import perceptron
from frontends.tensorflow.tf_runs import errors

OPTIMIZERS = {
    "Adadelta": {}, "Adagrad": {}, "Adam": {"amsgrad": True}, "AdamW": {}, "Adamax": {}, "Ftrl": {},
    "Lamb": {}, "Lion": {}, "Nadam": {}, "RMSprop": {"centered": True, "momentum": 0.9},
    "SGD": {"momentum": 0.9, "nesterov": True}, "ScheduleFreeAdamW": {},
}  # fmt: skip
OPTIONS = {
    "clipnorm": {"clipnorm": 0.1},
    "global_clipnorm": {"global_clipnorm": 0.1},
    "clipvalue": {"clipvalue": 0.01},
    "use_ema": {"use_ema": True},
    "weight_decay": {"weight_decay": 0.1},
}


def test_the_list_is_complete(keras):
    known = {n for n in dir(keras.optimizers) if isinstance(getattr(keras.optimizers, n), type)}
    others = {"Optimizer", "OptimizerMap", "MultiOptimizer", "LossScaleOptimizer"}

    assert known - set(OPTIMIZERS) == {*others, "Adafactor", "Muon"}


@pytest.mark.parametrize("name", ["Adafactor", "Muon"])
def test_what_keras_cannot_build_for_a_variable_of_tensorflow_is_refused(name, keras):
    case = perceptron()
    x, t = case.batch(np.random.RandomState(0), 4)
    optimizer = getattr(keras.optimizers, name)()

    with pytest.raises(onward.OnwardError, match=r"A266(.|\n)*its build fails for a tf.Variable"):
        onward.from_tensorflow(case.module, loss=case.loss, optimizer=optimizer, example_inputs=x, example_targets=t)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_class_follows_tensorflow(name, keras):
    optimizer = getattr(keras.optimizers, name)(learning_rate=1e-2, **OPTIMIZERS[name])

    found = errors(perceptron("float64"), optimizer, before=2, steps=12)

    assert max(found.values()) < 1e-10, found


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_follows_tensorflow(name, keras):
    found = errors(perceptron("float64"), keras.optimizers.Adam(1e-2, **OPTIONS[name]), before=2, steps=12)

    assert max(found.values()) < 1e-10, found


def test_the_optimizer_may_have_its_variables_in_another_order(keras):
    module, optimizer = tf.Module(), keras.optimizers.Adam(0.1)
    module.a, module.b = tf.Variable([[1.0], [2.0]], name="a"), tf.Variable([0.5], name="b")
    optimizer.build([module.b, module.a])
    x, t = np.array([[1.0, -1.0], [2.0, 0.5]], np.float32), np.array([[1.0], [0.0]], np.float32)
    function = tf.function(lambda x: x @ module.a + module.b)

    model = onward.from_tensorflow(function, loss="mse", optimizer=optimizer, example_inputs=x)
    trainer = onward.Trainer(model)
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(function(x) - t))
        optimizer.apply(tape.gradient(loss, [module.b, module.a]), [module.b, module.a])
        trainer.step({"x": x, "target": t})

    np.testing.assert_allclose(trainer.state["a"], module.a, rtol=1e-6)
    np.testing.assert_allclose(trainer.state["b"], module.b, rtol=1e-6)


def test_a_schedule_follows_tensorflow(keras):
    rates = keras.optimizers.schedules.CosineDecay(1e-2, 8, warmup_target=2e-2, warmup_steps=3)

    found = errors(perceptron("float64"), keras.optimizers.SGD(rates), before=2, steps=12)

    assert max(found.values()) < 1e-10, found


def test_the_rate_is_a_setting_and_the_state_can_be_reset(keras):
    case = perceptron()
    x, t = case.batch(np.random.RandomState(0), 4)
    optimizer = keras.optimizers.Adam(0.25, name="mine")
    optimizer.build(case.module.trainable_variables)
    optimizer.apply([0 * v + 1.0 for v in case.module.trainable_variables], case.module.trainable_variables)

    model = onward.from_tensorflow(
        case.module, loss=case.loss, optimizer=optimizer, example_inputs=x, example_targets=t
    )

    trainer = onward.Trainer(model)
    assert trainer.learning_rate_names == ("mine/learning_rate",)
    assert int(trainer.state["mine/iteration"]) == 1
    assert float(np.abs(trainer.state["mine/last_w_0_momentum"]).max()) > 0
    (entry,) = model.entries
    assert "mine/last_w_0_momentum" in entry.initialization_binding
