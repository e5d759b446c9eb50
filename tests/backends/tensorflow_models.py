"""Small networks of the usual kinds as ONNX text, for the tests of the tensorflow backend."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

import onward

Shapes = dict[str, tuple[int, ...]]

CNN = (
    """net (float[N,3,8,8] x) => (float[N,4] logits) {
        ratio = Constant <value = float {0.3}> ()
        a = Conv <pads = [1, 1, 1, 1]> (x, first)
        b = BatchNormalization (a, scale, shift, mean, var)
        c = Relu(b)
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
        d = Dropout(p, ratio)
        e = Conv <pads = [1, 1, 1, 1]> (d, second, bias)
        f = Relu(e)
        g = GlobalAveragePool(f)
        h = Flatten(g)
        logits = Gemm(h, head, offset)
    }""",
    {"first": (6, 3, 3, 3), "scale": (6,), "shift": (6,), "mean": (6,), "var": (6,), "second": (8, 6, 3, 3),
     "bias": (8,), "head": (8, 4), "offset": (4,)},
)  # fmt: skip
RESNET = (
    """net (float[N,3,8,8] x) => (float[N,4] logits) {
        a = Conv <pads = [1, 1, 1, 1]> (x, stem)
        b = BatchNormalization (a, s0, o0, m0, v0)
        c = Relu(b)
        p = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (c)
        d = Conv <pads = [1, 1, 1, 1]> (p, w1)
        e = BatchNormalization (d, s1, o1, m1, v1)
        f = Relu(e)
        g = Conv <pads = [1, 1, 1, 1]> (f, w2)
        h = BatchNormalization (g, s2, o2, m2, v2)
        i = Add(h, p)
        j = Relu(i)
        k = Conv <strides = [2, 2]> (j, skip)
        l = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (j, w3)
        m = Add(l, k)
        n = Relu(m)
        q = GlobalAveragePool(n)
        r = Flatten(q)
        logits = Gemm(r, head, offset)
    }""",
    {"stem": (6, 3, 3, 3), "w1": (6, 6, 3, 3), "w2": (6, 6, 3, 3), "w3": (8, 6, 3, 3), "skip": (8, 6, 1, 1),
     **{f"{k}{i}": (6,) for k in "somv" for i in range(3)}, "head": (8, 4), "offset": (4,)},
)  # fmt: skip
MOBILENET = (
    """net (float[N,3,8,8] x) => (float[N,4] logits) {
        low = Constant <value = float {0.0}> ()
        high = Constant <value = float {6.0}> ()
        a = Conv <pads = [0, 0, 1, 1], strides = [2, 2]> (x, stem)
        b = BatchNormalization (a, s0, o0, m0, v0)
        c = Clip(b, low, high)
        d = Conv (c, expand)
        e = Clip(d, low, high)
        f = Conv <group = 12, pads = [1, 1, 1, 1]> (e, depth)
        g = BatchNormalization (f, s1, o1, m1, v1)
        h = Clip(g, low, high)
        i = Conv (h, project)
        j = Add(i, c)
        axes = Constant <value_ints = [2, 3]> ()
        k = ReduceMean <keepdims = 1> (j, axes)
        l = Conv (k, squeeze)
        m = HardSigmoid(l)
        n = Mul(j, m)
        o = Concat <axis = 1> (n, j)
        p = ReduceMean <keepdims = 0> (o, axes)
        logits = Gemm(p, head, offset)
    }""",
    {"stem": (6, 3, 3, 3), "expand": (12, 6, 1, 1), "depth": (12, 1, 3, 3), "project": (6, 12, 1, 1),
     "squeeze": (6, 6, 1, 1), **{f"{k}0": (6,) for k in "somv"}, **{f"{k}1": (12,) for k in "somv"},
     "head": (12, 4), "offset": (4,)},
)  # fmt: skip
LSTM = (
    """net (float[N,7,5] x) => (float[N,4] logits) {
        a = Transpose <perm = [1, 0, 2]> (x)
        y, h, c = LSTM <hidden_size = 6, direction = "bidirectional"> (a, w, r, b)
        axis = Constant <value_ints = [0]> ()
        mean = ReduceMean <keepdims = 0> (y, axis)
        t = Transpose <perm = [1, 0, 2]> (mean)
        f = Flatten(t)
        logits = Gemm(f, head, offset)
    }""",
    {"w": (2, 24, 5), "r": (2, 24, 6), "b": (2, 48), "head": (12, 4), "offset": (4,)},
)
GRU = (
    """net (float[N,7,5] x) => (float[N,4] logits) {
        a = Transpose <perm = [1, 0, 2]> (x)
        y, h = GRU <hidden_size = 6, linear_before_reset = 1> (a, w, r, b)
        axis = Constant <value_ints = [0]> ()
        s = Squeeze(h, axis)
        logits = Gemm(s, head, offset)
    }""",
    {"w": (1, 18, 5), "r": (1, 18, 6), "b": (1, 36), "head": (6, 4), "offset": (4,)},
)
TRANSFORMER = (
    """net (float[N,7,8] x) => (float[N,4] logits) {
        shape = Constant <value_ints = [0, 0, 2, 4]> ()
        back = Constant <value_ints = [0, 0, 8]> ()
        axis = Constant <value_ints = [1]> ()
        half = Constant <value = float {0.5}> ()
        n = LayerNormalization (x, gain, shift)
        q0 = MatMul(n, wq)
        q1 = Reshape(q0, shape)
        q = Transpose <perm = [0, 2, 1, 3]> (q1)
        k0 = MatMul(n, wk)
        k1 = Reshape(k0, shape)
        k = Transpose <perm = [0, 2, 3, 1]> (k1)
        v0 = MatMul(n, wv)
        v1 = Reshape(v0, shape)
        v = Transpose <perm = [0, 2, 1, 3]> (v1)
        s0 = MatMul(q, k)
        s1 = Mul(s0, half)
        s = Softmax <axis = -1> (s1)
        a0 = MatMul(s, v)
        a1 = Transpose <perm = [0, 2, 1, 3]> (a0)
        a = Reshape(a1, back)
        b = Add(a, x)
        c = MatMul(b, up)
        d = Gelu(c)
        e = MatMul(d, down)
        f = Add(e, b)
        g = ReduceMean <keepdims = 0> (f, axis)
        logits = Gemm(g, head, offset)
    }""",
    {"gain": (8,), "shift": (8,), "wq": (8, 8), "wk": (8, 8), "wv": (8, 8), "up": (8, 16), "down": (16, 8),
     "head": (8, 4), "offset": (4,)},
)  # fmt: skip
NETWORKS = {
    "cnn": CNN, "resnet": RESNET, "mobilenet": MOBILENET, "lstm": LSTM, "gru": GRU, "transformer": TRANSFORMER,
}  # fmt: skip


def network(name: str, dtype: type = np.float32) -> onnx.ModelProto:
    """Return one of `NETWORKS` with random weights."""
    text, shapes = NETWORKS[name]
    if dtype == np.float64:
        text = text.replace("float[", "double[").replace("float {", "double {")
    return with_weights(f'<ir_version: 10, opset_import: ["" : 20]>\n{text}', shapes, dtype)


def with_weights(text: str, shapes: Shapes, dtype: type = np.float32) -> onnx.ModelProto:
    """Return a model of ONNX text with random weights of these shapes; variances are positive."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(text)
    for name, shape in shapes.items():
        fan = np.prod(shape[1:]) if len(shape) > 1 else 4
        drawn = rng.standard_normal(shape) / np.sqrt(max(fan, 1))
        drawn = 1 + abs(drawn) if name[0] in "sv" and len(shape) == 1 else drawn
        model.graph.initializer.append(numpy_helper.from_array(drawn.astype(dtype), name))
    return model


def trained(
    name: str, dtype: type = np.float32, optimizer: onward.optimizers.Optimizer | None = None
) -> onward.TrainingModel:
    """Return one of `NETWORKS` with cross-entropy and, if no other is given, momentum."""
    chosen = optimizer or onward.Momentum(0.05, momentum=0.9)
    return onward.make_trainable(network(name, dtype), loss="cross_entropy", optimizer=chosen)


def batches(name: str, sizes: list[int], dtype: type = np.float32) -> list[dict[str, np.ndarray]]:
    """Return one batch for each of `sizes`, all different."""
    rng = np.random.default_rng(1)
    shape = [d.dim_value for d in network(name).graph.input[0].type.tensor_type.shape.dim][1:]
    return [{"x": rng.standard_normal((n, *shape)).astype(dtype), "labels": rng.integers(0, 4, n)} for n in sizes]
