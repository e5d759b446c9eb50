"""`BlockwiseAttention`: attention whose scores exist only for one head and one block of queries at a time.

A function of the domain `onward.gradients` that `passes/attention.py` puts in the place of long attention. Its body and
its gradient are two nested Scans: over the heads of all samples, and over blocks of queries. The backward computes the
probabilities of each block again, from the same products, so that the forward keeps its inputs and its result only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.autodiff.emit import Emitter, subgraph_input
from onward.autodiff.registry import gradient
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.graph.builder import Names, Value
from onward.graph.schema import GRADIENT_DOMAIN

NAME = "BlockwiseAttention"
ROWS = 256
"""The queries of a block, at most: as fast as 512 on one thread, and 4 MB of scores for 4,096 keys."""

Body = Callable[[Emitter, list[Value], list[Value]], tuple[list[Value], list[Value]]]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of one call; the number of heads, G, may be free, and that of queries and of keys (None)."""

    queries: int | None
    keys: int | None
    width: int  # of queries and keys
    value_width: int
    causal: bool = False  # query i sees the keys up to i
    guarded: bool = False  # a query that sees no key has the probabilities 0 instead of NaN
    fill: float = -math.inf  # the score of a key that a mask of truths hides

    @property
    def blocks(self) -> int | None:
        return None if self.queries is None else math.ceil(self.queries / ROWS)

    @property
    def rows(self) -> int:
        return ROWS if self.queries is None or self.blocks is None else math.ceil(self.queries / self.blocks)

    @property
    def surplus(self) -> int | None:
        """The rows of zeros behind the last query."""
        return None if self.queries is None or self.blocks is None else self.blocks * self.rows - self.queries


def function(
    sizes: Sizes, opset: int, dtype: ir.DataType, mask: ir.DataType | None, mask_rows: int | None
) -> ir.Function:
    """Return the function Y = softmax(Q KT + mask) V.

    Q is [G, S, width], already scaled; KT [G, width, T]; V [G, T, value width]. With a mask there are two more inputs:
    the mask [M, 1 or S, T], added if it is a float, else False where a key is hidden; and for each of the G heads which
    of the M it has.
    """
    op = Emitter(opset, Names(), prefix="")
    formals = [subgraph_input(op, name, ir.TensorType(dtype)) for name in ("Q", "KT", "V")]
    if mask is not None:
        shape = ir.Shape([None, mask_rows, sizes.keys])
        formals.append(subgraph_input(op, "mask", ir.TensorType(mask), shape))
        formals.append(subgraph_input(op, "which", ir.TensorType(ir.DataType.INT64)))
    Q, KT, V, *masked = formals
    call = _Call(op, sizes, Q, KT, V, masked)

    def one_head(op: Emitter, _: list[Value], given: list[Value]) -> tuple[list[Value], list[Value]]:
        head = _Head(call, op, given)

        def one_block(op: Emitter, states: list[Value], given: list[Value]) -> tuple[list[Value], list[Value]]:
            block = _Block(head, op, states[0], given[0])
            return [block.next], [op.MatMul(block.probabilities, block.V)]

        _, (made,) = _scan(op, [head.first], [head.queries], one_block, [[1]], [[sizes.rows, sizes.value_width]])
        return [], [made]

    made_shape = [sizes.blocks, sizes.rows, sizes.value_width]
    _, (made,) = _scan(op, [], call.by_head(call.blocks(Q, sizes.width)), one_head, [], [made_shape])
    Y = call.joined(made, sizes.value_width)
    graph = ir.Graph(formals, [Y], nodes=op.nodes, opset_imports={"": opset})
    kinds = {"sizes": ir.AttributeType.INTS, "fill": ir.AttributeType.FLOAT}
    attributes = [ir.Attr(name, kind, None) for name, kind in kinds.items()]
    return ir.Function(GRADIENT_DOMAIN, NAME, graph=graph, attributes=attributes)


def attributes(sizes: Sizes) -> dict[str, Any]:
    """Return the sizes as the attributes of a call."""
    *numbers, fill = dataclasses.astuple(sizes)
    return {"sizes": [-1 if number is None else int(number) for number in numbers], "fill": fill}


