"""What PyTorch's exporter does not write, or not for every size, trains: pools, losses, an LSTM with a projection."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import ctc_loss

import onward
from frontends.runs import Batch, assert_same_state, onward_step, torch_step
from onward.errors import ArgumentError
from whole import sample

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
BOTH = pytest.mark.parametrize("dtype", sample([torch.float32, torch.float64], [torch.float64]), ids=str)


def follow(
    module: nn.Module,
    loss: Callable[..., Tensor],
    draw: Callable[[torch.Generator], Batch],
    dtype: torch.dtype,
    **options: Any,
) -> onward.TrainingModel:
    """Train both on changing batches; compare every loss and, at the end, every tensor. Return the model."""
    module = copy.deepcopy(module).to(dtype)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    data = [_of_type(draw(generator), dtype) for _ in range(8)]

    model = onward.from_torch(
        module, loss=loss, optimizer=optimizer, example_inputs=data[0][0], example_targets=data[0][1], **options
    )

    trainer = onward.Trainer(model, threads=1)
    expected = [torch_step(module, optimizer, loss, *batch) for batch in data]
    actual = [onward_step(trainer, *batch) for batch in data]
    np.testing.assert_allclose(actual, expected, rtol=TOLERANCE[dtype])
    assert_same_state(trainer.state, module, 10 * TOLERANCE[dtype])
    return model


def _of_type(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, tuple):
        return tuple(_of_type(v, dtype) for v in value)
    return value.to(dtype) if value.is_floating_point() else value


# ------------------------------------------------------------------ pools

SIZES = (10, 7, 4)
SIZES_OF_POOLS = [(4,), (13,), (4, 3), (12, None), (5, 7, 2), (1, 1, 1), (4, 9, 3)]


class Pooled(nn.Module):
    def __init__(self, pool: nn.Module, dims: int) -> None:
        super().__init__()
        self.mix = nn.Linear(2, 3)  # ONNX Runtime has no convolution in float64
        self.pool = pool
        self.fc = nn.LazyLinear(3)
        self(torch.zeros(2, 2, *SIZES[:dims]))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pool(torch.tanh(self.mix(x.movedim(1, -1))).movedim(-1, 1)).flatten(1))


def images(*shape: int) -> Callable[[torch.Generator], Batch]:
    """Return batches of different sizes."""

    def draw(g: torch.Generator) -> Batch:
        size = int(torch.randint(3, 7, (), generator=g))
        return (torch.randn(size, 2, *shape, generator=g),), torch.randint(0, 3, (size,), generator=g)

    return draw


@BOTH
@pytest.mark.parametrize("kind", ["Avg", "Max"])
@pytest.mark.parametrize(
    "sizes",
    sample(SIZES_OF_POOLS, [(13,), (12, None), (4, 9, 3)]),
    ids=str,
)
def test_adaptive_pools_of_every_size(sizes: tuple[int | None, ...], kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    dims = len(sizes)
    pool = getattr(nn, f"Adaptive{kind}Pool{dims}d")(sizes if dims > 1 else sizes[0])

    model = follow(Pooled(pool, dims), F.cross_entropy, images(*SIZES[:dims]), dtype)

    assert not isinstance(model.graph.inputs[0].shape[0], int)


@pytest.mark.parametrize("sizes", sample([(5, 1), (5, 7)], [(5, 1)]), ids=str)
@pytest.mark.parametrize(("kind", "operator"), [("Avg", "AveragePool"), ("Max", "MaxPool")])
def test_pools_of_equal_windows_are_one_operator(kind: str, operator: str, sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)

    model = follow(
        Pooled(getattr(nn, f"Adaptive{kind}Pool2d")(sizes), 2), F.cross_entropy, images(*SIZES[:2]), torch.float32
    )

    operators = [n.op_type for n in model.graph]
    assert operators.count(operator) == 1
    assert operators.count("MatMul") == 1  # of the module
    assert "Gather" not in operators


class Marked(nn.Module):
    """A weight for each pixel, whose gradient shows which one was the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.mark = nn.Parameter(torch.zeros(7, 5))

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_max_pool2d(x + self.mark, (3, 2))


