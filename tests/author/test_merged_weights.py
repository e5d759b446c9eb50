"""Initializers that an exporter merged because they were equal."""

from __future__ import annotations

import numpy as np

from author.small import f32
from onward.author import make_trainable
from onward.check import check


def test_zero_biases_of_two_layers_are_two_parameters(build) -> None:
    text = "m (float[N, 3] x) => (float[N, 3] y) { h = Gemm(x, a.weight, a.bias) y = Gemm(h, b.weight, a.bias) }"
    text = text.replace("a.", "a_").replace("b.w", "b_w")
    proto = build(text, a_weight=f32(3, 3), a_bias=np.zeros(3, np.float32), b_weight=f32(3, 3))
    for tensor in proto.graph.initializer:
        tensor.name = tensor.name.replace("_", ".")
    for node in proto.graph.node:
        node.input[:] = [n.replace("_", ".") for n in node.input]

    model = make_trainable(proto, loss="mse", optimizer="sgd")

    assert set(model.parameters) == {"a.weight", "a.bias", "b.weight", "b.bias"}


def test_a_layer_that_is_used_twice_stays_one(build) -> None:
    text = "m (float[N, 3] x) => (float[N, 3] y) { h = Gemm(x, W, b) y = Gemm(h, W, b) }"

    model = make_trainable(build(text, W=f32(3, 3), b=np.zeros(3, np.float32)), loss="mse", optimizer="sgd")

    assert set(model.parameters) == {"W", "b"}


def test_a_bias_that_two_layers_share_stays_one_if_it_was_trained(build) -> None:
    text = "m (float[N, 3] x) => (float[N, 3] y) { h = Gemm(x, W, b) y = Gemm(h, V, b) }"

    model = make_trainable(build(text, W=f32(3, 3), V=f32(3, 3), b=f32(3)), loss="mse", optimizer="sgd")

    assert set(model.parameters) == {"W", "V", "b"}


def test_untrained_normalisations_after_different_convolutions_are_separated(build) -> None:
    text = """
    m (float[N, 2, 4, 4] x) => (float[N, 2, 4, 4] y) {
        a = Conv(x, W)
        b = BatchNormalization(a, ones, zeros, zeros, ones)
        c = Conv(b, V)
        y = BatchNormalization(c, ones, zeros, zeros, ones)
    }
    """
    ones = np.ones(2, np.float32)

    model = make_trainable(
        build(text, W=f32(2, 2, 1, 1), V=f32(2, 2, 1, 1), ones=ones, zeros=0 * ones), loss="mse", optimizer="sgd"
    )

    assert len(model.parameters) == 6
    assert len(model.state) == 5
    assert check(model.proto(), pedantic=True).findings == ()


def test_biases_added_after_different_products_are_separated(build) -> None:
    text = "m (float[N, 3] x) => (float[N, 3] y) { p = MatMul(x, W) h = Add(p, b) q = MatMul(h, V) y = Add(q, b) }"

    model = make_trainable(build(text, W=f32(3, 3), V=f32(3, 3), b=np.zeros(3, np.float32)), loss="mse")

    assert len(model.parameters) == 4
