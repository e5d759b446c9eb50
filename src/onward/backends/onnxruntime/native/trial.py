"""The trial of a freshly compiled library: each kernel once, beside ONNX Runtime's own operators and numpy.

It runs in a process of its own, so that a library that crashes takes nothing with it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import onnxruntime
from onnx import parser

# Strides, pads and dilations differ, so that no two of them can be confused. `deep` is depthwise.
_SIZES = "9,8,3,2,2,1,1,2,1,0,2,1"  # H, W, kernel, strides, dilations, pads
_WINDOW = "strides = [2,1], dilations = [1,2], pads = [1,0,2,1]"
_EPSILON = 1e-3
_BITS = int(np.float32(_EPSILON).view(np.int32))
_MODEL = f"""<ir_version: 8, opset_import: ["": 18, "ai.onward.native": 1]>
trial (float[3,20,9,8] X, float[40,20,3,2] K, float[40] b, float[20,1,3,2] deep, float[3,40,5,7] dY,
       float[3,20,5,7] deep_dY, float[20] scale, float[20] shift, float[3,20,9,8] dN)
=> (float[] Y, float[] Y_, float[] dX, float[] dX_, float[] D, float[] D_, float[] dD, float[] dD_, float[] dK,
    float[] deep_dK, float[] N, float[] mean, float[] variance, float[] dM, float[] dscale, float[] dshift) {{
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
  N, mean, variance = ai.onward.native.Normalize <sizes: ints = [{_BITS},1]> (X, scale, shift)
  dM, dscale, dshift = ai.onward.native.NormalizeReluBack <sizes: ints = [{_BITS},1]> (dN, X, scale, mean, variance, N)
}}"""


def _expected(given: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield by name what numpy computes, in float64."""
    f = {name: array.astype(np.float64) for name, array in given.items()}
    padded = np.pad(f["X"], ((0, 0), (0, 0), (1, 2), (0, 1)))
    taps = [padded[:, :, y : y + 9 : 2, x : x + 7][:, :, :5] for y in range(3) for x in (0, 2)]
    columns = np.stack(taps, 2).reshape(3, 20, 6, 5, 7)
    yield "dK", np.einsum("nmyx,nctyx->mct", f["dY"], columns).reshape(40, 20, 3, 2)
    yield "deep_dK", np.einsum("ncyx,nctyx->ct", f["deep_dY"], columns).reshape(20, 1, 3, 2)
    axes, column = (0, 2, 3), (slice(None), None, None)
    mean, variance = f["X"].mean(axes, keepdims=True), f["X"].var(axes, keepdims=True)
    standard = (f["X"] - mean) / np.sqrt(variance + _EPSILON)
    Y = standard * f["scale"][column] + f["shift"][column]
    yield from (("N", np.maximum(Y, 0)), ("mean", mean.reshape(-1)), ("variance", variance.reshape(-1)))
    dY = f["dN"] * (Y > 0)
    rest = dY - dY.mean(axes, keepdims=True) - standard * (dY * standard).mean(axes, keepdims=True)
    yield "dM", rest * f["scale"][column] / np.sqrt(variance + _EPSILON)
    yield from (("dscale", (dY * standard).sum(axes)), ("dshift", dY.sum(axes)))


def main() -> None:
    """Exit with an error where a kernel of the library, the first argument, gives other numbers than it should."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.register_custom_ops_library(sys.argv[1])
    model = parser.parse_model(_MODEL).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    given = {i.name: random.standard_normal(i.shape, dtype=np.float32) for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    results = dict(zip(names, session.run(None, given), strict=True))
    theirs = {name: results[f"{name}_"] for name in names if f"{name}_" in results}
    for name, expected in {**theirs, **dict(_expected(given))}.items():
        off = np.abs(results[name] - expected).max() / np.abs(expected).max()
        if results[name].shape != expected.shape or not off < 1e-5:
            sys.exit(f"`{name}` differs by {off:.1e}")
