"""A small network and small weights, for the tests of make_trainable."""

from __future__ import annotations

import numpy as np

MLP = """
mlp (float[N, 3] x) => (float[N, 2] y) {
    h = MatMul(x, W1)
    a = Relu(h)
    y = MatMul(a, W2)
}
"""

_RNG = np.random.default_rng(3)


def f32(*shape: int) -> np.ndarray:
    return _RNG.normal(size=shape).astype(np.float32)


def operators(model) -> list[str]:
    return [n.op_type for n in model.entries[0].algorithm]


def gradient(model):
    (node,) = model.gradient_nodes()
    return node
