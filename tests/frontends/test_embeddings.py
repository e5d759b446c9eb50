"""Embeddings train as in PyTorch, padding rows and bags included; options that a file cannot hold are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onward
from frontends.runs import assert_same_state, onward_step, torch_step
from onward.errors import ArgumentError

ROWS = 7
EXAMPLE = torch.tensor([[1, 3, 5], [3, 4, 4], [5, 6, 1]])  # without the padding token, which is 2
TARGETS = torch.tensor([0, 1, 2])


class Reader(nn.Module):
    def __init__(self, table: nn.Module, tied: bool = False) -> None:
        super().__init__()
        self.table = table
        self.out = nn.Linear(4, ROWS, bias=False)
        if tied:
            self.out.weight = table.weight

    def forward(self, x: Tensor, scales: Tensor | None = None) -> Tensor:
        if isinstance(self.table, nn.EmbeddingBag):
            return self.out(self.table(x, per_sample_weights=scales))
        return self.out(self.table(x).mean(1))


def convert(module: nn.Module, inputs: Any = EXAMPLE) -> tuple[torch.optim.Optimizer, onward.TrainingModel]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05, weight_decay=0.1)
    model = onward.from_torch(
        module, loss=nn.CrossEntropyLoss(), optimizer=optimizer, example_inputs=inputs, example_targets=TARGETS
    )
    return optimizer, model


def refusal(module: nn.Module, inputs: Any = EXAMPLE) -> str:
    before = {n: t.clone() for n, t in module.state_dict().items()}
    with pytest.raises(ArgumentError) as caught:
        convert(module, inputs)
    assert all(torch.equal(t, before[n]) for n, t in module.state_dict().items())
    return str(caught.value)


def assert_trains_alike(module: nn.Module, *more: Tensor) -> None:
    """Five steps on batches with every token, padding included, are PyTorch's."""
    optimizer, model = convert(module, (EXAMPLE, *more))
    trainer = onward.Trainer(model, threads=1)
    for i in range(5):
        tokens = torch.randint(0, ROWS, EXAMPLE.shape, generator=torch.Generator().manual_seed(i))
        expected = torch_step(module, optimizer, F.cross_entropy, (tokens, *more), TARGETS)
        actual = onward_step(trainer, (tokens, *more), TARGETS)
        np.testing.assert_allclose(actual, expected, rtol=1e-5)
    assert_same_state(trainer.state, module, 1e-5)


def pretrained(**options: Any) -> nn.Embedding:
    """An embedding whose padding row is not zero."""
    torch.manual_seed(0)
    table = nn.Embedding(ROWS, 4, **options)
    nn.init.normal_(table.weight)
    return table


def test_the_padding_row_gets_no_gradient_although_the_example_has_no_padding() -> None:
    module = Reader(pretrained(padding_idx=2))

    assert_trains_alike(module)


def test_the_padding_row_stays_where_it_is_without_weight_decay() -> None:
    module = Reader(pretrained(padding_idx=2))
    model = onward.from_torch(
        module, loss=nn.CrossEntropyLoss(), optimizer="adam", example_inputs=EXAMPLE, example_targets=TARGETS
    )
    trainer = onward.Trainer(model, threads=1)
    before = trainer.state["table.weight"].copy()

    onward_step(trainer, (torch.full_like(EXAMPLE, 2),), TARGETS)
    onward_step(trainer, (EXAMPLE,), TARGETS)

    after = trainer.state["table.weight"]
    np.testing.assert_array_equal(after[2], before[2])
    assert np.all(after[1] != before[1])


def test_an_example_with_padding_is_accepted() -> None:
    convert(Reader(pretrained(padding_idx=1)))


def test_padding_of_the_function() -> None:
    class Functional(Reader):
        def forward(self, x: Tensor, scales: Tensor | None = None) -> Tensor:
            return self.out(F.embedding(x, self.table.weight, padding_idx=2).mean(1))

    assert_trains_alike(Functional(pretrained()))


