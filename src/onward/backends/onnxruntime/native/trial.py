"""The trial of a freshly compiled library: each kernel once, beside ONNX Runtime's own operators and numpy.

It runs in a process of its own, so that a library that crashes takes nothing with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnxruntime
from onnx import parser

Arrays = Mapping[str, np.ndarray]

_HEADER = '<ir_version: 8, opset_import: ["": 18, "ai.onward.native": 1]>'
_EPSILON = 1e-3
_BITS, _ONE, _HALF = (int(np.float32(number).view(np.int32)) for number in (_EPSILON, 1.0, 0.5))
_OFF = 1e-5  # of the largest element
_OFF_IN_PRODUCTS = 2e-6  # a third part of a float32 that is missing is found

# -- convolutions, pools, batch normalisation -------------------------------------------------------------------------

# Strides, pads and dilations differ, so that no two of them can be confused. `deep` is depthwise.
_SIZES = "9,8,3,2,2,1,1,2,1,0,2,1"  # H, W, kernel, strides, dilations, pads
_WINDOW = "strides = [2,1], dilations = [1,2], pads = [1,0,2,1]"
_IMAGES = f"""{_HEADER}
trial (float[3,20,9,8] X, float[39,20,3,2] K, float[39] b, float[20,1,3,2] deep, float[3,39,5,7] dY,
       float[3,20,5,7] deep_dY, float[20] scale, float[20] shift, float[3,20,9,8] dN)
