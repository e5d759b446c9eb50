"""The workloads of `make bench`, as PyTorch modules; every peer gets the same network, data and start."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Workload:
    """A network, its batch, its optimizer ("adam" or "sgd"), and the cost of a step."""

    name: str
    build: Callable[[], Any]
    inputs: Callable[[np.random.Generator], tuple[np.ndarray, ...]]
    labels: Callable[[np.random.Generator], np.ndarray]
    optimizer: str = "adam"
    flops: float = 0.0  # of forward and backward together, for the share of the machine's peak


def _classes(batch: int, count: int) -> Callable[[np.random.Generator], np.ndarray]:
    return lambda rng: rng.integers(0, count, batch)


def _floats(*shape: int) -> Callable[[np.random.Generator], tuple[np.ndarray, ...]]:
    return lambda rng: (rng.standard_normal(shape).astype(np.float32),)


def _tokens(batch: int, length: int, vocabulary: int) -> Callable[[np.random.Generator], tuple[np.ndarray, ...]]:
    return lambda rng: (rng.integers(0, vocabulary, (batch, length)),)


def mlp() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def lenet() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def resnet18() -> Any:
    """ResNet-18 for 32 × 32 images: a 3 × 3 stem and no first pooling."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
            self.relu = nn.ReLU()
            self.short: nn.Module = nn.Identity()
            if stride != 1 or before != width:
                self.short = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

        def forward(self, x: Any) -> Any:
            y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
            return self.relu(y + self.short(x))

    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    before = 64
    for width, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        layers.append(Block(before, width, stride))
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def mobilenet() -> Any:
    """Depthwise separable convolutions with batch normalisation."""
    from torch import nn

    def pair(before: int, width: int, stride: int) -> list[Any]:
        return [
            nn.Conv2d(before, before, 3, stride, 1, groups=before, bias=False), nn.BatchNorm2d(before), nn.ReLU(),
            nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        ]  # fmt: skip

    layers = [nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    for before, width, stride in ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)):
        layers += pair(before, width, stride)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def transformer() -> Any:
    from torch import nn

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(1000, 256)
            layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
            self.fc = nn.Linear(256, 10)

        def forward(self, x: Any) -> Any:
            return self.fc(self.layers(self.embed(x)).mean(1))

    return Encoder()


def lstm() -> Any:
    from torch import nn

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(256, 256, num_layers=2, batch_first=True)
            self.fc = nn.Linear(256, 10)

        def forward(self, x: Any) -> Any:
            return self.fc(self.rnn(x)[0][:, -1])

    return Classifier()


def embedding_bag() -> Any:
    from torch import nn

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(100_000, 64)
            self.fc = nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            return self.fc(self.embed(x).mean(1))

    return Bag()


WORKLOADS = {
    w.name: w
    for w in (
        Workload("mlp-64", mlp, _floats(64, 784), _classes(64, 10), flops=6 * 64 * 668_672),
        Workload("mlp-256", mlp, _floats(256, 784), _classes(256, 10), flops=6 * 256 * 668_672),
        Workload("mlp-64-sgd", mlp, _floats(64, 784), _classes(64, 10), "sgd", flops=6 * 64 * 668_672),
        Workload("lenet-64", lenet, _floats(64, 1, 28, 28), _classes(64, 10), flops=6 * 64 * 416_520),
        Workload("resnet18-32", resnet18, _floats(32, 3, 32, 32), _classes(32, 10), flops=6 * 32 * 555_422_720),
        Workload("resnet18-32-sgd", resnet18, _floats(32, 3, 32, 32), _classes(32, 10), "sgd", 6 * 32 * 555_422_720),
        Workload("mobilenet-32", mobilenet, _floats(32, 3, 32, 32), _classes(32, 10), flops=6 * 32 * 14_000_000),
        Workload("transformer-8", transformer, _tokens(8, 128, 1000), _classes(8, 10), flops=6 * 8 * 128 * 3_400_000),
        Workload("lstm-32", lstm, _floats(32, 64, 256), _classes(32, 10), flops=6 * 32 * 64 * 1_048_576),
        Workload("embedding-256", embedding_bag, _tokens(256, 32, 100_000), _classes(256, 10), flops=6 * 256 * 640),
    )
}


def batches(workload: Workload, count: int = 8) -> list[tuple[tuple[np.ndarray, ...], np.ndarray]]:
    """Return the batches to cycle through; many, because one repeated batch drives the loss to 0 and into denormals."""
    rng = np.random.default_rng(0)
    return [(workload.inputs(rng), workload.labels(rng)) for _ in range(count)]
