"""Cases of autodiff/rules/linalg.py."""

from __future__ import annotations

import numpy as np
import torch as _torch

from cases import array, case


def _matmul(A, B):
    return _torch.matmul(A, B)


def _gemm(alpha=1.0, beta=1.0, transA=0, transB=0):
    def compute(A, B, C=None):
        product = alpha * ((A.T if transA else A) @ (B.T if transB else B))
        return product if C is None else product + beta * C

    return compute


def _einsum(equation):
    return lambda **inputs: _torch.einsum(equation, *inputs.values())


def _einsum_case(name, equation, *arrays, torch=True, **options):
    return case(
        "Einsum",
        name,
        Inputs=list(arrays),
        equation=equation,
        torch=_einsum(equation) if torch else None,
        **options,
    )


SINGULAR = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.5, -1.0, 2.0]])

CASES = [
    case("MatMul", "matrices", A=array(2, 3), B=array(3, 4, seed=1), torch=_matmul),
    case("MatMul", "batch by matrix", A=array(2, 2, 3), B=array(3, 4, seed=1), torch=_matmul),
    case("MatMul", "batch by batch", A=array(2, 2, 3), B=array(2, 3, 2, seed=1), torch=_matmul),
    case("MatMul", "batch broadcast", kind="edge", A=array(3, 1, 2, 2), B=array(2, 2, 3, seed=1), torch=_matmul),
    case("MatMul", "matrix by batch", kind="edge", A=array(2, 3), B=array(2, 3, 2, seed=1), torch=_matmul),
    case("MatMul", "batch of one", kind="edge", A=array(1, 2, 3), B=array(4, 3, 2, seed=1), torch=_matmul),
    case("MatMul", "vectors", kind="edge", A=array(3), B=array(3, seed=1), torch=_matmul),
    case("MatMul", "vector by matrix", kind="edge", A=array(3), B=array(3, 4, seed=1), torch=_matmul),
    case("MatMul", "vector by batch", kind="edge", A=array(3), B=array(2, 2, 3, 2, seed=1), torch=_matmul),
    case("MatMul", "matrix by vector", kind="edge", A=array(2, 3), B=array(3, seed=1), torch=_matmul),
    case("MatMul", "batch by vector", kind="edge", A=array(2, 2, 3), B=array(3, seed=1), torch=_matmul),
    case("MatMul", "no rows", kind="edge", A=array(0, 3), B=array(3, 4, seed=1), torch=_matmul),
    case("MatMul", "nothing to sum", kind="edge", A=array(2, 2, 0), B=array(0, 4, seed=1), torch=_matmul),
    case(
        "MatMul", "infinite", kind="special", A=np.array([[np.inf, 1.0]]), B=np.array([[2.0], [3.0]]), wrt=["A"],
        expected={"A": [[2.0, 3.0]]},
    ),
    case("Gemm", "plain", A=array(2, 3), B=array(3, 4, seed=1), C=array(4, seed=2), torch=_gemm()),
    case(
        "Gemm", "transA", A=array(3, 2), B=array(3, 4, seed=1), C=array(2, 4, seed=2), transA=1, alpha=0.5, beta=2.0,
        torch=_gemm(0.5, 2.0, transA=1),
    ),
    case("Gemm", "transB", A=array(2, 3), B=array(4, 3, seed=1), transB=1, alpha=1.5, torch=_gemm(1.5, transB=1)),
    case(
        "Gemm", "both transposed", A=array(3, 2), B=array(4, 3, seed=1), C=array(2, 1, seed=2), transA=1, transB=1,
        beta=-0.25, torch=_gemm(1.0, -0.25, 1, 1),
    ),
    case("Gemm", "scalar C", kind="edge", A=array(2, 3), B=array(3, 2, seed=1), C=array(seed=2), torch=_gemm()),
    case("Gemm", "beta zero", kind="edge", A=array(2, 3), B=array(3, 2, seed=1), C=array(2, seed=2), beta=0.0,
         torch=_gemm(beta=0.0)),
    case("Gemm", "no rows", kind="edge", A=array(0, 3), B=array(3, 2, seed=1), C=array(2, seed=2), torch=_gemm()),
    case(
        "Gemm", "infinite", kind="special", A=np.array([[np.inf]]), B=np.array([[2.0]]), C=np.array([1.0]),
        wrt=["A", "C"], expected={"A": [[2.0]], "C": [1.0]},
    ),
    _einsum_case("matrix product", "ij,jk->ik", array(2, 3), array(3, 4, seed=1)),
    _einsum_case("implicit output", "ij,jk", array(2, 3), array(3, 2, seed=1)),
    _einsum_case("implicit order", "ba", array(2, 3)),
    _einsum_case("batch", "bij,bkj->bik", array(2, 2, 3), array(2, 2, 3, seed=1)),
    _einsum_case("three operands", "ij,jk,kl->il", array(2, 3), array(3, 2, seed=1), array(2, 2, seed=2)),
    _einsum_case("bilinear", "bi,oij,bj->bo", array(2, 2), array(3, 2, 2, seed=1), array(2, 2, seed=2)),
    _einsum_case("permutation", "i j k -> k i j", array(2, 3, 2), torch=False),
    _einsum_case("outer", "i,j->ij", array(2), array(3, seed=1)),
    _einsum_case("sum of all", "ij->", array(2, 3), kind="edge"),
    _einsum_case("row sums", "ij->i", array(2, 3), kind="edge"),
    _einsum_case("label summed alone", "ij,k->i", array(2, 3), array(2, seed=1), kind="edge"),
    _einsum_case("diagonal", "ii->i", array(3, 3), kind="edge"),
    _einsum_case("trace", "ii", array(3, 3), kind="edge"),
    _einsum_case("batch diagonal", "bii->bi", array(2, 3, 3), kind="edge"),
    _einsum_case("cube diagonal", "iii->i", array(2, 2, 2), kind="edge", torch=False),
    _einsum_case("two diagonals", "iijj->ij", array(2, 2, 3, 3), kind="edge"),
    _einsum_case("trace of a product", "ij,ji->", array(2, 3), array(3, 2, seed=1), kind="edge"),
    _einsum_case("trace times", "ii,j->j", array(2, 2), array(3, seed=1), kind="edge"),
    _einsum_case("diagonal of a product", "ij,jj->i", array(2, 3), array(3, 3, seed=1), kind="edge"),
    _einsum_case("ellipsis", "...ij,...jk->...ik", array(2, 2, 3), array(2, 3, 2, seed=1)),
    _einsum_case("ellipsis implicit", "...ij,...jk", array(2, 2, 3), array(2, 3, 2, seed=1), torch=False),
    _einsum_case("ellipsis broadcast", "...ij,...jk->...ik", array(3, 1, 2, 2), array(1, 2, 2, 2, seed=1), kind="edge"),
    _einsum_case("ellipsis on one side", "...ij,jk->...ik", array(2, 2, 3), array(3, 2, seed=1), kind="edge"),
    _einsum_case("ellipsis in the middle", "i...j,j...->i...", array(2, 3, 2), array(2, 1, seed=1), kind="edge"),
    _einsum_case("ellipsis with diagonal", "...ii->...i", array(2, 3, 3), kind="edge"),
    _einsum_case("ellipsis with sum", "...ij->...", array(2, 2, 3), kind="edge"),
    _einsum_case("ellipsis of nothing", "...ij,...j->...i", array(2, 3), array(3, seed=1), kind="edge"),
    _einsum_case("scalar operand", ",ij->ij", array(), array(2, 3, seed=1), kind="edge"),
    _einsum_case("empty", "ij,jk->ik", array(2, 0), array(0, 3, seed=1), kind="edge"),
    _einsum_case("infinite", "i,i->", np.array([np.inf, 1.0]), np.array([2.0, 3.0]), kind="special", torch=False,
                 wrt=["Inputs_0"], expected={"Inputs_0": [2.0, 3.0]}),
    case("Det", "matrix", X=array(3, 3), torch=lambda X: _torch.linalg.det(X)),
    case("Det", "batch", X=array(2, 2, 2, 2), torch=lambda X: _torch.linalg.det(X)),
    case("Det", "one by one", kind="edge", X=array(2, 1, 1)),
    case("Det", "no matrices", kind="edge", X=array(0, 2, 2)),
    case("Det", "singular", kind="special", X=SINGULAR),
]  # fmt: skip