def test_of_equal_pixels_the_first_one_gets_the_gradient() -> None:
    module, x = Marked(), torch.randint(0, 2, (4, 2, 7, 5), generator=torch.Generator().manual_seed(0)).float()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    target = torch.randn(4, 2, 3, 2, generator=torch.Generator().manual_seed(0))
    model = onward.from_torch(module, loss=nn.MSELoss(), optimizer=optimizer, example_inputs=x, example_targets=target)

    torch_step(module, optimizer, nn.MSELoss(), (x,), target)
    trainer = onward.Trainer(model, threads=1)
    onward_step(trainer, (x,), target)

    np.testing.assert_allclose(trainer.state["mark"], module.mark.detach().numpy(), rtol=1e-6, atol=1e-7)


class Where(nn.Module):
    def __init__(self, sizes: tuple[int, int]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1)
        self.sizes = sizes

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.adaptive_max_pool2d(self.conv(x), self.sizes, return_indices=True)


@pytest.mark.parametrize("sizes", [(3, 2), (5, 7)], ids=str)
def test_the_places_of_the_maxima_can_be_used(sizes: tuple[int, int]) -> None:
    torch.manual_seed(0)
    follow(Where(sizes), lambda y, t: (y[0] * torch.cos(y[1] * t)).mean(), _placed, torch.float32)


def _placed(g: torch.Generator) -> Batch:
    return (torch.randn(4, 2, 10, 7, generator=g),), torch.randn((), generator=g)


@pytest.mark.parametrize("pool", [nn.AdaptiveAvgPool2d((3, 2)), nn.AdaptiveMaxPool2d((3, 2))], ids=["avg", "max"])
def test_pools_of_images_of_any_size(pool: nn.Module) -> None:
    torch.manual_seed(0)
    batch, height, width = (torch.export.Dim(n, min=4) for n in ("batch", "height", "width"))

    def draw(g: torch.Generator) -> Batch:
        h, w = torch.randint(5, 12, (2,), generator=g).tolist()
        return (torch.randn(4, 2, h, w, generator=g),), torch.randint(0, 3, (4,), generator=g)

    module = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), pool, nn.Flatten(), nn.Linear(18, 3))
    follow(module, F.cross_entropy, draw, torch.float32, dynamic={"input": {0: batch, 2: height, 3: width}})


# ------------------------------------------------------------------ losses


class Gaussian(nn.Module):
    """A mean and a variance, which is small or zero for about half of the samples."""

    def __init__(self, variances: int = 3) -> None:
        super().__init__()
        self.mean, self.var = nn.Linear(4, 3), nn.Linear(4, variances)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean(x), F.relu(self.var(x))


def regression(g: torch.Generator) -> Batch:
    return (torch.randn(6, 4, generator=g),), torch.randn(6, 3, generator=g)


