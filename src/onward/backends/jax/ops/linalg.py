"""MatMul, Gemm, Einsum and Det."""

from __future__ import annotations

import jax.numpy as jnp

from onward.backends.jax.registry import Attributes, op
from onward.backends.jax.tensors import Array


@op("MatMul")
def mat_mul(attributes: Attributes, a: Array, b: Array) -> Array:
    return jnp.matmul(a, b).astype(a.dtype)


@op("Gemm")
def gemm(attributes: Attributes, a: Array, b: Array, c: Array | None = None) -> Array:
    left = a.T if attributes["transA"] else a
    right = b.T if attributes["transB"] else b
    alpha, beta = attributes["alpha"], attributes["beta"]
    product = left @ right
    product = product if alpha == 1 else product * alpha
    return (product if c is None else product + (c if beta == 1 else c * beta)).astype(a.dtype)


@op("Einsum")
def einsum(attributes: Attributes, *inputs: Array) -> Array:
    return jnp.einsum(attributes["equation"].replace(" ", ""), *inputs)


@op("Det")
def det(attributes: Attributes, x: Array) -> Array:
    narrow = x.dtype in (jnp.float16, jnp.bfloat16)  # LAPACK has no 16 bits
    return jnp.linalg.det(x.astype(jnp.float32) if narrow else x).astype(x.dtype)
