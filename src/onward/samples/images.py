"""Two small networks for images of digits: 8×8 (scikit-learn's) and 28×28 (MNIST)."""

from __future__ import annotations

from onward.author import make_trainable
from onward.losses import CrossEntropy
from onward.model.training_model import TrainingModel
from onward.optimizers import Adam
from onward.samples.network import Network


def digits_network() -> TrainingModel:
    """Return the inference model of `digits`: `images` float32 [N, 1, 8, 8] to `logits` [N, 10]."""
    net = Network("digits", "images", ("N", 1, 8, 8))
    x = net.op.Relu(net.conv(net.input, "conv1", (1, 16), kernel=3, pad=1))
    x = net.pool(net.op.Relu(net.conv(x, "conv2", (16, 32), kernel=3, pad=1)))
    x = net.op.Flatten(x, axis=1)
    x = net.op.Relu(net.dense(x, "fc1", 32 * 4 * 4, 64))
    return net.finish(net.dense(x, "fc2", 64, 10), "logits", ("N", 10), "A small convolutional network for 8×8 digits.")


def mnist_network() -> TrainingModel:
    """Return the inference model of `mnist`: `images` float32 [N, 1, 28, 28] to `logits` [N, 10]."""
    net = Network("mnist", "images", ("N", 1, 28, 28))
    x = net.pool(net.op.Relu(net.conv(net.input, "conv1", (1, 6), kernel=5, pad=2)))
    x = net.pool(net.op.Relu(net.conv(x, "conv2", (6, 16), kernel=5, pad=0)))
    x = net.op.Flatten(x, axis=1)
    x = net.op.Relu(net.dense(x, "fc1", 16 * 5 * 5, 120))
    x = net.op.Relu(net.dense(x, "fc2", 120, 84))
    return net.finish(net.dense(x, "fc3", 84, 10), "logits", ("N", 10), "LeNet-5 with ReLU and max pooling, 28×28.")


def digits() -> TrainingModel:
    """Return `digits`, trainable: cross entropy, Adam with a rate of 0.001, He initialisation."""
    return _trainable(digits_network())


def mnist() -> TrainingModel:
    """Return `mnist`, trainable: cross entropy, Adam with a rate of 0.001, He initialisation."""
    return _trainable(mnist_network())


def _trainable(network: TrainingModel) -> TrainingModel:
    return make_trainable(network, loss=CrossEntropy(), optimizer=Adam(1e-3))
