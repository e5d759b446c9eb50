"""Fifty updates in float64 against `torch.optim`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from onward import optimizers, schedules
from onward.errors import ArgumentError

FORMULA = 1e-11
NADAM = 1e-8  # PyTorch keeps the product of its momenta in float32, ours is in the parameter's type


def torch_trajectory(make, start, gradients, schedule=None):
    x = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = make([x])
    scheduler = None if schedule is None else torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    values = []
    for gradient in gradients:
        x.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        values.append(x.detach().numpy().copy())
    return values


def trajectory(run, optimizer, start, gradients):
    running = run(optimizer, {"x": start})
    values = []
    for gradient in gradients:
        running.step({"x": gradient})
        values.append(running.state["x"].copy())
    return values


CASES = {
    "sgd": (optimizers.SGD(0.1), lambda p: torch.optim.SGD(p, 0.1), FORMULA),
    "sgd, L2": (optimizers.SGD(0.1, weight_decay=0.2), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.2), FORMULA),
    "momentum": (optimizers.Momentum(0.1), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), FORMULA),
    "nesterov": (
        optimizers.SGD(0.1, momentum=0.7, nesterov=True, weight_decay=0.3),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.7, nesterov=True, weight_decay=0.3),
        FORMULA,
    ),
    "dampening": (
        optimizers.SGD(0.1, momentum=0.5, dampening=0.3),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.5, dampening=0.3),
        FORMULA,
    ),
    "adagrad": (
        optimizers.Adagrad(0.1, decay_factor=0.1, initial_accumulator=0.3, weight_decay=0.2, epsilon=1e-6),
        lambda p: torch.optim.Adagrad(p, 0.1, lr_decay=0.1, initial_accumulator_value=0.3, weight_decay=0.2, eps=1e-6),
        FORMULA,
    ),
    "adam": (optimizers.TorchAdam(0.01), lambda p: torch.optim.Adam(p, 0.01), FORMULA),
    "adam with L2": (
        optimizers.TorchAdam(0.01, beta1=0.8, beta2=0.95, epsilon=1e-3, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, 0.01, (0.8, 0.95), 1e-3, weight_decay=0.1),
        FORMULA,
    ),
    "amsgrad": (
        optimizers.TorchAdam(0.01, amsgrad=True), lambda p: torch.optim.Adam(p, 0.01, amsgrad=True), FORMULA,
    ),
    "adamw": (optimizers.TorchAdamW(0.01), lambda p: torch.optim.AdamW(p, 0.01), FORMULA),
    "adamw with amsgrad": (
        optimizers.TorchAdamW(0.01, weight_decay=0.3, amsgrad=True),
        lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.3, amsgrad=True),
        FORMULA,
    ),
    "rmsprop": (optimizers.RMSprop(), lambda p: torch.optim.RMSprop(p), FORMULA),
    "rmsprop with all": (
        optimizers.RMSprop(0.02, alpha=0.9, momentum=0.5, centered=True, weight_decay=0.1, epsilon=1e-4),
        lambda p: torch.optim.RMSprop(p, 0.02, 0.9, 1e-4, 0.1, 0.5, True),
        FORMULA,
    ),
    "adamax": (optimizers.Adamax(weight_decay=0.1), lambda p: torch.optim.Adamax(p, weight_decay=0.1), FORMULA),
    "nadam": (optimizers.NAdam(weight_decay=0.1), lambda p: torch.optim.NAdam(p, weight_decay=0.1), NADAM),
    "nadam decoupled": (
        optimizers.NAdam(0.01, weight_decay=0.1, decoupled=True),
        lambda p: torch.optim.NAdam(p, 0.01, weight_decay=0.1, decoupled_weight_decay=True),
        NADAM,
    ),
    "radam": (
        optimizers.RAdam(0.01, weight_decay=0.1), lambda p: torch.optim.RAdam(p, 0.01, weight_decay=0.1), FORMULA,
    ),
    "radam with a short memory": (
        optimizers.RAdam(0.01, beta2=0.8), lambda p: torch.optim.RAdam(p, 0.01, (0.9, 0.8)), FORMULA,
    ),
    "rprop": (optimizers.Rprop(), lambda p: torch.optim.Rprop(p), FORMULA),
    "rprop between bounds": (
        optimizers.Rprop(0.05, shrink=0.4, growth=1.5, smallest=0.02, largest=0.09),
        lambda p: torch.optim.Rprop(p, 0.05, (0.4, 1.5), (0.02, 0.09)),
        FORMULA,
    ),
    "adadelta": (optimizers.Adadelta(), lambda p: torch.optim.Adadelta(p), FORMULA),
    "adadelta with L2": (
        optimizers.Adadelta(0.5, rho=0.8, epsilon=1e-3, weight_decay=0.1),
        lambda p: torch.optim.Adadelta(p, 0.5, 0.8, 1e-3, 0.1),
        FORMULA,
    ),
    # PyTorch keeps the rate and the weight of the average in float32, ours are in the parameter's type.
    "asgd": (optimizers.ASGD(), lambda p: torch.optim.ASGD(p), NADAM),
    "asgd with all": (
        optimizers.ASGD(0.1, decay=0.1, power=0.5, start=5, weight_decay=0.1),
        lambda p: torch.optim.ASGD(p, 0.1, 0.1, 0.5, 5, 0.1),
        1e-6,
    ),
    "adafactor": (optimizers.Adafactor(), lambda p: torch.optim.Adafactor(p), FORMULA),
    "adafactor with all": (
        optimizers.Adafactor(0.3, -0.5, 1e-2, 0.1, 1.5, weight_decay=0.2, maximize=True),
        lambda p: torch.optim.Adafactor(p, 0.3, -0.5, (1e-2, 0.1), 1.5, 0.2, maximize=True),
        FORMULA,
    ),
    "climbing": (
        optimizers.SGD(0.1, momentum=0.5, weight_decay=0.25, maximize=True),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.5, weight_decay=0.25, maximize=True),
        FORMULA,
    ),
    "climbing with adam": (
        optimizers.TorchAdam(0.01, weight_decay=0.1, maximize=True),
        lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1, maximize=True),
        FORMULA,
    ),
    "climbing with rprop": (
        optimizers.Rprop(0.05, maximize=True), lambda p: torch.optim.Rprop(p, 0.05, maximize=True), FORMULA,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_fifty_updates_equal_torch(run, start, gradients, name: str) -> None:
    ours, theirs, tolerance = CASES[name]

    found = trajectory(run, ours, start, gradients)

    np.testing.assert_allclose(found, torch_trajectory(theirs, start, gradients), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(), (6,), (2, 1, 3), (3, 2)], ids=str)
@pytest.mark.parametrize("name", ["adafactor", "adafactor with all"])
def test_adafactor_factors_the_last_two_dimensions_and_no_vector(run, gradients, name: str, shape) -> None:
    ours, theirs, tolerance = CASES[name]
    start, *given = (np.resize(v, shape) for v in (np.linspace(-1.0, 2.0, 6), *gradients))

    found = trajectory(run, ours, start, given)

    np.testing.assert_allclose(found, torch_trajectory(theirs, start, given), rtol=tolerance, atol=tolerance)
    kept = {n: v.shape for n, v in run(ours, {"x": start}).state.items() if n.startswith("adafactor/")}
    factors = {"adafactor/row/x": (*shape[:-1], 1), "adafactor/column/x": (*shape[:-2], 1, *shape[-1:])}
    assert kept == (factors if len(shape) > 1 else {"adafactor/v/x": shape})


MUONS = {
    "muon": ({}, {}),
    "muon with all": (
        {"momentum": 0.7, "weight_decay": 0.3, "a": 2.0, "b": -1.5, "c": 0.5, "iterations": 8, "epsilon": 0.1},
        {"momentum": 0.7, "weight_decay": 0.3, "ns_coefficients": (2.0, -1.5, 0.5), "ns_steps": 8, "eps": 0.1},
    ),
    "muon without nesterov": ({"nesterov": False}, {"nesterov": False}),
    "muon with the size of adamw": ({"scale": "match_rms_adamw"}, {"adjust_lr_fn": "match_rms_adamw"}),
}
needs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="PyTorch has Muon since 2.9")


@needs_muon
@pytest.mark.parametrize("shape", [(2, 3), (3, 2)], ids=["wide", "tall"])
@pytest.mark.parametrize("name", MUONS)
def test_muon_in_full_precision(run, start, gradients, name: str, shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch computes the iteration in bfloat16 always; without this its formula is that of float64."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self.clone())
    ours, theirs = MUONS[name]
    given = [g.reshape(shape) for g in gradients]

    found = trajectory(run, optimizers.Muon(0.1, bfloat16=False, **ours), start.reshape(shape), given)

    expected = torch_trajectory(lambda p: torch.optim.Muon(p, 0.1, **theirs), start.reshape(shape), given)
    np.testing.assert_allclose(found, expected, rtol=FORMULA, atol=FORMULA)


@needs_muon
@pytest.mark.parametrize("shape", [(2, 3), (3, 2)], ids=["wide", "tall"])
@pytest.mark.parametrize("name", MUONS)
def test_muon_rounds_as_torch_does(run, start, gradients, name: str, shape) -> None:
    """Products are summed in another order, so that a number may be rounded to the next one: 2⁻⁸ of a step."""
    ours, theirs = MUONS[name]
    given = [g.reshape(shape) for g in gradients]

    found = trajectory(run, optimizers.Muon(0.1, **ours), start.reshape(shape), given)

    expected = torch_trajectory(lambda p: torch.optim.Muon(p, 0.1, **theirs), start.reshape(shape), given)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2 * 0.1 * 2**-8)
    exact = trajectory(run, optimizers.Muon(0.1, bfloat16=False, **ours), start.reshape(shape), given)
    assert np.abs(np.subtract(found, expected)).max() < 0.1 * np.abs(np.subtract(exact, expected)).max()


def test_muon_names_every_parameter_that_is_not_a_matrix(run, start) -> None:
    with pytest.raises(ArgumentError) as caught:
        run(optimizers.Muon(), {"w": start, "b": start[0], "k": start[None]})

    text = str(caught.value)
    assert "`Muon` cannot train `b`, which is not a matrix" in text
    assert "found: shape [3]" in text
    assert "`Muon` cannot train `k`, which is not a matrix" in text
    assert "choose the matrices with train=" in text


@pytest.mark.parametrize(("name", "operator"), [("adagrad", "Adagrad"), ("momentum", "Momentum"),
                                               ("nesterov", "Momentum"), ("dampening", "Momentum")])  # fmt: skip
def test_in_float32_the_operator_of_the_standard_does_it(run, start, gradients, name: str, operator: str) -> None:
    ours, theirs, _ = CASES[name]
    small = [g.astype(np.float32) for g in gradients]

    found = trajectory(run, ours, start.astype(np.float32), small)

    expected = torch_trajectory(theirs, start.astype(np.float32), small)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert operator in run(ours, {"x": start.astype(np.float32)}).operators()


def test_asgd_averages_the_weights_as_torch_does(run, start, gradients) -> None:
    x = torch.nn.Parameter(torch.from_numpy(start.copy()))
    theirs = torch.optim.ASGD([x], 0.1, t0=5)
    ours = run(optimizers.ASGD(0.1, start=5), {"x": start})

    for gradient in gradients:
        x.grad = torch.from_numpy(gradient.copy())
        theirs.step()
        ours.step({"x": gradient})

    np.testing.assert_allclose(ours.state["asgd/average/x"], theirs.state[x]["ax"].numpy(), rtol=1e-6, atol=1e-7)
    assert np.abs(ours.state["asgd/average/x"] - ours.state["x"]).max() > 1e-3


def test_a_schedule_changes_the_rate_as_in_torch(run, start, gradients) -> None:
    schedule = schedules.Step(0.1, every=7, gamma=0.5)

    found = trajectory(run, optimizers.SGD(schedule, momentum=0.5), start, gradients)

    expected = torch_trajectory(
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.5), start, gradients, schedule=lambda t: 0.5 ** (t // 7)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def test_onnx_adam_is_not_torch_adam(run, start, gradients) -> None:
    """The reason for `TorchAdam`: epsilon is in another place."""
    settings = {"epsilon": 1e-3}

    found = trajectory(run, optimizers.Adam(0.01, **settings), start, gradients)

    theirs = torch_trajectory(lambda p: torch.optim.Adam(p, 0.01, eps=1e-3), start, gradients)
    assert np.abs(np.array(found) - np.array(theirs)).max() > 1e-3


def test_several_tensors_share_one_operator(run, start, gradients) -> None:
    parameters = {"a": start.astype(np.float32), "b": start[0].astype(np.float32)}
    running = run(optimizers.Momentum(0.1), parameters)

    for gradient in gradients:
        running.step({"a": gradient.astype(np.float32), "b": gradient[0].astype(np.float32)})

    assert running.operators().count("Momentum") == 1
    expected = torch_trajectory(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), start, gradients)[-1]
    np.testing.assert_allclose(running.state["a"], expected, rtol=1e-5)
    np.testing.assert_allclose(running.state["b"], expected[0], rtol=1e-5)


@pytest.mark.parametrize("norm", [0.5, 1000.0])
def test_global_norm_clipping_equals_torch(run, start, gradients, norm: float) -> None:
    running = run(optimizers.SGD(0.1, clip_global_norm=norm), {"a": start, "b": start[0]})
    a, b = (torch.nn.Parameter(torch.from_numpy(v.copy())) for v in (start, start[0]))
    theirs = torch.optim.SGD([a, b], 0.1)

    for gradient in gradients:
        running.step({"a": gradient, "b": gradient[0]})
        a.grad, b.grad = torch.from_numpy(gradient.copy()), torch.from_numpy(gradient[0].copy())
        torch.nn.utils.clip_grad_norm_([a, b], norm)
        theirs.step()

    np.testing.assert_allclose(running.state["a"], a.detach().numpy(), rtol=1e-11)
    np.testing.assert_allclose(running.state["b"], b.detach().numpy(), rtol=1e-11)


def test_clipping_by_value_and_by_norm(run, start, gradients) -> None:
    running = run(optimizers.SGD(0.1, clip_value=0.5, clip_norm=0.75, clip_epsilon=0.0), {"x": start})

    running.step({"x": gradients[0]})

    clipped = np.clip(gradients[0], -0.5, 0.5)
    clipped *= min(1.0, 0.75 / np.linalg.norm(clipped))
    np.testing.assert_allclose(running.state["x"], start - 0.1 * clipped, rtol=1e-12)


def test_clipping_leaves_a_gradient_of_zeros_alone(run, start) -> None:
    running = run(optimizers.SGD(0.1, clip_norm=1.0, clip_epsilon=0.0), {"x": start})

    with np.errstate(divide="ignore"):
        running.step({"x": np.zeros_like(start)})

    np.testing.assert_array_equal(running.state["x"], start)


def test_accumulating_four_steps_is_one_update_with_their_mean(run, start, gradients) -> None:
    running = run(optimizers.TorchAdam(0.01, accumulate=4), {"x": start})

    for gradient in gradients[:48]:
        running.step({"x": gradient})

    means = [np.mean(gradients[i : i + 4], axis=0) for i in range(0, 48, 4)]
    expected = torch_trajectory(lambda p: torch.optim.Adam(p, 0.01), start, means)[-1]
    np.testing.assert_allclose(running.state["x"], expected, rtol=1e-11)
    assert running.state["step"] == 12


def test_between_accumulated_updates_nothing_but_the_sum_changes(run, start, gradients) -> None:
    running = run(optimizers.TorchAdam(0.01, accumulate=3, ema=0.5), {"x": start})
    before = dict(running.state)

    running.step({"x": gradients[0]})

    changed = {n for n in before if not np.array_equal(before[n], running.state[n])}
    assert changed == {"micro_step", "accumulated/x"}


def test_the_moving_average_of_the_weights_follows_them(run, start, gradients) -> None:
    running = run(optimizers.SGD(0.1, ema=0.9), {"x": start})
    average = start.copy()

    for gradient in gradients:
        running.step({"x": gradient})
        average = 0.9 * average + 0.1 * running.state["x"]

    np.testing.assert_allclose(running.state["ema/x"], average, rtol=1e-12)


def test_groups_have_settings_of_their_own(run, start, gradients) -> None:
    optimizer = optimizers.TorchAdamW(0.01, groups={"*.bias": {"weight_decay": 0.0, "learning_rate": 0.002}})
    running = run(optimizer, {"fc.weight": start, "fc.bias": start[0]})
    weight, bias = (torch.nn.Parameter(torch.from_numpy(v.copy())) for v in (start, start[0]))
    theirs = torch.optim.AdamW([{"params": [weight]}, {"params": [bias], "weight_decay": 0.0, "lr": 0.002}], 0.01)

    for gradient in gradients:
        running.step({"fc.weight": gradient, "fc.bias": gradient[0]})
        weight.grad, bias.grad = torch.from_numpy(gradient.copy()), torch.from_numpy(gradient[0].copy())
        theirs.step()

    np.testing.assert_allclose(running.state["fc.weight"], weight.detach().numpy(), rtol=1e-11)
    np.testing.assert_allclose(running.state["fc.bias"], bias.detach().numpy(), rtol=1e-11)


def test_the_rate_can_be_fed_at_any_step(run, start, gradients) -> None:
    running = run(optimizers.SGD(0.1), {"x": start})

    running.step({"x": gradients[0]}, learning_rate=0.5)

    np.testing.assert_allclose(running.state["x"], start - 0.5 * gradients[0], rtol=1e-12)


def test_half_precision_weights_keep_their_state_in_float32(run, start, gradients) -> None:
    running = run(optimizers.TorchAdam(0.01), {"x": start.astype(np.float16)})

    running.step({"x": gradients[0].astype(np.float16)})

    assert running.state["torchadam/m/x"].dtype == np.float32
    assert running.state["x"].dtype == np.float16


def test_an_update_that_is_wrong_by_a_thousandth_is_noticed(run, start, gradients) -> None:
    """The comparison above is strict enough to see it."""
    wrong = optimizers.Custom(0.1, lambda op, R, T, X, G: [op.Sub(X, op.Mul(op.Mul(R, 1.001), G))])

    found = trajectory(run, wrong, start, gradients)

    expected = torch_trajectory(lambda p: torch.optim.SGD(p, 0.1), start, gradients)
    assert not np.allclose(found, expected, rtol=1e-5, atol=1e-5)
