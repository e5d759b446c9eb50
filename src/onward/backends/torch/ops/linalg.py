"""MatMul, Gemm, Einsum and Det."""

from __future__ import annotations

import torch
from torch import Tensor

from onward.backends.torch.registry import Attributes, op


@op("MatMul")
def mat_mul(attributes: Attributes, a: Tensor, b: Tensor) -> Tensor:
    if not a.is_floating_point():
        return (a.double() @ b.double()).to(a.dtype)
    return a @ b


@op("Gemm")
def gemm(attributes: Attributes, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    left = a.t() if attributes["transA"] else a
    right = b.t() if attributes["transB"] else b
    alpha, beta = attributes["alpha"], attributes["beta"]
    if c is not None and alpha == 1 and beta == 1 and a.is_floating_point() and c.ndim <= 2:
        return torch.addmm(c, left, right)
    product = mat_mul(attributes, left, right)
    product = product if alpha == 1 else product * alpha
    result = product if c is None else product + (c if beta == 1 else c * beta)
    return result.to(a.dtype)  # alpha and beta are floats, also where the matrices are integers


@op("Einsum")
def einsum(attributes: Attributes, *inputs: Tensor) -> Tensor:
    return torch.einsum(attributes["equation"].replace(" ", ""), *inputs)


@op("Det")
def det(attributes: Attributes, x: Tensor) -> Tensor:
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x  # LAPACK has no 16 bits
    return torch.linalg.det(wide).to(x.dtype)
