"""If, Loop and Scan: Python control flow where all is known or short, else `tf.cond` and `tf.while_loop`.

All are differentiable. Sequences are lists, optionals None. A sequence that grows in a while loop, or whose length is
not known for another reason, is a TensorArray (`sequences.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from onward.backends.graph.common import register_containers
from onward.backends.graph.control_flow import ScanPlan, Unrolled
from onward.backends.graph.host import Host
from onward.backends.tensorflow import sequences
from onward.backends.tensorflow.framework import TENSORFLOW, UnknownValue, is_symbol, known_ints, shape_of
from onward.backends.tensorflow.registry import Attributes, op
from onward.backends.tensorflow.sequences import Rows

_STEPS = Unrolled(TENSORFLOW)
UNROLLED = 16  # longer loops are not written out in a traced graph
register_containers(TENSORFLOW)


def _first(value: Any) -> Any:
    """Return the only element of a value, which may be a symbol."""
    return TENSORFLOW.numbers(value)[0]


@op("If")
def if_(attributes: Attributes, condition: Any) -> tuple[Any, ...]:
    chosen = _first(condition)
    if not is_symbol(chosen):
        return tuple(attributes["then_branch" if chosen else "else_branch"]())
    branches = [attributes["then_branch"], attributes["else_branch"]]
    lengths: list[list[int | None]] = []

    def run(branch: Any, pack: Callable[[Any], Any]) -> tuple[Any, ...]:
        results = branch()
        lengths.append([len(v) if isinstance(v, list) else -1 if isinstance(v, Rows) else None for v in results])
        if pack is tuple and (-1 in lengths[-1] or lengths[-1] != lengths[0]):
            raise _OtherLengths
        return tuple(pack(v) if isinstance(v, list | Rows) else TENSORFLOW.tensor(v) for v in results)

    def both(pack: Callable[[Any], Any]) -> Any:
        return tf.cond(tf.cast(chosen, tf.bool), *(lambda b=b: run(b, pack) for b in branches))

    try:
        return tuple(list(r) if isinstance(r, tuple) else r for r in both(tuple))
    except _OtherLengths:
        results = both(_ragged)
    return tuple(sequences.from_ragged(r) if n is not None else r for r, n in zip(results, lengths[0], strict=True))


class _OtherLengths(Exception):
    """Two branches give sequences whose lengths are not the same, or not known."""


def _ragged(value: list[Any] | Rows) -> Any:
    rows = value if isinstance(value, Rows) else sequences.from_list(value, *sequences.described(value))
    return rows.ragged()


def repeat(
    step: Callable[[Any, Any, list[Any]], tuple[Any, list[Any], list[Any]]], going: Any, limit: Any, values: list[Any]
) -> tuple[list[Any], list[Any]]:
    """Run `step(index, going, values)` -> (going, values, outputs) as a while loop; return values and stacked outputs.

    `limit` is the number of steps at most, or None. A first step, of which nothing is used, shows types and shapes.
    """
    zero = tf.constant(0, tf.int64)
    opaque = tf.compat.v1.placeholder_with_default  # a step that is not known to be the first has the shapes of all
    _, after, outputs = step(opaque(zero, []), opaque(tf.constant(True), []), values)
    kinds = [_grown(a, b) for a, b in zip(values, after, strict=True)]
    values = [v if kind is None else _rows(v, *kind) for v, kind in zip(values, kinds, strict=True)]
    arrays = [tf.TensorArray(v.dtype, 0, dynamic_size=True, infer_shape=False, element_shape=v.shape) for v in outputs]
    shapes = [
        _common(a.shape, b.shape) if kind is None else (tf.TensorShape(None), tf.TensorShape([]))
        for a, b, kind in zip(values, after, kinds, strict=True)
    ]

    def opened(current: Sequence[Any]) -> list[Any]:
        """Return the variables of the loop as values of the graph."""
        return [v if kind is None else Rows(v[0], v[1], kind[1]) for v, kind in zip(current, kinds, strict=True)]

    def closed(current: Sequence[Any]) -> list[Any]:
        """Return the values of the graph as variables of the loop."""
        rows = [v if kind is None else _rows(v, *kind) for v, kind in zip(current, kinds, strict=True)]
        return [(v.array, v.count) if isinstance(v, Rows) else v for v in rows]

    def goes_on(index: Any, on: Any, *_: Any) -> Any:
        return on if limit is None else tf.logical_and(on, index < limit)

    def body(index: Any, on: Any, current: list[Any], collected: list[Any]) -> tuple[Any, ...]:
        on, current, found = step(index, on, opened(current))
        place = tf.cast(index, tf.int32)
        return index + 1, on, closed(current), [a.write(place, v) for a, v in zip(collected, found, strict=True)]

    flat = [tf.TensorShape(None)] * len(arrays)
    _, _, values, arrays = tf.while_loop(
        goes_on, body, (zero, going, closed(values), arrays), (zero.shape, going.shape, shapes, flat)
    )
    return opened(values), [a.stack() for a in arrays]


def _grown(before: Any, after: Any) -> tuple[tf.DType, tf.TensorShape] | None:
    """Return the type and shape of the elements of a sequence, before a step and after it; None for a tensor."""
    if isinstance(before, Rows) and isinstance(after, Rows):
        return before.dtype, sequences.common(before.shape, after.shape)
    if isinstance(before, Rows):
        return before.dtype, before.shape
    if isinstance(before, list) or isinstance(after, list | Rows):
        if isinstance(after, Rows):
            return after.dtype, after.shape
        return sequences.described([*before, *after])
    return None


def _rows(value: Any, dtype: tf.DType, shape: tf.TensorShape) -> Rows:
    if isinstance(value, Rows):
        return Rows(value.array, value.count, shape)
    return sequences.from_list([TENSORFLOW.tensor(v) for v in value], dtype, shape)


def _common(a: tf.TensorShape, b: tf.TensorShape) -> tf.TensorShape:
    """Return the sizes that a value keeps from step to step."""
    if a.rank is None or a.rank != b.rank:
        return tf.TensorShape(None)
    return tf.TensorShape([m if m == n else None for m, n in zip(a, b, strict=True)])


@op("Loop")
def loop(attributes: Attributes, trips: Any, condition: Any, *carried: Any) -> tuple[Any, ...]:
    count = None if trips is None else _first(trips)
    going = True if condition is None else _first(condition)
    lists, absent = any(isinstance(v, list) for v in carried), any(v is None for v in carried)
    if tf.executing_eagerly() or lists or absent or (isinstance(count, int) and count <= UNROLLED):
        try:
            return _STEPS.loop(attributes, trips, condition, *carried)
        except UnknownValue:
            if tf.executing_eagerly() or absent:
                raise
    body, kept = attributes["body"], len(carried)

    def step(index: Any, on: Any, values: list[Any]) -> tuple[Any, list[Any], list[Any]]:
        results = [TENSORFLOW.tensor(v) for v in body(Host([index], ()), Host([on], (), "bool"), *values)]
        return tf.reshape(results[0], []), results[1 : 1 + kept], results[1 + kept :]

    start = [TENSORFLOW.tensor(v) for v in carried]
    limit = None if count is None else tf.cast(count, tf.int64)
    values, stacked = repeat(step, tf.cast(going, tf.bool), limit, start)
    return (*values, *stacked)


@op("Scan", since=9)
def scan(attributes: Attributes, *inputs: Any) -> tuple[Any, ...]:
    plan = ScanPlan(attributes, len(inputs))
    given = [TENSORFLOW.tensor(v) for v in inputs]
    states, scanned = given[: plan.states], given[plan.states :]
    steps = shape_of(scanned[0])[plan.in_axes[0]]
    if tf.executing_eagerly() or (isinstance(steps, int) and steps <= UNROLLED):
        return _STEPS.scan(attributes, *given)
    body = attributes["body"]
    rows = [
        tf.reverse(x, [axis % x.shape.rank]) if backward else x
        for x, axis, backward in zip(scanned, plan.in_axes, plan.in_backward, strict=True)
    ]

    def step(index: Any, on: Any, values: list[Any]) -> tuple[Any, list[Any], list[Any]]:
        slices = [tf.gather(x, index, axis=axis) for x, axis in zip(rows, plan.in_axes, strict=True)]
        results = [TENSORFLOW.tensor(v) for v in body(*values, *slices)]
        return on, results[: plan.states], results[plan.states :]

    values, stacked = repeat(step, tf.constant(True), tf.cast(steps, tf.int64), states)
    return (*values, *(_placed(*each) for each in zip(stacked, plan.out_axes, plan.out_backward, strict=True)))


def _placed(stacked: tf.Tensor, axis: int, backward: int) -> tf.Tensor:
    """Return the outputs of all steps, which are along the first axis, in their direction and along `axis`."""
    stacked, rank = tf.reverse(stacked, [0]) if backward else stacked, stacked.shape.rank
    order = list(range(1, rank))
    order.insert(axis % rank, 0)
    return stacked if order == list(range(rank)) else tf.transpose(stacked, order)


@op("SequenceAt")
def sequence_at(attributes: Attributes, sequence: Any, position: Any) -> Any:
    return _element(sequence, _first(position))


def _element(sequence: Any, place: Any) -> Any:
    if isinstance(sequence, Rows):
        return sequence.at(place)
    if is_symbol(place):
        return sequences.from_list(sequence, *sequences.described(sequence)).at(place)
    return sequence[int(place)]


@op("SequenceInsert")
def sequence_insert(attributes: Attributes, sequence: Any, value: Any, position: Any = None) -> Any:
    place = None if position is None else _first(position)
    value = TENSORFLOW.tensor(value)
    if isinstance(sequence, list) and not is_symbol(place):
        result = list(sequence)
        result.insert(len(result) if place is None else int(place), value)
        return result
    if isinstance(sequence, list):
        sequence = sequences.from_list(sequence, *sequences.described([*sequence, value]))
    return sequence.insert(value, place)


@op("SequenceErase")
def sequence_erase(attributes: Attributes, sequence: Any, position: Any = None) -> Any:
    place = None if position is None else _first(position)
    if isinstance(sequence, Rows):
        return sequence.erase(place)
    if is_symbol(place):
        return sequences.from_list(sequence, *sequences.described(sequence)).erase(place)
    result = list(sequence)
    del result[-1 if place is None else int(place)]
    return result


@op("SequenceLength")
def sequence_length(attributes: Attributes, sequence: Any) -> Host:
    length = tf.cast(sequence.count, tf.int64) if isinstance(sequence, Rows) else len(sequence)
    return Host([length], ())


def _elements(values: Sequence[Any], index: Any) -> list[Any]:
    """Return the elements of sequences at an index, and other values as they are."""
    return [_element(v, index) if isinstance(v, list | Rows) else v for v in values]


@op("SequenceMap")
def sequence_map(attributes: Attributes, sequence: Any, *others: Any) -> tuple[Any, ...]:
    body = attributes["body"]
    if not isinstance(sequence, Rows):
        steps = [body(element, *_elements(others, i)) for i, element in enumerate(sequence)]
        return tuple([TENSORFLOW.tensor(s[k]) for s in steps] for k in range(attributes.outputs))

    def step(index: Any, on: Any, grown: list[Any]) -> tuple[Any, list[Any], list[Any]]:
        results = body(sequence.at(index), *_elements(others, index))
        return on, [sequence_insert(attributes, s, v) for s, v in zip(grown, results, strict=True)], []

    empty: list[Any] = [[] for _ in range(attributes.outputs)]
    found, _ = repeat(step, tf.constant(True), tf.cast(sequence.count, tf.int64), empty)
    return tuple(found)


@op("ConcatFromSequence")
def concat_from_sequence(attributes: Attributes, sequence: Any) -> tf.Tensor:
    if isinstance(sequence, Rows):
        return sequence.joined(attributes["axis"], stacked=bool(attributes.get("new_axis", 0)))
    join = tf.stack if attributes.get("new_axis", 0) else tf.concat
    return join(sequence, attributes["axis"])


@op("SplitToSequence")
def split_to_sequence(attributes: Attributes, x: tf.Tensor, split: Any = None) -> Any:
    axis = attributes["axis"] % x.shape.rank
    size = shape_of(x)[axis]
    if is_symbol(size) or (split is not None and any(is_symbol(n) for n in TENSORFLOW.numbers(split))):
        return _split_rows(attributes, x, axis, size, split)
    if split is None:
        parts = tf.split(x, [1] * size, axis) if size > 1 else [x]
        return parts if attributes.get("keepdims", 1) else [tf.squeeze(p, axis) for p in parts]
    sizes = known_ints(split)
    if not len(split.shape):
        (each,) = sizes
        sizes = [min(each, size - start) for start in range(0, size, each)]
    return list(tf.split(x, sizes, axis)) if len(sizes) > 1 else [x]


def _split_rows(attributes: Attributes, x: tf.Tensor, axis: int, size: Any, split: Any) -> Rows:
    """Return the pieces of a tensor where their number or their sizes are not known while TensorFlow traces."""
    if split is None and not attributes.get("keepdims", 1):
        shape = tf.TensorShape([n for i, n in enumerate(x.shape) if i != axis])
        return sequences.made(lambda i: tf.gather(x, i, axis=axis), size, x.dtype, shape)
    lengths = TENSORFLOW.tensor(tf.constant(1, tf.int64) if split is None else split)
    if lengths.shape.rank == 0:
        each, size = tf.cast(lengths, tf.int64), tf.cast(size, tf.int64)
        lengths = tf.minimum(each, size - tf.range(0, size, each))
    if axis == 0:
        return sequences.split(x, lengths)
    order = [axis, *(i for i in range(x.shape.rank) if i != axis)]
    back = [order.index(i) for i in range(len(order))]
    turned = sequences.split(tf.transpose(x, order), lengths)
    shape = tf.TensorShape([None if i in (0, axis) else n for i, n in enumerate(x.shape)])
    return sequences.made(lambda i: tf.transpose(turned.array.read(i), back), turned.count, x.dtype, shape)
