"""`to_torch(gradients="graph")` and what an optimizer of `to_torch` keeps in `state_dict()`."""

from __future__ import annotations

import io
from typing import Any

import pytest

import onward
from models import batch, perceptron
from onward.errors import ArgumentError

torch = pytest.importorskip("torch")


def data(seed: int = 0) -> list[Any]:
    return [torch.as_tensor(v) for v in batch(seed=seed).values()]


def trainable() -> onward.TrainingModel:
    optimizer = onward.Adam(1e-2, clip_global_norm=0.5)
    return onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=optimizer)


def test_an_input_gradient_is_refused_where_the_backward_pass_is_explicit() -> None:
    module, _ = onward.to_torch(trainable(), gradients="graph")
    x, labels = data()

    with pytest.raises(ArgumentError, match="with respect to parameters only"):
        module.loss(torch.nn.Linear(4, 4)(x), labels)


def test_the_written_backward_pass_keeps_its_precision_under_autocast() -> None:
    module, _ = onward.to_torch(trainable(), gradients="graph")
    other, _ = onward.to_torch(trainable())
    x, labels = data()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        module.loss(x, labels).backward()

    other.loss(x, labels).backward()
    torch.testing.assert_close(module.tensor("W0").grad, other.tensor("W0").grad)


def test_the_written_backward_pass_runs_in_float64() -> None:
    module, _ = onward.to_torch(trainable(), gradients="graph")
    other, _ = onward.to_torch(trainable())
    x, labels = data()

    module.double().loss(x.double(), labels).backward()

    other.double().loss(x.double(), labels).backward()
    torch.testing.assert_close(module.tensor("W0").grad, other.tensor("W0").grad)


def test_an_optimizer_and_a_warm_up_go_on_from_their_state_dicts() -> None:
    def make() -> list[Any]:
        module, optimizer = onward.to_torch(trainable())
        return [module, optimizer, torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)]

    def step(parts: list[Any], seed: int) -> None:
        module, optimizer, scheduler = parts
        optimizer.zero_grad()
        module.loss(*data(seed)).backward()
        optimizer.step()
        scheduler.step()

    first, second = make(), make()
    for seed in range(5):
        step(first, seed)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in first], file)
    file.seek(0)

    for part, state in zip(second, torch.load(file), strict=True):
        part.load_state_dict(state)

    for seed in range(5, 8):
        step(first, seed)
        step(second, seed)
    assert first[1].param_groups[0]["lr"] == second[1].param_groups[0]["lr"]
    torch.testing.assert_close(first[0].tensor("W0"), second[0].tensor("W0"), rtol=0, atol=0)


def test_groups_of_parameters_are_those_of_the_optimizer_they_came_from() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    groups = [{"params": network[0].parameters(), "weight_decay": 0.1}, {"params": network[2].parameters(), "lr": 3e-3}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    x, labels = data()
    loss = torch.nn.CrossEntropyLoss()
    made = onward.from_torch(network, loss=loss, optimizer=optimizer, example_inputs=x, example_targets=labels)

    _, found = onward.to_torch(made)

    assert [len(g["params"]) for g in found.param_groups] == [2, 2]
    optimizer.load_state_dict(found.state_dict())
