"""TensorFlow for the interpreter: how to make and read a tensor, eagerly or while `tf.function` traces.

A size that is not known while TensorFlow traces is a scalar int64 tensor (a symbol) in a host value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onward.backends.graph.framework import Framework
from onward.backends.graph.host import Host
from onward.backends.tensorflow.layout import Laid
from onward.backends.tensorflow.registry import REGISTRY
from onward.backends.tensorflow.tensors import to_numpy, to_tensor
from onward.errors import BackendError, Diagnostic

B304 = "B304"


class TensorFlow(Framework):
    """TensorFlow's tensors."""

    title = "TensorFlow"
    failures = (*Framework.failures, tf.errors.OpError)

    def to_tensor(self, array: np.ndarray) -> tf.Tensor:
        return to_tensor(array)

    def from_host(self, value: Host, like: Sequence[Any] = ()) -> tf.Tensor:
        if not any(is_symbol(v) for v in value.values):
            return tf.constant(np.array(value.values, value.dtype).reshape(value.shape))
        return tf.reshape(tf.stack([tf.cast(v, value.dtype) for v in value.values]), value.shape)

    def tensor(self, value: Any, like: Sequence[Any] = ()) -> Any:
        return value.plain() if isinstance(value, Laid) else super().tensor(value, like)

    def shape(self, value: Any) -> list[Any]:
        if isinstance(value, Laid):
            inner = self.shape(value.tensor)
            return [inner[value.order.index(axis)] for axis in range(len(inner))]
        if not isinstance(value, tf.Tensor):
            return list(value.shape)
        if value.shape.rank is None:
            raise unknown("the number of axes of a value is not known")
        sizes = value.shape.as_list()
        if None not in sizes:
            return list(sizes)
        dynamic = tf.shape(value, out_type=tf.int64)
        return [dynamic[i] if n is None else n for i, n in enumerate(sizes)]

    def read(self, tensor: Any) -> list[Any]:
        """Return the elements; those that are not known while TensorFlow traces are symbols."""
        if not is_symbol(tensor):
            known: list[Any] = to_numpy(tensor).reshape(-1).tolist()
            return known
        if tensor.shape.num_elements() is None:
            raise unknown("the number of elements of a shape depends on data")
        flat = tf.reshape(tensor, [-1])
        found = tf.get_static_value(flat, partial=True)
        if found is None:
            return [flat[i] for i in range(flat.shape[0])]
        return [flat[i] if v is None else v.item() for i, v in enumerate(found)]

    def ints(self, value: Any) -> list[Any]:
        return [tf.cast(v, tf.int64) if is_symbol(v) else int(v) for v in self.numbers(value)]

    def known_ints(self, value: Any) -> list[int]:
        """Return axes and the like as Python numbers; raise BackendError if they are not known."""
        return [int(_known(v)) for v in (value if isinstance(value, list) else self.numbers(value))]

    def floats(self, value: Any) -> list[float]:
        return [float(_known(v)) for v in self.numbers(value)]

    def number(self, value: Any) -> Any:
        return _known(self.numbers(value)[0])

    def select(self, tensor: Any, axis: int, index: int) -> tf.Tensor:
        return tf.gather(tensor, index, axis=axis)

    def stack(self, tensors: list[Any], axis: int) -> tf.Tensor:
        return tf.stack(tensors, axis)


class UnknownValue(BackendError):
    """A number is needed that is not known while TensorFlow traces."""


def unknown(problem: str) -> UnknownValue:
    """Return the error for a graph that TensorFlow cannot trace."""
    hint = "make it a constant of the model, give fixed `sizes`, or run without tf.function"
    return UnknownValue(Diagnostic(B304, f"{problem}, and TensorFlow traces without data", hint=hint))


def is_symbol(value: Any) -> bool:
    """Return whether a value is a tensor that is not known while TensorFlow traces."""
    return isinstance(value, tf.Tensor) and bool(tf.is_symbolic_tensor(value))


def is_known(value: Any) -> bool:
    """Return whether all numbers of an integer value are known while TensorFlow traces."""
    if isinstance(value, Host):
        return not any(is_symbol(v) for v in value.values)
    return not is_symbol(value) or tf.get_static_value(value) is not None


def is_traced(value: Any) -> bool:
    """Return whether any part of a value of a graph is not known while TensorFlow traces."""
    if isinstance(value, Laid):
        return is_symbol(value.tensor)
    if isinstance(value, Host):
        return any(is_symbol(v) for v in value.values)
    if hasattr(value, "array"):  # a sequence of unknown length
        return True
    if isinstance(value, list):
        return any(is_traced(v) for v in value)
    return is_symbol(value)


def concrete(tensor: tf.Tensor) -> np.ndarray:
    """Return the values of a tensor; raise BackendError while TensorFlow traces."""
    if is_symbol(tensor):
        raise unknown("the size of a result depends on data")
    return to_numpy(tensor)


def _known(value: Any) -> Any:
    if is_symbol(value):
        raise unknown("a size, an axis or a condition depends on data")
    return value


TENSORFLOW = TensorFlow(REGISTRY)
ints, known_ints, floats, number = TENSORFLOW.ints, TENSORFLOW.known_ints, TENSORFLOW.floats, TENSORFLOW.number
shape_of = TENSORFLOW.shape


def sized(sizes: Sequence[Any]) -> Any:
    """Return sizes, of which some may be symbols, as TensorFlow takes a shape."""
    if not any(is_symbol(n) for n in sizes):
        return list(sizes)
    return tf.stack([tf.cast(n, tf.int64) for n in sizes])
