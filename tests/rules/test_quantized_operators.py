"""DynamicQuantizeLinear, QLinearConv and QLinearMatMul against a float model in which rounding has slope 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest
import torch

from cases import array
from models import stock_session
from onward.autodiff.rules.quantization import straight_through
from onward.backends.reference import Evaluator
from onward.compiler.derivatives import gradient
from onward.errors import NotDifferentiable

Tensors = Mapping[str, torch.Tensor]


def parse(text: str, opset: int = 21) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')


def rounded(value: torch.Tensor) -> torch.Tensor:
    """Return the nearest integers, with the gradient of `value` itself."""
    return value + (torch.round(value) - value).detach()


def quantize(x: torch.Tensor, scale: torch.Tensor, zero: int, low: int = -128, high: int = 127) -> torch.Tensor:
    return torch.clamp(rounded(x / scale) + zero, low, high)


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (array(*shape, seed=seed) * scale).astype(np.float32)


def scale(value: float | list[float]) -> np.ndarray:
    return np.array(value, np.float32)


def assert_straight_through(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], wrt: list[str], loss: Callable[[Tensors], torch.Tensor]
) -> None:
    """Compare output and gradients with a float model's, in the reference, in ONNX Runtime and for valid types."""
    tensors = {k: torch.tensor(v, requires_grad=k in wrt) for k, v in feeds.items()}
    total = loss(tensors)
    total.sum().backward()

    with straight_through():
        lowered = gradient(model, of="y", wrt=wrt)

    onnx.checker.check_model(lowered, full_check=True)
    session = stock_session(lowered)
    run = dict(zip([o.name for o in session.get_outputs()], session.run(None, dict(feeds)), strict=True))
    for actual in (Evaluator(lowered).run(feeds), run):
        np.testing.assert_allclose(actual["y"], total.detach(), rtol=1e-4, atol=1e-4)
        for name in wrt:
            expected = tensors[name].grad
            assert expected is not None
            assert np.any(expected.numpy())
            np.testing.assert_allclose(actual[f"grad/{name}"], expected, rtol=2e-4, atol=2e-3, err_msg=name)


# -- DynamicQuantizeLinear -----------------------------------------------------------------------------------


def dynamic(tensors: Tensors) -> torch.Tensor:
    x = tensors["x"]
    step = (torch.clamp(x.max(), min=0) - torch.clamp(x.min(), max=0)) / 255
    zero = int(torch.round(-torch.clamp(x.min(), max=0) / step))
    return (quantize(x, step, zero, 0, 255) - zero) * step * tensors["c"]


@pytest.mark.parametrize("shift", [0.0, 5.0, -5.0], ids=["both signs", "positive", "negative"])
@pytest.mark.parametrize("opset", [18, 21])
def test_dynamic_quantization_passes_gradients_through_its_scale_too(shift: float, opset: int) -> None:
    model = parse(
        """net (float[3,4] x, float[3,4] c) => (float[3,4] y)
        { q, s, z = DynamicQuantizeLinear(x) d = DequantizeLinear(q, s, z) y = Mul(d, c) }""",
        opset,
    )
    feeds = {"x": numbers(3, 4) + np.float32(shift), "c": numbers(3, 4, seed=1)}

    assert_straight_through(model, feeds, ["x"], dynamic)


def test_integers_of_dynamic_quantization_need_the_choice() -> None:
    model = parse("""net (float[3] x) => (float[3] y)
        { q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }""")

    with pytest.raises(NotDifferentiable, match=r"with onward\.straight_through\(\):"):
        gradient(model, of="y", wrt=["x"])


def test_the_scale_of_dynamic_quantization_needs_no_choice() -> None:
    model = parse("net (float[3] x) => (float y) { q, y, z = DynamicQuantizeLinear(x) }")

    lowered = gradient(model, of="y", wrt=["x"])

    grad = Evaluator(lowered).run({"x": np.array([-2, 1, 4], np.float32)})["grad/x"]
    np.testing.assert_allclose(grad, [-1 / 255, 0, 1 / 255], rtol=1e-6)


# -- QLinearMatMul -------------------------------------------------------------------------------------------