def test_padding_of_a_frozen_table_that_is_tied_matters_not() -> None:
    module = Reader(pretrained(padding_idx=2), tied=True)
    module.table.weight.requires_grad_(False)
    module.bias = nn.Parameter(torch.zeros(ROWS))
    module.register_forward_hook(lambda part, _, y: y + part.bias)

    model = onward.from_torch(
        module,
        loss=nn.CrossEntropyLoss(),
        optimizer=torch.optim.SGD([module.bias], lr=0.1),
        example_inputs=EXAMPLE,
        example_targets=TARGETS,
    )

    assert list(model.parameters) == ["bias"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"scale_grad_by_freq": True}, "divides its gradient by how often a row occurs"),
        ({"sparse": True}, "has sparse gradients"),
        ({"max_norm": 1.0}, "changes its table in the forward pass"),
    ],
    ids=["frequency", "sparse", "norm"],
)
def test_options_that_train_otherwise(options: dict[str, Any], expected: str) -> None:
    text = refusal(Reader(pretrained(**options)))

    assert "error[A212]" in text
    assert expected in text
    assert "at `table` (Embedding)" in text


@pytest.mark.parametrize("option", ["scale_grad_by_freq", "sparse"])
def test_options_of_the_function(option: str) -> None:
    class Functional(Reader):
        def forward(self, x: Tensor, scales: Tensor | None = None) -> Tensor:
            return self.out(F.embedding(x, self.table.weight, **{option: True}).mean(1))

    assert f"found: {option}=True" in refusal(Functional(pretrained()))


def test_a_parameter_that_the_forward_writes_is_put_back() -> None:
    class Functional(Reader):
        def forward(self, x: Tensor, scales: Tensor | None = None) -> Tensor:
            return self.out(F.embedding(x, self.table.weight, max_norm=0.1).mean(1))

    text = refusal(Functional(pretrained()))

    assert "error[A204]: parameter `table.weight` changes during the forward pass" in text
    assert "max_norm" in text


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_bag_of_one_length(mode: str) -> None:
    torch.manual_seed(0)

    assert_trains_alike(Reader(nn.EmbeddingBag(ROWS, 4, mode=mode)))


def test_a_bag_with_weights() -> None:
    torch.manual_seed(0)

    assert_trains_alike(Reader(nn.EmbeddingBag(ROWS, 4, mode="sum")), torch.rand(EXAMPLE.shape))


def test_bags_are_pytorchs_own_again_afterwards() -> None:
    original = F.embedding_bag

    convert(Reader(nn.EmbeddingBag(ROWS, 4)))

    assert F.embedding_bag is original


def test_a_bag_with_padding() -> None:
    text = refusal(Reader(nn.EmbeddingBag(ROWS, 4, padding_idx=2)))

    assert "error[A212]: a file cannot express this embedding bag" in text
    assert "found: padding_idx=2" in text
    assert "pad the bags to one length" in text


def test_a_bag_with_offsets() -> None:
    class Ragged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.EmbeddingBag(ROWS, 4)

        def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
            return self.table(x, offsets)

    text = refusal(Ragged(), (EXAMPLE.flatten(), torch.tensor([0, 2, 6])))

    assert "error[A212]: a file cannot express this embedding bag" in text
    assert "embedding_bag of `table.weight`" in text
    assert "found: 1-D indices with offsets" in text


def test_a_bag_by_the_kernel_itself() -> None:
    class Kernel(Reader):
        def forward(self, x: Tensor, scales: Tensor | None = None) -> Tensor:
            starts = torch.arange(0, 9, 3)
            return self.out(torch.embedding_bag(self.table.weight, x.reshape(-1), starts)[0])

    optimizer = torch.optim.SGD((module := Kernel(pretrained())).parameters(), lr=0.1)
    with pytest.raises(ArgumentError, match="a file cannot express this embedding bag"):
        onward.from_torch(
            module,
            loss=nn.CrossEntropyLoss(),
            optimizer=optimizer,
            example_inputs=EXAMPLE,
            example_targets=TARGETS,
            dynamic=False,
        )
