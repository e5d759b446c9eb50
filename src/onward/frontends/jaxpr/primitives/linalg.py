"""Products of matrices."""

from __future__ import annotations

import string
from typing import Any

import numpy as np

from onward.frontends.jaxpr.frame import Frame
from onward.frontends.jaxpr.registry import UnsupportedError, primitive
from onward.graph.builder import Value


@primitive("dot_general")
def dot_general(frame: Frame, equation: Any, a: Value, b: Value) -> Value:
    """Sum over the contracted axes: a MatMul of transposed and reshaped arrays; an Einsum where that is simpler."""
    (contract_a, contract_b), (batch_a, batch_b) = equation.params["dimension_numbers"]
    out = equation.outvars[0].aval
    if not np.issubdtype(out.dtype, np.floating):
        raise UnsupportedError(f"a product of {out.dtype} matrices; cast them to floats")
    a, b = frame.cast(a, out.dtype), frame.cast(b, out.dtype)
    rank_a, rank_b = (len(v.aval.shape) for v in equation.invars)
    free_a = [i for i in range(rank_a) if i not in contract_a and i not in batch_a]
    free_b = [i for i in range(rank_b) if i not in contract_b and i not in batch_b]
    one = len(contract_a) == 1
    if one and (len(free_b) == 1 if not batch_a else len(free_a) == len(free_b) == 1):
        left = frame.transpose(a, [*batch_a, *free_a, *contract_a])
        right = frame.transpose(b, [*batch_b, *contract_b, *free_b])
        made: Value = frame.op.MatMul(left, right)
        return made
    letters = iter(string.ascii_letters)
    left_names: list[str] = [""] * rank_a
    right_names: list[str] = [""] * rank_b
    for i, j in [*zip(batch_a, batch_b, strict=True), *zip(contract_a, contract_b, strict=True)]:
        left_names[i] = right_names[j] = next(letters)
    left_names = [c or next(letters) for c in left_names]
    right_names = [c or next(letters) for c in right_names]
    result = [*(left_names[i] for i in [*batch_a, *free_a]), *(right_names[i] for i in free_b)]
    text = f"{''.join(left_names)},{''.join(right_names)}->{''.join(result)}"
    made = frame.op.Einsum(a, b, equation=text)
    return made


@primitive(
    "triangular_solve", "cholesky", "lu", "qr", "eigh", "svd", "householder_product", "geqrf", "custom_linear_solve"
)
def decomposition(frame: Frame, equation: Any, *values: Value) -> list[Value]:
    """Refused: ONNX has no decomposition of matrices."""
    raise UnsupportedError("ONNX has no decomposition of matrices")
