"""Modules and losses off the beaten track train as in PyTorch, or are refused with a reason; never wrong in silence."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onward
from frontends.runs import assert_same_state, onward_step, torch_step
from onward.errors import ArgumentError
from whole import sample

LABELS = torch.tensor([0, 1, 2, 0])
cross_entropy = nn.CrossEntropyLoss()
CROSS_ENTROPY = onward.losses.CrossEntropy()  # the same as its name, by which other tests give it


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)


class Of(nn.Module):
    """`function(self, *inputs)`, with the given parts."""

    def __init__(self, function: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def rows(seed: int = 0) -> Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))


def steps(seed: int = 0) -> Tensor:
    return torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(seed))


def images(seed: int = 0) -> Tensor:
    return torch.randn(4, 4, 8, 8, generator=torch.Generator().manual_seed(seed))


def convert(
    module: nn.Module, example: Tensor, loss: Any = cross_entropy, targets: Any = LABELS, **options: Any
) -> onward.TrainingModel:
    return onward.from_torch(
        module, loss=loss, optimizer=sgd(module), example_inputs=example, example_targets=targets, **options
    )


def assert_trains_alike(
    module: nn.Module,
    batch: Callable[[int], Tensor],
    loss: Any = cross_entropy,
    targets: Any = LABELS,
    rtol: float = 1e-4,
    **options: Any,
) -> None:
    """Five steps on ONNX Runtime have PyTorch's losses, parameters and buffers."""
    trainer = onward.Trainer(convert(module, batch(0), loss, targets, **options), threads=1)
    optimizer = sgd(module)

    actual = [onward_step(trainer, (batch(i),), targets) for i in range(5)]

    expected = [torch_step(module, optimizer, loss, (batch(i),), targets) for i in range(5)]
    np.testing.assert_allclose(actual, expected, rtol=rtol)
    assert_same_state(trainer.state, module, rtol)


def grouped(self: Any, x: Tensor) -> Tensor:
    q = self.q(x).unflatten(-1, (4, 3)).transpose(1, 2)
    k = self.k(x).unflatten(-1, (2, 3)).transpose(1, 2)
    y = F.scaled_dot_product_attention(q, k, k, enable_gqa=True, scale=0.3)
    return self.out(y.transpose(1, 2).flatten(2).mean(1))


def test_attention_whose_heads_share_keys() -> None:
    torch.manual_seed(0)

    assert_trains_alike(Of(grouped, q=nn.Linear(6, 12), k=nn.Linear(6, 6), out=nn.Linear(12, 3)), steps)


def test_a_mask_over_padding() -> None:
    torch.manual_seed(0)
    padded = torch.arange(5) >= torch.tensor([[3], [5], [4], [2]])
    layer = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0, batch_first=True)
    module = Of(
        lambda s, x: s.out(s.encoder(x, src_key_padding_mask=padded)[:, 0]),
        encoder=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        out=nn.Linear(6, 3),
    )

    assert_trains_alike(module, steps, dynamic=False)


def test_a_picture_that_is_turned() -> None:
    torch.manual_seed(0)

    def turned(self: Any, x: Tensor) -> Tensor:
        grid = F.affine_grid(self.turn.expand(4, 2, 3), [4, 4, 5, 5], align_corners=False)
        return F.grid_sample(self.conv(x), grid, align_corners=False).mean((2, 3))[:, :3]

    module = Of(turned, conv=nn.Conv2d(4, 4, 3, padding=1), turn=nn.Parameter(0.9 * torch.eye(2, 3)[None]))

    assert_trains_alike(module, images, dynamic=False)


def twice(self: Any, x: Tensor) -> Tensor:
    return self.norm(self.fc(torch.tanh(self.norm(self.fc(x)))))[:, :3]


def test_a_batch_normalisation_that_is_called_twice_counts_both() -> None:
    torch.manual_seed(0)

    assert_trains_alike(Of(twice, fc=nn.Linear(6, 6), norm=nn.BatchNorm1d(6)), rows)


@pytest.mark.parametrize(
    ("norm", "dtype", "found"),
    [
        (nn.BatchNorm1d(6, momentum=None), torch.float32, "momentum=None"),
        (nn.BatchNorm1d(6), torch.float64, "float64"),
    ],
)
def test_a_batch_normalisation_that_is_called_twice_without_a_momentum(
    norm: nn.Module, dtype: torch.dtype, found: str
) -> None:
    module = Of(twice, fc=nn.Linear(6, 6), norm=norm).to(dtype)

    with pytest.raises(ArgumentError, match=r"A214.*called 2 times in a step") as caught:
        convert(module, rows().to(dtype))

    assert "at `norm` (BatchNorm1d)" in str(caught.value)
    assert f"found: {found}" in str(caught.value)


