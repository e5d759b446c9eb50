"""Small PyTorch models of every kind that people train, with data and an optimizer each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model with its loss, its optimizer, and batches: `batch(generator) -> (inputs, targets)`.

    `undetermined` names rows of parameters, as (first, last + 1), whose gradient is zero in theory: what a program
    computes there is rounding noise, which Adam with its tiny epsilon turns into steps of full size, so that no two
    programs agree. They have no effect on the outputs.
    """

    name: str
    build: Callable[[], nn.Module]
    loss: Callable[..., Tensor]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    batch: Callable[[torch.Generator], tuple[tuple[Tensor, ...], Tensor]]
    undetermined: Mapping[str, tuple[int, int]] | None = dataclasses.field(default=None, hash=False)

    def __str__(self) -> str:
        return self.name


def images(channels: int, size: int, classes: int) -> Callable[[torch.Generator], Any]:
    def batch(g: torch.Generator) -> Any:
        return (torch.randn(8, channels, size, size, generator=g),), torch.randint(0, classes, (8,), generator=g)

    return batch


def tokens(length: int, vocabulary: int, classes: int | None = None) -> Callable[[torch.Generator], Any]:
    def batch(g: torch.Generator) -> Any:
        x = torch.randint(0, vocabulary, (4, length), generator=g)
        shape = (4, length) if classes is None else (4,)
        return (x,), torch.randint(0, classes or vocabulary, shape, generator=g)

    return batch


def features(width: int, classes: int) -> Callable[[torch.Generator], Any]:
    def batch(g: torch.Generator) -> Any:
        return (torch.randn(8, width, generator=g),), torch.randint(0, classes, (8,), generator=g)

    return batch


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class ConvNet(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(4 * 9, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn(self.conv(x))), 2)
        return self.fc(self.drop(x.flatten(1)))


class Block(nn.Module):
    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, momentum=None)
        self.down = nn.Conv2d(width, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.down(x))


class ResNet(nn.Module):
    """A residual network whose stem is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.stem.requires_grad_(False)
        self.blocks = nn.Sequential(Block(4, 1), Block(4, 2))
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(F.relu(self.stem(x))).mean((2, 3)))


class Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Conv2d(2, 8, 1)
        self.depth = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8)
        self.project = nn.Conv2d(8, 4, 1)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.depth(F.hardswish(self.expand(x))))
        return self.fc(self.project(y).mean((2, 3)))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.encoder(self.embed(x)).mean(1))


class Decoder(nn.Module):
    """GPT-style: causal attention, pre-normalisation, output tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 8)
        self.position = nn.Parameter(torch.zeros(6, 8))
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.mlp = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
        self.head = nn.Linear(8, 13, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.position
        b, s, d = h.shape
        q, k, v = (t.reshape(b, s, 2, 4).transpose(1, 2) for t in self.qkv(self.norm1(h)).split(d, -1))
        h = h + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, d))
        return self.head(h + self.mlp(self.norm2(h)))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 5)
        self.rnn = kind(5, 6, num_layers=2, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.rnn(self.embed(x))
        return self.fc(y[:, -1])


class EmbeddingBag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 6)
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.embed(x).mean(1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.out = nn.Conv2d(5, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.middle(F.relu(self.down(x))))
        return self.out(torch.cat([self.up(h), x], 1))


def masks(g: torch.Generator) -> Any:
    return (torch.randn(4, 1, 8, 8, generator=g),), (torch.rand(4, 1, 8, 8, generator=g) > 0.5).float()


def language_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        [p for p in module.parameters() if p.requires_grad], lr=0.05, momentum=0.9, weight_decay=1e-3
    )


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=3e-3)


def groups(module: nn.Module) -> torch.optim.Optimizer:
    """No decay for biases, a slower rate for the first layer: what people do."""
    named = dict(module.named_parameters())
    biases = [p for n, p in named.items() if n.endswith("bias")]
    first = [named["net.0.weight"]]
    rest = [p for n, p in named.items() if not n.endswith("bias") and n != "net.0.weight"]
    settings: list[dict[str, Any]] = [
        {"params": rest},
        {"params": biases, "weight_decay": 0.0},
        {"params": first, "lr": 1e-3},
    ]
    return torch.optim.AdamW(settings, lr=1e-2, weight_decay=0.1)


CROSS_ENTROPY = nn.CrossEntropyLoss()
ZOO = [
    Subject("mlp", Mlp, CROSS_ENTROPY, adam, features(6, 3)),
    Subject("parameter groups", Mlp, CROSS_ENTROPY, groups, features(6, 3)),
    Subject("convolutions with batch normalisation", ConvNet, CROSS_ENTROPY, adam, images(2, 6, 3)),
    Subject("residual network, stem frozen", ResNet, CROSS_ENTROPY, sgd, images(3, 8, 3)),
    Subject("depthwise convolutions", Depthwise, CROSS_ENTROPY, adam, images(2, 8, 3)),
    Subject("transformer encoder", Encoder, CROSS_ENTROPY, sgd, tokens(5, 11, 3)),
    # The keys' bias adds the same number to every score of a row, which Softmax takes away again.
    Subject("decoder with tied embedding", Decoder, language_loss, adam, tokens(6, 13), {"qkv.bias": (8, 16)}),
    Subject("lstm", lambda: Recurrent(nn.LSTM), CROSS_ENTROPY, adam, tokens(7, 9, 3)),
    Subject("gru", lambda: Recurrent(nn.GRU), CROSS_ENTROPY, adam, tokens(7, 9, 3)),
    Subject("embedding bag", EmbeddingBag, CROSS_ENTROPY, adam, tokens(5, 50, 4)),
    Subject("u-net", UNet, nn.BCEWithLogitsLoss(), adam, masks),
]