@BOTH
@pytest.mark.parametrize(
    "options",
    [{}, {"full": True}, {"reduction": "sum"}, {"eps": 1e-3}],
    ids=["plain", "full", "sum", "epsilon"],
)
def test_gaussian_nll_loss(options: dict[str, Any], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    loss = nn.GaussianNLLLoss(**{"eps": 0.3, **options})

    def of_softened(y: tuple[Tensor, Tensor], t: Tensor) -> Tensor:
        return loss(y[0], t, y[1] + (0.0 if "eps" not in options else 0.1))

    follow(Gaussian(), of_softened, regression, dtype)


@pytest.mark.parametrize(
    "loss",
    [
        lambda y, t: F.gaussian_nll_loss(y[0], t, y[1][:, 0], eps=0.3),
        lambda y, t: F.gaussian_nll_loss(y[0], t, y[1], eps=0.3),
        lambda y, t: F.gaussian_nll_loss(y[0], t, 0.5) + y[1].sum() / 100,
        lambda y, t: F.gaussian_nll_loss(y[0], t, y[1], eps=0.3, reduction="none").mean(),
    ],
    ids=["one dimension less", "one for all", "a number", "without reduction"],
)
def test_gaussian_nll_loss_of_other_variances(loss: Any) -> None:
    torch.manual_seed(0)
    follow(Gaussian(1), loss, regression, torch.float64)


def test_a_variance_below_epsilon_gets_the_gradient_of_epsilon() -> None:
    """In PyTorch the clamp passes gradients everywhere: a variance of 0 can grow again."""
    module = nn.Linear(1, 2)
    with torch.no_grad():
        module.weight.zero_()
        module.bias.copy_(torch.tensor([0.0, 1e-9]))

    def loss(y: Tensor, t: Tensor) -> Tensor:
        return F.gaussian_nll_loss(y[:, :1], t, y[:, 1:], eps=1e-2)

    model = follow(module, loss, lambda g: ((torch.randn(4, 1, generator=g),), torch.randn(4, 1, generator=g)),
                   torch.float64)  # fmt: skip

    trainer = onward.Trainer(model, threads=1)
    onward_step(trainer, (torch.ones(4, 1).double(),), torch.ones(4, 1).double())
    assert trainer.state["bias"][1] > 1.0


class Reader(nn.Module):
    """Log-probabilities [T, N, 5] of the classes at each of 9 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).log_softmax(-1).transpose(0, 1)


def spoken(blank: int = 0, flat: bool = False, kind: torch.dtype = torch.int64) -> Callable[[torch.Generator], Batch]:
    """Return batches of four sequences with (labels, number of steps, number of labels)."""

    def draw(g: torch.Generator) -> Batch:
        counts = torch.randint(1, 4, (4,), generator=g)
        labels = torch.randint(1, 5, (4, 3), generator=g)
        labels = torch.where(labels == blank, 0, labels)
        if flat:
            labels = torch.cat([row[:n] for row, n in zip(labels, counts, strict=True)])
        times = torch.randint(7, 10, (4,), generator=g)
        targets = tuple(t.to(kind) for t in (labels, times, counts))
        return (torch.randn(4, 9, 3, generator=g),), targets

    return draw


@BOTH
@pytest.mark.parametrize(
    ("loss", "draw"),
    [
        (nn.CTCLoss(), spoken()),
        (nn.CTCLoss(reduction="sum"), spoken()),
        (nn.CTCLoss(blank=3), spoken(blank=3)),
        (nn.CTCLoss(zero_infinity=True), spoken()),
        (nn.CTCLoss(), spoken(kind=torch.int32)),
    ],
    ids=["mean", "sum", "blank", "zero_infinity", "int32"],
)
def test_ctc_loss(loss: nn.CTCLoss, draw: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    follow(Reader(), lambda y, t: loss(y, *t), draw, dtype)


def test_ctc_loss_of_labels_one_after_the_other() -> None:
    torch.manual_seed(0)
    data = spoken(flat=True)

    model = follow(Reader(), lambda y, t: ctc_loss(y, *t), data, torch.float64)

    assert "Scan" in [n.op_type for n in model.entries[0].algorithm]


def test_ctc_loss_without_reduction_and_with_lengths_that_are_numbers() -> None:
    torch.manual_seed(0)

    def loss(y: Tensor, t: tuple[Tensor, ...]) -> Tensor:
        return (F.ctc_loss(y, t[0], (9, 8, 9, 7), (3, 3, 2, 1), reduction="none") * t[1]).mean()

    follow(Reader(), loss, lambda g: (spoken()(g)[0], (spoken()(g)[1][0], torch.rand(4, generator=g))), torch.float64)


def test_ctc_loss_without_a_batch() -> None:
    torch.manual_seed(0)
    three = torch.tensor(3)

    def loss(y: Tensor, t: tuple[Tensor, ...]) -> Tensor:
        first = F.ctc_loss(y[:, 0], t[0][0], t[1][0], three)
        return first + F.ctc_loss(y[:, 1], t[0][1], t[1][1], three, reduction="none")

    follow(Reader(), loss, lambda g: (spoken()(g)[0], spoken()(g)[1][:2]), torch.float64)


def test_the_ctc_loss_that_cannot_be_replaced_is_refused_with_the_one_that_can() -> None:
    with pytest.raises(ArgumentError, match="call torch.nn.functional.ctc_loss instead of torch.ctc_loss"):
        follow(Reader(), lambda y, t: torch.ctc_loss(y, *t, 0, 1), spoken(), torch.float32)


def test_ctc_loss_of_impossible_alignments_is_zero_on_request() -> None:
    torch.manual_seed(0)
    loss = nn.CTCLoss(zero_infinity=True)

    def draw(g: torch.Generator) -> Batch:
        inputs, (labels, times, counts) = spoken()(g)
        return inputs, (labels, torch.where(torch.arange(4) < 2, 1, times), counts)

    follow(Reader(), lambda y, t: loss(y, *t), draw, torch.float64)


# ------------------------------------------------------------------ a projected LSTM


class Recurrent(nn.Module):
    def __init__(self, outputs: Sequence[str] = ("y",), **options: Any) -> None:
        super().__init__()
        self.outputs = outputs
        self.rnn = nn.LSTM(4, 6, proj_size=3, **options)
        layers = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
        self.start = nn.Parameter(torch.randn(layers, 1, 9)) if "start" in outputs else None
        self.fc = nn.LazyLinear(3)
        self(torch.zeros(2, 5, 4))

    def forward(self, x: Tensor) -> Tensor:
        state = None
        if self.start is not None:
            start = self.start.expand(-1, x.shape[0], -1)
            state = (start[..., :3].contiguous(), start[..., 3:].contiguous())
        y, (h, c) = self.rnn(x if self.rnn.batch_first else x.transpose(0, 1), state)
        parts = {"y": y if self.rnn.batch_first else y.transpose(0, 1), "h": h.transpose(0, 1), "c": c.transpose(0, 1)}
        return self.fc(torch.cat([parts[p].flatten(1) for p in parts if p in self.outputs], 1))


def sequences(g: torch.Generator) -> Batch:
    size = int(torch.randint(3, 7, (), generator=g))
    return (torch.randn(size, 5, 4, generator=g),), torch.randint(0, 3, (size,), generator=g)


projected = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")  # PyTorch's


@projected
@BOTH
@pytest.mark.parametrize(
    ("outputs", "options"),
    [
        (("y",), {}),
        (("y",), {"batch_first": True, "bias": False}),
        (("h", "c", "start"), {"batch_first": True}),
        (("y", "h", "c", "start"), {"num_layers": 2, "bidirectional": True}),
    ],
    ids=["plain", "without bias", "its states", "two layers in both directions"],
)
def test_a_projected_lstm(outputs: Sequence[str], options: dict[str, Any], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    follow(Recurrent(outputs, **options), F.cross_entropy, sequences, dtype)


@projected
def test_the_dropout_between_projected_layers_drops_in_training_only() -> None:
    torch.manual_seed(0)
    module = Recurrent(("y", "start"), num_layers=2, dropout=0.5)
    x, t = sequences(torch.Generator().manual_seed(0))
    model = onward.from_torch(
        module,
        loss=F.cross_entropy,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        example_inputs=x,
        example_targets=t,
    )

    back, _ = onward.to_torch(model)

    np.testing.assert_allclose(back.eval()(*x).detach(), module.eval()(*x).detach(), rtol=1e-5, atol=1e-6)
    assert not torch.equal(back.train()(*x), back(*x))
