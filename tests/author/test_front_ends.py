"""Front ends of speech models: window, Fourier transform, mel filters, logarithm; the window and the filters train."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import onward
from onward.backends import open_session

# As exported speech models have it: the signal of STFT is [batch, length], without a last dimension for its parts.
STFT = "spectrum = STFT <onesided = 1> (x, step, window)"
DFT = """
    frames = Gather <axis = 1> (x, places)
    windowed = Mul(frames, window)
    parts = Unsqueeze(windowed, last)
    spectrum = DFT <axis = 2, onesided = 1> (parts)"""
FRONT_END = """
<ir_version: 8, opset_import: ["" : 17]>
features (double[N, L] x) => (double[N, M, T] y)
<int64 step = {3}, int64[1] last = {-1}, double low = {1e-9}> {
    TRANSFORM
    power = ReduceSumSquare <axes = [-1], keepdims = 0> (spectrum)
    bands = MatMul(power, filters)
    clipped = Clip(bands, low)
    loud = Log(clipped)
    y = Transpose <perm = [0, 2, 1]> (loud)
}"""
PLACES = np.arange(0, 15, 3)[:, np.newaxis] + np.arange(8)  # of the samples in the frames

RNG = np.random.default_rng(0)
X, LABELS = RNG.standard_normal((2, 20)), RNG.standard_normal((2, 4, 5))
WEIGHTS = {"window": np.hanning(10)[1:-1].copy(), "filters": RNG.uniform(0.1, 1.0, (5, 4))}


def front_end(transform: str, *, constants: bool = False, dtype: type = np.float64) -> onnx.ModelProto:
    text = FRONT_END.replace("TRANSFORM", transform)
    if dtype is np.float32:  # the weights stay in float64, as some exporters write them
        text = text.replace("double", "float").replace("window)", "narrow_window)").replace("filters)", "narrow)")
    model = onnx.parser.parse_model(text)
    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in WEIGHTS.items()]
    model.graph.initializer.append(onnx.numpy_helper.from_array(PLACES, "places"))
    made = [onnx.helper.make_node("Constant", [], [t.name], value=t) for t in tensors] if constants else []
    if dtype is np.float32:
        for name, narrow in (("window", "narrow_window"), ("filters", "narrow")):
            made.append(onnx.helper.make_node("Cast", [name], [narrow], to=onnx.TensorProto.FLOAT))
    for node in reversed(made):
        model.graph.node.insert(0, node)
    if not constants:
        model.graph.initializer.extend(tensors)
    return model


def loss_on_onnxruntime(model: onnx.ModelProto, weights: dict[str, np.ndarray]) -> float:
    moved = onnx.ModelProto()
    moved.CopyFrom(model)
    for tensor in moved.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(onnx.numpy_helper.from_array(weights[tensor.name], tensor.name))
    session = onnxruntime.InferenceSession(moved.SerializeToString(), providers=["CPUExecutionProvider"])
    return float(((session.run(["y"], {"x": X})[0] - LABELS) ** 2).mean())


@pytest.mark.parametrize("transform", [STFT, DFT], ids=["STFT", "DFT"])
def test_the_gradient_is_the_slope_of_onnxruntimes_own_forward(transform: str) -> None:
    net = front_end(transform)
    program = onward.compile(onward.make_trainable(net, loss="mse", optimizer="sgd"), split=True)
    session = open_session(program, "onnxruntime")

    found = session.run_graph(program.first.gradients, {"x": X, "labels": LABELS})

    np.testing.assert_allclose(found["loss"], loss_on_onnxruntime(net, {}), rtol=1e-12)
    for name, value in WEIGHTS.items():
        direction = RNG.standard_normal(value.shape)
        up, down = (loss_on_onnxruntime(net, {name: value + h * direction}) for h in (1e-6, -1e-6))
        np.testing.assert_allclose((found[f"grad/{name}"] * direction).sum(), (up - down) / 2e-6, rtol=1e-6)


@pytest.mark.parametrize("constants", [False, True], ids=["initializers", "Constant nodes"])
@pytest.mark.parametrize("transform", [STFT, DFT], ids=["STFT", "DFT"])
def test_weights_of_float64_in_a_float32_model_train_alike_on_every_backend(transform: str, constants: bool) -> None:
    net = front_end(transform, constants=constants, dtype=np.float32)
    program = onward.compile(onward.make_trainable(net, loss="mse", optimizer=onward.SGD(1e-3)), split=True)
    assert sorted(program.parameters) == ["filters", "window"]
    feeds = {"x": X.astype(np.float32), "labels": LABELS.astype(np.float32)}
    sessions = [
        open_session(program, "onnxruntime"),
        open_session(program, "reference"),
        open_session(program, "torch", gradients="graph"),
        open_session(program, "torch", gradients="auto"),
    ]

    losses = np.array([[float(session.step(feeds)["loss"]) for _ in range(3)] for session in sessions])

    assert np.all(np.diff(losses) < 0)
    for row in losses[1:]:
        np.testing.assert_allclose(row, losses[0], rtol=1e-4)
    for name, value in WEIGHTS.items():
        moves = [session.get_state()[name] - value for session in sessions]
        for move in moves:
            np.testing.assert_allclose(move, moves[0], atol=1e-3 * np.abs(moves[0]).max())