=> (float[] Y, float[] Y_, float[] dX, float[] dX_, float[] D, float[] D_, float[] dD, float[] dD_, float[] dK,
    float[] deep_dK, float[] dP, float[] N, float[] mean, float[] variance, float[] dM, float[] dscale,
    float[] dshift) {{
  Y = ai.onward.native.ConvolveBiased <sizes: ints = [{_SIZES},1,1]> (X, K, b)
  plain = Conv <{_WINDOW}> (X, K, b)
  Y_ = Relu (plain)
  dX = ai.onward.native.ConvolveBack <sizes: ints = [{_SIZES},1]> (dY, K)
  dX_ = ConvTranspose <{_WINDOW}, output_padding = [1,0]> (dY, K)
  D = ai.onward.native.Convolve <sizes: ints = [{_SIZES},20,0]> (X, deep)
  D_ = Conv <{_WINDOW}, group = 20> (X, deep)
  dD = ai.onward.native.ConvolveBack <sizes: ints = [{_SIZES},20]> (deep_dY, deep)
  dD_ = ConvTranspose <{_WINDOW}, output_padding = [1,0], group = 20> (deep_dY, deep)
  dK = ai.onward.native.KernelGradient <sizes: ints = [{_SIZES},1]> (X, dY)
  deep_dK = ai.onward.native.KernelGradient <sizes: ints = [{_SIZES},20]> (X, deep_dY)
  P = MaxPool <kernel_shape = [3,2], {_WINDOW}> (X)
  dP = ai.onward.native.PoolBack <sizes: ints = [{_SIZES},1]> (X, P, deep_dY)
  N, mean, variance = ai.onward.native.Normalize <sizes: ints = [{_BITS},1]> (X, scale, shift)
  dM, dscale, dshift = ai.onward.native.NormalizeReluBack <sizes: ints = [{_BITS},1]> (dN, X, scale, mean, variance, N)
}}"""


def _images(given: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    """Yield by name what numpy computes, in float64."""
    padded = np.pad(given["X"], ((0, 0), (0, 0), (1, 2), (0, 1)))
    taps = [padded[:, :, y : y + 9 : 2, x : x + 7][:, :, :5] for y in range(3) for x in (0, 2)]
    columns = np.stack(taps, 2).reshape(3, 20, 6, 5, 7)
    yield "dK", np.einsum("nmyx,nctyx->mct", given["dY"], columns).reshape(39, 20, 3, 2)
    yield "deep_dK", np.einsum("ncyx,nctyx->ct", given["deep_dY"], columns).reshape(20, 1, 3, 2)
    yield "dP", _pool_gradient(padded, given["deep_dY"])[:, :, 1:10, :8]
    axes, column = (0, 2, 3), (slice(None), None, None)
    mean, variance = given["X"].mean(axes, keepdims=True), given["X"].var(axes, keepdims=True)
    standard = (given["X"] - mean) / np.sqrt(variance + _EPSILON)
    Y = standard * given["scale"][column] + given["shift"][column]
    yield from (("N", np.maximum(Y, 0)), ("mean", mean.reshape(-1)), ("variance", variance.reshape(-1)))
    dY = given["dN"] * (Y > 0)
    rest = dY - dY.mean(axes, keepdims=True) - standard * (dY * standard).mean(axes, keepdims=True)
    yield "dM", rest * given["scale"][column] / np.sqrt(variance + _EPSILON)
    yield from (("dscale", (dY * standard).sum(axes)), ("dshift", dY.sum(axes)))


def _pool_gradient(padded: np.ndarray, dY: np.ndarray) -> np.ndarray:
    """Return dX with its pads; these are never the largest of a window."""
    inside = np.zeros(padded.shape, bool)
    inside[:, :, 1:10, :8] = True
    values, dX = np.where(inside, padded, -np.inf), np.zeros(padded.shape)
    for n, c, y, x in np.ndindex(dY.shape):
        places = [(n, c, 2 * y + a, x + b) for a in range(3) for b in (0, 2)]
        dX[max(places, key=lambda place: values[place])] += dY[n, c, y, x]
    return dX


# -- rows -------------------------------------------------------------------------------------------------------------

_ROWS = f"""{_HEADER}
trial (float[5,7,37] X, float[37] scale, float[37] shift, float[5,7,37] dY, float[35,37] scores, int64[35] labels)
=> (float[] N, float[] N_, float[] mean, float[] mean_, float[] inverse, float[] inverse_, float[] dN, float[] dscale,
    float[] dshift, float[] dS, float[] dR, float[] sum, float[] rows, float[] loss, float[] loss_, float[] dscores) {{
  N, mean, inverse = ai.onward.native.NormalizeRows <sizes: ints = [{_BITS}]> (X, scale, shift)
  N_, mean_, inverse_ = LayerNormalization <epsilon = {_EPSILON}> (X, scale, shift)
  dN, dscale, dshift = ai.onward.native.NormalizeRowsBack <sizes: ints = [0]> (X, scale, mean, inverse, dY)
  S = Softmax (X)
  dS = ai.onward.native.SoftmaxBack <sizes: ints = [0]> (dY, S)
  R = Relu (X)
  dR, sum = ai.onward.native.ReluSumBack <sizes: ints = [1]> (dY, R)
  rows = ai.onward.native.SumRows <sizes: ints = [0]> (X)
  loss, dscores = ai.onward.native.CrossEntropy <sizes: ints = [3,{_ONE}]> (scores, labels)
  loss_ = SoftmaxCrossEntropyLoss <ignore_index = 3> (scores, labels)
}}"""


def _rows(given: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    X, dY, scale, labels = given["X"], given["dY"], given["scale"], given["labels"].astype(int)
    standard = (X - X.mean(-1, keepdims=True)) / np.sqrt(X.var(-1, keepdims=True) + _EPSILON)
    d = dY * scale
    rest = d - d.mean(-1, keepdims=True) - standard * (d * standard).mean(-1, keepdims=True)
    yield "dN", rest / np.sqrt(X.var(-1, keepdims=True) + _EPSILON)
    yield from (("dscale", (dY * standard).sum((0, 1))), ("dshift", dY.sum((0, 1))))
    softmax = _softmax(X)
    yield "dS", softmax * (dY - (dY * softmax).sum(-1, keepdims=True))
    dR = dY * (X > 0)
    yield from (("dR", dR), ("sum", dR.sum((0, 1))), ("rows", X.sum((0, 1))))
    kept = labels != 3
    yield "dscores", (_softmax(given["scores"]) - np.eye(37)[labels]) * kept[:, None] / kept.sum()


def _softmax(X: np.ndarray) -> np.ndarray:
    powers = np.exp(X - X.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


# -- recurrences: 4 steps, 9 rows, 21 units ---------------------------------------------------------------------------

_RECURRENT = f"""{_HEADER}
trial (float[4,9,84] X, float[1,84,21] R, float[9,21] h, float[9,21] c, float[4,9,63] gX, float[1,63,21] gR,
       float[63] gb, float[9,21] dh, float[9,21] dc, float[4,9,21] dY)
