"""The order of axes in memory: ONNX's images have the channels second, TensorFlow's kernels want them last.

A value that is stored in another order of axes is a `Laid`: it says which order, so nothing is ever guessed from sizes.
Convolution and pooling ask for the channels last, element-wise operators keep the order they meet
(`layout_rules.py`), and a transposition happens only where two orders meet.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

Order = tuple[int, ...]


class Moves:
    """The transpositions that a run needs: the node that asked for each. Weights of convolutions are not counted."""

    def __init__(self) -> None:
        self.places: list[str] = []
        self.place = ""  # the node that runs now

    def note(self) -> None:
        """Count a transposition."""
        self.places.append(self.place)


class Laid:
    """A value in another order of axes: axis i of `tensor` is axis `order[i]` of the value."""

    def __init__(self, tensor: tf.Tensor, order: Order, moves: Moves) -> None:
        self.tensor = tensor
        self.order = order
        self.moves = moves
        self._known: dict[Order, tf.Tensor] = {order: tensor}

    def plain(self) -> tf.Tensor:
        """Return the value in ONNX's order."""
        return self.laid(tuple(range(len(self.order))))

    def laid(self, wanted: Order) -> tf.Tensor:
        """Return the value as a tensor in the order `wanted`."""
        if wanted not in self._known:
            perm = tuple(self.order.index(axis) for axis in wanted)
            self._known[wanted] = transposed(self.tensor, perm, self.moves)
        return self._known[wanted]


def channels_last(rank: int) -> Order:
    """Return the order of an image with `rank` axes that TensorFlow's kernels want.

    >>> channels_last(4)
    (0, 2, 3, 1)
    """
    return (0, *range(2, rank), 1)


def transposed(x: tf.Tensor, perm: Sequence[int], moves: Moves) -> tf.Tensor:
    """Return `x` with its axes in another order; where only axes of size 1 change places, nothing moves in memory."""
    sizes = x.shape.as_list()
    long = [axis for axis in perm if sizes[axis] != 1]
    if long == sorted(long) and sizes.count(None) <= 1:
        return tf.reshape(x, [-1 if sizes[axis] is None else sizes[axis] for axis in perm])
    moves.note()
    return tf.transpose(x, perm)


def laid(tensor: tf.Tensor, order: Order, moves: Moves) -> tf.Tensor | Laid:
    """Return a value whose `tensor` is in `order`."""
    return tensor if order == tuple(range(len(order))) else Laid(tensor, order, moves)


def in_order(value: tf.Tensor | Laid, order: Order, moves: Moves) -> tf.Tensor:
    """Return a value as a tensor in `order`; one of fewer axes gets new ones in front, as broadcasting does."""
    if isinstance(value, Laid) and len(value.order) == len(order):
        return value.laid(order)
    tensor = value.plain() if isinstance(value, Laid) else value
    rank = tensor.shape.rank
    if rank == 0 or order == tuple(range(len(order))):
        return tensor
    for _ in range(len(order) - rank):
        tensor = tf.expand_dims(tensor, 0)
    return transposed(tensor, order, moves)
