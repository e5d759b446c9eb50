"""Two trajectories that need more than a module, a loss and an optimizer: dropout's masks, and a GAN's two entries.

Each `*_run(steps, dtype, sides)` returns, by side, the largest relative error of a loss and the largest distance of a
parameter or buffer after the last step. A side is a backend of `onward.Trainer`, or "back" for `onward.to_torch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onward
from frontends.runs import distances, onward_step, torch_step, worst
from frontends.zoo import ConvNet

Errors = dict[str, tuple[float, float]]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def labels(count: int, classes: int, seed: int = 0) -> Tensor:
    return torch.randint(0, classes, (count,), generator=torch.Generator().manual_seed(seed))


# -- dropout ---------------------------------------------------------------------------------------------------------


def dropout_model(dtype: torch.dtype = torch.float32) -> onward.TrainingModel:
    """Return a convolutional network with batch normalisation and dropout."""
    torch.manual_seed(0)
    module = ConvNet(dropout=0.4).to(dtype)
    return onward.from_torch(
        module,
        loss=nn.CrossEntropyLoss(),
        optimizer=torch.optim.Adam(module.parameters(), lr=1e-2),
        example_inputs=draw(8, 2, 6, 6).to(dtype),
        example_targets=labels(8, 3),
    )


def dropout_run(steps: int, dtype: torch.dtype, sides: Sequence[str]) -> Errors:
    """Compare with `to_torch`: PyTorch's own generator is not in the file, the file's masks are on every side."""
    model = dropout_model(dtype)
    back, optimizer = onward.to_torch(model)
    back.train()
    batches = [(draw(8, 2, 6, 6, seed=i).to(dtype), labels(8, 3, seed=i)) for i in range(steps)]
    expected = [torch_step(back, optimizer, F.cross_entropy, (x,), t) for x, t in batches]
    found: Errors = {}
    for side in sides:
        trainer = onward.Trainer(model, backend=side)
        losses = [onward_step(trainer, (x,), t) for x, t in batches]
        found[side] = worst(losses, expected), max(distances(trainer.state, back).values())
    return found


# -- a GAN -----------------------------------------------------------------------------------------------------------


class Gan(nn.Module):
    """Both networks as one module: what is generated, and what the critic says of it and of real samples."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4))
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, noise: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fake = self.generator(noise)
        return fake, self.critic(fake), self.critic(real)


def critic_loss(outputs: tuple[Tensor, ...]) -> Tensor:
    _, fake, real = outputs
    return F.softplus(fake).mean() + F.softplus(-real).mean()


def generator_loss(outputs: tuple[Tensor, ...]) -> Tensor:
    return F.softplus(-outputs[1]).mean()


LOSSES = {"critic": critic_loss, "generator": generator_loss}


def gan(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, dict[str, torch.optim.Optimizer], Any]:
    """Return module, optimizers and model: one training entry for each of the two networks."""
    torch.manual_seed(0)
    module = Gan().to(dtype)
    optimizers: dict[str, torch.optim.Optimizer] = {
        "critic": torch.optim.Adam(module.critic.parameters(), lr=1e-2, betas=(0.5, 0.9)),
        "generator": torch.optim.RMSprop(module.generator.parameters(), lr=1e-2),
    }
    example = (draw(8, 3).to(dtype), draw(8, 4).to(dtype))
    return module, optimizers, onward.from_torch(module, loss=LOSSES, optimizer=optimizers, example_inputs=example)


def gan_run(steps: int, dtype: torch.dtype, sides: Sequence[str]) -> Errors:
    """Compare with the module itself: the critic and the generator take turns."""
    module, optimizers, model = gan(dtype)
    batches = [(draw(8, 3, seed=i).to(dtype), (draw(8, 4, seed=100 + i) + 2).to(dtype)) for i in range(steps)]

    def in_torch(its_module: nn.Module, its_optimizers: dict[str, torch.optim.Optimizer]) -> list[float]:
        return [
            torch_step(its_module, its_optimizers[name], lambda y, _, n=name: LOSSES[n](y), batch, None)
            for batch in batches
            for name in LOSSES
        ]

    def in_onward(trainer: onward.Trainer) -> list[float]:
        return [
            float(trainer.step({"noise": noise.numpy(), "real": real.numpy()}, entry=name)[f"{name}/loss"])
            for noise, real in batches
            for name in LOSSES
        ]

    expected = in_torch(module, optimizers)
    found: Errors = {}
    for side in sides:
        if side == "back":
            back, its_optimizers = onward.to_torch(model)
            back.train()
            losses, state = (
                in_torch(back, its_optimizers),
                {n: t.detach().numpy() for n, t in back.named_tensors().items()},
            )
        else:
            trainer = onward.Trainer(model, backend=side)
            losses, state = in_onward(trainer), trainer.state
        found[side] = worst(losses, expected), max(distances(state, module).values())
    return found


RUNS: dict[str, tuple[str, Callable[[int, torch.dtype, Sequence[str]], Errors]]] = {
    "convolutions with batch normalisation and dropout, the file's masks on both sides": ("Adam", dropout_run),
    "GAN, two training entries": ("Adam, RMSprop", gan_run),
}
