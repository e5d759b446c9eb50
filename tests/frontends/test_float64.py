"""float64 modules train as in PyTorch to nine digits, although ONNX's exporters and attributes like 32 bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onward
from frontends.runs import assert_same_state, onward_step, torch_step

T = torch.tensor([0, 1, 2, 0])
smoothed = nn.CrossEntropyLoss(label_smoothing=0.1)


def batch(seed: int) -> Tensor:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Numbers(nn.Module):
    """Numbers that 32 bits do not hold, in each of the ways in which an exporter writes them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) * 0.1 + 1.0 / 3.0
        h = F.elu(h, 0.3) + F.celu(h - 0.7, 0.3) + F.selu(h - 0.4) + F.softplus(h, 0.3)
        h = h + h.clamp(-0.1, 0.7) + F.leaky_relu(h, 0.07) + (h * h + 0.1) ** 0.3 + F.hardtanh(h, -0.3, 0.3)
        return self.last(torch.addcmul(h, h, h, value=0.03))


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), 0.003, momentum=0.9, dampening=0.1, weight_decay=1e-3),
    "adam": lambda m: torch.optim.Adam(m.parameters(), 3e-3, weight_decay=0.1),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), 0.03, lr_decay=0.1, weight_decay=0.1, eps=1e-6),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fifty_steps_are_pytorchs_to_nine_digits(name: str) -> None:
    module = Numbers().double()
    optimizer = OPTIMIZERS[name](module)
    model = onward.from_torch(module, loss=smoothed, optimizer=optimizer, example_inputs=batch(0), example_targets=T)
    trainer = onward.Trainer(model, backend="reference")

    actual = [onward_step(trainer, (batch(i),), T) for i in range(50)]

    expected = [torch_step(module, optimizer, smoothed, (batch(i),), T) for i in range(50)]
    np.testing.assert_allclose(actual, expected, rtol=1e-9)
    assert_same_state(trainer.state, module, 1e-9)


def test_a_schedule_with_a_power_is_pytorchs_to_nine_digits() -> None:
    module = Numbers().double()
    optimizer = OPTIMIZERS["sgd"](module)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, 10, 0.7)
    model = onward.from_torch(
        module, loss=smoothed, optimizer=optimizer, scheduler=scheduler, example_inputs=batch(0), example_targets=T
    )
    trainer = onward.Trainer(model, backend="reference")

    for i in range(8):
        torch_step(module, optimizer, smoothed, (batch(i),), T)
        scheduler.step()
        onward_step(trainer, (batch(i),), T)

    assert_same_state(trainer.state, module, 1e-9)


def test_a_float32_module_keeps_its_operators() -> None:
    module = nn.Sequential(nn.Linear(5, 3), nn.ELU(0.3), nn.CELU(0.3), nn.SELU(), nn.Hardsigmoid())

    model = onward.from_torch(
        module, loss=smoothed, optimizer="sgd", example_inputs=batch(0).float(), example_targets=T
    )

    operators = {n.op_type for n in model.graph}
    assert {"Elu", "Celu", "Selu", "HardSigmoid"} <= operators
    assert not {"Cast", "CastLike"} & operators
