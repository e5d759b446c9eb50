"""What cannot be converted is refused with words that name the place, and nothing is written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import onward
from frontends.zoo import Mlp
from onward.errors import ArgumentError, BackendError
from onward.versions import parse

X, T = torch.zeros(4, 6), torch.zeros(4, dtype=torch.int64)


def refusal(module: nn.Module, **changes: Any) -> str:
    """Return the text of the error that from_torch raises; the module must be as it was."""
    modes = [m.training for m in module.modules()]
    arguments: dict[str, Any] = {
        "loss": nn.CrossEntropyLoss(),
        "optimizer": torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        if not list(module.parameters())
        else torch.optim.SGD(module.parameters(), lr=0.1),
        "example_inputs": X,
        "example_targets": T,
        **changes,
    }
    with pytest.raises(ArgumentError) as caught:
        onward.from_torch(module, **arguments)
    assert [m.training for m in module.modules()] == modes
    return str(caught.value)


class Branching(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        y = self.net(x)
        if y.sum() > 0:  # the branch
            return y
        return -y


def test_control_flow_that_depends_on_data() -> None:
    text = refusal(Branching())

    assert "Branching" in text
    if parse(torch.__version__) < (2, 9):  # it captures the branch that the example takes: the comparison notices
        assert "error[A203]" in text
    else:
        assert "error[A200]: PyTorch cannot capture the module" in text
        assert "data-dependent" in text
        assert "if y.sum() > 0" in text  # the line


class Counting(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.net(x)


def test_a_buffer_that_changes() -> None:
    module = Counting()

    text = refusal(module)

    assert "error[A204]: buffer `calls` changes during the forward pass" in text
    assert float(module.calls) == 0.0


class Moody(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * (2 if self.training else 1)


def test_a_forward_that_asks_for_the_mode() -> None:
    text = refusal(Moody())

    assert "error[A203]" in text
    assert "of the module in evaluation mode differs from its graph" in text
    assert "the forward reads `self.training`" in text


def test_a_module_on_another_device() -> None:
    text = refusal(Mlp().to("meta"))

    assert "error[A202]: the module is on `meta`, not on the CPU" in text
    assert "`net.0.weight`" in text


def test_hooks_on_the_backward_pass_all_at_once() -> None:
    module = Mlp()
    module.net[2].register_full_backward_hook(lambda *_: None)
    module.net[0].weight.register_hook(lambda g: g * 2)

    text = refusal(module)

    assert "error[A205]: a module has a backward hook, which a file cannot contain" in text
    assert "`net.2` (Linear)" in text
    assert "a parameter has a hook on its gradient, which a file cannot contain" in text
    assert "`net.0.weight`" in text


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (nn.CrossEntropyLoss(reduction="none"), "float32 of shape [4]"),
        (lambda y, t: 3.0, "float"),
        (lambda y, t: (y.argmax(1) == t).sum(), "int64 of shape []"),
    ],
    ids=["a vector", "a number", "an integer"],
)
def test_a_loss_that_is_not_one_number(loss: Any, found: str) -> None:
    text = refusal(Mlp(), loss=loss)

    assert "error[A201]: the loss is not one number" in text
    assert f"found: {found}" in text
    assert "reduce it with .mean()" in text


def test_inputs_that_do_not_fit_the_module() -> None:
    text = refusal(Mlp(), example_inputs=(X, X))

    assert "the example inputs do not fit the module: too many positional arguments" in text
    assert "Mlp.forward(x" in text


def test_a_batch_of_one() -> None:
    text = refusal(Mlp(), example_inputs=X[:1], example_targets=T[:1])

    assert "the example batch has one sample" in text
    assert "at least two samples, or dynamic=False" in text


def test_a_batch_of_one_is_fine_with_fixed_shapes() -> None:
    module = Mlp()

    model = onward.from_torch(
        module,
        loss=nn.CrossEntropyLoss(),
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        example_inputs=X[:1],
        example_targets=T[:1],
        dynamic=False,
    )

    assert list(model.graph.inputs[0].shape) == [1, 6]


def test_a_torch_scheduler_without_a_torch_optimizer() -> None:
    module = Mlp()
    scheduler = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(module.parameters(), lr=0.1), 3)

    text = refusal(module, optimizer="adam", scheduler=scheduler)

    assert "a PyTorch scheduler needs its PyTorch optimizer" in text


def test_several_optimizers_with_one_loss() -> None:
    module = Mlp()
    optimizers = {n: torch.optim.SGD(module.parameters(), lr=0.1) for n in ("a", "b")}

    text = refusal(module, optimizer=optimizers)

    assert "several optimizers need one loss each, under the same names" in text
    assert "one for each of: a, b" in text


@pytest.mark.parametrize("name", ["torch", "onnxscript"])
def test_a_version_that_is_too_old(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from onward.frontends.torch.versions import check_versions

    monkeypatch.setattr(f"{name}.__version__", "0.4.1")

    with pytest.raises(BackendError, match=rf"{name} 0\.4\.1 is too old"):
        check_versions()


def test_a_capture_with_other_gradients_is_noticed() -> None:
    from onward.frontends.torch.checks import check_training

    torch.manual_seed(0)
    module, loss = Mlp(), nn.CrossEntropyLoss()
    x, t = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    model = onward.from_torch(
        module,
        loss=loss,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        example_inputs=x,
        example_targets=t,
    )
    check_training(module, loss, ((x,), {}), t, model)
    with torch.no_grad():
        module.net[2].weight *= 1.5  # now the graph is that of another module

    with pytest.raises(ArgumentError) as caught:
        check_training(module, loss, ((x,), {}), t, model)

    assert "error[A206]: the captured training step differs from the module's on the example" in str(caught.value)
    assert "net.0.weight" in str(caught.value)


@pytest.mark.parametrize(
    "loss",
    [
        lambda y, t: t.float().mean(),
        lambda y, t: nn.functional.cross_entropy(y.detach(), t),
        lambda y, t: torch.ones(()).requires_grad_(),
    ],
    ids=["targets only", "detached", "a constant"],
)
def test_a_loss_that_ignores_the_module(loss: Any) -> None:
    text = refusal(Mlp(), loss=loss)

    assert "error[A208]: the loss does not depend on the outputs of the module" in text
    assert "at loss=" in text


def failing(y: Tensor, t: Tensor) -> Tensor:
    raise KeyError("who knows")


def test_a_loss_that_fails_is_shown_with_its_line() -> None:
    text = refusal(Mlp(), loss=failing)

    assert "error[A207]: the loss `failing` fails on the example: KeyError: 'who knows'" in text
    assert 'raise KeyError("who knows")' in text


def test_a_loss_without_its_targets() -> None:
    text = refusal(Mlp(), example_targets=None)

    assert "the loss `CrossEntropyLoss` fails on the example" in text
    assert "example_targets= was not given" in text


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (X.numpy(), "takes a tensor, a tuple of tensors or a dict by name; found a ndarray"),
        ([X], "takes a tensor, a tuple of tensors or a dict by name; found a list"),
        (X.double(), "RuntimeError: mat1 and mat2 must have the same dtype"),
    ],
    ids=["an array", "a list", "other numbers"],
)
def test_inputs_on_which_the_module_fails(inputs: Any, expected: str) -> None:
    text = refusal(Mlp(), example_inputs=inputs)

    assert "error[A207]: the module fails on the example" in text
    assert expected in text


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6, 3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(torch.complex64) @ self.weight).real


def test_complex_parameters() -> None:
    text = refusal(Complex())

    assert "error[A209]: `weight` is complex" in text


def test_a_lazy_module_is_left_lazy() -> None:
    module = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 3))

    text = refusal(module, optimizer="sgd")

    assert "error[A209]: `0.weight` has no value yet" in text
    assert "run it once on an example first" in text
    assert isinstance(module[0], nn.LazyLinear)


def test_a_module_without_parameters() -> None:
    assert "error[A208]: the module has no parameters to train" in refusal(nn.ReLU(), optimizer="sgd")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"loss": nn.CrossEntropyLoss}, "needed: CrossEntropyLoss()"),
        ({"optimizer": torch.optim.Adam}, "needed: Adam(module.parameters(), ...)"),
        ({"input_names": ["a", "b"]}, "found: 2: a, b"),
    ],
    ids=["loss", "optimizer", "names"],
)
def test_a_class_in_the_place_of_an_object_and_names_that_do_not_fit(changes: Any, expected: str) -> None:
    assert expected in refusal(Mlp(), **changes)


def test_what_is_no_module() -> None:
    with pytest.raises(ArgumentError, match="module is not a torch.nn.Module"):
        onward.from_torch(lambda x: x, loss="mse", optimizer="sgd", example_inputs=X)


class Cut(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return self.net[2](torch.relu(self.net[0](x)).detach())


def test_a_gradient_that_the_forward_cuts() -> None:
    text = refusal(Cut(), example_inputs=torch.randn(4, 6, generator=torch.Generator().manual_seed(0)))

    assert "error[A206]: the captured training step differs" in text
    assert "in PyTorch no gradient reaches `net.0.weight`, `net.0.bias`" in text
    assert "requires_grad_(False)" in text


class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 3 * g


class WithOwnBackward(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return Triple.apply(self.net(x))


def test_a_backward_of_ones_own() -> None:
    text = refusal(WithOwnBackward(), example_inputs=torch.randn(4, 6, generator=torch.Generator().manual_seed(0)))

    assert "error[A206]: the captured training step differs" in text
    assert "a torch.autograd.Function with its own backward cannot be captured" in text


class Multiplying(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).cumprod(1)


def test_an_operator_that_the_exporter_does_not_know() -> None:
    text = refusal(Multiplying())

    assert "error[A200]: PyTorch cannot capture the module" in text
    assert "PyTorch's exporter does not support `prims.prod`" in text
    assert "control flow" not in text
