"""The quantized operators of com.microsoft in plain operators: the same numbers as ONNX Runtime's own kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from onward.upgrade.microsoft import decompose_microsoft

RNG = np.random.default_rng(1)


def u8(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def i8(*shape: int) -> np.ndarray:
    # Without VNNI, ONNX Runtime's products of uint8 and int8 overflow in silence: 7 bits do not.
    return RNG.integers(-64, 65, shape).astype(np.int8)


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def scale(*numbers: float) -> np.ndarray:
    return np.array(numbers[0] if len(numbers) == 1 else numbers, np.float32)


def zero(number: int, dtype: Any = np.uint8) -> np.ndarray:
    return np.array(number, dtype)


S, T, Y = scale(0.02), scale(0.05), scale(0.04)
Z, V = zero(120), zero(97)
IMAGE = u8(1, 3, 5, 5)
LSTM = {"hidden_size": 3, "direction": "bidirectional"}
SEQUENCE = [f32(4, 2, 5), i8(2, 5, 12), i8(2, 3, 12), f32(2, 24), None, None, None, None]

# name: operator, inputs (None: absent; the last data input stands first), attributes, how much it may differ
CASES: dict[str, tuple[str, list[Any], dict[str, Any], float]] = {
    "QLinearAdd": ("QLinearAdd", [u8(3, 4), S, Z, u8(4), T, V, Y, zero(3)], {}, 1),
    "QLinearMul": ("QLinearMul", [u8(3, 4), S, Z, u8(3, 4), T, V, Y, Z], {}, 1),
    "QLinearSigmoid": ("QLinearSigmoid", [u8(3, 4), S, Z, scale(1 / 256), zero(0)], {}, 1),
    "QLinearLeakyRelu": ("QLinearLeakyRelu", [u8(3, 4), S, Z, Y, V], {"alpha": 0.3}, 1),
    "QLinearSoftmax": ("QLinearSoftmax", [u8(3, 4), S, Z, scale(1 / 256), zero(0)], {"axis": -1, "opset": 13}, 1),
    "QLinearSoftmax before 13": (
        "QLinearSoftmax", [u8(2, 3, 4), S, Z, scale(1 / 256), zero(0)], {"axis": 1, "opset": 11}, 1),
    "QLinearGlobalAveragePool": ("QLinearGlobalAveragePool", [IMAGE, S, Z, Y, V], {"channels_last": 0}, 1),
    "QLinearAveragePool": (
        "QLinearAveragePool", [IMAGE, S, Z, Y, V], {"kernel_shape": [2, 2], "strides": [2, 1], "pads": [1, 0, 0, 1]},
        1),
    "QLinearConcat": ("QLinearConcat", [Y, Z, u8(2, 3), S, V, u8(2, 1), T, Z], {"axis": 1}, 1),
    "QLinearWhere": ("QLinearWhere", [f32(3, 4) > 0, u8(3, 4), S, Z, u8(3, 4), T, V, Y, Z], {}, 1),
    "QGemm": ("QGemm", [u8(3, 4), S, Z, i8(4, 5), T, zero(0, np.int8), np.arange(5, dtype=np.int32) * 500, Y, V],
              {}, 1),
    "QGemm per row, to floats": (
        "QGemm", [u8(3, 4), S, Z, i8(2, 4), scale(0.05, 0.01), np.zeros(2, np.int8)], {"transB": 1, "alpha": 0.5},
        1e-5),
    "MatMulIntegerToFloat": (
        "MatMulIntegerToFloat", [u8(3, 4), i8(4, 5), S, scale(0.1, 0.2, 0.3, 0.1, 0.2), Z, None, f32(5)], {}, 1e-5),
    "DynamicQuantizeMatMul": (
        "DynamicQuantizeMatMul", [f32(3, 4), i8(4, 5), S, zero(3, np.int8), f32(5)], {}, 1e-5),
    "QAttention": (
        "QAttention",
        [u8(1, 3, 4), i8(4, 12), f32(12), scale(0.01), scale(0.01), None, Z, zero(0, np.int8)], {"num_heads": 2}, 1e-5),
    "DequantizeLinear": ("DequantizeLinear", [u8(3, 4), S, Z], {}, 1e-6),
    # It rounds the input and the state at each step; the LSTM does not.
    "DynamicQuantizeLSTM": (
        "DynamicQuantizeLSTM",
        [*SEQUENCE, scale(0.004, 0.003), np.zeros(2, np.int8), scale(0.003, 0.004), np.zeros(2, np.int8)], LSTM, 0.02),
    "DynamicQuantizeLSTM per row": (
        "DynamicQuantizeLSTM",
        [*SEQUENCE, np.full((2, 12), 0.004, np.float32) * np.linspace(0.5, 1, 12, dtype=np.float32),
         np.zeros((2, 12), np.int8), np.full((2, 12), 0.003, np.float32), np.zeros((2, 12), np.int8)], LSTM, 0.02),
}  # fmt: skip


def model_of(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return the operator with its first tensor of data as the input and the rest as initializers."""
    op_type, inputs, attributes, _ = CASES[name]
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(inputs)]
    first = next(i for i, a in enumerate(inputs) if a is not None and a.ndim > 0 and a.size > 1)
    floats = op_type in ("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QAttention", "DequantizeLinear")
    floats |= op_type == "DynamicQuantizeLSTM" or (op_type == "QGemm" and len(inputs) < 8)
    kind = onnx.TensorProto.FLOAT if floats else onnx.TensorProto.UINT8
    data = inputs[first]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["y"], name="it", domain="com.microsoft", **attributes)],
        "g",
        [helper.make_tensor_value_info(names[first], helper.np_dtype_to_tensor_dtype(data.dtype), data.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(a, n) for a, n in zip(inputs, names, strict=True) if n and n != names[first]],
    )
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9), {names[first]: data}


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, feeds)
    return np.asarray(y)


@pytest.mark.parametrize("name", list(CASES))
def test_quantized_operators_in_plain_ones_give_the_numbers_of_onnxruntime(name: str) -> None:
    proto, feeds = model_of(name)
    expected = run(proto, feeds)
    model = ir.serde.deserialize_model(proto)

    assert decompose_microsoft(model)

    assert all(n.domain == "" for n in model.graph)
    plain = ir.serde.serialize_model(model)
    actual = run(plain, feeds)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    difference = np.abs(actual.astype(np.float64) - expected)
    allowed = CASES[name][3]
    assert difference.max() <= allowed
    assert expected.std() > 10 * difference.mean()
