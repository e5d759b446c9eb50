"""Gradients through rounding are refused unless chosen, and are PyTorch's when chosen."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import parser

from cases import array
from onward.autodiff.rules.quantization import straight_through
from onward.backends.reference import Evaluator
from onward.compiler.derivatives import gradient
from onward.errors import NotDifferentiable


def parse(text: str, opset: int = 21) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')


def pair(scale: str, attributes: str = "", opset: int = 21) -> onnx.ModelProto:
    """Return a model that quantizes x to int8 and back, times c."""
    text = f"""net (float[3,4] x, float{scale} s, int8{scale} z, float[3,4] c) => (float[3,4] y)
        {{ q = QuantizeLinear{attributes}(x, s, z) d = DequantizeLinear{attributes}(q, s, z) y = Mul(d, c) }}"""
    return parse(text, opset)


FEEDS = {"x": (array(3, 4) * 30).astype(np.float32), "c": array(3, 4, seed=1).astype(np.float32)}


def test_gradient_behind_rounding_is_refused_and_says_how_to_choose() -> None:
    with pytest.raises(NotDifferentiable, match=r"with onward\.straight_through\(\):"):
        gradient(pair(""), of="y", wrt=["x"])


@pytest.mark.parametrize("opset", [18, 21, 28])
def test_straight_through_per_tensor_agrees_with_torch(opset: int) -> None:
    feeds = {**FEEDS, "s": np.array(0.3, np.float32), "z": np.array(4, np.int8)}

    with straight_through():
        lowered = gradient(pair("", opset=opset), of="y", wrt=["x", "s"])
    actual = Evaluator(lowered).run(feeds)

    x, s = torch.tensor(feeds["x"], requires_grad=True), torch.tensor([0.3], requires_grad=True)
    z = torch.tensor([4.0], requires_grad=True)
    learned = torch._fake_quantize_learnable_per_tensor_affine(x, s, z, -128, 127)
    (learned * torch.tensor(feeds["c"])).sum().backward()
    assert (actual["grad/x"] == 0).any()  # some elements are out of range
    np.testing.assert_allclose(actual["grad/x"], x.grad, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(actual["grad/s"], s.grad[0], rtol=1e-4)


def test_straight_through_per_channel_agrees_with_torch() -> None:
    s, z = array(4, low=0.1, high=0.5).astype(np.float32), np.array([0, 5, -7, 3], np.int8)
    feeds = {**FEEDS, "s": s, "z": z}

    with straight_through():
        lowered = gradient(pair("[4]", "<axis=1>"), of="y", wrt=["x", "s"])
    actual = Evaluator(lowered).run(feeds)

    x, ts = torch.tensor(feeds["x"], requires_grad=True), torch.tensor(s, requires_grad=True)
    tz = torch.tensor(z.astype(np.float32), requires_grad=True)
    learned = torch._fake_quantize_learnable_per_channel_affine(x, ts, tz, 1, -128, 127)
    (learned * torch.tensor(feeds["c"])).sum().backward()
    np.testing.assert_allclose(actual["grad/x"], x.grad, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(actual["grad/s"], ts.grad, rtol=1e-4, atol=1e-4)


def test_straight_through_per_block_is_the_same_as_per_tensor_where_all_blocks_are_equal() -> None:
    blocks = {**FEEDS, "s": np.full((3, 2), 0.3, np.float32), "z": np.full((3, 2), 4, np.int8)}
    tensor = {**FEEDS, "s": np.array(0.3, np.float32), "z": np.array(4, np.int8)}

    with straight_through():
        actual = Evaluator(gradient(pair("[3,2]", "<axis=1, block_size=2>"), of="y", wrt=["x", "s"])).run(blocks)
        expected = Evaluator(gradient(pair(""), of="y", wrt=["x", "s"])).run(tensor)

    np.testing.assert_allclose(actual["grad/x"], expected["grad/x"], rtol=1e-6)
    assert actual["grad/s"].shape == (3, 2)
    np.testing.assert_allclose(actual["grad/s"].sum(), expected["grad/s"], rtol=1e-5)


def test_straight_through_passes_the_checker_and_onnxruntime() -> None:
    import onnxruntime

    feeds = {**FEEDS, "s": np.array(0.3, np.float32), "z": np.array(4, np.int8)}

    with straight_through():
        lowered = gradient(pair(""), of="y", wrt=["x", "s"])

    onnx.checker.check_model(lowered, full_check=True)
    session = onnxruntime.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = Evaluator(lowered).run(feeds)
    for name, value in zip(("grad/x", "grad/s"), session.run(["grad/x", "grad/s"], feeds), strict=True):
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-4)


def test_straight_through_ends_with_its_block() -> None:
    with straight_through():
        gradient(pair(""), of="y", wrt=["x"])

    with pytest.raises(NotDifferentiable):
        gradient(pair(""), of="y", wrt=["x"])


def test_an_operator_between_the_pair_that_computes_on_integers_is_named() -> None:
    model = parse("""net (float[4] x, float s) => (float[4] y)
        { q = QuantizeLinear(x, s) m = Max(q, q) y = DequantizeLinear(m, s) }""")

    with straight_through(), pytest.raises(NotDifferentiable, match="`Max` with respect to integers"):
        gradient(model, of="y", wrt=["x"])


def test_integers_from_around_a_subgraph_are_refused() -> None:
    model = parse("""net (float[3] x, float s, bool b) => (float[3] y) {
        q = QuantizeLinear(x, s)
        y = If (b) <then_branch = t () => (float[3] a) { a = DequantizeLinear(q, s) },
                    else_branch = f () => (float[3] c) { c = Identity(x) }>
    }""")

    with straight_through(), pytest.raises(NotDifferentiable, match="no gradient of `If` with respect to integers"):
        gradient(model, of="y", wrt=["x"])


def test_gradients_pass_integers_that_change_only_their_shape() -> None:
    plain = parse("""net (float[3,4] x, float s) => (float[3,4] y)
        { q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }""")
    moved = parse("""net (float[3,4] x, float s) => (float[2,6] y) <int64[2] shape = {2, 6}> {
        q = QuantizeLinear(x, s)
        t = Transpose(q)
        i = Identity(t)
        r = Reshape(i, shape)
        y = DequantizeLinear(r, s)
    }""")
    feeds = {"x": FEEDS["x"], "s": np.array(0.3, np.float32)}

    with straight_through():
        expected, actual = (Evaluator(gradient(m, of="y", wrt=["x", "s"])).run(feeds) for m in (plain, moved))

    for name in ("grad/x", "grad/s"):
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-5)


def test_the_scale_alone_needs_no_choice_where_the_steps_are_constant() -> None:
    model = parse("net (int8[3] q, float s) => (float[3] y) { y = DequantizeLinear(q, s) }")

    lowered = gradient(model, of="y", wrt=["s"])

    grad = Evaluator(lowered).run({"q": np.array([1, 2, -5], np.int8), "s": np.array(0.5, np.float32)})["grad/s"]
    assert grad == -2


def test_a_quantized_layer_trains_on_onnxruntime_when_straight_through_is_chosen() -> None:
    import onward

    model = parse("""net (float[N,4] x) => (float[N,3] y) <float s = {0.05}, int8 z = {0}>
        { q = QuantizeLinear(W, s, z) d = DequantizeLinear(q, s, z) y = MatMul(x, d) }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(array(4, 3).astype(np.float32), "W"))
    trainable = onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.1), train=["W"])
    x = array(32, 4, seed=1).astype(np.float32)
    target = (x @ array(4, 3, seed=2)).astype(np.float32)

    with onward.straight_through():
        trainer = onward.Trainer(trainable, backend="onnxruntime")
        feeds = dict(zip(trainer.input_names, [x, target], strict=True))
        losses = [float(trainer.step(feeds)["loss"]) for _ in range(40)]

    assert losses[-1] < 0.05 * losses[0]
