"""Products on tiles are as exact as products of float32, whatever the sizes; and the rewrite changes no result."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from backends.products import HALF, OFF, ONE, losses_of_a_network, numbers, off, product, rewritten
from onward.backends.onnxruntime.native import library

needs_tiles = pytest.mark.usefixtures("tiles")


@pytest.fixture(scope="module")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let the library have tiles: those of the processor, or, where it has none, such as are computed in software."""
    if library.compiler() is None:
        pytest.skip("there is no C compiler")
    if library.has_tiles(library.WHOLE):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        software = Path(__file__).with_name("tiles_in_software.h")
        patch.setenv("CC", f"{os.environ.get('CC') or 'cc'} -include {software}")
        patch.setenv("ONWARD_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(library, "_processor_has_tiles", lambda: True)
        forget()
        if not library.has_tiles(library.WHOLE):
            pytest.skip("this processor has neither tiles (AMX) nor AVX-512")
        yield
    forget()


def forget() -> None:
    for known in (library.load, library.has_tiles, library.version):
        known.cache_clear()


@needs_tiles
def test_products_of_any_size_are_those_of_float64():
    random = np.random.default_rng(0)
    for _ in range(80):
        M, N, K = (int(x) for x in np.exp(random.uniform(0, np.log(300), 3)))
        turned, relu = (int(random.integers(2)), int(random.integers(2))), int(random.integers(2))
        scale = int(random.choice([ONE, HALF]))
        A, B, bias = numbers(K, M) if turned[0] else numbers(M, K), numbers(N, K) if turned[1] else numbers(K, N), None
        right = (A.T if turned[0] else A).astype(float) @ (B.T if turned[1] else B) * (0.5 if scale == HALF else 1)
        if random.integers(2):
            bias = numbers(N)
            right += bias
        right = np.maximum(right, 0) if relu else right

        found = product(A, B, bias, turned=turned, relu=relu, scale=scale)

        assert off(found, right) < OFF, (M, N, K, turned, relu, scale)


@needs_tiles
@pytest.mark.parametrize("shape", [(700, 90, 3000), (2100, 300, 600), (40, 1200, 1100)], ids=str)
def test_large_products_are_split_into_several_parts(shape: tuple[int, int, int]):
    M, N, K = shape
    A, B = numbers(K, M), numbers(N, K)

    assert off(product(A, B, turned=(1, 1)), A.T.astype(float) @ B.T) < 2 * OFF


@needs_tiles
@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4, 40, 50), (3, 4, 50, 60)), ((3, 1, 40, 50), (4, 50, 60)), ((5, 40, 50), (50, 60)), ((40, 50), (7, 50, 60)),
     ((50,), (2, 50, 60)), ((2, 40, 50), (50,)), ((50,), (50,)), ((2, 3, 40, 50), (1, 50, 60)), ((0, 50), (50, 60)),
     ((40, 0), (0, 60)), ((2, 0, 40, 50), (50, 60)), ((2, 70, 900), (2, 900, 800))],
    ids=str,
)  # fmt: skip
def test_batches_are_broadcast_as_by_matmul(a: tuple[int, ...], b: tuple[int, ...]):
    A, B = numbers(*a), numbers(*b)

    assert off(product(A, B), np.matmul(A.astype(float), B)) < OFF


