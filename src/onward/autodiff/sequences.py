"""Sequences in backward graphs. The gradient of a sequence is a sequence of the same length and element shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from onward.autodiff.emit import subgraph_input
from onward.graph.builder import Builder, Value


def map_elements(
    op: Builder,
    inputs: Sequence[Value],
    body: Callable[[Builder, list[Value]], Sequence[Value]],
    name: str,
    *,
    count: int = 1,
) -> tuple[Value, ...]:
    """Return the sequences that `body` makes from the elements of `inputs`, which are sequences of equal length.

    `body` takes a builder for the inside and one value for each input, and returns `count` values.
    """
    inside = inner_builder(op)
    types = [s.type.elem_type if isinstance(s.type, ir.SequenceType) else s.type for s in inputs]
    elements = [subgraph_input(op, "element", t, s.shape) for s, t in zip(inputs, types, strict=True)]
    results = list(body(inside, elements))
    for position, result in enumerate(results):
        if result.producer() not in set(inside.nodes):
            results[position] = inside.Identity(result)
    for result in results:
        if result.type is None:
            result.type = elements[0].type
    graph = ir.Graph(elements, results, nodes=inside.nodes, name=op.names.unique(f"{op.prefix}{name}/body"))
    outputs = op.call("SequenceMap", list(inputs), outputs=count, name=name, body=graph)
    for output, result in zip(outputs, results, strict=True):
        output.type = None if result.type is None else ir.SequenceType(result.type)
        output.shape = result.shape
    return outputs


def inner_builder(op: Builder) -> Builder:
    """Return a builder for a subgraph of a node that `op` makes next."""
    inner = getattr(op, "inner", None)
    return inner(op.prefix) if inner is not None else Builder(op.opset, op.names, op.prefix)


def add(op: Builder, a: Value, b: Value) -> Value:
    """Return the element-wise sum of two sequences of equal length."""
    return map_elements(op, [a, b], lambda inside, e: [inside.Add(*e)], "accumulate")[0]


def full_like(op: Builder, sequence: Value, fill: float) -> Value:
    """Return a sequence of tensors of the same shapes, filled with `fill`."""
    dtype = sequence.dtype or ir.DataType.FLOAT
    array = np.array([fill]).astype(dtype.numpy())
    return map_elements(
        op, [sequence], lambda inside, e: [inside.ConstantOfShape(inside.Shape(e[0]), value=array)], "full_like"
    )[0]


def pack(op: Builder, sequence: Value) -> list[Value]:
    """Return a sequence as four vectors: its elements one after another, and their sizes, shapes and ranks.

    ONNX has no sequences of sequences, but it has sequences of vectors. `unpack` is the inverse.
    """

    def describe(inside: Builder, elements: list[Value]) -> list[Value]:
        shape = inside.Shape(elements[0])
        return [
            inside.Reshape(elements[0], [-1]),
            inside.Reshape(inside.Size(elements[0]), [1]),
            shape,
            inside.Reshape(inside.Size(shape), [1]),
        ]

    dtype = sequence.dtype or ir.DataType.FLOAT
    vectors = []
    for part, kind in zip(map_elements(op, [sequence], describe, "pack", count=4), [dtype, *_INDICES], strict=True):
        part.type, part.shape = ir.SequenceType(ir.TensorType(kind)), None
        nothing = op.constant(np.zeros(0), kind)  # there must be something to concatenate
        vector = op.ConcatFromSequence(op.SequenceInsert(part, nothing, 0), axis=0)
        vector.type, vector.shape = ir.TensorType(kind), ir.Shape([None])
        vectors.append(vector)
    return vectors


def unpack(op: Builder, elements: Value, sizes: Value, shapes: Value, ranks: Value) -> Value:
    """Return the sequence from which `pack` made these vectors."""

    def split(vector: Value, counts: Value, last: int) -> Value:
        # Add one element, which is removed again below: SplitToSequence cannot make an empty sequence.
        return op.SplitToSequence(vector, op.Concat(counts, [last], axis=0), axis=0)

    pieces = split(elements, sizes, 0)
    outlines = split(op.Concat(shapes, [0], axis=0), ranks, 1)
    for value, kind in ((pieces, elements.dtype or ir.DataType.FLOAT), (outlines, ir.DataType.INT64)):
        value.type, value.shape = ir.SequenceType(ir.TensorType(kind)), ir.Shape([None])
    (whole,) = map_elements(op, [pieces, outlines], lambda inside, e: [inside.Reshape(*e, allowzero=1)], "unpack")
    whole.type, whole.shape = pieces.type, None
    result = op.SequenceErase(whole)
    result.type = pieces.type
    return result


_INDICES = (ir.DataType.INT64,) * 3
