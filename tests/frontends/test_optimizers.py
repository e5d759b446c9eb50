"""Every optimizer of torch.optim with its options, and every scheduler: 20 steps beside PyTorch's."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import onward
from frontends.runs import assert_same_state, batches, onward_step, torch_step, weights_of
from frontends.zoo import CROSS_ENTROPY, ZOO, Mlp
from onward.errors import ArgumentError
from onward.frontends.torch.optimizers import convert_optimizer, optimizer_state

SUBJECT = ZOO[0]
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd with weight decay": (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1}),
    "sgd with momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "sgd with dampening": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    "sgd with nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adam with large epsilon": (torch.optim.Adam, {"lr": 0.01, "eps": 1e-2, "betas": (0.8, 0.95)}),
    "adam with amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.01}),
    "adam with decoupled decay": (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "adamw with amsgrad": (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.05, "lr_decay": 0.1, "weight_decay": 0.01}),
    "adagrad from an accumulator": (torch.optim.Adagrad, {"lr": 0.05, "initial_accumulator_value": 0.5}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01, "weight_decay": 0.01}),
    "rmsprop centered": (torch.optim.RMSprop, {"lr": 0.01, "centered": True}),
    "rmsprop with momentum": (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "centered": True}),
    "adamax": (torch.optim.Adamax, {"lr": 0.01, "weight_decay": 0.01}),
    "nadam": (torch.optim.NAdam, {"lr": 0.01, "weight_decay": 0.01}),
    "nadam decoupled": (torch.optim.NAdam, {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "radam": (torch.optim.RAdam, {"lr": 0.01, "weight_decay": 0.01}),
    "radam decoupled": (torch.optim.RAdam, {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    "rprop": (torch.optim.Rprop, {"lr": 0.01}),
    "rprop between bounds": (torch.optim.Rprop, {"lr": 0.01, "etas": (0.4, 1.3), "step_sizes": (1e-3, 0.02)}),
    "rprop climbing": (torch.optim.Rprop, {"lr": 1e-4, "maximize": True, "step_sizes": (1e-6, 1e-3)}),
    "adadelta": (torch.optim.Adadelta, {"lr": 0.5, "weight_decay": 0.01}),
    "asgd": (torch.optim.ASGD, {"lr": 0.1, "lambd": 0.01, "t0": 4, "weight_decay": 0.01}),
    "adam climbing": (torch.optim.Adam, {"lr": 1e-3, "maximize": True}),
    "adafactor": (torch.optim.Adafactor, {"lr": 0.05}),
    "adafactor with all": (
        torch.optim.Adafactor,
        {"lr": 0.3, "beta2_decay": -0.6, "eps": (1e-4, 0.05), "d": 1.5, "weight_decay": 0.1},
    ),
}
if hasattr(torch.optim, "Muon"):  # since PyTorch 2.9
    OPTIMIZERS["muon"] = (torch.optim.Muon, {"lr": 0.02})
    OPTIMIZERS["muon with all"] = (
        torch.optim.Muon,
        {
            "lr": 0.02, "weight_decay": 0.3, "momentum": 0.8, "nesterov": False, "ns_coefficients": (2.0, -1.5, 0.5),
            "ns_steps": 7, "eps": 1e-3, "adjust_lr_fn": "match_rms_adamw",
        },
    )  # fmt: skip
# `to_torch` returns the file's own update for these, and torch's class for all others.
RUN_BY_THE_FILE = ("adam with decoupled decay", "adagrad from an accumulator", "asgd")
# PyTorch's Muon computes in bfloat16, and enlarges small singular values 480 times: in float32 the rounding noise of a
# gradient becomes visible, most of all in the last layer, whose gradients sum to zero over the classes. In float64 the
# losses are equal (below), and tests/optimizers compares the formula in full precision.
TOLERANCE = {"muon": (2e-3, 0.1), "muon with all": (2e-3, 0.1)}
SCHEDULERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 4, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [5, 9, 9, 15], 0.5),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.3, 7),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.2, 0.9, 10),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 8, 1e-3),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 15, 2.0),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4, 2, 1e-3),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.2, 1.0, 6), lr_scheduler.CosineAnnealingLR(o, 20)], [6]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.3, 7), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.2, 40, cycle_momentum=False),
}


def with_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let from_torch reuse one capture of the module and of the loss."""
    from onward.frontends.torch import capture

    original = capture.export
    monkeypatch.setattr(capture, "export", functools.partial(_export_once, original))


_EXPORTS: dict[str, Any] = {}


def _export_once(original: Any, module: Any, *arguments: Any) -> Any:
    what = arguments[-1]
    if what not in _EXPORTS:
        _EXPORTS[what] = original(module, *arguments)
    captured, program = _EXPORTS[what]
    proto = copy.deepcopy(captured)
    weights = dict(module.named_parameters()) if what == "the module" else {}
    for tensor in proto.graph.initializer:
        if tensor.name in weights:
            array = weights[tensor.name].detach().numpy()
            tensor.ClearField("raw_data")
            tensor.raw_data = array.tobytes()
    return proto, program


