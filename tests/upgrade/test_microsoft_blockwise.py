"""Weights of few bits with one scale per block: the numbers of ONNX Runtime's kernels, and they train."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import onward
from onward.upgrade.microsoft import decompose_microsoft

RANDOM = np.random.default_rng(0)
N, K, BLOCK = 6, 40, 16  # the last block is not full
BLOCKS = 3


def model_of(node: onnx.NodeProto, stored: dict[str, np.ndarray], x: np.ndarray, opset: int) -> onnx.ModelProto:
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", element, ["batch", *x.shape[1:]])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in stored.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def product(bits: int, *, zeros: bool, bias: bool, opset: int = 17) -> tuple[onnx.ModelProto, np.ndarray]:
    stored = {
        "B": RANDOM.integers(0, 256, (N, BLOCKS, BLOCK * bits // 8)).astype(np.uint8),
        "scales": RANDOM.uniform(0.01, 0.1, N * BLOCKS).astype(np.float32),
    }
    if zeros:
        stored["zeros"] = RANDOM.integers(0, 256, (N * -(-BLOCKS * bits // 8),)).astype(np.uint8)
    if bias:
        stored["bias"] = RANDOM.normal(size=N).astype(np.float32)
    names = ["x", "B", "scales", "zeros" if zeros else "", "", "bias" if bias else ""]
    node = helper.make_node(
        "MatMulNBits", names, ["y"], name="it", domain="com.microsoft", N=N, K=K, bits=bits, block_size=BLOCK
    )
    x = RANDOM.normal(size=(3, K)).astype(np.float32)
    return model_of(node, stored, x, opset), x


def run(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def plain(proto: onnx.ModelProto) -> onnx.ModelProto:
    model = ir.serde.deserialize_model(proto)
    assert decompose_microsoft(model)
    found = ir.serde.serialize_model(model)
    assert {n.domain for n in found.graph.node} == {""}
    return found


@pytest.mark.parametrize("opset", [14, 21])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_product_has_the_numbers_of_the_kernel(bits: int, zeros: bool, bias: bool, opset: int) -> None:
    proto, x = product(bits, zeros=zeros, bias=bias, opset=opset)

    np.testing.assert_allclose(run(plain(proto), x), run(proto, x), rtol=1e-4, atol=1e-5)


def test_the_packed_weights_do_not_stay_in_the_file() -> None:
    proto, _ = product(4, zeros=True, bias=True)

    assert {i.name for i in plain(proto).graph.initializer} == {"bias"}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_an_embedding_has_the_numbers_of_the_kernel(bits: int, zeros: bool) -> None:
    stored = {
        "data": RANDOM.integers(0, 256, (7, 32 * bits // 8)).astype(np.uint8),
        "scales": RANDOM.uniform(0.01, 0.1, (7, 2)).astype(np.float32),
    }
    if zeros:
        stored["zeros"] = RANDOM.integers(0, 256, (7, max(1, 2 * bits // 8))).astype(np.uint8)
    names = ["data", "x", "scales", *(["zeros"] if zeros else [])]
    node = helper.make_node(
        "GatherBlockQuantized", names, ["y"], domain="com.microsoft", bits=bits, block_size=16, quantize_axis=1
    )
    x = np.array([[0, 6], [3, 3]])
    proto = model_of(node, stored, x, 17)

    np.testing.assert_allclose(run(plain(proto), x), run(proto, x), rtol=1e-6)


def test_the_weights_train_where_they_are_made_floats_and_go_back_to_their_integers() -> None:
    proto, x = product(4, zeros=False, bias=True)
    model = onward.make_trainable(proto, loss="mse", optimizer=onward.SGD(0.05), dequantize=True)
    trainer = onward.Trainer(model)
    target = np.zeros((3, N), np.float32)
    losses = [float(trainer.step({"x": x, trainer.input_names[1]: target})["loss"]) for _ in range(9)]

    assert losses[-1] < 0.5 * losses[0]
    assert trainer.program.state["B"].shape == (N * BLOCKS, BLOCK)
    again = onward.to_inference(model, quantize=True)
    np.testing.assert_allclose(run(again, x), run(proto, x), rtol=1e-4, atol=1e-5)
    assert max(numpy_helper.to_array(i).max() for i in again.graph.initializer if i.data_type == 2) <= 15
