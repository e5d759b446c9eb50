"""What cannot be captured says where and what to do, and nothing is written."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import onward
from frontends.tensorflow.tf_models import squared

X = np.random.RandomState(0).randn(4, 3).astype("float32")
W = tf.Variable(np.random.RandomState(2).randn(3, 3).astype("float32"), name="w")
SCALE = tf.Variable(tf.ones(3), name="scale")
FROZEN = tf.Variable(tf.eye(3), trainable=False, name="frozen")
COUNT = tf.Variable(0.0, trainable=False, name="count")


def capture(function, **options):
    given = {"loss": squared, "optimizer": "sgd", "example_inputs": X, "example_targets": X, **options}
    return onward.from_tensorflow(function, **given)


def refusal(function, **options) -> str:
    with pytest.raises(onward.OnwardError) as caught:
        capture(function, **options)
    return str(caught.value)


def in_python(x):
    return tf.ensure_shape(tf.numpy_function(np.sin, [x], tf.float32), [None, 3]) @ W


@tf.custom_gradient
def clipped(x):
    return x, lambda dy: tf.clip_by_value(dy, -0.1, 0.1)


def counts_in_a_branch(x):
    tf.cond(tf.reduce_sum(x) > 0, lambda: COUNT.assign_add(1.0), lambda: COUNT.read_value())
    return x @ W + COUNT


def assigns_what_is_trained(x):
    SCALE.assign_add(tf.ones(3))
    return x @ W * SCALE


def draws_in_a_loop(x, training=False):
    if not training:
        return x @ W
    return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y + tf.random.normal([3])), [0, x @ W])[1]


def with_seed(x, training=False):
    return x @ W + (tf.random.stateless_uniform(tf.shape(x), [1, 2]) if training else 0.0)


def truncated(x, training=False):
    return x @ W + (tf.random.truncated_normal(tf.shape(x)) if training else 0.0)


def lookup(x):
    keys = tf.lookup.KeyValueTensorInitializer([0, 1], [1.0, 2.0], tf.int64, tf.float32)
    return x @ W * TABLES.setdefault("table", tf.lookup.StaticHashTable(keys, 0.0)).lookup(tf.constant([0], tf.int64))


TABLES: dict = {}


def between_devices(x):
    one = {"group_size": 1, "group_key": 1, "instance_key": 1, "ordering_token": []}
    return tf.raw_ops.CollectiveReduceV2(input=x @ W, **one, merge_op="Add", final_op="Id")


def clipped_in_a_loop(x):
    return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, clipped(y @ W)), [0, x])[1]


def for_four_rows(x):
    return tf.ensure_shape(x, [4, 3]) @ W


def make_variable(x):
    return x @ tf.Variable(tf.ones([3, 3]))


FUNCTIONS = {
    in_python: ("A262", "it runs Python code", "node `"),
    (lambda x: clipped(x @ W)): (
        "A262",
        "the tf.custom_gradient of `clipped` (test_refusals.py line",
        "node `",
        "slope 1",
    ),
    counts_in_a_branch: ("A264", "variable `count:0` changes inside of a loop or a branch", "assign it afterwards"),
    assigns_what_is_trained: ("A264", "variable `scale` cannot be trained", "trainable=False"),
    draws_in_a_loop: ("A265", "inside of a loop or branch", "before the loop"),
    with_seed: ("A265", "the same seed draws the same numbers", "tf.random.Generator"),
    truncated: ("A265", "only uniform and normal", "truncated_normal"),
    (lambda x: tf.nn.dropout(x @ W, 0.5)): ("A265", "inference draws random numbers", "training="),
    (lambda x: tf.math.erfinv(x @ W) + tf.math.lgamma(x)): ("A262", "`Lgamma` of TensorFlow", "`Erfinv` of TensorFlow"),
    (lambda x: tf.strings.as_string(x @ W)): ("A261", "not a tensor of numbers", "string"),
    (lambda x: tf.reshape(x, [4, 3]) @ W): ("A263", "cannot run the captured graph", "dynamic=False"),
    (lambda x: x[:, :2] @ W): ("A261", "Dimensions must be equal", "test_refusals.py line"),
    make_variable: ("A261", "singleton tf.Variables", "make_variable"),
    (lambda x: x * 2.0): ("A264", "there is no variable to train", "trainable"),
    (lambda x: x @ FROZEN): ("A264", "there is no variable to train", "not trainable: frozen"),
    between_devices: ("A262", "it communicates between devices", "CollectiveReduceV2"),
    clipped_in_a_loop: ("A262", "the tf.custom_gradient of `clipped` (", "inside of a loop or branch"),
    for_four_rows: ("A261", "not compatible with expected shape", "dynamic=False"),
    lookup: ("A262", "not a variable, such as a table", "Lookup"),
    3: ("A260", "something that can be called", "a tf.Module"),
    tf.Module: ("A260", "something that can be called", "call the class first"),
    "nowhere/at/all": ("A260", "there is no folder `nowhere/at/all`", "saved_model.pb"),
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: getattr(f, "__name__", str(f)).strip("<>"))
def test_a_function_is_refused_with_place_and_remedy(function):
    code, *words = FUNCTIONS[function]

    message = refusal(function)

    assert f"error[{code}]" in message
    assert all(word in message for word in words), message


OPTIONS = {
    "the loss is a vector": ({"loss": lambda y, t: y - t}, "A201", "reduce it with tf.reduce_mean"),
    "the loss fails": ({"loss": lambda y, t: tf.reshape(y, [7, -2])}, "A261", "the loss"),
    "the loss does not depend": ({"loss": lambda y, t: tf.reduce_sum(t)}, "A208", "does not depend"),
    "no targets": ({"example_targets": None}, "A261", "example_targets= was not given"),
    "no loss of that name": ({"loss": "msee"}, "A100", "did you mean `mse`"),
    "another optimizer": ({"optimizer": 5}, "A101", "onward.optimizers"),
    "a variable that is not read": ({"variables": [FROZEN]}, "A264", "does not read variable `frozen:0`"),
    "not a variable": ({"variables": [3]}, "A264", "not a tf.Variable"),
    "no example": ({"example_inputs": None}, "A101", "no input_signature"),
    "a text as example": ({"example_inputs": object()}, "A101", "not made of tensors"),
    "training= is no function": ({"training": 4}, "A260", "training= is not a function"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_an_argument_is_refused_with_place_and_remedy(case):
    options, code, words = OPTIONS[case]

    message = refusal(lambda x: x @ W, **options)

    assert f"error[{code}]" in message
    assert words in message, message


def test_keras_models_are_pointed_to_from_keras(keras, tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    model.export(tmp_path / "exported", verbose=False)

    for given in (model, model.layers[0], tmp_path / "exported"):
        message = refusal(given)

        assert "error[A260]" in message
        assert "onward.from_keras(" in message


def test_a_damaged_saved_model_is_one_error(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"not a model")

    message = refusal(tmp_path)

    assert "error[A260]: TensorFlow cannot load the SavedModel" in message


def test_optimizers_that_branch_or_scale_are_refused(keras):
    for optimizer, words in (
        (keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "changes inside of a loop or a branch"),
        (keras.optimizers.SGD(0.1, loss_scale_factor=8.0), "it scales the loss"),
    ):
        message = refusal(lambda x: x @ W, optimizer=optimizer)

        assert "error[A266]" in message
        assert words in message, message


def test_an_optimizer_of_other_variables_is_refused(keras):
    optimizer = keras.optimizers.Adam()
    optimizer.build([SCALE])

    assert "error[A266]: the optimizer cannot be captured: it was built for other variables" in refusal(
        lambda x: x @ W, optimizer=optimizer
    )


def test_a_graph_that_differs_is_not_returned(monkeypatch):
    from onward.frontends.tensorflow import handlers

    honest = handlers.handlers
    wrong = {"Erfc": lambda ctx, node, name, args: setattr(node, "type", "Erf")}
    monkeypatch.setattr("onward.frontends.tensorflow.nodes.handlers", lambda d: {**honest(d), **wrong})

    message = refusal(lambda x: tf.math.erfc(x @ W))

    assert "error[A263]: inference of the captured graph differs from TensorFlow" in message
    assert "a batch of 4" in message


@pytest.mark.parametrize("package", ["tensorflow", "tf2onnx"])
def test_a_missing_package_is_one_line_with_the_command(package):
    code = (
        f"import sys; sys.modules['{package}'] = None\n"
        "import onward\n"
        "try:\n"
        "    onward.from_tensorflow(None, loss='mse', optimizer='sgd')\n"
        "except onward.OnwardError as error:\n"
        "    print(error)\n"
    )

    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert f"error[E100]: onward.from_tensorflow needs `{package}`, which is not installed" in printed
    assert "pip install 'onward[tensorflow]'" in printed