@gradient(NAME, domain=GRADIENT_DOMAIN)
def blockwise_attention(rule: Rule, dY: Value) -> Grads:
    """Y = P V with P = softmax(Q KT + mask), so dV = P^T dY, dS = P (dY V^T - the row sums of dY Y), dQ = dS KT^T and
    dKT = Q^T dS, block by block; what the blocks give to keys and values is added up. The mask has no gradient."""
    op = rule.op
    assert isinstance(op, Emitter)
    *lengths, width, value_width, causal, guarded = rule.node.attributes["sizes"].as_ints()
    queries, keys = (None if length < 0 else length for length in lengths)
    fill = rule.node.attributes["fill"].as_float()
    sizes = Sizes(queries, keys, width, value_width, bool(causal), bool(guarded), fill)
    Q, KT, V, *masked = [v for v in rule.node.inputs if v is not None]
    call = _Call(op, sizes, Q, KT, V, masked)
    sums = op.ReduceSum(op.Mul(dY, rule.node.outputs[0]), [-1], keepdims=1)
    for_keys: list[int | None] = [width, sizes.keys]
    for_values: list[int | None] = [value_width, sizes.keys]

    def one_head(op: Emitter, _: list[Value], given: list[Value]) -> tuple[list[Value], list[Value]]:
        head = _Head(call, op, given[2:])

        def one_block(op: Emitter, states: list[Value], given: list[Value]) -> tuple[list[Value], list[Value]]:
            row, dKT, dVT = states
            block = _Block(head, op, row, given[0])
            P, (dY, rows) = block.probabilities, given[1:]
            dS = op.Mul(P, op.Sub(op.MatMul(dY, _turned(op, block.V)), rows))
            if block.shown is not None and math.isfinite(sizes.fill):  # a query that sees no key sees all alike
                dS = op.Where(block.shown, dS, 0.0)
            # The small factor is the transposed one: ONNX Runtime copies it.
            dKT = op.Add(dKT, block.padded(op.MatMul(_turned(op, block.Q), dS)))
            dVT = op.Add(dVT, block.padded(op.MatMul(_turned(op, dY), P)))
            return [block.next, dKT, dVT], [op.MatMul(dS, _turned(op, block.KT))]

        assert Q.dtype is not None
        zero = np.zeros(1, Q.dtype.numpy())
        zeros = [op.ConstantOfShape(call.by_key(size), value=zero) for size in (width, value_width)]
        shapes: list[list[int | None]] = [[1], for_keys, for_values]
        states, (dQ,) = _scan(
            op, [head.first, *zeros], [head.queries, *given[:2]], one_block, shapes, [[sizes.rows, width]]
        )
        return [], [dQ, states[1], _turned(op, states[2])]

    inputs = [call.blocks(dY, sizes.value_width), call.blocks(sums, 1), *call.by_head(call.blocks(Q, sizes.width))]
    shapes: list[list[int | None]] = [[sizes.blocks, sizes.rows, width], for_keys, for_values[::-1]]
    _, (dQ, dKT, dV) = _scan(op, [], inputs, one_head, [], shapes)
    return {"Q": call.joined(dQ, sizes.width), "KT": dKT, "V": dV}


class _Call:
    """The inputs of one call, in the graph of the call."""

    def __init__(self, op: Emitter, sizes: Sizes, Q: Value, KT: Value, V: Value, masked: Sequence[Value]) -> None:
        self.op, self.sizes, self.Q, self.KT, self.V = op, sizes, Q, KT, V
        self.mask: Value | None = masked[0] if masked else None
        self.which: Value | None = masked[1] if masked else None
        self.queries: Value | list[int] = op.Shape(Q, start=1, end=2) if sizes.queries is None else [sizes.queries]
        self.keys: Value | list[int] = op.Shape(KT, start=2) if sizes.keys is None else [sizes.keys]
        if sizes.queries is None:
            self.surplus = op.Mod(op.Neg(self.queries), [sizes.rows])
            self.padded = op.Add(self.queries, self.surplus)

    def by_key(self, width: int) -> Value | list[int]:
        """Return the shape [width, T]."""
        return [width, self.sizes.keys] if self.sizes.keys is not None else self.op.Concat([width], self.keys, axis=0)

    def blocks(self, value: Value, width: int) -> Value:
        """Return [G, blocks, rows, width] of [G, S, width]."""
        op, sizes = self.op, self.sizes
        if sizes.queries is None:
            value = op.Pad(value, op.Concat([0, 0, 0, 0], self.surplus, [0], axis=0))
            shape = op.Concat([-1], op.Div(self.padded, [sizes.rows]), [sizes.rows, width], axis=0)
            return op.Reshape(value, shape)
        if sizes.surplus:
            value = op.Pad(value, [0, 0, 0, 0, sizes.surplus, 0])
        return op.Reshape(value, [-1, sizes.blocks, sizes.rows, width])

    def joined(self, value: Value, width: int) -> Value:
        """Return [G, S, width] of [G, blocks, rows, width]."""
        op, sizes = self.op, self.sizes
        if sizes.queries is None or sizes.blocks is None:
            value = op.Reshape(value, op.Concat([-1], self.padded, [width], axis=0))
            return op.Slice(value, [0], self.queries, [1])
        value = op.Reshape(value, [-1, sizes.blocks * sizes.rows, width])
        return op.Slice(value, [0], [sizes.queries], [1]) if sizes.surplus else value

    def by_head(self, queries: Value) -> list[Value]:
        """Return what the Scan over the heads reads."""
        return [queries, self.KT, self.V, *([] if self.which is None else [self.which])]