MATMUL = """
    net (float[3,4] a, float[4,5] b, float{rows} sa, float{columns} sb, float sy, float[3,5] c) => (float[3,5] y)
    <int8{rows} za = {{{zero_a}}}, int8{columns} zb = {{{zero_b}}}, int8 zy = {{3}}> {{
        qa = QuantizeLinear <axis = 0> (a, sa, za)
        qb = QuantizeLinear <axis = 1> (b, sb, zb)
        q = QLinearMatMul (qa, sa, za, qb, sb, zb, sy, zy)
        d = DequantizeLinear (q, sy, zy)
        y = Mul (d, c)
    }}"""


def quantized_matmul(zero_a: int, zero_b: int) -> Callable[[Tensors], torch.Tensor]:
    def loss(t: Tensors) -> torch.Tensor:
        sa = t["sa"][:, None] if t["sa"].ndim else t["sa"]
        left = (quantize(t["a"], sa, zero_a) - zero_a) * sa
        right = (quantize(t["b"], t["sb"], zero_b) - zero_b) * t["sb"]
        return (quantize(left @ right, t["sy"], 3) - 3) * t["sy"] * t["c"]

    return loss


@pytest.mark.parametrize("opset", [18, 21, 25])
def test_a_quantized_matrix_product_is_the_float_one_between_roundings(opset: int) -> None:
    model = parse(MATMUL.format(rows="", columns="", zero_a="-7", zero_b="2"), opset)
    feeds = {"a": numbers(3, 4), "b": numbers(4, 5, seed=1), "c": numbers(3, 5, seed=2)}
    feeds |= {"sa": scale(0.02), "sb": scale(0.015), "sy": scale(0.03)}

    assert_straight_through(model, feeds, ["a", "b", "sa", "sb", "sy"], quantized_matmul(-7, 2))


def test_scales_per_column_of_a_quantized_matrix_product() -> None:
    model = parse(MATMUL.format(rows="", columns="[5]", zero_a="0", zero_b="0, 0, 0, 0, 0"))
    feeds = {"a": numbers(3, 4), "b": numbers(4, 5, seed=1), "c": numbers(3, 5, seed=2)}
    feeds |= {"sa": scale(0.02), "sb": scale([0.015, 0.02, 0.01, 0.03, 0.02]), "sy": scale(0.05)}

    assert_straight_through(model, feeds, ["a", "b", "sa", "sb", "sy"], quantized_matmul(0, 0))


def test_a_quantized_matrix_product_needs_the_choice() -> None:
    model = parse(MATMUL.format(rows="", columns="", zero_a="0", zero_b="0"))

    with pytest.raises(NotDifferentiable, match=r"with onward\.straight_through\(\):"):
        gradient(model, of="y", wrt=["a"])


def test_scales_of_each_matrix_of_a_batch_are_refused() -> None:
    model = parse("""
        net (float[2,3,4] a, float[2,3,1] sa, int8[2,3,1] za, int8[4,5] b, float s, int8 z) => (float[2,3,5] y)
        { qa = Cast <to = 3> (a) q = QLinearMatMul (qa, sa, za, b, s, z, s, z) y = DequantizeLinear (q, s, z) }""")

    with straight_through(), pytest.raises(NotDifferentiable, match="`QLinearMatMul`"):
        gradient(model, of="y", wrt=["sa"])


# -- QLinearConv ---------------------------------------------------------------------------------------------

CONV = """
    net (float[2,4,5,5] x, float[6,2,3,3] w, float sx, float[6] sw, float sy, float[2,6,3,3] c) => (float[2,6,3,3] y)
    <uint8 zx = {128}, int8[6] zw = {0, 0, 0, 0, 0, 0}, uint8 zy = {100}, int32[6] bias = {50, -40, 30, 0, 10, -90}> {
        qx = QuantizeLinear (x, sx, zx)
        qw = QuantizeLinear <axis = 0> (w, sw, zw)
        q = QLinearConv <group = 2, pads = [1, 1, 1, 1], strides = [2, 2]> (qx, sx, zx, qw, sw, zw, sy, zy, bias)
        d = DequantizeLinear (q, sy, zy)
        y = Mul (d, c)
    }"""
BIAS = torch.tensor([50.0, -40, 30, 0, 10, -90])


