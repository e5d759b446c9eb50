"""The operators of com.microsoft as plain ones: the same numbers as ONNX Runtime's own kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper

from onward.compiler.derivatives import gradient
from onward.upgrade.microsoft import decompose_microsoft


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape).astype(np.float32)


def ints(*values: Any, dtype: Any = np.int32) -> np.ndarray:
    return np.array(values, dtype)


X, W, B = numbers(2, 3, 8), numbers(8, 24, seed=1), numbers(24, seed=2)
Q, K, V = numbers(2, 3, 8), numbers(2, 4, 8, seed=1), numbers(2, 4, 8, seed=2)
COS, SIN = numbers(10, 2, seed=3), numbers(10, 2, seed=4)
NORM = [numbers(2, 3, 8), numbers(2, 3, 8, seed=1), numbers(8, seed=2), numbers(8, seed=3)]
IDS = ints([1, 4, 2], [0, 3, 3])
TABLES = [numbers(5, 8, seed=1), numbers(6, 8, seed=2), numbers(2, 8, seed=3)]
ATTENTION = {"num_heads": 2}
GROUPED = [numbers(2, 5, 64), numbers(2, 5, 32, seed=1), numbers(2, 5, 32, seed=2)]  # the kernel wants heads of 16
PAST = [numbers(2, 2, 3, 16, seed=3), numbers(2, 2, 3, 16, seed=4)]
FIVE, EIGHT, ANGLES = np.array(5, np.int32), np.array(8, np.int32), [numbers(9, 8, seed=5), numbers(9, 8, seed=6)]
SHARED = {"num_heads": 4, "kv_num_heads": 2}

# name: operator, inputs (None: absent), attributes, number of outputs
CASES: dict[str, tuple[str, list[Any], dict[str, Any], int]] = {
    "Gelu": ("Gelu", [X], {}, 1),
    "BiasGelu": ("BiasGelu", [X, numbers(8, seed=1)], {}, 1),
    "FastGelu": ("FastGelu", [X], {}, 1),
    "FastGelu with bias": ("FastGelu", [X, numbers(8, seed=1)], {}, 1),
    "QuickGelu": ("QuickGelu", [X], {"alpha": 1.5}, 1),
    "FusedMatMul": ("FusedMatMul", [numbers(2, 3, 4), numbers(2, 4, 5)], {"alpha": 0.5}, 1),
    "FusedMatMul transposed": ("FusedMatMul", [numbers(2, 4, 3), numbers(2, 5, 4)], {"transA": 1, "transB": 1}, 1),
    "FusedMatMul batch": ("FusedMatMul", [numbers(3, 2, 4), numbers(2, 4, 5)], {"transBatchA": 1}, 1),
    "FusedMatMul batch and last": (
        "FusedMatMul", [numbers(4, 2, 3), numbers(5, 2, 4)], {"transBatchA": 1, "transA": 1, "transBatchB": 1,
                                                              "transB": 1}, 1),
    "FusedGemm": ("FusedGemm", [numbers(3, 4), numbers(5, 4), numbers(5)],
                  {"transB": 1, "alpha": 0.5, "beta": 2.0, "activation": "Relu"}, 1),
    "FusedGemm LeakyRelu": ("FusedGemm", [numbers(3, 4), numbers(4, 5), numbers(5)],
                            {"activation": "LeakyRelu", "activation_alpha": 0.25}, 1),
    "FusedConv": ("FusedConv", [numbers(1, 2, 5, 5), numbers(4, 1, 3, 3), numbers(4)],
                  {"activation": "Relu", "group": 2, "pads": [1, 1, 1, 1], "strides": [2, 1]}, 1),
    "FusedConv HardSigmoid": ("FusedConv", [numbers(1, 2, 5, 5), numbers(4, 2, 3, 3), numbers(4)],
                              {"activation": "HardSigmoid", "activation_params": [0.25, 0.5]}, 1),
    "FusedConv Clip": ("FusedConv", [numbers(1, 2, 5, 5), numbers(4, 2, 3, 3)],
                       {"activation": "Clip", "activation_params": [-0.5, 0.75]}, 1),
    "FusedConv sum": ("FusedConv", [numbers(1, 2, 5, 5), numbers(4, 2, 3, 3), numbers(4), numbers(1, 4, 3, 3)],
                      {"activation": "Relu"}, 1),
    "SkipLayerNormalization": ("SkipLayerNormalization", NORM, {"epsilon": 1e-5}, 1),
    "SkipLayerNormalization sum": ("SkipLayerNormalization", [*NORM, numbers(8, seed=4)], {"epsilon": 1e-5}, 4),
    "SkipSimplifiedLayerNormalization": ("SkipSimplifiedLayerNormalization", NORM[:3], {"epsilon": 1e-5}, 1),
    "SkipSimplifiedLayerNormalization sum": ("SkipSimplifiedLayerNormalization", NORM, {"epsilon": 1e-5}, 4),
    "SimplifiedLayerNormalization": ("SimplifiedLayerNormalization", [X, numbers(8)], {"epsilon": 1e-5, "axis": -1}, 1),
    "EmbedLayerNormalization": (
        "EmbedLayerNormalization",
        [IDS, ints([0, 1, 1], [0, 0, 1]), *TABLES, numbers(8, seed=4), numbers(8, seed=5), ints([1, 1, 1], [1, 1, 0])],
        {"epsilon": 1e-5, "mask_index_type": 1}, 3),
    "EmbedLayerNormalization positions": (
        "EmbedLayerNormalization",
        [IDS, None, *TABLES[:2], None, numbers(8, seed=4), numbers(8, seed=5), None, ints([2, 1, 0], [5, 4, 3])],
        {"epsilon": 1e-5}, 2),
    "Attention": ("Attention", [X, W, B], ATTENTION, 1),
    "Attention causal": ("Attention", [X, W, B], {"unidirectional": 1, **ATTENTION}, 2),
    "Attention lengths": ("Attention", [X, W, B, ints(2, 3)], ATTENTION, 1),
    "Attention mask": ("Attention", [X, W, B, ints([1, 1, 0], [1, 1, 1])], ATTENTION, 1),
    "Attention mask 3-D": ("Attention", [X, W, B, ints(*[[[1, 1, 0], [1, 0, 1], [1, 1, 1]]] * 2)], ATTENTION, 1),
    "Attention bias and scale": ("Attention", [X, W, B, None, None, numbers(2, 2, 3, 3)], {"scale": 0.25,
        **ATTENTION}, 1),
    "Attention past": ("Attention", [X, W, B, None, numbers(2, 2, 2, 2, 4)], {"unidirectional": 1, **ATTENTION}, 2),
    "Attention sizes": ("Attention", [X, numbers(8, 28), numbers(28)], {"qkv_hidden_sizes": [8, 8, 12],
        **ATTENTION}, 1),
    "MultiHeadAttention": ("MultiHeadAttention", [Q, K, V], ATTENTION, 1),
    "MultiHeadAttention bias": ("MultiHeadAttention", [Q, K, V, B], {"scale": 0.25, **ATTENTION}, 1),
    "MultiHeadAttention mask": (
        "MultiHeadAttention", [Q, K, V, None, ints([1, 1, 0, 0], [1, 1, 1, 1])], ATTENTION, 1),
    "MultiHeadAttention attention_bias": ("MultiHeadAttention", [Q, K, V, None, None, numbers(1, 2, 3, 4)],
        ATTENTION, 1),
    "MultiHeadAttention causal": ("MultiHeadAttention", [X, X, X], {"unidirectional": 1, **ATTENTION}, 1),
    "MultiHeadAttention past": (
        "MultiHeadAttention", [Q, Q, Q, None, None, None, numbers(2, 2, 5, 4), numbers(2, 2, 5, 4, seed=1)],
        ATTENTION, 3),
    "MultiHeadAttention heads": (
        "MultiHeadAttention", [Q, numbers(2, 2, 4, 4), numbers(2, 2, 4, 4, seed=1)], ATTENTION, 1),
    "RotaryEmbedding": ("RotaryEmbedding", [numbers(2, 3, 8), ints([0, 1, 2], [4, 5, 9], dtype=np.int64), COS,
        SIN], {}, 1),
    "RotaryEmbedding offset": ("RotaryEmbedding", [numbers(2, 3, 8), ints(3, dtype=np.int64), COS, SIN], {}, 1),
    "RotaryEmbedding 4-D interleaved": (
        "RotaryEmbedding", [numbers(2, 2, 3, 4), ints([0, 1, 2], [4, 5, 9], dtype=np.int64), COS, SIN],
        {"interleaved": 1}, 1),
    "RotaryEmbedding partial": (
        "RotaryEmbedding", [numbers(2, 3, 12), ints([0, 1, 2], [4, 5, 9], dtype=np.int64), COS, SIN],
        {"rotary_embedding_dim": 4, "num_heads": 2}, 1),
    "GroupQueryAttention": ("GroupQueryAttention", [*GROUPED, None, None, ints(4, 4), FIVE], SHARED, 3),
    "GroupQueryAttention joined": (
        "GroupQueryAttention", [numbers(2, 5, 128), None, None, None, None, ints(4, 4), FIVE], SHARED, 3),
    "GroupQueryAttention past": (
        "GroupQueryAttention", [*(x[:1] for x in [*GROUPED, *PAST]), ints(7), EIGHT], {"scale": 0.3, **SHARED}, 3),
    "GroupQueryAttention one token": (
        "GroupQueryAttention", [*(x[:, :1] for x in GROUPED), *PAST, ints(3, 3), np.array(4, np.int32)], SHARED, 3),
    "GroupQueryAttention rotary": (
        "GroupQueryAttention", [*(x[:1] for x in [*GROUPED, *PAST]), ints(7), EIGHT, *ANGLES],
        {"do_rotary": 1, **SHARED}, 3),
    "GroupQueryAttention rotary interleaved": (
        "GroupQueryAttention", [*GROUPED, None, None, ints(4, 4), FIVE, *ANGLES],
        {"do_rotary": 1, "rotary_interleaved": 1, **SHARED}, 3),
    "GroupQueryAttention window and cap": (
        "GroupQueryAttention", [*GROUPED, None, None, ints(4, 4), FIVE],
        {"local_window_size": 2, "softcap": 0.5, **SHARED}, 3),
    "GroupQueryAttention bias": (
        "GroupQueryAttention", [*GROUPED, None, None, ints(4, 4), FIVE, None, None, None,
                                numbers(1, 4, 5, 5, seed=7)], SHARED, 3),
    "TransposeMatMul": ("TransposeMatMul", [numbers(4, 3), numbers(4, 5)], {"transA": 1}, 1),
    "CDist": ("CDist", [numbers(3, 4), numbers(5, 4, seed=1)], {"metric": "sqeuclidean"}, 1),
    "CDist euclidean": ("CDist", [numbers(3, 4), numbers(5, 4, seed=1)], {"metric": "euclidean"}, 1),
    "Trilu": ("Trilu", [numbers(3, 4), np.array(1)], {"upper": 0}, 1),
}  # fmt: skip
by_case = pytest.mark.parametrize("name", list(CASES))


def model_of(name: str, opset: int, *, dynamic: bool = False) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    op_type, inputs, attributes, outputs = CASES[name]
    domain = "" if op_type == "SimplifiedLayerNormalization" else "com.microsoft"
    feeds = {f"x{i}": a for i, a in enumerate(inputs) if a is not None}
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(inputs)]
    # mean and inv_std_var are declared but not filled by the CPU kernels, so nobody can rely on them.
    skipped = {1, 2} if op_type.startswith("Skip") else set()
    results = ["" if i in skipped else f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, names, results, name="it", domain=domain, **attributes)
    infos = [
        helper.make_tensor_value_info(
            n, helper.np_dtype_to_tensor_dtype(a.dtype), [f"{n}_{i}" for i in range(a.ndim)] if dynamic else a.shape
        )
        for n, a in feeds.items()
    ]
    graph = helper.make_graph(
        [node],
        "g",
        infos,
        [
            helper.make_tensor_value_info(
                r, onnx.TensorProto.INT32 if op_type.startswith("Embed") and r == "y1" else onnx.TensorProto.FLOAT, None
            )
            for r in results
            if r
        ],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10), feeds


def decomposed(proto: onnx.ModelProto) -> tuple[bool, onnx.ModelProto]:
    model = ir.serde.deserialize_model(proto)
    changed = decompose_microsoft(model)
    return changed, ir.serde.serialize_model(model)


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[Any]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


@by_case
@pytest.mark.parametrize("opset", [14, 17, 21])
def test_the_plain_operators_give_the_numbers_of_the_kernel(name: str, opset: int) -> None:
    proto, feeds = model_of(name, opset)

    changed, plain = decomposed(proto)

    assert changed
    assert {n.domain for n in plain.graph.node} == {""}
    assert [i.domain for i in plain.opset_import] == [""]
    for actual, expected in zip(run(plain, feeds), run(proto, feeds), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=2e-6)


@by_case
def test_the_result_is_valid_with_unknown_dimensions_and_has_gradients(name: str) -> None:
    proto, feeds = model_of(name, 21, dynamic=True)
    expected = run(model_of(name, 21)[0], feeds)

    changed, plain = decomposed(proto)

    assert changed
    for actual, wanted in zip(run(plain, feeds), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=2e-6)
    floats = [n for n, a in feeds.items() if a.dtype == np.float32]
    for output, value in zip(plain.graph.output, expected, strict=True):
        for axis in range(value.ndim):
            output.type.tensor_type.shape.dim.add().dim_param = f"{output.name}_{axis}"
    lowered = gradient(plain, of="y0", wrt=floats)
    onnx.checker.check_model(lowered, full_check=True)


def test_samples_with_pasts_of_other_lengths_attend_to_their_own() -> None:
    proto, feeds = model_of("GroupQueryAttention one token", 17)
    feeds["x5"] = ints(3, 2)  # the second sample has two keys before its new one, and the cache has room for three

    _, plain = decomposed(proto)

    for actual, expected in zip(run(plain, feeds), run(proto, feeds), strict=True):
        filled = (slice(None), slice(None), slice(0, 3)) if actual.ndim == 4 else ()  # the last place of it is unused
        np.testing.assert_allclose(actual[0], expected[0], rtol=1e-4, atol=2e-6)
        np.testing.assert_allclose(actual[filled], expected[filled], rtol=1e-4, atol=2e-6)


def test_a_past_without_a_present_stays() -> None:
    """Without outputs for it, ONNX Runtime's kernel ignores the past."""
    proto, _ = model_of("GroupQueryAttention past", 17)
    del proto.graph.node[0].output[1:]
    del proto.graph.output[1:]

    changed, _ = decomposed(proto)

    assert not changed


