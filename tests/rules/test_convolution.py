"""Facts about the gradients of convolutions and pools that no single case shows."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from onward.backends.reference import Evaluator
from onward.compiler.derivatives import gradient

SHAPE_OPERATORS = {"Shape", "Size", "Gather", "Concat"}


def lowered(op_type: str, X: list[int | str], W: list[int] | None, **attributes: object) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, X)]
    if W is not None:
        infos.append(helper.make_tensor_value_info("W", onnx.TensorProto.FLOAT, W))
    names = [i.name for i in infos]
    nodes = [
        helper.make_node(op_type, names, ["Y"], name="it", **attributes),
        helper.make_node("ReduceSumSquare", ["Y"], ["loss"], keepdims=0),
    ]
    graph = helper.make_graph(nodes, "g", infos, [helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return gradient(proto, of="loss", wrt=names)


def backward(model: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node if n.name.startswith("grad/it/") and n.op_type != "Constant"]


@pytest.mark.parametrize(
    ("X", "W", "attributes"),
    [
        (["N", 8, 16, 16], [4, 8, 1, 1], {}),
        (["N", 8, 16, 16], [4, 8, 3, 3], {"pads": [1, 1, 1, 1]}),
        (["N", 8, 16, 16], [32, 8, 3, 3], {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        (["N", 8, 16, 16], [8, 1, 3, 3], {"group": 8, "pads": [1, 1, 1, 1]}),
        (["N", 4, 4, 4], [32, 4, 3, 3], {}),
    ],
)
def test_an_unknown_batch_costs_no_shape_computation(X: list, W: list, attributes: dict) -> None:
    model = lowered("Conv", X, W, **attributes)

    assert not SHAPE_OPERATORS & set(backward(model))


def test_a_kernel_of_one_is_a_matrix_product() -> None:
    model = lowered("Conv", [8, 64, 14, 14], [32, 64, 1, 1])

    assert backward(model) == ["ConvTranspose", "Reshape", "Reshape", "Transpose", "MatMul", "ReduceSum", "Reshape"]


@pytest.mark.parametrize(
    ("X", "W", "attributes"),
    [
        ([2, 8, 40, 40], [4, 8, 3, 3], {"pads": [1, 0, 0, 2]}),  # large images: the flipped kernel
        ([2, 8, 5, 5], [4, 2, 3, 3], {"group": 4, "pads": [1, 1, 1, 1], "dilations": [1, 2]}),
        ([2, 4, 5, 5], [4, 1, 3, 2], {"group": 4}),
        ([2, 2, 5, 5], [4, 1, 3, 2], {"group": 2}),
        ([3, 600, 4, 4], [4, 600, 3, 3], {}),  # too many channels for a constant of one-hot kernels
        ([3, 4, 4, 4], [40, 4, 3, 3], {}),  # small images: one product over batch and image
    ],
)
def test_every_formulation_gives_the_numbers_of_torch(X: list, W: list, attributes: dict) -> None:
    import torch

    rng = np.random.default_rng(0)
    feeds = {"X": rng.standard_normal(X).astype(np.float32), "W": rng.standard_normal(W).astype(np.float32)}

    results = Evaluator(lowered("Conv", X, W, **attributes)).run(feeds)

    x, w = (torch.tensor(v, requires_grad=True) for v in feeds.values())
    begin, end = attributes.get("pads", [0] * 4)[:2], attributes.get("pads", [0] * 4)[2:]
    padded = torch.nn.functional.pad(x, [begin[1], end[1], begin[0], end[0]])
    y = torch.nn.functional.conv2d(
        padded, w, groups=attributes.get("group", 1), dilation=tuple(attributes.get("dilations", (1, 1)))
    )
    y.square().sum().backward()
    for name, tensor in (("X", x), ("W", w)):
        wanted = tensor.grad.numpy()
        np.testing.assert_allclose(results[f"grad/{name}"], wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())


def test_an_average_over_tiles_is_spread_by_expanding() -> None:
    model = lowered("AveragePool", ["N", 4, 8, 8], None, kernel_shape=[2, 2], strides=[2, 2])

    assert backward(model) == ["Mul", "Unsqueeze", "Expand", "Reshape"]
