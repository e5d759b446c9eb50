"""MatMul, Gemm, Einsum and Det."""

from __future__ import annotations

import tensorflow as tf

from onward.backends.tensorflow.registry import Attributes, op
from onward.backends.tensorflow.tensors import is_float


@op("MatMul")
def mat_mul(attributes: Attributes, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    if not is_float(a):
        return tf.cast(mat_mul(attributes, tf.cast(a, tf.float64), tf.cast(b, tf.float64)), a.dtype)
    if a.shape.rank == 1 and b.shape.rank == 1:
        return tf.tensordot(a, b, 1)
    if a.shape.rank == 1:
        return tf.squeeze(tf.matmul(tf.expand_dims(a, 0), b), -2)
    if b.shape.rank == 1:
        return tf.squeeze(tf.matmul(a, tf.expand_dims(b, 1)), -1)
    if b.shape.rank == 2 and a.shape.rank > 2:
        return tf.tensordot(a, b, 1)  # one product, not one for each matrix
    return tf.matmul(a, b)


@op("Gemm")
def gemm(attributes: Attributes, a: tf.Tensor, b: tf.Tensor, c: tf.Tensor | None = None) -> tf.Tensor:
    alpha, beta = attributes["alpha"], attributes["beta"]
    if is_float(a):
        product = tf.matmul(a, b, transpose_a=bool(attributes["transA"]), transpose_b=bool(attributes["transB"]))
        product = product if alpha == 1 else product * alpha
        return product if c is None else product + (c if beta == 1 else c * beta)
    wide = [None if v is None else tf.cast(v, tf.float64) for v in (a, b, c)]
    return tf.cast(gemm(attributes, *wide), a.dtype)


@op("Einsum")
def einsum(attributes: Attributes, *inputs: tf.Tensor) -> tf.Tensor:
    equation = _explicit(attributes["equation"].replace(" ", ""))
    if not is_float(inputs[0]):
        return tf.cast(tf.einsum(equation, *(tf.cast(v, tf.float64) for v in inputs)), inputs[0].dtype)
    return tf.einsum(equation, *inputs)


def _explicit(equation: str) -> str:
    """Return an equation with its output, which TensorFlow wants where there is an ellipsis."""
    if "->" in equation:
        return equation
    letters = equation.replace(",", "").replace("...", "")
    once = sorted(letter for letter in letters if letters.count(letter) == 1)
    return f"{equation}->{'...' * ('...' in equation)}{''.join(once)}"


@op("Det")
def det(attributes: Attributes, x: tf.Tensor) -> tf.Tensor:
    return tf.linalg.det(x)
