"""A product of a transposed matrix has the same numbers when a native kernel transposes it first, in less time."""

from __future__ import annotations

import numpy as np
import pytest

from backends.products import HALF, OFF, losses_of_a_network, numbers, off, product, rewritten
from onward.backends.onnxruntime.native import library

needs_compiler = pytest.mark.skipif(library.compiler() is None, reason="there is no C compiler")


@needs_compiler
@pytest.mark.parametrize(
    ("rows", "columns", "depth"),
    [(64, 256, 96), (70, 300, 97), (513, 270, 129), (5, 256, 200), (1, 256, 96), (64, 255, 95), (64, 300, 1), (7, 9, 0),
     (0, 300, 100), (300, 0, 100), (1100, 1030, 301), (1100, 1000, 301), (2050, 1030, 2060)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("turned_B", [0, 1])
def test_products_of_transposed_matrices_are_those_of_float64(rows: int, columns: int, depth: int, turned_B: int):
    A, B = numbers(depth, rows), numbers(columns, depth) if turned_B else numbers(depth, columns)
    bias = numbers(columns)
    right = A.T.astype(float) @ (B.T if turned_B else B) * 0.5

    assert off(product(A, B, turned=(1, turned_B), scale=HALF), right) < OFF
    ended = product(A, B, bias, turned=(1, turned_B), scale=HALF, relu=1)
    assert off(ended, np.maximum(right + bias, 0)) < OFF


@needs_compiler
@pytest.mark.parametrize(
    ("a", "b"), [((1, 200, 64), (200, 256)), ((200, 64), (1, 200, 256)), ((2, 200, 8), (200, 256))]
)
def test_batches_of_transposed_matrices_stay_with_onnxruntime(a: tuple[int, ...], b: tuple[int, ...]):
    A, B = numbers(*a), numbers(*b)

    assert off(product(A, B, turned=(1, 0)), np.matmul(A.swapaxes(-1, -2).astype(float), B)) < OFF


@needs_compiler
def test_the_bits_do_not_depend_on_the_number_of_threads():
    A, B = numbers(300, 90), numbers(300, 400)

    one, three = (product(A, B, turned=(1, 0), threads=threads) for threads in (1, 3))

    np.testing.assert_array_equal(one, three)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y = Gemm <transA = 1> (x, w)", ["Multiply[1, 0, 0]"]),
        ("y = Gemm <transA = 1, transB = 1, alpha = 0.5> (x, v)", ["Multiply[1, 1, 0]"]),
        ("t = Transpose <perm = [1, 0]> (x)\n y = MatMul (t, w)", ["Multiply[1, 0, 0]"]),
        ("t = Transpose <perm = [1, 0]> (x)\n y = Gemm <transA = 1> (t, u)", ["Transpose", "Gemm"]),
        ("a = Gemm <transA = 1> (x, w)\n y = Relu (a)", ["Multiply[1, 0, 0]", "Relu"]),
        ("y = Gemm <transA = 1> (x, w, c)", ["Gemm"]),
        ("y = Gemm (x, u)", ["Gemm"]),
        ("y = Gemm <transA = 1> (x, thin)", ["Gemm"]),
        ("y = Gemm <transA = 1> (thin, w)", ["Gemm"]),
        ("y = Gemm <transA = 1> (x, unknown)", ["Gemm"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_large_products_of_transposed_matrices_alone_are_replaced(text: str, expected: list[str]):
    inputs = (
        "float[n,64] x, float[n,256] w, float[256,n] v, float[64,256] u, float[256] c, float[n,32] thin, "
        "float[n,m] unknown"
    )

    assert rewritten(text, inputs, "float[p,q] y", tiles=False) == expected


@needs_compiler
def test_a_network_trains_as_with_the_plain_graph():
    losses = losses_of_a_network(300, 256, 260, [128, 128, 100, 7, 1])

    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5, atol=1e-6)
