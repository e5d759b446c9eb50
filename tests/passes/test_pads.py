"""A Pad with `axes` comes out right on stock ONNX Runtime, whose optimizer moves a Transpose through it wrongly."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import onward
from onward.backends import open_session

# The Transposes cancel if they can pass the Pad, so ONNX Runtime moves the first one through it.
PADDED = """
<ir_version: 10, opset_import: ["" : 18]>
net (float[A, B, C] x, int64[K] amounts, int64[L] which) => (float[D, E, F] y)
<float[4] w = {1, 2, 3, 4}, int64[2] one = {1, 0}, int64[1] first = {-3}, int64[6] all = {1, 2, 3, 0, 0, 0},
 int64[3] order = {1, 0, 2}> {
    scaled = Mul(x, w)
    turned = Transpose <perm = [2, 0, 1]> (scaled)
    padded = Pad(turned, PADS, , AXES)
    y = Transpose <perm = [1, 2, 0]> (padded)
}"""
CASES = {
    "constants": ("one", "first"),
    "another order": ("all", "order"),
    "pads at run time": ("amounts", "first"),
    "axes at run time": ("amounts", "which"),
}
X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
FEEDS = {"x": X, "amounts": np.array([0, 2], np.int64), "which": np.array([-2], np.int64)}


def net(case: str) -> onnx.ModelProto:
    pads, axes = CASES[case]
    return onnx.parser.parse_model(PADDED.replace("PADS", pads).replace("AXES", axes))


def padded(case: str, w: np.ndarray) -> np.ndarray:
    """Return what the model computes, in numpy."""
    widths = {
        "constants": ((0, 0), (0, 0), (1, 0)),
        "another order": ((1, 0), (3, 0), (2, 0)),
        "pads at run time": ((0, 0), (0, 0), (0, 2)),
        "axes at run time": ((0, 2), (0, 0), (0, 0)),
    }[case]
    return np.pad(X * w, widths)


@pytest.mark.parametrize("case", CASES)
def test_a_model_with_such_a_pad_trains(case: str) -> None:
    model = onward.make_trainable(net(case), loss="mse", optimizer=onward.SGD(0.5), train="w")
    session = open_session(onward.compile(model), "onnxruntime")
    w = np.array([1, 2, 3, 4], np.float32)
    labels = np.ones_like(padded(case, w))

    loss = session.step({**FEEDS, "labels": labels})["loss"]

    np.testing.assert_allclose(loss, ((padded(case, w) - 1) ** 2).mean(), rtol=1e-6)
    slope = 2 * (X * w - 1) * X / labels.size
    np.testing.assert_allclose(session.get_state()["w"], w - 0.5 * slope.sum(axis=(0, 1)), rtol=1e-5)


# The gradient of a Slice is a Pad: here it is between the Transposes of the backward pass.
SLICED = """
<ir_version: 10, opset_import: ["" : 18]>
net (float[A, B, 4] x) => (float[D, E, F] y)
<float[4] w = {1, 2, 3, 4}, int64[1] start = {START}, int64[1] end = {END}, int64[1] axis = {0}> {
    scaled = Mul(x, w)
    turned = Transpose <perm = [2, 0, 1]> (scaled)
    cut = Slice(turned, start, end, axis)
    y = Transpose <perm = [1, 2, 0]> (cut)
}"""


def test_the_gradient_of_a_slice_between_transposes_runs_on_onnxruntime() -> None:
    text = SLICED.replace("START", "1").replace("END", "3")
    differentiated = onward.vjp(onnx.parser.parse_model(text), "y", "w")
    cotangent = np.random.default_rng(1).standard_normal((2, 3, 2)).astype(np.float32)
    session = onnxruntime.InferenceSession(differentiated.SerializeToString(), providers=["CPUExecutionProvider"])

    (dw,) = session.run(["grad/w"], {"x": X, "cotangent/y": cotangent})

    expected = np.zeros(4, np.float32)
    expected[1:3] = (X[:, :, 1:3] * cotangent).sum(axis=(0, 1))
    np.testing.assert_allclose(dw, expected, rtol=1e-5)


def test_a_pad_of_unknown_rank_keeps_its_axes() -> None:
    text = PADDED.replace("float[A, B, C] x", "float[] x").replace("PADS", "one").replace("AXES", "first")
    model = onnx.parser.parse_model(
        text.replace("turned = Transpose <perm = [2, 0, 1]> (scaled)", "turned = Neg(scaled)")
        .replace("y = Transpose <perm = [1, 2, 0]> (padded)", "y = Neg(padded)")
        .replace("float[D, E, F] y", "float[] y")
    )  # fmt: skip

    program = onward.compile(model)

    assert [len(n.input) for n in program.infer.graph.node if n.op_type == "Pad"] == [4]
