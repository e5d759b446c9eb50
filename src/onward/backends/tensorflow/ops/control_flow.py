"""If, Loop and Scan: Python control flow where all is known or short, else `tf.cond` and `tf.while_loop`.

All are differentiable. Sequences are lists, optionals None: in a traced graph their lengths must be known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from onward.backends.graph.common import register_sequences
from onward.backends.graph.control_flow import ScanPlan, Unrolled
from onward.backends.graph.host import Host
from onward.backends.tensorflow.framework import TENSORFLOW, UnknownValue, is_symbol, known_ints, shape_of
from onward.backends.tensorflow.registry import Attributes, op

_STEPS = Unrolled(TENSORFLOW)
UNROLLED = 16  # longer loops are not written out in a traced graph
register_sequences(TENSORFLOW)


def _first(value: Any) -> Any:
    """Return the only element of a value, which may be a symbol."""
    return TENSORFLOW.numbers(value)[0]


def _packed(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(_packed(v) if isinstance(v, list) else TENSORFLOW.tensor(v) for v in values)


@op("If")
def if_(attributes: Attributes, condition: Any) -> tuple[Any, ...]:
    chosen = _first(condition)
    if not is_symbol(chosen):
        return tuple(attributes["then_branch" if chosen else "else_branch"]())
    branches = [attributes["then_branch"], attributes["else_branch"]]
    results = tf.cond(tf.cast(chosen, tf.bool), *(lambda b=b: _packed(b()) for b in branches))
    return tuple(list(r) if isinstance(r, tuple) else r for r in results)


def repeat(
    step: Callable[[Any, Any, list[Any]], tuple[Any, list[Any], list[Any]]], going: Any, limit: Any, values: list[Any]
) -> tuple[list[Any], list[Any]]:
    """Run `step(index, going, values)` -> (going, values, outputs) as a while loop; return values and stacked outputs.

    `limit` is the number of steps at most, or None. A first step, of which nothing is used, shows types and shapes.
    """
    zero = tf.constant(0, tf.int64)
    opaque = tf.compat.v1.placeholder_with_default  # a step that is not known to be the first has the shapes of all
    _, after, outputs = step(opaque(zero, []), opaque(tf.constant(True), []), values)
    arrays = [tf.TensorArray(v.dtype, 0, dynamic_size=True, infer_shape=False, element_shape=v.shape) for v in outputs]
    shapes = [_common(a.shape, b.shape) for a, b in zip(values, after, strict=True)]

    def goes_on(index: Any, on: Any, *_: Any) -> Any:
        return on if limit is None else tf.logical_and(on, index < limit)

    def body(index: Any, on: Any, current: list[Any], collected: list[Any]) -> tuple[Any, ...]:
        on, current, found = step(index, on, list(current))
        place = tf.cast(index, tf.int32)
        return index + 1, on, current, [a.write(place, v) for a, v in zip(collected, found, strict=True)]

    flat = [tf.TensorShape(None)] * len(arrays)
    _, _, values, arrays = tf.while_loop(
        goes_on, body, (zero, going, values, arrays), (zero.shape, going.shape, shapes, flat)
    )
    return list(values), [a.stack() for a in arrays]


def _common(a: tf.TensorShape, b: tf.TensorShape) -> tf.TensorShape:
    """Return the sizes that a value keeps from step to step."""
    if a.rank is None or a.rank != b.rank:
        return tf.TensorShape(None)
    return tf.TensorShape([m if m == n else None for m, n in zip(a, b, strict=True)])


@op("Loop")
def loop(attributes: Attributes, trips: Any, condition: Any, *carried: Any) -> tuple[Any, ...]:
    count = None if trips is None else _first(trips)
    going = True if condition is None else _first(condition)
    lists = any(isinstance(v, list) or v is None for v in carried)
    if tf.executing_eagerly() or lists or (isinstance(count, int) and count <= UNROLLED):
        try:
            return _STEPS.loop(attributes, trips, condition, *carried)
        except UnknownValue:
            if tf.executing_eagerly() or lists:
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


@op("ConcatFromSequence")
def concat_from_sequence(attributes: Attributes, sequence: list[tf.Tensor]) -> tf.Tensor:
    join = tf.stack if attributes.get("new_axis", 0) else tf.concat
    return join(sequence, attributes["axis"])


@op("SplitToSequence")
def split_to_sequence(attributes: Attributes, x: tf.Tensor, split: Any = None) -> list[tf.Tensor]:
    axis = attributes["axis"] % x.shape.rank
    size = int(TENSORFLOW.number(Host([shape_of(x)[axis]], ())))
    if split is None:
        parts = tf.split(x, [1] * size, axis) if size > 1 else [x]
        return parts if attributes.get("keepdims", 1) else [tf.squeeze(p, axis) for p in parts]
    sizes = known_ints(split)
    if not len(split.shape):
        (each,) = sizes
        sizes = [min(each, size - start) for start in range(0, size, each)]
    return list(tf.split(x, sizes, axis)) if len(sizes) > 1 else [x]
