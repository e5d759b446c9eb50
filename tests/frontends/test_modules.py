"""Modules of many kinds become models: dropout, batch normalisation, several inputs, a GAN, float64."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onward
from frontends import special_runs
from frontends.runs import assert_same_state, onward_step, torch_step
from frontends.special_runs import draw, labels
from frontends.zoo import ConvNet, Mlp


def sgd(module: nn.Module, rate: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=rate, momentum=0.9)


def follow(
    module: nn.Module, model: onward.TrainingModel, optimizer: Any, loss: Any, data: list[Any], **options: Any
) -> None:
    """Train both on `data`, a list of (inputs, targets), and compare every loss and, at the end, every tensor."""
    trainer = onward.Trainer(model, threads=1)
    module.train(options.get("train", True))
    expected = [torch_step(module, optimizer, loss, inputs, targets) for inputs, targets in data]
    actual = [onward_step(trainer, inputs, targets) for inputs, targets in data]
    np.testing.assert_allclose(actual, expected, rtol=options.get("rtol", 1e-4))
    frozen = {n: v.const_value.numpy() for n, v in model.graph.initializers.items() if v.const_value is not None}
    assert_same_state({**frozen, **trainer.state}, module, 1e-3)


class Normalised(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4, **options)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.norm(self.conv(x))).mean((2, 3)))


@pytest.mark.parametrize(
    "options",
    [{"affine": False}, {"track_running_stats": False}, {"affine": False, "track_running_stats": False}],
    ids=["without weights", "without statistics", "with neither"],
)
def test_batch_normalisation(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    module = Normalised(**options)
    optimizer = sgd(module)
    data = [((draw(8, 2, 6, 6, seed=i),), labels(8, 3, seed=i)) for i in range(8)]

    model = onward.from_torch(
        module, loss=F.cross_entropy, optimizer=optimizer, example_inputs=data[0][0], example_targets=data[0][1]
    )

    follow(module, model, optimizer, F.cross_entropy, data)


def test_batch_normalisation_that_the_user_put_into_evaluation_mode_stays_there() -> None:
    torch.manual_seed(0)
    module = Normalised().train()
    with torch.no_grad():
        module(draw(8, 2, 6, 6, seed=9))
    module.norm.eval()
    optimizer = sgd(module)
    data = [((draw(8, 2, 6, 6, seed=i),), labels(8, 3, seed=i)) for i in range(6)]

    model = onward.from_torch(
        module, loss=F.cross_entropy, optimizer=optimizer, example_inputs=data[0][0], example_targets=data[0][1]
    )

    assert module.training
    assert not module.norm.training
    trainer = onward.Trainer(model, threads=1)
    expected = [torch_step(module, optimizer, F.cross_entropy, *d) for d in data]
    np.testing.assert_allclose([onward_step(trainer, *d) for d in data], expected, rtol=1e-4)
    assert "norm.running_mean" not in trainer.state


def test_frozen_batch_normalisation_still_updates_its_statistics_as_pytorch_does() -> None:
    torch.manual_seed(0)
    module = Normalised().train()
    module.norm.requires_grad_(False)
    optimizer = sgd(module)
    data = [((draw(8, 2, 6, 6, seed=i),), labels(8, 3, seed=i)) for i in range(6)]

    model = onward.from_torch(
        module, loss=F.cross_entropy, optimizer=optimizer, example_inputs=data[0][0], example_targets=data[0][1]
    )

    assert "norm.weight" not in model.parameters
    follow(module, model, optimizer, F.cross_entropy, data)


@pytest.mark.parametrize(("dtype", "sides", "rtol"), [
    (torch.float32, ("onnxruntime", "torch"), 1e-4), (torch.float64, ("reference",), 1e-9),
], ids=["float32", "float64"])  # fmt: skip
def test_dropout_draws_the_same_masks_on_every_side(dtype: torch.dtype, sides: tuple[str, ...], rtol: float) -> None:
    found = special_runs.dropout_run(50, dtype, sides)

    assert max(max(errors) for errors in found.values()) < rtol, found


def test_dropout_drops_in_training_only() -> None:
    back, _ = onward.to_torch(special_runs.dropout_model())
    x = draw(8, 2, 6, 6)

    back.train()
    first, second = back(x), back(x)
    back.eval()
    third, fourth = back(x), back(x)

    assert not torch.equal(first, second)
    assert torch.equal(third, fourth)


def test_a_gan_has_two_training_entries() -> None:
    _, _, model = special_runs.gan()

    _, its_optimizers = onward.to_torch(model)

    assert onward.check(model).ok, onward.check(model).render()
    assert [type(o) for o in its_optimizers.values()] == [torch.optim.Adam, torch.optim.RMSprop]
    assert {"critic/step", "generator/step"} <= set(onward.Trainer(model).state)


@pytest.mark.parametrize(("dtype", "sides", "rtol"), [
    (torch.float32, ("onnxruntime", "torch", "back"), 1e-4), (torch.float64, ("reference", "onnxruntime"), 1e-9),
], ids=["float32", "float64"])  # fmt: skip
def test_both_sides_of_a_gan_follow_pytorch(dtype: torch.dtype, sides: tuple[str, ...], rtol: float) -> None:
    found = special_runs.gan_run(50, dtype, sides)

    assert max(max(errors) for errors in found.values()) < rtol, found


@pytest.mark.parametrize("make", [Mlp, ConvNet], ids=["mlp", "convolutions"])
def test_float64_agrees_to_the_ninth_digit_on_the_reference(make: Any) -> None:
    torch.manual_seed(0)
    module = make().double()
    shape = (6, 6) if make is Mlp else (6, 2, 6, 6)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    data = [((draw(*shape, seed=i).double(),), labels(6, 3, seed=i)) for i in range(20)]
    model = onward.from_torch(
        module, loss=nn.CrossEntropyLoss(), optimizer=optimizer, example_inputs=data[0][0], example_targets=data[0][1]
    )
    trainer = onward.Trainer(model, backend="reference")

    expected = [torch_step(module, optimizer, F.cross_entropy, *d) for d in data]
    actual = [onward_step(trainer, *d) for d in data]

    np.testing.assert_allclose(actual, expected, rtol=1e-9)
    assert_same_state(trainer.state, module, 1e-8)


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(5, 4)

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        a, b = self.a(left), self.b(right)
        return {"score": (a * b).sum(1), "norm": a.square().mean(1)}


def two_losses(outputs: dict[str, Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(outputs["score"], targets[0]) + 0.1 * (outputs["norm"] - targets[1]).abs().mean()


def test_dict_inputs_and_several_outputs_and_targets() -> None:
    torch.manual_seed(0)
    module = TwoTowers()
    optimizer = sgd(module, 0.02)
    data = [((draw(6, 3, seed=i), draw(6, 5, seed=i)), (draw(6, seed=i), draw(6, seed=50 + i))) for i in range(10)]
    inputs, targets = data[0]

    model = onward.from_torch(
        module,
        loss=two_losses,
        optimizer=optimizer,
        example_inputs={"right": inputs[1], "left": inputs[0]},
        example_targets=targets,
    )

    assert model.inputs == ["left", "right"]
    assert model.targets == ["labels_0", "labels_1"]
    follow(module, model, optimizer, two_losses, data)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.mix = nn.Linear(6, 6)
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        return self.out(torch.tanh(self.mix(h) + h.mean(1, keepdim=True)))


def test_batch_and_sequence_length_may_both_be_free() -> None:
    torch.manual_seed(0)
    module = Tagger()
    optimizer = sgd(module)

    def loss(logits: Tensor, wanted: Tensor) -> Tensor:
        return F.cross_entropy(logits.transpose(1, 2), wanted)

    def batch(size: int, length: int, seed: int) -> Any:
        g = torch.Generator().manual_seed(seed)
        return (torch.randint(0, 9, (size, length), generator=g),), torch.randint(0, 4, (size, length), generator=g)

    inputs, targets = batch(4, 7, 0)
    free = {"x": {0: torch.export.Dim("batch", min=2), 1: torch.export.Dim("length", min=2)}}
    model = onward.from_torch(
        module, loss=loss, optimizer=optimizer, example_inputs=inputs, example_targets=targets, dynamic=free
    )

    follow(module, model, optimizer, loss, [batch(3, 5, 1), batch(6, 9, 2), batch(2, 4, 3)])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 4, bias=False)
        self.decode = nn.Linear(4, 4, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(torch.tanh(self.encode(x)))


def test_tied_weights_are_one_parameter_under_their_first_name_and_stay_tied() -> None:
    torch.manual_seed(0)
    module = Tied()
    optimizer = sgd(module)
    data = [((draw(5, 4, seed=i),), draw(5, 4, seed=50 + i)) for i in range(10)]

    model = onward.from_torch(
        module, loss=nn.MSELoss(), optimizer=optimizer, example_inputs=data[0][0], example_targets=data[0][1]
    )

    back, _ = onward.to_torch(model)
    assert list(model.parameters) == ["encode.weight"]
    assert [n for n, _ in back.named_parameters()] == ["encode.weight"]
    follow(module, model, optimizer, nn.MSELoss(), data)


class TiedPartly(nn.Module):
    """Layers that share a vector of ones and a vector of zeros, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.LayerNorm(4), nn.LayerNorm(4)
        self.b.weight = self.a.weight
        self.f, self.g = nn.Linear(4, 3), nn.Linear(3, 3)
        nn.init.zeros_(self.f.bias)
        self.g.bias = self.f.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.g(self.f(self.b(torch.tanh(self.a(x)))))


