"""Distillation over a whole course of training, beside a loop written by hand in PyTorch: every loss, every weight."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import onward
from onward import losses, optimizers

SAMPLES, BATCH, EPOCHS = 37, 8, 5  # the last batch of an epoch has 5


def student() -> nn.Sequential:
    """Return a small network with BatchNorm.

    There is no bias before it: its gradient would be rounding, and Adam divides by its size. ONNX stores the momentum
    as a float32, so that it is one that needs no rounding.
    """
    return nn.Sequential(nn.Linear(6, 7, bias=False), nn.BatchNorm1d(7, momentum=0.25), nn.Tanh(), nn.Linear(7, 4))


def teacher() -> nn.Sequential:
    """Return a network whose BatchNorm and Dropout would tell if they ran in training mode."""
    net = nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, 4))
    with torch.no_grad():
        net[1].running_mean.normal_()
        net[1].running_var.uniform_(0.5, 2.0)
        net[4].weight.mul_(5.0)
    return net


def exported(net: nn.Sequential) -> onnx.ModelProto:
    """Return the network as an ONNX file with PyTorch's names and weights."""
    nodes, value = [], "x"
    for place, layer in enumerate(net):
        made = "y" if place == len(net) - 1 else f"v{place}"
        if isinstance(layer, nn.Linear):
            bias = "" if layer.bias is None else f", w{place}_bias"
            nodes.append(f"{made} = Gemm<transB = 1>({value}, w{place}_weight{bias})")
        elif isinstance(layer, nn.BatchNorm1d):
            names = ", ".join(f"w{place}_{n}" for n in ("weight", "bias", "running_mean", "running_var"))
            nodes.append(f"{made} = BatchNormalization<momentum = {1 - layer.momentum}>({value}, {names})")
        else:
            kind = {nn.Tanh: "Tanh", nn.ReLU: "Relu", nn.Dropout: "Dropout"}[type(layer)]
            nodes.append(f"{made} = {kind}({value})")
        value = made
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    net (double[N, 6] x) => (double[N, 4] y) {{ {" ".join(nodes)} }}"""
    model = onnx.parser.parse_model(text)
    for name, tensor in net.state_dict().items():
        if "num_batches" not in name:
            model.graph.initializer.append(onnx.numpy_helper.from_array(tensor.numpy(), named(name)))
    return model


def named(name: str) -> str:
    """Return PyTorch's name of a weight as ONNX's text form takes it."""
    return "w" + name.replace(".", "_")


@pytest.fixture(scope="module")
def networks() -> tuple[nn.Sequential, nn.Sequential]:
    torch.manual_seed(12)
    return student().double(), teacher().double()


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield every batch of five epochs, each in another order."""
    rng = np.random.default_rng(8)
    x, labels = rng.normal(size=(SAMPLES, 6)), rng.integers(0, 4, SAMPLES)
    for _ in range(EPOCHS):
        order = rng.permutation(SAMPLES)
        for first in range(0, SAMPLES, BATCH):
            chosen = order[first : first + BATCH]
            yield x[chosen], labels[chosen]


def by_hand(net: nn.Module, big: nn.Module, optimizer: torch.optim.Optimizer, alpha: float, T: float) -> list[float]:
    big.eval()
    net.train()
    values = []
    for x, labels in batches():
        ours = net(torch.from_numpy(x))
        with torch.no_grad():
            theirs = big(torch.from_numpy(x))
        soft = (F.softmax(theirs / T, 1) * (F.log_softmax(theirs / T, 1) - F.log_softmax(ours / T, 1))).sum(1).mean()
        loss = alpha * T * T * soft + (1 - alpha) * F.cross_entropy(ours, torch.from_numpy(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(float(loss.detach()))
    return values


OPTIMIZERS = {
    "adam": (optimizers.TorchAdam(0.02), lambda weights: torch.optim.Adam(weights, 0.02)),
    "sgd": (onward.SGD(0.05, momentum=0.9), lambda weights: torch.optim.SGD(weights, 0.05, momentum=0.9)),
}


@pytest.mark.parametrize(("optimizer", "alpha", "temperature"), [("adam", 0.5, 4.0), ("sgd", 0.9, 1.5)])
def test_every_loss_and_every_weight_is_that_of_the_loop(
    networks, optimizer: str, alpha: float, temperature: float
) -> None:
    net, big = (copy.deepcopy(n) for n in networks)
    ours, theirs = OPTIMIZERS[optimizer]
    model = onward.make_trainable(
        exported(net), teacher=exported(big), optimizer=ours, unbiased_variance=True,
        loss=losses.Distillation(alpha=alpha, temperature=temperature),
    )  # fmt: skip
    trainer = onward.Trainer(model, backend="onnxruntime")

    found = [float(trainer.step({"x": x, "labels": labels})["loss"]) for x, labels in batches()]

    expected = by_hand(net, big, theirs(net.parameters()), alpha, temperature)
    assert len(found) == 25
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    tuned = {t.name: onnx.numpy_helper.to_array(t) for t in trainer.to_inference().graph.initializer}
    wanted = {named(name): value.numpy() for name, value in net.state_dict().items() if "num_batches" not in name}
    assert set(wanted) == set(tuned)
    for name, value in wanted.items():
        np.testing.assert_allclose(tuned[name], value, rtol=1e-10, atol=1e-12, err_msg=name)
