"""Training models for the tests of the IREE backend, one of each kind of step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import numpy_helper, parser

import onward
from models import dropout_network, perceptron
from onward.samples import build


def network(text: str, weights: Mapping[str, tuple[int, ...]], *, opset: int = 18, ones: str = "") -> onnx.ModelProto:
    """Return a model in ONNX's text form with random weights; those that `ones` names are ones."""
    rng = np.random.default_rng(0)
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {text}')
    for name, shape in weights.items():
        fan = max(1, int(np.prod(shape[1:])))
        value = np.ones(shape) if name in ones.split() else rng.standard_normal(shape) / fan**0.5
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    return model


def _classifier(model: onnx.ModelProto, optimizer: object) -> onward.TrainingModel:
    return onward.make_trainable(model, loss="cross_entropy", optimizer=optimizer)


def norm_gelu_dropout() -> onward.TrainingModel:
    """LayerNormalization, Gelu and Dropout."""
    text = """g (float[N, 6] x) => (float[N, 3] y) {
        h = Gemm(x, W0, b0)  n = LayerNormalization(h, g0, z0)  r = Gelu(n)
        ratio = Constant <value_float = 0.3> ()  d = Dropout(r, ratio)  y = Gemm(d, W1, b1) }"""
    sizes = {"W0": (6, 16), "b0": (16,), "g0": (16,), "z0": (16,), "W1": (16, 3), "b1": (3,)}
    return _classifier(network(text, sizes, opset=20, ones="g0"), onward.Adam(1e-3))


def batch_norm_conv() -> onward.TrainingModel:
    """Convolution, BatchNormalization and a mean over the image."""
    text = """g (float[N, 1, 8, 8] x) => (float[N, 3] y) {
        c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (x, C)
        n = BatchNormalization(c, s, b, mean, var)  r = Relu(n)  p = GlobalAveragePool(r)  f = Flatten(p)
        y = Gemm(f, W, v) }"""
    sizes = {"C": (4, 1, 3, 3), "s": (4,), "b": (4,), "mean": (4,), "var": (4,), "W": (4, 3), "v": (3,)}
    return _classifier(network(text, sizes, ones="s var"), onward.Adam(1e-3))


def lstm() -> onward.TrainingModel:
    """An LSTM over six steps; its gradient is a Scan."""
    text = """g (float[N, 6, 5] x) => (float[N, 3] y) {
        t = Transpose <perm = [1, 0, 2]> (x)  s, h, c = LSTM <hidden_size = 7> (t, W, R, B)
        axes = Constant <value_ints = [0]> ()  q = Squeeze(h, axes)  y = Gemm(q, V, b) }"""
    sizes = {"W": (1, 28, 5), "R": (1, 28, 7), "B": (1, 56), "V": (7, 3), "b": (3,)}
    return _classifier(network(text, sizes), onward.Adam(1e-3))


def transformer() -> onward.TrainingModel:
    """One block of attention over an embedding, with residuals and a mean over the tokens."""
    text = """g (int64[N, 6] tokens) => (float[N, 3] y) {
        e = Gather(E, tokens)  x = Add(e, P)  n = LayerNormalization(x, g0, z0)
        q = MatMul(n, Q)  k = MatMul(n, K)  v = MatMul(n, V)  kt = Transpose <perm = [0, 2, 1]> (k)
        scores = MatMul(q, kt)  scale = Constant <value_float = 0.35355339> ()  scaled = Mul(scores, scale)
        a = Softmax <axis = -1> (scaled)  o = MatMul(a, v)  r = Add(x, o)
        m = LayerNormalization(r, g1, z1)  u = MatMul(m, A)  w = Gelu(u)  d = MatMul(w, D)  s = Add(r, d)
        axes = Constant <value_ints = [1]> ()  p = ReduceMean <keepdims = 0> (s, axes)  y = Gemm(p, W, b) }"""
    sizes: dict[str, tuple[int, ...]] = {"E": (11, 8), "P": (6, 8), "g0": (8,), "z0": (8,), "g1": (8,), "z1": (8,)}
    sizes |= {"Q": (8, 8), "K": (8, 8), "V": (8, 8), "A": (8, 16), "D": (16, 8), "W": (8, 3), "b": (3,)}
    return _classifier(network(text, sizes, opset=20, ones="g0 g1"), onward.Adam(1e-3))


def two_entries() -> onward.TrainingModel:
    """Two training entries with targets of their own."""
    first = onward.make_trainable(
        perceptron(), loss="cross_entropy", optimizer=onward.SGD(0.05), train=["W1", "b1"], loss_name="first_loss"
    )
    return onward.make_trainable(
        first, loss="mse", optimizer=onward.SGD(0.05), train=["W0", "b0"], entry="second", loss_name="second_loss",
        label="goal",
    )  # fmt: skip


MODELS: dict[str, Callable[[], onward.TrainingModel]] = {
    "linear": lambda: build("linear"),
    "digits": lambda: build("digits"),
    "mnist": lambda: build("mnist"),
    "mlp-sgd": lambda: _classifier(perceptron((6, 16, 3)), onward.SGD(0.05, momentum=0.9)),
    "mlp-adam": lambda: _classifier(perceptron((6, 16, 3)), onward.Adam(1e-3)),
    "dropout": lambda: _classifier(dropout_network(), onward.SGD(0.05)),
    "norm-gelu-dropout": norm_gelu_dropout,
    "batch-norm": batch_norm_conv,
    "lstm": lstm,
    "transformer": transformer,
    "two-entries": two_entries,
}


def batches(trainer: onward.Trainer, count: int, rows: int = 8, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Return made-up batches that fit a model."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        made: dict[str, np.ndarray] = {}
        for spec in (*trainer.program.inputs, *trainer.program.targets):
            shape = [d if isinstance(d, int) else rows for d in spec.shape]
            whole = spec.dtype == "int64"
            made[spec.name] = rng.integers(0, 3, shape) if whole else rng.standard_normal(shape).astype(spec.dtype)
        found.append(made)
    return found