@pytest.mark.parametrize(
    ("drop", "batch"),
    [(nn.Dropout1d(0.4), lambda: steps()), (nn.Dropout2d(0.4), lambda: images())],
    ids=["1d", "2d"],
)
def test_whole_channels_are_dropped_in_training_only(drop: nn.Module, batch: Callable[[], Tensor]) -> None:
    x = batch()
    channels = x.shape[1]
    module = nn.Sequential(nn.Conv1d(channels, channels, 1) if x.ndim == 3 else nn.Conv2d(channels, channels, 1), drop)
    plain = module[0](x).detach()

    back, _ = onward.to_torch(convert(module, x, lambda y, _: y.square().mean()))

    torch.testing.assert_close(back.eval()(x), plain)
    dropped = torch.stack([back.train()(x).detach() for _ in range(20)])
    zero = (dropped == 0).flatten(3)
    assert torch.equal(zero.all(-1), zero.any(-1))
    assert 0.25 < zero.all(-1).double().mean() < 0.55
    torch.testing.assert_close(dropped, torch.where(dropped == 0, 0.0, plain / 0.6))


@pytest.mark.parametrize("whole", [False, True], ids=["elements", "channels"])
def test_alpha_dropout_is_pytorchs_but_for_the_mask(whole: bool) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(4, 4, 1), nn.FeatureAlphaDropout(0.3) if whole else nn.AlphaDropout(0.3))
    x = images()
    plain = module[0](x).detach()

    back, _ = onward.to_torch(convert(module, x, lambda y, _: y.square().mean()))

    torch.testing.assert_close(back.eval()(x), plain)
    ours, theirs = back.train()(x).detach(), module(x).detach()
    lost = theirs.flatten().mode()[0]  # the number that takes the place of what is dropped
    slope, offset = np.polyfit(plain[theirs != lost].double().numpy(), theirs[theirs != lost].double().numpy(), 1)
    gone = torch.isclose(ours, lost)
    torch.testing.assert_close(ours, torch.where(gone, lost, plain * slope + offset), rtol=1e-4, atol=1e-4)
    assert 0.1 < gone.double().mean() < 0.5
    assert torch.equal(gone.flatten(2).all(-1), gone.flatten(2).any(-1)) == whole


def last(self: Any, x: Tensor) -> Tensor:
    return self.out(self.rnn(x)[0][:, -1])


def cut(self: Any, x: Tensor) -> Tensor:
    return self.out(self.rnn(x)[0][:, -1].detach() + self.rnn(x)[0][:, 0])


@pytest.mark.parametrize("kind", sample([nn.LSTM, nn.GRU], [nn.LSTM]))
def test_dropout_between_recurrent_layers_is_left_out_of_the_comparison_and_nothing_else(kind: Any) -> None:
    torch.manual_seed(0)
    parts = {"rnn": kind(6, 6, 2, dropout=0.5, batch_first=True), "out": nn.Linear(6, 3)}

    model = convert(Of(last, **parts), steps())

    assert "Dropout" in {n.op_type for n in model.entries[0].algorithm}
    assert parts["rnn"].dropout == 0.5
    with pytest.raises(ArgumentError, match="A206"):
        convert(Of(cut, **parts), steps())


@pytest.mark.parametrize("loss", sample(["cross_entropy", CROSS_ENTROPY], [CROSS_ENTROPY]))
def test_gradients_are_compared_where_the_loss_is_one_of_onward(loss: Any) -> None:
    def half(self: Any, x: Tensor) -> Tensor:
        return self.out(self.first(x).detach() * self.first(x))

    parts = {"first": nn.Linear(6, 6), "out": nn.Linear(6, 3)}

    convert(Of(lambda s, x: s.out(s.first(x)), **parts), rows(), loss)

    with pytest.raises(ArgumentError, match="A206"):
        convert(Of(half, **parts), rows(), loss)


def test_a_loss_with_the_parameters_in_it() -> None:
    module = nn.Linear(6, 3)

    with pytest.raises(ArgumentError, match=r"A213.*the loss reads parameters of the module") as caught:
        convert(module, rows(), lambda y, t: F.cross_entropy(y, t) + 0.1 * module.weight.square().sum())

    assert "found: `weight`" in str(caught.value)
    assert "weight_decay" in str(caught.value)