def start(steps: int, make: Any, schedule: Any = None) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    module = Mlp()
    optimizer = make(list(module.parameters()))
    scheduler = None if schedule is None else schedule(optimizer)
    for inputs, targets in batches(SUBJECT, steps, seed=3):
        torch_step(module, optimizer, CROSS_ENTROPY, inputs, targets)
        if scheduler is not None:
            scheduler.step()
    return module, optimizer, scheduler


def convert(module: Any, optimizer: Any, scheduler: Any = None) -> onward.TrainingModel:
    inputs, targets = batches(SUBJECT, 1)[0]
    return onward.from_torch(
        module,
        loss=CROSS_ENTROPY,
        optimizer=optimizer,
        scheduler=scheduler,
        example_inputs=inputs,
        example_targets=targets,
    )


def _trainable_by(kind: type[torch.optim.Optimizer], parameters: list[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    return [p for p in parameters if p.ndim == 2] if kind.__name__ == "Muon" else parameters


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_goes_on_exactly(name: str, before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with_optimizer(monkeypatch)
    kind, options = OPTIMIZERS[name]
    module, optimizer, _ = start(before, lambda p: kind(_trainable_by(kind, p), **options))
    model = convert(module, optimizer)
    trainer = onward.Trainer(model, threads=1)
    back, its_optimizer = onward.to_torch(model)
    back.train()
    expected, actual, returned = [], [], []

    for inputs, targets in batches(SUBJECT, 20):
        expected.append(torch_step(module, optimizer, CROSS_ENTROPY, inputs, targets))
        actual.append(onward_step(trainer, inputs, targets))
        returned.append(torch_step(back, its_optimizer, CROSS_ENTROPY, inputs, targets))

    of_losses, of_weights = TOLERANCE.get(name, (2e-5, 2e-4))
    np.testing.assert_allclose(actual, expected, rtol=of_losses)
    np.testing.assert_allclose(returned, expected, rtol=of_losses)
    assert_same_state(weights_of(trainer, model), module, of_weights)
    assert type(its_optimizer) is kind or name in RUN_BY_THE_FILE


@pytest.mark.parametrize("kind", [k for k in ("Adafactor", "Muon") if hasattr(torch.optim, k)])
def test_the_groups_of_an_optimizer_that_looks_at_shapes(kind: str) -> None:
    """In float64, where gradients have no noise that Muon enlarges; it may still round a product differently."""
    torch.manual_seed(0)
    module = Mlp().double()
    first, *others = [p for p in module.parameters() if kind == "Adafactor" or p.ndim == 2]
    groups = [{"params": [first], "lr": 0.1, "weight_decay": 0.3}, {"params": others}]
    optimizer = getattr(torch.optim, kind)(groups, lr=0.02)
    data = batches(SUBJECT, 20, dtype=torch.float64)
    for inputs, targets in data[:3]:
        torch_step(module, optimizer, CROSS_ENTROPY, inputs, targets)

    model = onward.from_torch(
        module, loss=CROSS_ENTROPY, optimizer=optimizer, example_inputs=data[0][0], example_targets=data[0][1]
    )

    trainer = onward.Trainer(model, threads=1)
    expected = [torch_step(module, optimizer, CROSS_ENTROPY, *batch) for batch in data]
    actual = [onward_step(trainer, *batch) for batch in data]
    np.testing.assert_allclose(actual, expected, rtol=1e-9 if kind == "Adafactor" else 1e-4)
    assert_same_state(weights_of(trainer, model), module, 1e-9 if kind == "Adafactor" else 1e-3)


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # PyTorch 2.8 warns of its own SequentialLR
@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_goes_on_exactly(name: str, before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with_optimizer(monkeypatch)
    module, optimizer, scheduler = start(before, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), SCHEDULERS[name])
    trainer = onward.Trainer(convert(module, optimizer, scheduler), threads=1)
    expected, actual = [], []

    for inputs, targets in batches(SUBJECT, 20):
        expected.append(torch_step(module, optimizer, CROSS_ENTROPY, inputs, targets))
        scheduler.step()
        actual.append(onward_step(trainer, inputs, targets))

    np.testing.assert_allclose(actual, expected, rtol=2e-5)
    assert_same_state(trainer.state, module, 2e-4)


def message(function: Any) -> str:
    with pytest.raises(ArgumentError) as caught:
        function()
    return str(caught.value)


def parameters() -> tuple[torch.nn.Module, dict[int, str], list[str]]:
    module = Mlp()
    return module, {id(p): n for n, p in module.named_parameters()}, [n for n, _ in module.named_parameters()]


def test_an_unknown_optimizer_is_refused_with_the_list_of_known_ones() -> None:
    module, names, trained = parameters()

    text = message(lambda: convert_optimizer(torch.optim.LBFGS(module.parameters()), names, trained))

    assert "error[A210]: `torch.optim.LBFGS` cannot be converted" in text
    assert "found: an optimizer that evaluates the loss several times in one step" in text
    assert "ASGD, Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax" in text
    assert "onward.optimizers.Custom" in text


class MyOwn(torch.optim.Adam):
    """Who knows what it changes."""


def test_an_optimizer_that_is_not_torchs_is_named_with_its_module() -> None:
    module, names, trained = parameters()

    text = message(lambda: convert_optimizer(MyOwn(module.parameters()), names, trained))

    assert f"error[A210]: `{MyOwn.__module__}.MyOwn` cannot be converted" in text


def test_every_optimizer_of_torch_is_converted_or_refused_in_words() -> None:
    module, names, trained = parameters()
    flat = [p for p in module.parameters() if p.ndim == 2]  # Muon takes matrices only
    refused = []

    for name in dir(torch.optim):
        kind = getattr(torch.optim, name)
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer:
            try:
                ours, _ = convert_optimizer(kind(flat, lr=0.01), names, trained)
            except ArgumentError as error:
                refused.append((name, str(error).splitlines()[0]))
            else:
                assert type(ours).__name__.removeprefix("Torch") == name

    names_of_them = ["LBFGS", "SparseAdam"]
    assert refused == [(n, f"error[A210]: `torch.optim.{n}` cannot be converted") for n in names_of_them]


def test_all_problems_of_an_optimizer_come_at_once() -> None:
    module, names, trained = parameters()
    foreign = torch.nn.Parameter(torch.zeros(3, 4))
    optimizer = torch.optim.SGD([*module.parameters(), foreign], lr=0.1)
    optimizer.register_step_post_hook(lambda *_: None)

    text = message(lambda: convert_optimizer(optimizer, names, trained))

    assert "the optimizer has hooks, which a file cannot contain" in text
    assert "the optimizer holds a parameter that is not in the module" in text
    assert "a tensor of shape [3, 4]" in text


def test_a_hook_of_the_optimizer_is_refused() -> None:
    module, names, trained = parameters()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: None)

    text = message(lambda: convert_optimizer(optimizer, names, trained))

    assert "the optimizer has hooks, which a file cannot contain" in text
    assert "found: register_step_pre_hook" in text


def test_an_optimizer_of_frozen_parameters_is_refused() -> None:
    module, names, _ = parameters()

    text = message(lambda: convert_optimizer(torch.optim.SGD(module.parameters(), lr=0.1), names, []))

    assert "the optimizer trains no parameter of the module that requires a gradient" in text


def test_parameters_with_different_numbers_of_steps_are_refused() -> None:
    module, names, _ = parameters()
    optimizer = torch.optim.Adam(module.parameters())
    module.net[0].weight.grad = torch.ones_like(module.net[0].weight)
    optimizer.step()
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()

    text = message(lambda: optimizer_state(optimizer, names, "torchadam"))

    assert "the parameters have taken different numbers of steps" in text


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda o: lr_scheduler.LambdaLR(o, lambda t: 0.9**t), "`LambdaLR` cannot be converted"),
        (lambda o: lr_scheduler.ReduceLROnPlateau(o), "`ReduceLROnPlateau` cannot be converted"),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.2, 40), "`OneCycleLR` with cycle_momentum=True cannot be converted"),
        (
            lambda o: lr_scheduler.OneCycleLR(o, 0.2, 40, cycle_momentum=False, three_phase=True),
            "`OneCycleLR` with three_phase=True cannot be converted",
        ),
        (
            lambda o: lr_scheduler.OneCycleLR(o, 0.2, 40, cycle_momentum=False, anneal_strategy="linear"),
            '`OneCycleLR` with anneal_strategy="linear" cannot be converted',
        ),
    ],
)
def test_a_scheduler_that_is_not_exact_is_refused(make: Any, expected: str) -> None:
    module, names, trained = parameters()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    scheduler = make(optimizer)

    text = message(lambda: convert_optimizer(optimizer, names, trained, scheduler))

    assert expected in text


def test_a_scheduler_stepped_once_per_epoch_is_refused() -> None:
    module, optimizer, _ = start(3, lambda p: torch.optim.Adam(p))
    names = {id(p): n for n, p in module.named_parameters()}
    scheduler = lr_scheduler.StepLR(optimizer, 10)

    text = message(lambda: convert_optimizer(optimizer, names, list(names.values()), scheduler))

    assert "the scheduler is not stepped after every optimizer step" in text
    assert "found: 0 scheduler steps, 3 optimizer steps" in text


def test_a_scheduler_of_another_optimizer_is_refused() -> None:
    module, names, trained = parameters()
    optimizer, other = (torch.optim.SGD(module.parameters(), lr=0.1) for _ in range(2))

    text = message(lambda: convert_optimizer(optimizer, names, trained, lr_scheduler.StepLR(other, 10)))

    assert "the scheduler belongs to another optimizer" in text
