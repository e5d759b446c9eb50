"""Ready-made training models: small, byte-identical files for testing other tools.

>>> build("linear").targets
['labels']
"""

from __future__ import annotations

from collections.abc import Callable

from onward.arguments import check_name
from onward.model.training_model import TrainingModel
from onward.samples.images import digits, digits_network, mnist, mnist_network
from onward.samples.linear import linear
from onward.samples.network import Network

SAMPLES: dict[str, Callable[[], TrainingModel]] = {"digits": digits, "linear": linear, "mnist": mnist}


def build(name: str) -> TrainingModel:
    """Return the sample of that name; an unknown name is an error that lists the samples."""
    check_name("sample", name, SAMPLES)
    return SAMPLES[name]()


def perceptron(inputs: int = 3, hidden: int = 4, outputs: int = 2) -> TrainingModel:
    """Return a tiny inference model for examples and tests: `x` → W1, b1 → Relu → W2, b2 → `y`."""
    net = Network("perceptron", "x", ("N", inputs))
    h = net.op.MatMul(net.input, net.weight("W1", (inputs, hidden), fan_in=inputs))
    h = net.op.Relu(net.op.Add(h, net.weight("b1", (hidden,))))
    y = net.op.MatMul(h, net.weight("W2", (hidden, outputs), fan_in=hidden))
    y = net.op.Add(y, net.weight("b2", (outputs,)))
    return net.finish(y, "y", ("N", outputs), "A perceptron with one hidden layer.")


__all__ = ["SAMPLES", "build", "digits", "digits_network", "linear", "mnist", "mnist_network", "perceptron"]
