"""Fifty updates against formulas in numpy: Keras's optimizers, Lion and LAMB, and optimizers of one's own."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import helper

from onward import optimizers, schedules
from onward.errors import ArgumentError

FORMULA = 1e-11


def keras_sgd(x, g, t, s, lr, mu, nesterov):
    s["m"] = mu * s.get("m", 0.0) - lr * g
    return x + (mu * s["m"] - lr * g if nesterov else s["m"])


def keras_adam(x, g, t, s, lr, b1, b2, eps, decay=0.0):
    x = x - x * decay * lr
    s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g * g
    return x - s["m"] * lr * np.sqrt(1 - b2**t) / (1 - b1**t) / (np.sqrt(s["v"]) + eps)


def keras_adagrad(x, g, t, s, lr, initial, eps):
    s["a"] = s.get("a", initial) + g * g
    return x - lr * g / np.sqrt(s["a"] + eps)


def keras_rmsprop(x, g, t, s, lr, rho, eps, momentum, centered):
    s["v"] = rho * s.get("v", 0.0) + (1 - rho) * g * g
    denominator = s["v"] + eps
    if centered:
        s["mean"] = rho * s.get("mean", 0.0) + (1 - rho) * g
        denominator = s["v"] - s["mean"] ** 2 + eps
    s["b"] = momentum * s.get("b", 0.0) + lr * g / np.sqrt(denominator)
    return x - s["b"]


def keras_adamax(x, g, t, s, lr, b1, b2, eps):
    s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
    s["u"] = np.maximum(b2 * s.get("u", 0.0), np.abs(g))
    return x - lr * s["m"] / ((1 - b1**t) * (s["u"] + eps))


def keras_nadam(x, g, t, s, lr, b1, b2, eps):
    now, ahead = (b1 * (1 - 0.5 * 0.96**k) for k in (t, t + 1))
    s["p"] = s.get("p", 1.0) * now
    s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g * g
    m_hat = ahead * s["m"] / (1 - s["p"] * ahead) + (1 - now) * g / (1 - s["p"])
    return x - lr * m_hat / (np.sqrt(s["v"] / (1 - b2**t)) + eps)


def lion(x, g, t, s, lr, b1, b2, decay):
    x = x * (1 - lr * decay)
    m = s.get("m", 0.0)
    s["m"] = b2 * m + (1 - b2) * g
    return x - lr * np.sign(b1 * m + (1 - b1) * g)


def lamb(x, g, t, s, lr, b1, b2, eps, decay):
    s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g * g
    u = s["m"] / (1 - b1**t) / (np.sqrt(s["v"] / (1 - b2**t)) + eps) + decay * x
    ratio = np.linalg.norm(x) / np.linalg.norm(u) if np.linalg.norm(x) > 0 and np.linalg.norm(u) > 0 else 1.0
    return x - lr * ratio * u


CASES = {
    "keras sgd": (optimizers.KerasSGD(0.1), keras_sgd, (0.1, 0.0, False), FORMULA),
    "keras sgd with momentum": (optimizers.KerasSGD(0.1, momentum=0.7), keras_sgd, (0.1, 0.7, False), FORMULA),
    "keras sgd with nesterov": (
        optimizers.KerasSGD(0.1, momentum=0.7, nesterov=True), keras_sgd, (0.1, 0.7, True), FORMULA,
    ),
    "adam": (optimizers.Adam(0.01), keras_adam, (0.01, 0.9, 0.999, 1e-8), FORMULA),
    "adamw": (
        optimizers.AdamW(0.01, 0.8, 0.95, 1e-6, weight_decay=0.3), keras_adam, (0.01, 0.8, 0.95, 1e-6, 0.3), FORMULA,
    ),
    "keras adagrad": (optimizers.KerasAdagrad(0.1, epsilon=1e-3), keras_adagrad, (0.1, 0.1, 1e-3), FORMULA),
    "keras rmsprop": (optimizers.KerasRMSprop(0.01), keras_rmsprop, (0.01, 0.9, 1e-7, 0.0, False), FORMULA),
    "keras rmsprop with all": (
        optimizers.KerasRMSprop(0.01, momentum=0.5, centered=True),
        keras_rmsprop, (0.01, 0.9, 1e-7, 0.5, True), FORMULA,
    ),
    "keras adamax": (optimizers.KerasAdamax(0.01), keras_adamax, (0.01, 0.9, 0.999, 1e-7), FORMULA),
    "keras nadam": (optimizers.KerasNadam(0.01), keras_nadam, (0.01, 0.9, 0.999, 1e-7), FORMULA),
    "lion": (optimizers.Lion(0.01, weight_decay=0.1), lion, (0.01, 0.9, 0.99, 0.1), FORMULA),
    "lamb": (optimizers.LAMB(0.01, weight_decay=0.1), lamb, (0.01, 0.9, 0.999, 1e-6, 0.1), FORMULA),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_fifty_updates_equal_the_formula(run, start, gradients, name: str) -> None:
    optimizer, formula, settings, tolerance = CASES[name]
    running = run(optimizer, {"x": start})
    x, state = start.copy(), {}

    for t, gradient in enumerate(gradients, 1):
        running.step({"x": gradient})
        x = formula(x, gradient, t, state, *settings)

        np.testing.assert_allclose(running.state["x"], x, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("adam", "Adam"),
        ("adamw", "Adam"),
        ("keras adagrad", "Adagrad"),
        ("keras sgd with momentum", "Momentum"),
        ("keras sgd with nesterov", "Momentum"),
    ],
)
def test_in_float32_the_operator_of_the_standard_does_it(run, start, gradients, name: str, operator: str) -> None:
    optimizer, formula, settings, _ = CASES[name]
    running = run(optimizer, {"x": start.astype(np.float32)}, lowered=True)
    x, state = start.copy(), {}

    for t, gradient in enumerate(gradients, 1):
        running.step({"x": gradient.astype(np.float32)})
        x = formula(x, gradient, t, state, *settings)

    assert operator in running.operators()
    np.testing.assert_allclose(running.state["x"], x, rtol=1e-4, atol=1e-5)


def test_the_velocity_of_keras_contains_the_rate_of_its_time(run, start, gradients) -> None:
    schedule = schedules.Step(0.1, every=10, gamma=0.5)
    running = run(optimizers.KerasSGD(schedule, momentum=0.7), {"x": start})
    x, state = start.copy(), {}

    for t, gradient in enumerate(gradients):
        running.step({"x": gradient})
        x = keras_sgd(x, gradient, t, state, 0.1 * 0.5 ** (t // 10), 0.7, False)

    np.testing.assert_allclose(running.state["x"], x, rtol=1e-11)


def test_lamb_starts_from_zero_weights(run, gradients) -> None:
    running = run(optimizers.LAMB(0.01), {"x": np.zeros((2, 3))})

    running.step({"x": gradients[0]})

    assert np.isfinite(running.state["x"]).all()
    assert np.abs(running.state["x"]).max() > 0


def test_float32_bias_correction_keeps_its_digits(run) -> None:
    """1 - 0.999 in float32 has an error of 5e-5; the function does not subtract."""
    running = run(optimizers.TorchAdam(0.1, beta2=0.999), {"x": np.zeros(1, np.float32)})

    running.step({"x": np.ones(1, np.float32)})

    np.testing.assert_allclose(running.state["x"], [-0.1], rtol=5e-7)


def test_a_python_rule_is_an_optimizer(run, start, gradients) -> None:
    rule = optimizers.Custom(
        0.1,
        lambda op, R, T, X, G, m: [op.Sub(X, op.Mul(R, m)), op.Add(m, G)],
        state={"m": 1.0},
    )
    running = run(rule, {"x": start})

    running.step({"x": gradients[0]})

    np.testing.assert_allclose(running.state["x"], start - 0.1, rtol=1e-12)
    np.testing.assert_allclose(running.state["custom/m/x"], 1.0 + gradients[0], rtol=1e-12)


def test_an_onnx_function_is_an_optimizer(run, start, gradients) -> None:
    function = helper.make_function(
        "my.domain", "Halfway", ["R", "T", "X", "G"], ["Y"],
        [helper.make_node("Mul", ["R", "G"], ["d"]), helper.make_node("Sub", ["X", "d"], ["Y"])],
        [helper.make_opsetid("", 18)],
    )  # fmt: skip
    running = run(optimizers.Custom(0.5, function), {"x": start})

    running.step({"x": gradients[0]})

    assert isinstance(function, onnx.FunctionProto)
    assert "Halfway" in running.operators()
    np.testing.assert_allclose(running.state["x"], start - 0.5 * gradients[0], rtol=1e-12)


def test_a_function_of_the_wrong_shape_is_refused() -> None:
    function = helper.make_function("d", "F", ["X", "G"], ["Y"], [], [helper.make_opsetid("", 18)])

    with pytest.raises(ArgumentError) as caught:
        optimizers.Custom(0.5, function)

    assert "found: 2 inputs, 1 outputs" in str(caught.value)
    assert "needed: inputs R, T, X, G and the state (4), outputs X and the state (1)" in str(caught.value)


@pytest.mark.parametrize("name", sorted(optimizers.NAMES))
def test_every_optimizer_has_a_function_or_an_operator(run, name: str) -> None:
    running = run(optimizers.by_name(name), {"x": np.ones((2, 2))})

    operators = running.operators()

    assert set(operators) & {"Adam", "Adagrad", "Momentum"} or any(
        n.domain == "onward.optimizers" for n in running.model.graph
    )


def test_equal_settings_share_one_function(run) -> None:
    running = run(optimizers.TorchAdam(), {"a": np.ones(2), "b": np.ones(3)})

    assert len(running.model.functions) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optimizers.Adam(-1.0), "error[A101]: `learning_rate` of `Adam` is out of range\n  found: -1.0"),
        (lambda: optimizers.Adam(beta1=1.0), "error[A101]: `beta1` of `Adam` is out of range\n  found: 1.0"),
        (lambda: optimizers.SGD(0.1, accumulate=0), "needed: a whole number, at least 1"),
        (lambda: optimizers.SGD(nesterov=True), "`nesterov` needs momentum above 0 and no dampening"),
        (lambda: optimizers.Adam(groups={"*": {"lerning_rate": 1.0}}), "hint: did you mean `learning_rate`?"),
        (lambda: optimizers.Adam(beta1=1.0), "needed: a finite number from 0, below 1"),
        (lambda: optimizers.Adam(ema=1.0), "`ema` of `Adam` is out of range"),
        (lambda: optimizers.Adam(groups={"*": {"ema": 0.5}}), "no such setting `ema`"),
        (lambda: optimizers.by_name("adamm"), "no such optimizer `adamm`"),
        (lambda: optimizers.by_name("adam", beta3=1), "no such setting `beta3`"),
    ],
)  # fmt: skip
def test_a_wrong_setting_says_what_is_right(make, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make()

    assert message in str(caught.value)


def test_a_group_that_fits_nothing_names_what_there_is(run) -> None:
    with pytest.raises(ArgumentError) as caught:
        run(
            optimizers.SGD(0.1, groups={"*.biass": {"weight_decay": 0.5}}),
            {"fc.weight": np.ones(2), "fc.bias": np.ones(2)},
        )

    assert "error[A110]: `*.biass` matches no parameter" in str(caught.value)
    assert "did you mean `fc.bias`?" in str(caught.value)


@pytest.mark.parametrize("name", sorted(optimizers.NAMES))
def test_an_optimizer_can_be_had_back_from_its_description(name: str) -> None:
    optimizer = optimizers.by_name(name, learning_rate=schedules.Piecewise(0.1, [3], [0.5]), ema=0.5)

    text = json.dumps(optimizer.describe())

    assert optimizers.from_description(json.loads(text)) == optimizer