def quantized_conv(t: Tensors) -> torch.Tensor:
    x = (quantize(t["x"], t["sx"], 128, 0, 255) - 128) * t["sx"]
    w = quantize(t["w"], t["sw"][:, None, None, None], 0) * t["sw"][:, None, None, None]
    y = torch.nn.functional.conv2d(x, w, BIAS * t["sx"] * t["sw"], stride=2, padding=1, groups=2)
    return (quantize(y, t["sy"], 100, 0, 255) - 100) * t["sy"] * t["c"]


CONV_FEEDS = {
    "x": numbers(2, 4, 5, 5),
    "w": numbers(6, 2, 3, 3, seed=1),
    "c": numbers(2, 6, 3, 3, seed=2),
    "sx": scale(0.02),
    "sw": scale([0.02, 0.015, 0.02, 0.018, 0.02, 0.016]),
    "sy": scale(0.1),
}


@pytest.mark.parametrize("opset", [18, 21, 25])
def test_a_quantized_convolution_is_the_float_one_between_roundings(opset: int) -> None:
    assert_straight_through(parse(CONV, opset), CONV_FEEDS, ["x", "w", "sx", "sw", "sy"], quantized_conv)


def test_gradients_of_all_readers_of_the_same_integers_add_up() -> None:
    model = parse("""net (float[1,1,4,4] x, float[1,1,3,3] w, float s, float t) => (float[1,1,4,4] y)
        <int8 z = {0}> {
            qx = QuantizeLinear (x, s, z)
            qw = QuantizeLinear (w, s, z)
            q1 = QLinearConv <pads = [1, 1, 1, 1]> (qx, s, z, qw, s, z, t, z)
            q2 = QLinearConv <pads = [1, 1, 1, 1]> (q1, t, z, qw, s, z, t, z)
            d1 = DequantizeLinear (q1, t, z)
            d2 = DequantizeLinear (q2, t, z)
            d0 = DequantizeLinear (qx, s, z)
            y = Sum (d0, d1, d2)
        }""")

    def loss(v: Tensors) -> torch.Tensor:
        def conv(values: torch.Tensor) -> torch.Tensor:
            return quantize(torch.nn.functional.conv2d(values, w, padding=1), v["t"], 0) * v["t"]

        x, w = quantize(v["x"], v["s"], 0) * v["s"], quantize(v["w"], v["s"], 0) * v["s"]
        first = conv(x)
        return x + first + conv(first)

    feeds = {"x": numbers(1, 1, 4, 4), "w": numbers(1, 1, 3, 3, seed=1), "s": scale(0.02), "t": scale(0.2)}
    assert_straight_through(model, feeds, ["x", "w", "s", "t"], loss)


def test_a_quantized_convolution_with_unknown_sizes_gives_the_same() -> None:
    text = CONV.replace("float[2,4,5,5] x", "float[N,4,H,V] x").replace("float[2,6,3,3]", "float[N,6,P,Q]")
    with straight_through():
        known, unknown = (gradient(parse(t), of="y", wrt=["x", "w", "sw"]) for t in (CONV, text))

    expected, actual = Evaluator(known).run(CONV_FEEDS), Evaluator(unknown).run(CONV_FEEDS)

    for name in ("grad/x", "grad/w", "grad/sw"):
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-5, atol=1e-5)


# -- MatMulInteger, ConvInteger and MaxPool of integers ------------------------------------------------------

WEIGHTS = np.random.default_rng(4).integers(-100, 100, (4, 5)).astype(np.int8)
KERNELS = np.random.default_rng(5).integers(0, 255, (3, 2, 3, 3)).astype(np.uint8)
DYNAMIC_MATMUL = """
    net (float[3,4] x, float[3,5] c) => (float[3,5] y) <float{shape} ws = {{{scales}}}, int8{shape} wz = {{{zeros}}}> {{
        q, s, z = DynamicQuantizeLinear (x)
        i = MatMulInteger (q, w, z, wz)
        f = Cast <to = 1> (i)
        t = Mul (s, ws)
        m = Mul (f, t)
        y = Mul (m, c)
    }}"""
