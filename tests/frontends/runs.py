"""Steps in PyTorch and in Onward, and comparisons of where they lead."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import onward
from frontends.zoo import Subject

Batch = tuple[tuple[Tensor, ...], Any]


def torch_step(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    targets: Any,
) -> float:
    """Make one step in PyTorch, as everybody writes it, and return the loss."""
    optimizer.zero_grad()
    value = loss(module(*inputs), targets)
    value.backward()
    optimizer.step()
    return value.item()


def onward_step(trainer: onward.Trainer, inputs: Sequence[Tensor], targets: Any) -> float:
    """Make the same step in a Trainer and return the loss."""
    given = [*inputs, *([] if targets is None else targets if isinstance(targets, (tuple, list)) else [targets])]
    feeds = dict(zip(trainer.input_names, [t.numpy() for t in given], strict=True))
    return float(trainer.step(feeds)["loss"])


def batches(subject: Subject, count: int, seed: int = 1) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    return [subject.batch(generator) for _ in range(count)]


@functools.cache
def _converted(subject: Subject) -> tuple[nn.Module, torch.optim.Optimizer, bytes]:
    """A module and an optimizer that have made three steps, so that there is state to bring along, and their file."""
    torch.manual_seed(0)
    module = subject.build().train()
    optimizer = subject.optimizer(module)
    for inputs, targets in batches(subject, 3):
        torch_step(module, optimizer, subject.loss, inputs, targets)
    inputs, targets = batches(subject, 1)[0]
    model = onward.from_torch(
        module, loss=subject.loss, optimizer=optimizer, example_inputs=inputs, example_targets=targets
    )
    return module, optimizer, model.proto().SerializeToString()


def start(subject: Subject) -> tuple[nn.Module, torch.optim.Optimizer, onward.TrainingModel]:
    """Return copies of a half-trained module with its optimizer, and of the model made from them."""
    module, optimizer, data = _converted(subject)
    module, optimizer = copy.deepcopy((module, optimizer))
    return module, optimizer, onward.load(data)


def worst(actual: Sequence[float], expected: Sequence[float]) -> float:
    """Return the largest relative error."""
    a, e = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    return float(np.max(np.abs(a - e) / np.maximum(np.abs(e), 1e-12)))


def assert_same_state(actual: dict[str, np.ndarray], module: nn.Module, rtol: float) -> None:
    """Every parameter and buffer of the module is in `actual`, with the same numbers up to `rtol` of its size."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        expected = tensor.detach().numpy()
        scale = max(float(np.abs(expected).max(initial=0.0)), 1e-3)
        np.testing.assert_allclose(actual[name], expected, rtol=rtol, atol=rtol * scale, err_msg=name)