def test_a_loss_with_a_weight_for_each_sample() -> None:
    torch.manual_seed(0)
    targets = (LABELS, torch.tensor([0.1, 0.5, 1.0, 0.3]))

    def weighted(y: Tensor, t: tuple[Tensor, Tensor]) -> Tensor:
        return (F.cross_entropy(y, t[0], reduction="none") * t[1]).sum() / t[1].sum()

    assert_trains_alike(nn.Linear(6, 3), rows, weighted, targets)


def test_a_loss_that_goes_on_with_the_losses_of_the_samples() -> None:
    torch.manual_seed(0)

    def focal(y: Tensor, t: Tensor) -> Tensor:
        losses = F.cross_entropy(y, t, reduction="none")
        return ((1.0 - torch.exp(-losses)) ** 2 * losses).mean()

    assert_trains_alike(nn.Linear(6, 3), rows, focal)


def by_len(y: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(y, t, reduction="sum") / len(t)


def test_a_loss_that_takes_the_size_of_the_example_for_a_constant() -> None:
    with pytest.raises(ArgumentError, match="the batch size of the example is a constant") as caught:
        convert(nn.Linear(6, 3), rows(), by_len)

    assert "found: for 8 samples instead of 4: a loss of" in str(caught.value)
    assert "x.shape[0] instead of len(x)" in str(caught.value)
    assert convert(nn.Linear(6, 3), rows(), by_len, dynamic=False).parameters


@pytest.mark.parametrize("loss", [cross_entropy, "cross_entropy"], ids=["of torch", "of onward"])
def test_a_module_that_takes_the_size_of_the_example_for_a_constant(loss: Any) -> None:
    with pytest.raises(ArgumentError, match="the batch size of the example is a constant") as caught:
        convert(Of(lambda s, x: s.out(x) * len(x), out=nn.Linear(6, 3)), rows(), loss)

    assert "found: for 8 samples instead of 4: the file does not accept such a batch" in str(caught.value)


def test_a_loss_for_batches_of_any_size() -> None:
    torch.manual_seed(0)
    module = nn.Linear(6, 3)

    def by_shape(y: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(y, t, reduction="sum") / t.shape[0]

    trainer = onward.Trainer(convert(module, rows(), by_shape), threads=1)
    optimizer = sgd(module)

    for count in (3, 2, 4):
        expected = torch_step(module, optimizer, by_shape, (rows()[:count],), LABELS[:count])
        np.testing.assert_allclose(onward_step(trainer, (rows()[:count],), LABELS[:count]), expected, rtol=1e-5)


def test_a_loss_that_draws_random_numbers_is_not_compared_and_says_so() -> None:
    with pytest.warns(UserWarning, match=r"were not compared with PyTorch's: .* random numbers of its own"):
        convert(nn.Linear(6, 3), rows(), lambda y, t: F.cross_entropy(y + torch.randn_like(y), t))


def test_gradients_that_are_not_numbers_are_compared_as_well() -> None:
    module = Of(lambda s, x: s.out((s.first(x) / s.first(x).relu()).nan_to_num(0.0, 1.0, -1.0)),
                first=nn.Linear(6, 6), out=nn.Linear(6, 3))  # fmt: skip

    assert convert(module, rows()).parameters


def test_float64_with_fewer_digits_is_warned_about() -> None:
    def scaled(self: Any, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight, beta=0.3, alpha=0.7)

    module = Of(scaled, bias=nn.Parameter(torch.ones(3)), weight=nn.Parameter(torch.ones(6, 3))).double()

    with pytest.warns(UserWarning, match="large for float64"):
        convert(module, rows().double())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(nn.Sequential(nn.Linear(6, 3), nn.LayerNorm(3)).double(), rows().double())


@pytest.mark.parametrize("dynamic", sample([True, False], [True]))
@pytest.mark.parametrize("stack", [torch.hstack, torch.vstack, torch.dstack], ids=["hstack", "vstack", "dstack"])
def test_stacked_tensors(stack: Callable[..., Tensor], dynamic: bool) -> None:
    """PyTorch's exporter writes a SequenceMap over tensors of any rank."""
    torch.manual_seed(0)
    module = Of(lambda s, x: s.fc(x) * stack((s.fc(x).exp(), x)).mean(), fc=nn.Linear(6, 6))

    assert_trains_alike(module, rows, nn.MSELoss(), rows(1), dynamic=dynamic)
