"""The gradient of the kernel of large images: one product per tap, without the columns of the whole image."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch

from models import stock_session
from onward.autodiff.rules import convolution
from onward.compiler.derivatives import gradient


def model_of(op_type: str, x: tuple[int, ...], w: tuple[int, ...], attributes: str) -> onnx.ModelProto:
    shapes = [", ".join(map(str, shape)) for shape in (x, w)]
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[{shapes[0]}] x, float[{shapes[1]}] w) => (float[N, C, H, V] y) {{
            c = {op_type} <{attributes}> (x, w)
            y = Mul (c, c)
        }}"""
    )


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_one_product_per_tap_agrees_with_torch(
    op_type: str, groups: int, stride: int, dilation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution, "_MOST_COLUMNS", 0)
    shape = (6, 4 // groups, 3, 2) if op_type == "Conv" else (4, 6 // groups, 3, 2)
    options = {"stride": stride, "dilation": dilation, "groups": groups, "padding": 1}
    x, w = (np.random.default_rng(i).normal(size=s).astype(np.float32) for i, s in enumerate([(2, 4, 9, 8), shape]))
    attributes = f"strides=[{stride}, {stride}], dilations=[{dilation}, {dilation}], pads=[1, 1, 1, 1], group={groups}"
    run = torch.nn.functional.conv2d if op_type == "Conv" else torch.nn.functional.conv_transpose2d
    kernel = torch.tensor(w, requires_grad=True)
    run(torch.tensor(x), kernel, **options).square().sum().backward()

    lowered = gradient(model_of(op_type, x.shape, shape, attributes), of="y", wrt=["w"])

    assert sum(n.op_type == "MatMul" for n in lowered.graph.node) == 6
    (found,) = stock_session(lowered).run(["grad/w"], {"x": x, "w": w})
    assert kernel.grad is not None
    np.testing.assert_allclose(found, kernel.grad, rtol=1e-4, atol=1e-3)


def test_no_value_of_a_large_gradient_is_many_times_the_image() -> None:
    image = (1, 64, 512, 512)

    lowered = gradient(model_of("Conv", image, (64, 64, 3, 3), "pads=[1, 1, 1, 1]"), of="y", wrt=["w"])

    inferred = onnx.shape_inference.infer_shapes(lowered)
    sizes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in inferred.graph.value_info]
    assert max(int(np.prod(s)) for s in sizes) < 1.1 * np.prod(image)