def test_shared_ones_and_zeros_are_not_taken_for_merged() -> None:
    torch.manual_seed(0)
    module = TiedPartly()
    optimizer = sgd(module)
    data = [((draw(6, 4, seed=i),), labels(6, 3, seed=i)) for i in range(10)]

    model = onward.from_torch(
        module, loss=nn.CrossEntropyLoss(), optimizer=optimizer, example_inputs=data[0][0], example_targets=data[0][1]
    )

    assert list(model.frozen) == []
    follow(module, model, optimizer, F.cross_entropy, data)


def test_the_module_its_modes_and_the_random_state_are_left_alone() -> None:
    module = ConvNet(dropout=0.5).train()
    module.drop.eval()
    before = copy.deepcopy(module.state_dict())
    modes = [m.training for m in module.modules()]
    random = torch.get_rng_state()

    onward.from_torch(
        module,
        loss=nn.CrossEntropyLoss(),
        optimizer=sgd(module),
        example_inputs=draw(4, 2, 6, 6),
        example_targets=labels(4, 3),
    )

    assert [m.training for m in module.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(t, before[n]) for n, t in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())


def test_a_forward_hook_that_changes_values_is_part_of_the_model() -> None:
    torch.manual_seed(0)
    module = Mlp()
    module.net[0].register_forward_hook(lambda _module, _inputs, output: output * 2)
    optimizer = sgd(module)
    data = [((draw(6, 6, seed=i),), labels(6, 3, seed=i)) for i in range(5)]

    model = onward.from_torch(
        module, loss=nn.CrossEntropyLoss(), optimizer=optimizer, example_inputs=data[0][0], example_targets=data[0][1]
    )

    follow(module, model, optimizer, F.cross_entropy, data)
