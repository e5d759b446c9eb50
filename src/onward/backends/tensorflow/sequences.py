"""Sequences whose length is not known while TensorFlow traces: a `TensorArray` and a count.

Sequences are Python lists wherever their length is known. At the boundary of a module with `ragged=True` they are
`tf.RaggedTensor`s. The elements of one sequence have the same number of axes; sizes along the first may differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import tensorflow as tf

from onward.backends.tensorflow.framework import unknown
from onward.backends.tensorflow.tensors import tf_type


@dataclasses.dataclass(frozen=True)
class Rows:
    """A sequence of unknown length; each change returns a new one."""

    array: tf.TensorArray
    count: tf.Tensor  # int32
    shape: tf.TensorShape  # of an element; the first size may differ from one to the next

    @property
    def dtype(self) -> tf.DType:
        """The type of the elements."""
        return self.array.dtype

    def at(self, position: Any) -> tf.Tensor:
        """Return the element at a position, which may be negative."""
        place = self._place(position)
        return tf.ensure_shape(self.array.read(place), self.shape)

    def insert(self, value: tf.Tensor, position: Any = None) -> Rows:
        """Return the sequence with one more element, by default at the end."""
        shape = common(self.shape, value.shape)
        if position is None:
            return Rows(self.array.write(self.count, value), self.count + 1, shape)
        place = self._place(position)

        def element(index: tf.Tensor) -> tf.Tensor:
            return tf.cond(
                tf.equal(index, place),
                lambda: value,
                lambda: self.array.read(index - tf.cast(index > place, tf.int32)),
            )

        return made(element, self.count + 1, self.dtype, shape)

    def erase(self, position: Any = None) -> Rows:
        """Return the sequence without one element, by default the last."""
        place = self.count - 1 if position is None else self._place(position)
        return self.map(lambda index: self.array.read(index + tf.cast(index >= place, tf.int32)), self.count - 1)

    def map(self, element: Callable[[tf.Tensor], tf.Tensor], count: Any = None) -> Rows:
        """Return a sequence whose elements have the type and the shape of these."""
        return made(element, self.count if count is None else count, self.dtype, self.shape)

    def joined(self, axis: int, *, stacked: bool) -> tf.Tensor:
        """Return the elements one after the other along an axis, or along a new one."""
        rank = self.shape.rank
        if stacked:
            whole = tf.ensure_shape(self.array.stack(), [None, *self.shape])
            order = list(range(1, rank + 1))
            order.insert(axis % (rank + 1), 0)
            return tf.transpose(whole, order)
        axis = axis % rank
        if axis == 0:
            return tf.ensure_shape(self.array.concat(), [None, *self.shape[1:]])
        order = [axis, *(i for i in range(rank) if i != axis)]
        turned = tf.TensorShape([None, *(self.shape[i] for i in order[1:])])
        rows = made(lambda i: tf.transpose(self.array.read(i), order), self.count, self.dtype, turned)
        return tf.transpose(rows.joined(0, stacked=False), [order.index(i) for i in range(rank)])

    def ragged(self) -> Any:
        """Return the sequence as a ragged tensor; a sequence of numbers is a plain tensor."""
        if self.shape.rank == 0:
            return self.joined(0, stacked=True)
        lengths = made(lambda i: tf.shape(self.array.read(i), tf.int64)[0], self.count, tf.int64, tf.TensorShape([]))
        return tf.RaggedTensor.from_row_lengths(self.joined(0, stacked=False), lengths.array.stack(), validate=False)

    def _place(self, position: Any) -> tf.Tensor:
        place = tf.reshape(tf.cast(position, tf.int32), [])
        return tf.where(place < 0, place + self.count, place)


def common(a: tf.TensorShape, b: tf.TensorShape) -> tf.TensorShape:
    """Return the sizes that two elements share; raise BackendError if they have another number of axes."""
    if a.rank is None or a.rank != b.rank:
        raise unknown(f"elements of a sequence have the shapes {a} and {b}")
    return tf.TensorShape([m if m == n and i else None for i, (m, n) in enumerate(zip(a, b, strict=True))])


def made(element: Callable[[tf.Tensor], tf.Tensor], count: Any, dtype: tf.DType, shape: tf.TensorShape) -> Rows:
    """Return the sequence of `element(index)` for each index below `count`."""
    count = tf.cast(count, tf.int32)
    _, array = tf.while_loop(
        lambda index, _: index < count,
        lambda index, array: (index + 1, array.write(index, element(index))),
        (tf.constant(0), _array(dtype, shape)),
    )
    return Rows(array, count, shape)


def from_list(values: Sequence[tf.Tensor], dtype: tf.DType, shape: tf.TensorShape) -> Rows:
    """Return a list of tensors as a sequence that may grow."""
    array = _array(dtype, shape)
    for index, value in enumerate(values):
        array = array.write(index, value)
    return Rows(array, tf.constant(len(values)), shape)


def described(values: Sequence[tf.Tensor]) -> tuple[tf.DType, tf.TensorShape]:
    """Return the type and the shape that all elements of a list have."""
    if not values:
        raise unknown("the type of an empty sequence is not known")
    shape = tf.TensorShape([n if i else None for i, n in enumerate(values[0].shape)])
    for value in values[1:]:
        shape = common(shape, value.shape)
    return values[0].dtype, shape


def split(x: tf.Tensor, lengths: tf.Tensor) -> Rows:
    """Return the pieces of `x` along its first axis."""
    shape = tf.TensorShape([None, *x.shape[1:]])
    count = tf.size(lengths)
    array = tf.TensorArray(x.dtype, count, infer_shape=False, element_shape=shape, clear_after_read=False)
    return Rows(array.split(x, tf.cast(lengths, tf.int32)), count, shape)


def from_ragged(value: Any) -> Rows | list[tf.Tensor]:
    """Return what a ragged tensor holds: a list where the number of rows is known, else a sequence."""
    if not isinstance(value, tf.RaggedTensor):  # numbers
        known = value.shape[0]
        if known is not None:
            return list(tf.unstack(value))
        return made(lambda i: value[i], tf.shape(value)[0], value.dtype, value.shape[1:])
    known = value.shape[0]
    if tf.executing_eagerly() or known is not None:
        return [value[i] for i in range(int(value.nrows()) if known is None else known)]
    return split(value.values, value.row_lengths())


def to_ragged(value: Any, kind: ir.Value) -> Any:
    """Return a sequence as a ragged tensor; `kind` describes an empty one."""
    if isinstance(value, Rows):
        return value.ragged()
    if not isinstance(value, list):
        return value
    if kind.shape is not None and not len(kind.shape):
        return tf.stack(value) if value else tf.zeros([0], tf_type(kind.dtype or 1))
    if not value:
        rest = [] if kind.shape is None else [d if isinstance(d, int) else 0 for d in list(kind.shape)[1:]]
        empty = tf.zeros([0, *rest], tf_type(kind.dtype or 1))
        return tf.RaggedTensor.from_row_lengths(empty, tf.zeros([0], tf.int64), validate=False)
    lengths = tf.stack([tf.shape(v, tf.int64)[0] for v in value])
    return tf.RaggedTensor.from_row_lengths(tf.concat(value, 0), lengths, validate=False)


def ragged_spec(kind: ir.Value, name: str) -> Any:
    """Return what a function takes for a sequence."""
    dims = None if kind.shape is None else [d if isinstance(d, int) else None for d in kind.shape]
    if dims is None:
        raise unknown(f"the number of axes of the elements of `{kind.name}` is not known")
    dtype = tf_type(kind.dtype or 1)
    if not dims:
        return tf.TensorSpec([None], dtype, name)
    return tf.RaggedTensorSpec([None, None, *dims[1:]], dtype, ragged_rank=1, row_splits_dtype=tf.int64)


def _array(dtype: tf.DType, shape: tf.TensorShape) -> tf.TensorArray:
    return tf.TensorArray(dtype, 0, dynamic_size=True, infer_shape=False, element_shape=shape, clear_after_read=False)
