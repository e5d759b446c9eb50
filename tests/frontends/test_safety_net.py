"""What from_torch compares before it returns: the gradients that the file will train with, against PyTorch's."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onward.autodiff.rules  # registers every rule
from frontends.runs import onward_step, torch_step
from frontends.zoo import Mlp
from onward.autodiff import registry as rules
from onward.backends.graph.registry import B300
from onward.backends.torch.registry import REGISTRY as kernels
from onward.errors import ArgumentError, BackendError, Diagnostic

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
T = torch.tensor([0, 1, 2, 0])


def convert(module: nn.Module, loss: Any = None, targets: Tensor = T) -> onward.TrainingModel:
    return onward.from_torch(
        module,
        loss=loss or nn.CrossEntropyLoss(),
        optimizer=torch.optim.SGD(module.parameters(), lr=0.5),
        example_inputs=X,
        example_targets=targets,
    )


@pytest.fixture
def wrong_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tanh has the gradient of sine."""
    (spec,) = rules._RULES["", "Tanh"]

    def wrong(rule: Any, doutput: Any) -> Any:
        return {"input": rule.op.Mul(doutput, rule.op.Cos(rule.input("input")))}

    monkeypatch.setitem(rules._RULES, ("", "Tanh"), [dataclasses.replace(spec, function=wrong)])


@pytest.fixture
def no_tanh_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch backend lacks an operator that the module has."""
    kernels._load()
    monkeypatch.delitem(kernels._handlers, ("", "Tanh"))


@pytest.mark.usefixtures("wrong_rule")
def test_a_wrong_rule_for_a_gradient_is_noticed() -> None:
    with pytest.raises(ArgumentError, match="A206") as caught:
        convert(Mlp())

    assert "net.0.weight" in str(caught.value)


@pytest.mark.usefixtures("no_tanh_in_torch", "wrong_rule")
def test_it_is_noticed_too_where_the_torch_backend_lacks_an_operator() -> None:
    with pytest.raises(ArgumentError, match="A206"):
        convert(Mlp())


@pytest.mark.usefixtures("no_tanh_in_torch")
def test_the_reference_backend_takes_the_place_of_the_torch_backend() -> None:
    convert(Mlp())


@pytest.mark.usefixtures("no_tanh_in_torch")
def test_gradients_that_no_backend_can_run_give_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(*_: Any) -> Any:
        raise BackendError(Diagnostic(B300, "no kernel for this"))

    monkeypatch.setattr("onward.frontends.torch.gradients._on_reference", cannot)

    with pytest.warns(UserWarning, match=r"were not compared with PyTorch's.*no kernel for this"):
        convert(Mlp())


@pytest.fixture
def wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch backend computes Tanh wrongly."""
    kernels._load()
    monkeypatch.setitem(kernels._handlers, ("", "Tanh"), {1: lambda attributes, x: torch.tanh(x) * 1.1})


@pytest.fixture
def broken_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch backend ends in an exception of its own at a Tanh."""

    def broken(attributes: Any, x: Tensor) -> Tensor:
        raise AttributeError("'NoneType' object has no attribute 'shape'")

    kernels._load()
    monkeypatch.setitem(kernels._handlers, ("", "Tanh"), {1: broken})


@pytest.mark.parametrize("fault", ["wrong_kernel", "broken_kernel"])
def test_a_fault_of_the_torch_backend_is_not_blamed_on_the_module(fault: str, request: pytest.FixtureRequest) -> None:
    """ONNX Runtime gives PyTorch's numbers, so the model is accepted and trains there as in PyTorch."""
    request.getfixturevalue(fault)
    torch.manual_seed(0)
    module = Mlp()

    with pytest.warns(UserWarning, match="so the model is right and Onward's torch backend is wrong"):
        model = convert(module)

    trainer, optimizer = onward.Trainer(model, threads=1), torch.optim.SGD(module.parameters(), lr=0.5)
    actual = [onward_step(trainer, (X,), T) for _ in range(3)]
    expected = [torch_step(module, optimizer, nn.CrossEntropyLoss(), (X,), T) for _ in range(3)]
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


class Dropping(nn.Module):
    """Dropout of three kinds, and, if asked, a gradient that the forward cuts."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.first, self.last, self.cut = nn.Linear(6, 8), nn.Linear(8, 3), cut
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = F.dropout(self.drop(self.first(x)), 0.2, self.training).unsqueeze(1)
        y = self.attention(y, y, y, need_weights=False)[0].squeeze(1)
        return self.last(y.detach() if self.cut else y)


def test_a_module_with_dropout_is_compared_without_it() -> None:
    convert(Dropping(cut=False))

    with pytest.raises(ArgumentError, match="no gradient reaches `first.weight`"):
        convert(Dropping(cut=True))


def test_a_graph_that_does_not_run_is_not_blamed_on_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr("onward.frontends.torch.checks._run", broken)

    with pytest.raises(
        ArgumentError, match="the graph that PyTorch's exporter made fails on the example: RuntimeError"
    ):
        convert(Mlp())


PROBABILITIES = torch.softmax(torch.randn(4, 3, generator=torch.Generator().manual_seed(1)), 1)


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (nn.CrossEntropyLoss(label_smoothing=0.3), T),
        (nn.CrossEntropyLoss(label_smoothing=0.3, weight=torch.tensor([0.5, 1.0, 2.0]), ignore_index=1), T),
        (nn.CrossEntropyLoss(label_smoothing=0.3, reduction="sum"), T),
        (nn.CrossEntropyLoss(), PROBABILITIES),
        (nn.CrossEntropyLoss(label_smoothing=0.3, weight=torch.tensor([0.5, 1.0, 2.0])), PROBABILITIES),
    ],
    ids=["smoothed", "weighted", "summed", "probabilities", "smoothed probabilities"],
)
def test_cross_entropy_that_the_exporter_would_write_wrongly(loss: nn.Module, targets: Tensor) -> None:
    torch.manual_seed(0)
    module = Mlp()
    trainer = onward.Trainer(convert(module, loss, targets), threads=1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)

    actual = [onward_step(trainer, (X,), targets) for _ in range(4)]

    expected = [torch_step(module, optimizer, loss, (X,), targets) for _ in range(4)]
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