=> (float[] H, float[] C, float[] Hs, float[] Cs, float[] dh0, float[] dc0, float[] dA, float[] G, float[] Gs,
    float[] gdh0, float[] gdX, float[] gdA) {{
  H, C, Hs, Cs, kept = ai.onward.native.Lstm <sizes: ints = [21,4]> (X, R, h, c)
  dh0, dc0, dA = ai.onward.native.LstmBackAll <sizes: ints = [21,4]> (kept, R, dh, c, Cs, dc, dY)
  G, Gs, gkept = ai.onward.native.GruBiased <sizes: ints = [21,3]> (gX, gR, h, gb)
  gdh0, gdX, gdA = ai.onward.native.GruBackAll <sizes: ints = [21,3]> (gkept, gR, dh, h, Gs, dY)
}}"""


def _recurrent(given: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    yield from _lstm(given)
    yield from _gru(given)


def _lstm(given: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    h, c, R = given["h"], given["c"], given["R"][0]
    hidden, cells, gates = [], [c], []
    for x in given["X"]:
        *bounded, candidate = np.split(x + h @ R.T, 4, -1)
        i, o, f = (_sigmoid(gate) for gate in bounded)
        gates.append((i, o, f, np.tanh(candidate)))
        c = f * c + i * gates[-1][3]
        h = o * np.tanh(c)
        hidden.append(h)
        cells.append(c)
    yield from (("H", h), ("C", c), ("Hs", np.stack(hidden)), ("Cs", np.stack(cells[1:])))
    dh, dc, dA = given["dh"], given["dc"], np.zeros(given["X"].shape)
    for t in reversed(range(len(gates))):
        (i, o, f, g), bent = gates[t], np.tanh(cells[t + 1])
        dh = dh + given["dY"][t]
        dc = dc + dh * o * (1 - bent**2)
        slopes = (dc * g * i * (1 - i), dh * bent * o * (1 - o), dc * cells[t] * f * (1 - f), dc * i * (1 - g**2))
        dA[t] = np.concatenate(slopes, -1)
        dh, dc = dA[t] @ R, dc * f
    yield from (("dA", dA), ("dh0", dh), ("dc0", dc))


def _gru(given: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    h, R = given["h"], given["gR"][0]
    hidden, gates = [h], []
    for x in given["gX"]:
        (xz, xr, xh), (hz, hr, inner) = np.split(x, 3, -1), np.split(h @ R.T + given["gb"], 3, -1)
        z, r = _sigmoid(xz + hz), _sigmoid(xr + hr)
        gates.append((z, r, np.tanh(xh + r * inner), inner))
        h = (1 - z) * gates[-1][2] + z * h
        hidden.append(h)
    yield from (("G", h), ("Gs", np.stack(hidden[1:])))
    dh, dX, dA = given["dh"], np.zeros(given["gX"].shape), np.zeros(given["gX"].shape)
    for t in reversed(range(len(gates))):
        z, r, n, inner = gates[t]
        dh = dh + given["dY"][t]
        dn = dh * (1 - z) * (1 - n**2)
        slopes = (dh * (hidden[t] - n) * z * (1 - z), dn * inner * r * (1 - r))
        dX[t], dA[t] = np.concatenate((*slopes, dn), -1), np.concatenate((*slopes, dn * r), -1)
        dh = dh * z + dA[t] @ R
    yield from (("gdX", dX), ("gdA", dA), ("gdh0", dh))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


# -- all of them ------------------------------------------------------------------------------------------------------

# -- products ----------------------------------------------------------------------------------------------------------

_PRODUCTS = f"""{_HEADER}
trial (float[2,3,70,75] A, float[3,75,45] B, float[100,70] D, float[100,70] W, float[100] c, float[100,530] E,
       float[530] e, float[100,7] F)
=> (float[] batch, float[] biased, float[] turned, float[] thin) {{
  batch = ai.onward.native.Multiply <sizes: ints = [0,0,0,{_HALF},2]> (A, B)
  biased = ai.onward.native.MultiplyBiased <sizes: ints = [0,1,1,{_ONE},2]> (D, W, c)
  turned = ai.onward.native.MultiplyBiased <sizes: ints = [1,0,0,{_HALF},2]> (D, E, e)
  thin = ai.onward.native.MultiplyBiased <sizes: ints = [1,0,1,{_HALF},2]> (F, E, e)
}}"""


def _products(given: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    yield "batch", given["A"] @ given["B"] / 2
    yield "biased", np.maximum(given["D"] @ given["W"].T + given["c"], 0)
    yield "turned", given["D"].T @ given["E"] / 2 + given["e"]
    yield "thin", np.maximum(given["F"].T @ given["E"] / 2 + given["e"], 0)


_TRIALS = {
    "images": (_OFF, _IMAGES, _images),
    "products": (_OFF_IN_PRODUCTS, _PRODUCTS, _products),
    "recurrences": (_OFF, _RECURRENT, _recurrent),
    "rows": (_OFF, _ROWS, _rows),
}


def main(library: str, parts: Sequence[str]) -> None:
    """Exit with an error where a kernel of these parts of the library gives other numbers than it should."""
    for part in parts:
        _compare(library, *_TRIALS[part])


def _compare(
    library: str, most: float, text: str, expected: Callable[[Arrays], Iterator[tuple[str, np.ndarray]]]
) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.register_custom_ops_library(library)
    model = parser.parse_model(text).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    given = {
        i.name: random.integers(0, 37, i.shape) if "int" in i.type else random.standard_normal(i.shape, np.float32)
        for i in session.get_inputs()
    }
    names = [o.name for o in session.get_outputs()]
    results = dict(zip(names, session.run(None, given), strict=True))
    theirs = {name: results[f"{name}_"] for name in names if f"{name}_" in results}
    ours = expected({name: array.astype(np.float64) for name, array in given.items()})
    for name, right in {**theirs, **dict(ours)}.items():
        off = np.abs(results[name] - right).max() / np.abs(right).max()
        if results[name].shape != right.shape or not off < most:
            sys.exit(f"`{name}` differs by {off:.1e}")
