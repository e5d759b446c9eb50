"""What the cases of normalization do not say: residuals are reused, half precision, unknown ranks."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import parser

from cases import array
from onward.backends.reference import Evaluator
from onward.compiler.derivatives import gradient
from onward.errors import NotDifferentiable


def parse(text: str, opset: int = 23) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')


def operators(model: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node if n.op_type != "Constant"]


def test_layer_normalization_takes_its_statistics_from_the_forward_node() -> None:
    model = parse("net (float[2,4] X, float[4] S) => (float[2,4] Y) { Y = LayerNormalization(X, S) }")

    lowered = gradient(model, of="Y", wrt=["X"])

    forward = lowered.graph.node[0]
    assert len(forward.output) == 3
    assert "Sqrt" not in operators(lowered)


def test_layer_normalization_in_half_precision_computes_in_float32() -> None:
    model = parse("net (float16[2,4] X, float16[4] S) => (float16[2,4] Y) { Y = LayerNormalization(X, S) }")
    feeds = {"X": (array(2, 4) * 1000).astype(np.float16), "S": array(4, seed=1).astype(np.float16)}

    lowered = gradient(model, of="Y", wrt=["X", "S"])
    actual = Evaluator(lowered).run(feeds)

    X = torch.tensor(feeds["X"].astype(np.float64), requires_grad=True)
    S = torch.tensor(feeds["S"].astype(np.float64), requires_grad=True)
    torch.nn.functional.layer_norm(X, (4,), S).sum().backward()
    assert actual["grad/X"].dtype == np.float16
    np.testing.assert_allclose(actual["grad/X"], X.grad, rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(actual["grad/S"], S.grad, rtol=2e-3, atol=1e-3)


def test_layer_normalization_gradient_through_its_statistics() -> None:
    model = parse("""net (float[2,4] X, float[4] S) => (float L)
        { Y, M, I = LayerNormalization(X, S) A = Mul(M, I) B = ReduceSum<keepdims=0>(Y) C = ReduceSum<keepdims=0>(A)
          L = Add(B, C) }""")
    feeds = {"X": array(2, 4).astype(np.float32), "S": array(4, seed=1).astype(np.float32)}

    actual = Evaluator(gradient(model, of="L", wrt=["X"])).run(feeds)["grad/X"]

    X = torch.tensor(feeds["X"], requires_grad=True)
    mean = X.mean(-1, keepdim=True)
    inverse = (X.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
    ((X - mean) * inverse * torch.tensor(feeds["S"])).sum().add((mean * inverse).sum()).backward()
    np.testing.assert_allclose(actual, X.grad, rtol=1e-4, atol=1e-5)


def test_batch_normalization_in_training_by_its_output_alone() -> None:
    model = parse("""net (float[3,2,2] X, float[2] S, float[2] B, float[2] M, float[2] V) => (float[3,2,2] Z)
        { Y, RM, RV = BatchNormalization<training_mode=1>(X, S, B, M, V) Z = Mul(Y, Y) }""")
    feeds = {"X": array(3, 2, 2), "S": array(2), "B": array(2, seed=1), "M": np.zeros(2), "V": np.ones(2)}
    feeds = {n: a.astype(np.float32) for n, a in feeds.items()}

    actual = Evaluator(gradient(model, of="Z", wrt=["X", "S", "B", "M"])).run(feeds)

    tensors = {n: torch.tensor(a, requires_grad=True) for n, a in feeds.items()}
    Y = torch.nn.functional.batch_norm(tensors["X"], None, None, tensors["S"], tensors["B"], training=True)
    (Y * Y).sum().backward()
    for name in ("X", "S", "B"):
        np.testing.assert_allclose(actual[f"grad/{name}"], tensors[name].grad, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(actual["grad/M"], [0, 0])


def test_batch_normalization_of_half_precision_keeps_float32_statistics_and_sums() -> None:
    model = parse("""net (float16[8,2,64] X, float[2] S, float[2] B, float[2] M, float[2] V) => (float16[8,2,64] Y)
        { Y, RM, RV = BatchNormalization<training_mode=1>(X, S, B, M, V) }""")
    feeds = {"X": (array(8, 2, 64) * 1000).astype(np.float16)}
    feeds |= {n: array(2, seed=i, low=0.5).astype(np.float32) for i, n in enumerate("SBMV")}

    lowered = gradient(model, of="Y", wrt=["X", "S", "B"])
    actual = Evaluator(lowered).run(feeds)

    onnx.checker.check_model(lowered, full_check=True)
    assert actual["grad/S"].dtype == np.float32
    np.testing.assert_allclose(actual["grad/B"], [512, 512])
    np.testing.assert_allclose(actual["grad/X"], 0, atol=1e-4)


NODES = [
    "BatchNormalization(X, S, S, S, S)",
    "InstanceNormalization(X, S, S)",
    "LayerNormalization(X, S)",
    "LayerNormalization<axis=1>(X, T)",
    "RMSNormalization<axis=1>(X, T)",
    "GroupNormalization<num_groups=2>(X, S, S)",
    "LRN<size=3>(X)",
    "LpNormalization<axis=1>(X)",
    "MeanVarianceNormalization<axes=[0,2]>(X)",
]


@pytest.mark.parametrize("node", NODES)
def test_gradient_is_the_same_with_an_unknown_rank(node: str) -> None:
    feeds = {"X": array(2, 4, 4), "S": array(4, low=0.5), "T": array(4, 4, seed=1)}
    ranked = parse(f"""net (double[2,4,4] X, double[4] S, double[4,4] T) => (double L)
        {{ Y = {node} L = ReduceSumSquare<keepdims=0>(Y) }}""")
    unranked = onnx.ModelProto.FromString(ranked.SerializeToString())
    unranked.graph.input[0].type.tensor_type.ClearField("shape")

    expected = Evaluator(gradient(ranked, of="L", wrt=["X", "S"])).run(feeds)
    actual = Evaluator(gradient(unranked, of="L", wrt=["X", "S"])).run(feeds)

    np.testing.assert_allclose(actual["grad/X"], expected["grad/X"], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(actual["grad/S"], expected["grad/S"], rtol=1e-10, atol=1e-12)


def test_group_normalization_takes_an_empty_batch_where_the_batch_is_symbolic() -> None:
    model = parse("""net (float[N,4,3] X, float[4] S) => (float[N,4,3] Y)
        { Y = GroupNormalization<num_groups=2>(X, S, S) }""")

    lowered = gradient(model, of="Y", wrt=["X", "S"])

    results = Evaluator(lowered).run({"X": np.zeros((0, 4, 3), np.float32), "S": np.ones(4, np.float32)})
    assert results["grad/X"].shape == (0, 4, 3)
    np.testing.assert_array_equal(results["grad/S"], np.zeros(4))


def test_a_vector_cannot_be_batch_normalized_and_the_message_says_what_can() -> None:
    model = parse("net (float[4] X, float[1] S) => (float[4] Y) { Y = BatchNormalization(X, S, S, S, S) }")

    with pytest.raises(NotDifferentiable, match="Unsqueeze"):
        gradient(model, of="Y", wrt=["X"])
