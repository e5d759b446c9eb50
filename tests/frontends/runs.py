"""Steps in PyTorch and in Onward, and comparisons of where they lead."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import onward
from frontends.zoo import Subject

Batch = tuple[tuple[Tensor, ...], Any]

# What 50 steps may differ by: of a loss, relatively; of a parameter or buffer, the norm of the difference relative to
# the norm of the tensor.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


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


def batches(subject: Subject, count: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> list[Batch]:
    """Return batches, the same for the same seed; floating-point tensors in `dtype`."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [subject.batch(generator) for _ in range(count)]
    return [(tuple(_as(t, dtype) for t in inputs), _as(targets, dtype)) for inputs, targets in drawn]


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


@functools.cache
def _converted(subject: Subject, dtype: torch.dtype) -> tuple[nn.Module, torch.optim.Optimizer, bytes]:
    """A module and an optimizer that have made three steps, so that there is state to bring along, and their file."""
    torch.manual_seed(0)
    module = subject.build().to(dtype).train()
    optimizer = subject.optimizer(module)
    for inputs, targets in batches(subject, 3, dtype=dtype):
        torch_step(module, optimizer, subject.loss, inputs, targets)
    inputs, targets = batches(subject, 1, dtype=dtype)[0]
    model = onward.from_torch(
        module, loss=subject.loss, optimizer=optimizer, example_inputs=inputs, example_targets=targets
    )
    return module, optimizer, model.proto().SerializeToString()


def start(
    subject: Subject, dtype: torch.dtype = torch.float32
) -> tuple[nn.Module, torch.optim.Optimizer, onward.TrainingModel]:
    """Return copies of a half-trained module with its optimizer, and of the model made from them."""
    module, optimizer, data = _converted(subject, dtype)
    module, optimizer = copy.deepcopy((module, optimizer))
    return module, optimizer, onward.load(data)


def weights_of(trainer: onward.Trainer, model: onward.TrainingModel) -> dict[str, np.ndarray]:
    """Return the state, and what is frozen."""
    return {**{n: v.const_value.numpy() for n, v in model.frozen.items()}, **trainer.state}


def worst(actual: Sequence[float], expected: Sequence[float]) -> float:
    """Return the largest relative error."""
    a, e = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    return float(np.max(np.abs(a - e) / np.maximum(np.abs(e), 1e-12)))


def distances(
    actual: Mapping[str, np.ndarray], module: nn.Module, undetermined: Mapping[str, tuple[int, int]] | None = None
) -> dict[str, float]:
    """Return, for every parameter and buffer of the module, ‖actual - expected‖ / ‖expected‖.

    The rows that `undetermined` names are left out of both. Equal tensors have distance 0, zeros included.
    """
    found = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        ours, theirs = actual[name].astype(np.float64), tensor.detach().numpy().astype(np.float64)
        assert ours.shape == theirs.shape, name
        if undetermined and name in undetermined:
            ours, theirs = (np.delete(a, range(*undetermined[name]), axis=0) for a in (ours, theirs))
        difference = float(np.linalg.norm(ours - theirs))
        found[name] = difference / max(float(np.linalg.norm(theirs)), np.finfo(np.float64).tiny) if difference else 0.0
    return found


def assert_same_state(
    actual: Mapping[str, np.ndarray],
    module: nn.Module,
    rtol: float,
    undetermined: Mapping[str, tuple[int, int]] | None = None,
) -> None:
    """Every parameter and buffer of the module is in `actual`, and no further from it than `rtol` of its norm."""
    found = distances(actual, module, undetermined)
    far = {name: distance for name, distance in found.items() if not distance <= rtol}

    assert not far, f"further than {rtol} from PyTorch's: {far}"