def test_what_cannot_be_expressed_stays() -> None:
    proto, _ = model_of("Attention", 21)
    proto.graph.node[0].attribute.append(helper.make_attribute("do_rotary", 1))

    changed, same = decomposed(proto)

    assert not changed
    assert [n.op_type for n in same.graph.node] == ["Attention"]


def test_subgraphs_are_looked_through() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>
        net (bool c, float[3] x) => (float[3] y) {
            y = If (c) <then_branch = yes () => (float[3] a) { a = com.microsoft.Gelu(x) },
                        else_branch = no () => (float[3] b) { b = com.microsoft.QuickGelu(x) }>
        }""")

    changed, plain = decomposed(proto)

    assert changed
    branches = [a.g for a in plain.graph.node[0].attribute]
    assert {n.domain for g in branches for n in g.node} == {""}
    assert [o.name for g in branches for o in g.output] == ["a", "b"]


def test_a_chain_without_shapes_in_the_file_is_replaced_as_a_whole() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>
        net (float[N,4] x, float[4,5] w, float[N,5] v) => (float[M,K] y) {
            a = com.microsoft.Gelu(x)
            b = com.microsoft.FusedMatMul <transB = 1> (a, x)
            c = com.microsoft.FusedMatMul <transA = 1> (b, v)
            y = com.microsoft.QuickGelu(c)
        }""")

    changed, plain = decomposed(proto)

    assert changed
    assert {n.domain for n in plain.graph.node} == {""}


def test_gradient_replaces_them_by_itself() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 13, "com.microsoft" : 1]>
        net (float[3] x) => (float[3] y) { y = com.microsoft.QuickGelu <alpha = 1.0> (x) }""")

    lowered = gradient(proto, of="y", wrt=["x"])

    _, dx = run(lowered, {"x": np.zeros(3, np.float32)})
    np.testing.assert_allclose(dx, [0.5] * 3)
