"""ai.onnx.preview: FlexAttention is differentiated through its body, modifier subgraphs included."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from cases import array
from onward.backends.reference import Evaluator
from onward.compiler.derivatives import gradient

SHAPES = {"Q": (1, 4, 3, 2), "K": (1, 2, 3, 2), "V": (1, 2, 3, 2)}


def flex_attention(modifier: str | None) -> onnx.ModelProto:
    attributes = {}
    if modifier is not None:
        info = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, [None] * 4) for n in ("s", "t")]
        node = helper.make_node(modifier, ["s"], ["t"])
        attributes["score_mod"] = helper.make_graph([node], "modifier", info[:1], info[1:])
    nodes = [
        helper.make_node("FlexAttention", list(SHAPES), ["Y"], domain="ai.onnx.preview", **attributes),
        helper.make_node("ReduceSumSquare", ["Y"], ["L"], keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, s) for n, s in SHAPES.items()]
    graph = helper.make_graph(nodes, "net", inputs, [helper.make_tensor_value_info("L", TensorProto.DOUBLE, [])])
    imports = [helper.make_opsetid("", 24), helper.make_opsetid("ai.onnx.preview", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=11)


@pytest.mark.parametrize("modifier", [None, "Tanh"])
def test_flex_attention_agrees_with_torch(modifier: str | None) -> None:
    feeds = {n: array(*s, seed=i) for i, (n, s) in enumerate(SHAPES.items())}

    lowered = gradient(flex_attention(modifier), of="L", wrt=list(SHAPES))

    actual = Evaluator(lowered).run(feeds)
    tensors = {n: torch.tensor(a, requires_grad=True) for n, a in feeds.items()}
    keys, values = (tensors[n].repeat_interleave(2, 1) for n in ("K", "V"))
    scores = tensors["Q"] @ keys.transpose(-1, -2) / np.sqrt(2)
    scores = scores.tanh() if modifier else scores
    (scores.softmax(-1) @ values).square().sum().backward()
    onnx.checker.check_model(lowered, full_check=True)
    for name in SHAPES:
        # The body's scale 1/√2 is a float32 constant.
        np.testing.assert_allclose(actual[f"grad/{name}"], tensors[name].grad, rtol=1e-5, atol=1e-6)
