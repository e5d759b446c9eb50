"""Convolutions as matrix products: the numbers are those of Conv, and what IREE compiles well stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

pytest.importorskip("iree.compiler")

from onward.backends.iree.compiler import Limits, compile_model
from onward.backends.iree.module import Device, Module, to_numpy
from onward.backends.iree.products import write_out_convolutions
from onward.backends.iree.targets import find_target

HEAD = '<ir_version: 8, opset_import: ["" : 18]> '
CASES = {
    "line": "(float[2,3,11] x, float[4,3,3] w, float[4] b) => (float[2,4,9] y) { y = Conv (x, w, b) }",
    "image": "(float[2,3,9,8] x, float[4,3,5,3] w) => (float[2,4,5,6] y) { y = Conv (x, w) }",
    "everything": """(float[2,3,9,8] x, float[4,3,3,3] w, float[4] b) => (float[2,4,4,7] y)
        { y = Conv <pads = [1, 2, 0, 1], strides = [2, 1], dilations = [1, 2], kernel_shape = [3, 3]> (x, w, b) }""",
    "stride": """(float[2,3,8,8] x, float[4,3,2,2] w) => (float[2,4,4,4] y)
        { y = Conv <strides = [2, 2], auto_pad = "VALID"> (x, w) }""",
    "one channel": "(float[2,1,8,10] x, float[4,1,3,3] w) => (float[2,4,6,8] y) { y = Conv (x, w) }",
    "volume": "(float[2,2,4,5,4] x, float[3,2,2,3,2] w, float[3] b) => (float[2,3,3,3,3] y) { y = Conv (x, w, b) }",
}
STAY = {
    "a line that fits the vectors": "(float[2,3,8,10] x, float[4,3,3,3] w) => (float[2,4,6,8] y) { y = Conv (x, w) }",
    "groups": "(float[2,4,9,9] x, float[4,1,3,3] w) => (float[2,4,7,7] y) { y = Conv <group = 4> (x, w) }",
    "one tap": "(float[2,4,9,9] x, float[4,4,1,1] w) => (float[2,4,9,9] y) { y = Conv (x, w) }",
    "pads of its own": """(float[2,4,9,9] x, float[4,4,3,3] w) => (float[2,4,9,9] y)
        { y = Conv <auto_pad = "SAME_UPPER"> (x, w) }""",
    "whole numbers": """(uint8[2,4,9,9] x, uint8[4,4,3,3] w) => (int32[2,4,7,7] y) { y = ConvInteger (x, w) }""",
    "half": "(float16[2,4,9,9] x, float16[4,4,3,3] w) => (float16[2,4,7,7] y) { y = Conv (x, w) }",
    "nothing": "(float[0,4,9,9] x, float[4,4,3,3] w) => (float[0,4,7,7] y) { y = Conv (x, w) }",
    "large": "(float[64,64,225,225] x, float[4,64,3,3] w) => (float[64,4,223,223] y) { y = Conv (x, w) }",
}


def _model(text: str) -> onnx.ModelProto:
    return parser.parse_model(f"{HEAD} net {text}")


def _feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    kinds = {v.name: v.type.tensor_type for v in model.graph.input}
    return {
        name: random.standard_normal([d.dim_value for d in kind.shape.dim]).astype(
            onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        )
        for name, kind in kinds.items()
    }


def _on_onnxruntime(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


@pytest.mark.parametrize("name", CASES)
def test_the_product_is_the_convolution(name: str) -> None:
    model = _model(CASES[name])
    feeds = _feeds(model)

    written = write_out_convolutions(model)

    assert "Conv" not in {n.op_type for n in written.graph.node}
    assert "Conv" in {n.op_type for n in model.graph.node}, "the given model was changed"
    onnx.checker.check_model(written, full_check=True)
    needed, found = _on_onnxruntime(model, feeds), _on_onnxruntime(written, feeds)
    np.testing.assert_allclose(found, needed, rtol=0, atol=5e-6 * np.abs(needed).max())


@pytest.mark.parametrize("name", STAY)
def test_others_stay_as_they_are(name: str) -> None:
    model = _model(STAY[name])

    assert write_out_convolutions(model) is model


def test_iree_computes_the_product() -> None:
    model = _model(CASES["everything"])
    feeds = _feeds(model)

    code = compile_model(model, "model", "the model", find_target("iree"), Limits(300, 8)).code
    found = to_numpy(Module(code, Device(1), "the model")(list(feeds.values()))[0])

    np.testing.assert_allclose(found, _on_onnxruntime(model, feeds), rtol=0, atol=1e-5)


def test_only_processors_with_memory_get_products() -> None:
    """The slices of an image are several times as large as the image."""
    targets = ("iree", "iree:android-arm64", "iree:riscv64", "iree:cortex-m", "iree:vulkan:ampere")

    assert [find_target(t).is_processor for t in targets] == [True, True, True, False, False]
