"""`padding_idx`, with a table that the output is tied to as well (BERT): PyTorch's training, row by row, everywhere."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onward
from frontends.runs import assert_same_state, onward_step, torch_step
from frontends.zoo import language_loss
from whole import sample

ROWS, WIDTH, PADDING = 9, 6, 2


class Bert(nn.Module):
    """A masked language model in small: padded embedding, a block, and an output that may be the same table."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(ROWS, WIDTH, padding_idx=PADDING)
        nn.init.normal_(self.words.weight)  # as in a checkpoint: the padding row is not zero
        self.positions = nn.Parameter(torch.randn(5, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Sequential(nn.Linear(WIDTH, 12), nn.GELU(), nn.Linear(12, WIDTH))
        self.head = nn.Linear(WIDTH, ROWS)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.words(x) + self.positions)
        return self.head(h + self.mix(h + h.mean(1, keepdim=True)))


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=3e-3, weight_decay=0.1)


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(module.parameters(), lr=3e-3)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def batch(seed: int) -> tuple[Tensor, Tensor]:
    """Tokens of which some are padding, and labels of which some are as well."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, ROWS, (4, 5), generator=g)
    x[torch.rand(4, 5, generator=g) < 0.3] = PADDING
    return x, torch.randint(0, ROWS, (4, 5), generator=g)


def convert(module: nn.Module, optimizer: torch.optim.Optimizer, example: Tensor | None = None) -> onward.TrainingModel:
    x, t = batch(0)
    return onward.from_torch(
        module,
        loss=language_loss,
        optimizer=optimizer,
        example_inputs=x if example is None else example,
        example_targets=t,
    )


Case = tuple[nn.Module, torch.optim.Optimizer, bytes]


@pytest.fixture(scope="module")
def cases() -> dict[Any, Case]:
    return {}


@pytest.fixture
def case(cases: dict[Any, Case], tied: bool, make: Callable[[nn.Module], torch.optim.Optimizer]) -> Case:
    """A module and its optimizer, copies of them, and their file."""
    if (tied, make) not in cases:
        module = Bert(tied)
        optimizer = make(module)
        cases[tied, make] = module, optimizer, convert(module, optimizer).proto().SerializeToString()
    module, optimizer, data = cases[tied, make]
    module, optimizer = copy.deepcopy((module, optimizer))
    return module, optimizer, data


everywhere = pytest.mark.parametrize("make", sample([adam, adamw, sgd], [adamw, sgd]))
both = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])


@both
@everywhere
@pytest.mark.parametrize("backend", ["onnxruntime", "torch"])
def test_fifty_steps_are_pytorchs(case: Case, backend: str) -> None:
    module, optimizer, data = case
    trainer = onward.Trainer(onward.load(data), backend=backend, **({"threads": 1} if backend != "torch" else {}))

    actual = [onward_step(trainer, (x,), t) for x, t in map(batch, range(50))]

    expected = [torch_step(module, optimizer, language_loss, (x,), t) for x, t in map(batch, range(50))]
    np.testing.assert_allclose(actual, expected, rtol=1e-4)
    assert_same_state(trainer.state, module, 1e-4)


@both
@everywhere
def test_fifty_steps_of_the_module_that_comes_back_are_pytorchs(case: Case) -> None:
    module, optimizer, data = case
    back, its_optimizer = onward.to_torch(onward.load(data))
    back.train()

    actual = [torch_step(back, its_optimizer, language_loss, (x,), t) for x, t in map(batch, range(50))]

    expected = [torch_step(module, optimizer, language_loss, (x,), t) for x, t in map(batch, range(50))]
    np.testing.assert_allclose(actual, expected, rtol=1e-4)
    assert_same_state({n: t.detach().numpy() for n, t in back.named_tensors().items()}, module, 1e-4)
    assert type(its_optimizer) is type(optimizer)


@both
@pytest.mark.parametrize("make", [sgd])
@pytest.mark.parametrize("training", [True, False])
def test_autograd_of_the_module_that_comes_back_is_pytorchs(case: Case, training: bool) -> None:
    module, _, data = case
    back, _ = onward.to_torch(onward.load(data))
    x, t = batch(3)

    language_loss(back.train(training)(x), t).backward()

    language_loss(module.train(training)(x), t).backward()
    theirs, ours = module.words.weight.grad, back.tensor("words.weight").grad
    assert bool(theirs[PADDING].any()) == (module.head.weight is module.words.weight)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert back.tensor("words.weight").shape == (ROWS, WIDTH)
    assert set(back.state_dict()) == {n for n, _ in module.named_parameters()}


@both
@pytest.mark.parametrize("make", [adamw])
def test_the_reference_backend_is_pytorchs_in_float64(case: Case) -> None:
    module, _, _ = case
    module.double()
    optimizer = adamw(module)
    trainer = onward.Trainer(convert(module, optimizer), backend="reference")

    for x, t in map(batch, range(10)):
        torch_step(module, optimizer, language_loss, (x,), t)
        onward_step(trainer, (x,), t)

    assert_same_state(trainer.state, module, 1e-9)


@both
@pytest.mark.parametrize("make", [adamw])
def test_the_file_is_valid_and_names_the_table_once(case: Case) -> None:
    module, _, data = case
    model = onward.load(data)

    report = onward.check(model)

    assert report.ok, report.render()
    assert not report.warnings, report.render()
    assert set(model.parameters) == {n for n, _ in module.named_parameters()}
    assert [v.name for v in onward.load(data).proto().graph.initializer].count("words.weight") == 1


class Twice(nn.Module):
    """One table read with one padding, with another one, by an index, and by the output."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(ROWS, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        one = F.embedding(x, self.table, padding_idx=PADDING)
        other = F.embedding(x.to(torch.int32), self.table, padding_idx=-1)
        return (torch.tanh(one) * other + self.table[x] + self.table[3]) @ self.table.T


def test_one_table_with_two_paddings_and_other_readers() -> None:
    module = Twice()
    optimizer = adamw(module)
    trainer = onward.Trainer(convert(module, optimizer), threads=1)

    for x, t in map(batch, range(20)):
        expected = torch_step(module, optimizer, language_loss, (x,), t)
        np.testing.assert_allclose(onward_step(trainer, (x,), t), expected, rtol=1e-4)

    assert_same_state(trainer.state, module, 1e-4)


class Bare(nn.Module):
    """The embedding is the output itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, ROWS, padding_idx=PADDING)
        nn.init.normal_(self.table.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x)


def test_an_embedding_that_is_the_output() -> None:
    module = Bare()
    optimizer = sgd(module)
    trainer = onward.Trainer(convert(module, optimizer), threads=1)

    for x, t in map(batch, range(5)):
        torch_step(module, optimizer, language_loss, (x,), t)
        onward_step(trainer, (x,), t)

    assert_same_state(trainer.state, module, 1e-5)


def test_a_table_that_is_computed_is_refused() -> None:
    class Computed(Bare):
        def forward(self, x: Tensor) -> Tensor:
            return F.embedding(x, self.table.weight * 2.0, padding_idx=PADDING)

    module = Computed()
    with pytest.raises(onward.errors.ArgumentError, match="row 2 of an embedding's table is padding") as caught:
        convert(module, sgd(module))

    assert "the table is computed, not a parameter" in str(caught.value)