DYNAMIC_CONV = """
    net (float[2,2,5,5] x, float[3] b, float[2,3,3,3] c) => (float[2,3,3,3] y)
    <float ws = {0.01}, uint8 wz = {120}, int64[4] column = {1, -1, 1, 1}> {
        q, s, z = DynamicQuantizeLinear (x)
        i = ConvInteger <pads = [1, 1, 1, 1], strides = [2, 2]> (q, w, z, wz)
        t = Mul (s, ws)
        BIAS
        y = Mul (m, c)
    }"""
BIAS_OF_FLOATS = "f = Cast <to = 1> (i) n = Mul (f, t) r = Reshape (b, column) m = Add (n, r)"
# What older versions of ONNX Runtime's quantizer write.
BIAS_IN_STEPS = """u = Mul (ws, s) d = Div (b, u) g = Floor (d) k = Cast <to = 6> (g) r = Reshape (k, column)
        a = Add (i, r) f = Cast <to = 1> (a) m = Mul (f, t)"""


def with_weights(model: onnx.ModelProto, weights: np.ndarray) -> onnx.ModelProto:
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def data_of(x: torch.Tensor) -> torch.Tensor:
    step = (torch.clamp(x.max(), min=0) - torch.clamp(x.min(), max=0)) / 255
    zero = int(torch.round(-torch.clamp(x.min(), max=0) / step))
    return (quantize(x, step, zero, 0, 255) - zero) * step


@pytest.mark.parametrize(
    ("scales", "zeros"), [([0.02], [3]), ([0.02, 0.01, 0.03, 0.01, 0.02], [0, 3, -5, 0, 1])], ids=["one", "per column"]
)
def test_a_product_of_integers_is_that_of_the_floats(scales: list[float], zeros: list[int]) -> None:
    shape = "" if len(scales) == 1 else "[5]"
    text = DYNAMIC_MATMUL.format(shape=shape, scales=str(scales)[1:-1], zeros=str(zeros)[1:-1])
    weight = (torch.tensor(WEIGHTS.astype(np.float32)) - torch.tensor(zeros)) * torch.tensor(scales)

    def loss(t: Tensors) -> torch.Tensor:
        return data_of(t["x"]) @ weight * t["c"]

    model = with_weights(parse(text), WEIGHTS)
    assert_straight_through(model, {"x": numbers(3, 4), "c": numbers(3, 5, seed=1)}, ["x"], loss)


@pytest.mark.parametrize("bias", [BIAS_OF_FLOATS, BIAS_IN_STEPS], ids=["floats", "steps"])
def test_a_convolution_of_integers_is_that_of_the_floats(bias: str) -> None:
    weight = (torch.tensor(KERNELS.astype(np.float32)) - 120) * 0.01

    def loss(t: Tensors) -> torch.Tensor:
        return torch.nn.functional.conv2d(data_of(t["x"]), weight, t["b"], stride=2, padding=1) * t["c"]

    model = with_weights(parse(DYNAMIC_CONV.replace("BIAS", bias)), KERNELS)
    feeds = {"x": numbers(2, 2, 5, 5), "b": numbers(3, seed=1), "c": numbers(2, 3, 3, 3, seed=2)}
    assert_straight_through(model, feeds, ["x", "b"], loss)


def test_a_product_of_integers_needs_the_choice() -> None:
    model = with_weights(parse(DYNAMIC_MATMUL.format(shape="", scales="0.1", zeros="0")), WEIGHTS)

    with pytest.raises(NotDifferentiable, match=r"with onward\.straight_through\(\):"):
        gradient(model, of="y", wrt=["x"])


def test_the_greatest_of_integers_is_that_of_the_floats() -> None:
    model = parse("""net (float[1,2,4,4] x, float s, float[1,2,2,2] c) => (float[1,2,2,2] y) <uint8 z = {100}> {
            q = QuantizeLinear (x, s, z)
            p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (q)
            d = DequantizeLinear (p, s, z)
            y = Mul (d, c)
        }""")

    def loss(t: Tensors) -> torch.Tensor:
        floats = (quantize(t["x"], t["s"], 100, 0, 255) - 100) * t["s"]
        return torch.nn.functional.max_pool2d(floats, 2) * t["c"]

    feeds = {"x": numbers(1, 2, 4, 4), "s": scale(0.013), "c": numbers(1, 2, 2, 2, seed=1)}
    assert_straight_through(model, feeds, ["x", "s"], loss)