@needs_tiles
@pytest.mark.parametrize(
    ("a", "b", "turned"),
    [((16, 300), (300, 200), (0, 0)), ((1, 300), (200, 300), (0, 1)), ((300, 90), (300, 12), (1, 0)),
     ((90, 16), (16, 200), (0, 0)), ((2, 7, 40), (40, 60), (0, 0)), ((3, 40, 8), (3, 60, 40), (1, 1)),
     ((50,), (2, 50, 60), (0, 0))],
    ids=str,
)  # fmt: skip
def test_thin_products_are_those_of_onnxruntime(a: tuple[int, ...], b: tuple[int, ...], turned: tuple[int, int]):
    A, B = numbers(*a), numbers(*b)
    flags = f"transA = {turned[0]}, transB = {turned[1]}, alpha = 0.5"
    text = f"float[{','.join(map(str, a))}] A, float[{','.join(map(str, b))}] B) => (float[] C)"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]> g ({text} '
        f"{{C = com.microsoft.FusedMatMul <{flags}> (A, B)}}"
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 2, 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    theirs = session.run(None, {"A": A, "B": B})[0]
    bias = numbers(theirs.shape[-1])

    np.testing.assert_array_equal(product(A, B, turned=turned, scale=HALF), theirs)
    ours = product(A, B, bias, turned=turned, scale=HALF, relu=1)
    np.testing.assert_array_equal(ours, np.maximum(theirs + bias, 0))


@needs_tiles
def test_the_bits_do_not_depend_on_the_number_of_threads():
    A, B = numbers(300, 700), numbers(700, 400)

    one, three = (product(A, B, threads=threads) for threads in (1, 3))

    np.testing.assert_array_equal(one, three)


@needs_tiles
def test_large_and_small_numbers_keep_their_digits():
    A, B = numbers(64, 96), numbers(96, 64)
    rows, columns = 2.0 ** np.linspace(-90, 60, 64, dtype=np.float32), 2.0 ** np.linspace(-10, 30, 64, dtype=np.float32)

    found = product(A * rows[:, None].astype(np.float32), B * columns.astype(np.float32)) / rows[:, None] / columns

    assert off(found, A.astype(float) @ B) < OFF


@needs_tiles
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, np.uint32(0xFFFFFFFF).view(np.float32)], ids=str)
def test_what_is_not_finite_is_seen_in_its_row_alone(odd: float):
    A, B = numbers(64, 96), numbers(96, 64)
    A[5, 7] = odd

    found = product(A, B, numbers(64), relu=1)

    assert not np.isfinite(found[5]).any()
    assert np.isfinite(np.delete(found, 5, axis=0)).all()


@needs_tiles
def test_a_missing_third_of_the_digits_would_be_found():
    A, B = numbers(64, 640), numbers(640, 64)
    rounded = (((A.view(np.uint32) + 0x80) >> 8) << 8).view(np.float32)  # 16 bits of 24

    assert off(product(rounded, B), A.astype(float) @ B) > OFF


# -- the rewrite: it needs no tiles ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y = MatMul (x, w)", ["Multiply[0, 0, 0]"]),
        ("y = Gemm <transB = 1> (x, v, c)", ["MultiplyBiased[0, 1, 0]"]),
        ("a = Gemm <transB = 1> (x, v, c) y = Relu (a)", ["MultiplyBiased[0, 1, 1]"]),
        ("a = MatMul (x, w) y = Add (c, a)", ["MultiplyBiased[0, 0, 0]"]),
        ("a = MatMul (x, w) b = Add (a, c) y = Relu (b)", ["MultiplyBiased[0, 0, 1]"]),
        ("t = Transpose <perm = [1, 0]> (v) y = MatMul (x, t)", ["Multiply[0, 1, 0]"]),
        ("t = Transpose <perm = [1, 0]> (v) y = Gemm <transB = 1, alpha = 0.5> (x, t)", ["Multiply[0, 0, 0]"]),
        ("a = MatMul (x, w) y = Relu (a) z = Exp (a)", ["Multiply[0, 0, 0]", "Relu", "Exp"]),
        ("a = MatMul (x, w) y = Add (a, a)", ["Multiply[0, 0, 0]", "Add"]),
        ("y = Gemm <beta = 0.5> (x, w, c)", ["Gemm"]),
        ("y = Gemm (x, w, one)", ["Gemm"]),
        ("a = MatMul (x, w) y = Add (a, x)", ["Multiply[0, 0, 0]", "Add"]),
        ("y = MatMul (x, thin)", ["MatMul"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_stands_around_a_product_becomes_part_of_it(text: str, expected: list[str]):
    inputs = "float[n,64] x, float[64,64] w, float[64,64] v, float[64] c, float[1] one, float[64,10] thin"
    outputs = "float[n,k] y" + (", float[n,k] z" if " z =" in text else "")

    assert rewritten(text.replace(") ", ")\n").replace(")\n(", ") ("), inputs, outputs, tiles=True) == expected


@needs_tiles
def test_a_network_trains_as_with_the_plain_graph():
    losses = losses_of_a_network(80, 96, 64, [40, 40, 7, 1, 40])

    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