class _Head:
    """One head: its queries in blocks, its keys and values."""

    def __init__(self, call: _Call, op: Emitter, given: Sequence[Value]) -> None:
        self.call, self.sizes = call, call.sizes
        self.queries, self.KT, self.V = given[:3]
        self.which = op.Reshape(given[3], [1]) if len(given) > 3 else None
        self.first = op.constant(np.zeros(1, np.int64))


class _Block:
    """One block of queries of one head, from query `row` on, and the keys that it may see."""

    def __init__(self, head: _Head, op: Emitter, row: Value, Q: Value) -> None:
        sizes, mask = head.sizes, head.call.mask
        self.op, self.call, self.sizes, self.Q, self.KT, self.V = op, head.call, sizes, Q, head.KT, head.V
        self.next = op.Add(row, [sizes.rows])
        self.shown: Value | None = None  # where a mask of truths shows a key
        if sizes.causal:  # no later query of the block sees more keys than its last one
            self.end = op.Min(self.next, self.call.keys)
            self.KT = op.Slice(head.KT, [0], self.end, [1])
            self.V = op.Slice(head.V, [0], self.end, [0])
        scores = op.MatMul(Q, self.KT)
        if mask is not None:
            scores = self._masked(scores, head, mask, row)
        if sizes.causal:
            own = op.Add(op.constant(np.arange(sizes.rows).reshape(-1, 1)), row)
            if sizes.keys is None:
                keys = op.Range(0, op.Squeeze(self.end, [0]), 1)
            else:
                keys = op.Slice(op.constant(np.arange(sizes.keys)), [0], self.end, [0])
            scores = op.Where(op.Greater(keys, own), -math.inf, scores)
        self.probabilities = op.Softmax(scores, axis=-1)
        if sizes.guarded:
            self.probabilities = op.Where(op.IsNaN(self.probabilities), 0.0, self.probabilities)

    def _masked(self, scores: Value, head: _Head, mask: Value, row: Value) -> Value:
        op, sizes, which = self.op, self.sizes, head.which
        assert which is not None
        assert mask.shape is not None
        after = op.Add(which, [1])
        if mask.shape[1] == 1:
            part = op.Slice(mask, which, after, [0])
        else:
            part = op.Slice(mask, op.Concat(which, row, axis=0), op.Concat(after, self.next, axis=0), [0, 1])
        part = op.Squeeze(part, [0])
        if sizes.causal:
            part = op.Slice(part, [0], self.end, [1])
        if sizes.surplus != 0 and mask.shape[1] != 1:
            part = self._completed(part, mask, scores)
        if mask.dtype == ir.DataType.BOOL:
            self.shown = part
            return op.Where(part, scores, sizes.fill)
        return op.Add(scores, part)

    def _completed(self, part: Value, mask: Value, scores: Value) -> Value:
        """Return the rows of the mask with rows for the queries of zeros behind the last one, which see every key."""
        op = self.op
        pads = op.Concat([0, 0], op.Max(op.Sub(self.next, self.call.queries), [0]), [0], axis=0)
        if mask.dtype != ir.DataType.BOOL:
            return op.Pad(part, pads)
        assert scores.dtype is not None
        seen = op.constant(1.0, scores.dtype)  # ONNX Runtime pads numbers
        return op.Cast(op.Pad(op.Cast(part, to=scores.dtype), pads, seen), to=ir.DataType.BOOL)

    def padded(self, value: Value) -> Value:
        """Return a gradient for the keys that the block sees, with zeros for all others."""
        if not self.sizes.causal:
            return value
        op = self.op
        return op.Pad(value, op.Concat([0, 0, 0], op.Sub(self.call.keys, self.end), axis=0))


def _turned(op: Emitter, value: Value) -> Value:
    return op.Transpose(value, perm=[1, 0])


def _scan(
    op: Emitter,
    states: Sequence[Value],
    inputs: Sequence[Value],
    body: Body,
    state_shapes: Sequence[Sequence[int | None]],
    output_shapes: Sequence[Sequence[int | None]],
) -> tuple[list[Value], list[Value]]:
    """Return the final states and the stacked outputs of `body` over the first axis of `inputs`."""
    inner = op.inner(f"{op.prefix}step/")
    formals = [
        subgraph_input(inner, f"state_{i}", v.type, ir.Shape(s))
        for i, (v, s) in enumerate(zip(states, state_shapes, strict=True))
    ]
    slices = [subgraph_input(inner, f"slice_{i}", v.type) for i, v in enumerate(inputs)]
    new, made = body(inner, formals, slices)
    for value, shape in zip([*new, *made], [*state_shapes, *output_shapes], strict=True):
        value.shape = ir.Shape(shape)
    graph = ir.Graph([*formals, *slices], [*new, *made], nodes=inner.nodes, name=f"{op.prefix}step")
    results = op.call("Scan", [*states, *inputs], outputs=len(new) + len(made), body=graph, num_scan_inputs=len(inputs))
    for result, value in zip(results, [*new, *made], strict=True):
        result.type = value.type
    return list(results[: len(new)]), list(results[len(new) :])
