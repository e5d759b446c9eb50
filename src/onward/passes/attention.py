"""`BlockLongAttention`: compute long attention block by block, so that a step never holds all of its scores.

Attention is what exporters write out (a product, scale, mask, Softmax, a product) or the operator `Attention`. A
training step keeps the probabilities of every head for the backward pass, and computes with several matrices of their
size. From `SCORES` scores for each head on, `BlockwiseAttention` (`autodiff/rules/blockwise.py`) takes the place of
these nodes, if the step is to save memory (`recompute`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onward.autodiff.profile import PORTABLE
from onward.autodiff.rules import blockwise
from onward.autodiff.rules.softmax import without_nan
from onward.graph import edit, shapes, walk
from onward.graph.builder import Builder, Value
from onward.graph.schema import GRADIENT_DOMAIN
from onward.model.training_model import is_gradient
from onward.passes.base import Pass, Unit

SCORES = 1024 * 1024
"""The queries times the keys of one head from which on blocks are used."""
SHORTEST = 512
"""The queries, and the keys, that there have to be at least."""
_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_LOWEST = float(np.finfo(np.float32).min)
"""What is added to the score of a key hides it, as every query of a causal mask sees the first key."""

Dims = tuple[int | str | None, ...]
Usual = Mapping[str, int]
"""The usual sizes of free dimensions."""


@dataclasses.dataclass
class _Found:
    """Attention that a node computes: Y = softmax(Q KT + mask) V, with the nodes of `op` in front."""

    op: Builder
    Q: Value
    Q_dims: Dims
    KT: Value
    V: Value
    sizes: blockwise.Sizes
    mask: Value | None = None
    hides: bool = False  # the mask is True where a key is hidden
    order: list[int] | None = None  # of the axes of the result, if it is not that of a MatMul


class BlockLongAttention(Pass):
    """Replace attention of many queries and keys, whose numbers or usual numbers are known, by a call in blocks.

    Only where `recompute` is "auto" or an amount of memory. Attention stays as it is if something else reads its
    probabilities (an output, Dropout), if its mask needs a gradient, in 16 bits, in the portable profile, and where the
    numbers are not known.
    """

    def run(self, unit: Unit) -> bool:
        if unit.profile == PORTABLE or not unit.saves_memory:
            return False
        gradients = [n for n in walk.all_nodes(unit.graph) if is_gradient(n)]
        wanted = {name for n in gradients if "xs" in n.attributes for name in n.attributes["xs"].as_strings()}
        others = {name for n in gradients if "zs" in n.attributes for name in n.attributes["zs"].as_strings()}
        seen = {*unit.model_outputs, *wanted, *others, *(n.attributes.get_string("y", "") for n in gradients)}
        changed = False
        for node in list(unit.graph) if gradients else ():
            if node.domain not in ("", "ai.onnx") or node.op_type not in ("MatMul", "Einsum", "Attention"):
                continue
            op = unit.builder(f"{node.name or node.op_type}/")
            found = (
                _operator(node, op, unit.usual)
                if node.op_type == "Attention"
                else _written_out(node, op, seen, unit.usual)
            )
            if found is not None and not _has_gradient(found.mask, wanted):
                _replace(node, found, unit)
                changed = True
        return changed


def is_long(queries: int, keys: int) -> bool:
    """Return whether attention of this size runs in blocks.

    >>> is_long(1024, 1024), is_long(512, 2048), is_long(512, 512), is_long(4096, 77)
    (True, True, False, False)
    """
    return min(queries, keys) >= SHORTEST and queries * keys >= SCORES


def _written_out(node: ir.Node, op: Builder, seen: set[str], usual: Usual) -> _Found | None:
    """Return the attention whose last product is `node`."""
    last = _factors(node, op)
    if last is None:
        return None
    P, V, order = last
    P = _uncast(P, seen)
    guard = _guard_of(P, seen)
    softmax = _maker(P if guard is None else guard, ("Softmax",), seen, readers=1 if guard is None else 2)
    if softmax is None or P.shape is None or P.dtype not in _TYPES:
        return None
    rank = len(P.shape)
    scores = None if softmax.inputs[0] is None else _uncast(softmax.inputs[0], seen)
    if softmax.attributes.get_int("axis", -1) not in (-1, rank - 1) or rank < 3:
        return None
    masked, scales = None, []
    while (inner := _maker(scores, ("Add", "Where", "Mul", "Div"), seen)) is not None:
        if inner.op_type in ("Mul", "Div"):
            first, second = inner.inputs
            if inner.op_type == "Mul" and first is not None and _is_number(first):
                first, second = second, first
            if second is None or not _is_number(second):
                return None
            scales.append((inner.op_type, second))
            scores = first
            continue
        if masked is not None or scales:
            return None
        masked = _mask_of(inner)
        if masked is None:
            return None
        scores = masked.scores
    product = _maker(scores, ("MatMul", "Einsum"), seen)
    factors = None if product is None else _factors(product, op)
    if factors is None or factors[2] is not None:
        return None
    Q, KT, _ = factors
    sizes = _sizes(Q, KT, V, usual)
    dims = shapes.dims(Q)
    if sizes is None or dims is None or (masked is not None and not _fits(masked.mask, P, dims)):
        return None
    sizes = dataclasses.replace(sizes, guarded=guard is not None)
    for kind, scale in scales:
        # The queries are fewer numbers than the scores.
        Q = op.call(kind, [Q, scale])[0]
    found = _Found(op, Q, dims, KT, V, sizes, order=order)
    if masked is not None:
        if shapes.dims(masked.mask) == (shapes.dims(P) or ())[-2:] and _is_causal(masked.mask):
            found.sizes = dataclasses.replace(sizes, causal=True)
        else:
            found.mask, found.hides = masked.mask, masked.hides
            found.sizes = dataclasses.replace(sizes, fill=masked.fill)
    return found


def _factors(node: ir.Node, op: Builder) -> tuple[Value, Value, list[int] | None] | None:
    """Return A and B of a product of matrices A B, and in which order an Einsum writes the axes of the result.

    The letters of an Einsum stand for leading axes, the rows of A, the columns of B, and the axis that is summed over.
    """
    if len(node.inputs) != 2 or node.inputs[0] is None or node.inputs[1] is None:
        return None
    A, B = node.inputs[0], node.inputs[1]
    if node.op_type == "MatMul":
        return A, B, None
    terms, _, result = node.attributes.get_string("equation", "").replace(" ", "").partition("->")
    a, _, b = terms.partition(",")
    lead = [c for c in result if c in a and c in b]
    row, column = ([c for c in term if c in result and c not in lead] for term in (a, b))
    summed = [c for c in a if c not in result]
    distinct = all(len(set(term)) == len(term) and term.isalpha() for term in (a, b, result))
    if not distinct or [len(row), len(column), len(summed)] != [1, 1, 1] or len(result) != len(lead) + 2:
        return None
    if set(b) != {*lead, *summed, *column}:
        return None
    A, B = _in_order(op, A, a, [*lead, *row, *summed]), _in_order(op, B, b, [*lead, *summed, *column])
    made = [*lead, *row, *column]
    return A, B, None if made == list(result) else [made.index(c) for c in result]


def _in_order(op: Builder, value: Value, letters: str, wanted: list[str]) -> Value:
    """Return the value with its axes, which have these letters, in the wanted order."""
    perm = [letters.index(c) for c in wanted]
    if perm == sorted(perm):
        return value
    turned = op.Transpose(value, perm=perm)
    sizes = shapes.dims(value)
    if sizes is not None:
        turned.shape = ir.Shape([sizes[axis] for axis in perm])
    turned.type = value.type
    return turned


def _guard_of(P: Value, seen: set[str]) -> Value | None:
    """Return the probabilities in Where(IsNaN(probabilities), 0, probabilities), as PyTorch writes it."""
    where = _maker(P, ("Where",), seen)
    inside = None if where is None else where.inputs[2]
    return inside if inside is not None and without_nan(inside) is P else None


def _maker(value: Value | None, types: Sequence[str], seen: set[str], readers: int = 1) -> ir.Node | None:
    """Return what makes `value`, if it is one of these operators, so many inputs read it, and nobody else sees it."""
    node = None if value is None else value.producer()
    if value is None or node is None or node.domain not in ("", "ai.onnx") or node.op_type not in types:
        return None
    if len(value.uses()) != readers or value.is_graph_output() or value.name in seen:
        return None
    return node


def _uncast(value: Value, seen: set[str]) -> Value:
    """Return the value in front of every Cast to the type that it has: PyTorch asks for Softmax in float32."""
    while (cast := _maker(value, ("Cast",), seen)) is not None and (inside := cast.inputs[0]) is not None:
        if inside.dtype is None or inside.dtype != value.dtype:
            break
        value = inside
    return value


def _is_number(value: Value) -> bool:
    size = shapes.static_shape(value)
    return size is not None and math.prod(size) == 1 and len(size) < 2


@dataclasses.dataclass(frozen=True)
class _Masked:
    """Scores with a mask: a float that is added, or truths that say which scores become `fill`."""

    scores: Value
    mask: Value
    hides: bool = False  # the mask is True where a key is hidden
    fill: float = -math.inf


def _mask_of(node: ir.Node) -> _Masked | None:
    """Return the scores and the mask of an Add or a Where."""
    if node.op_type == "Add":
        first, second = node.inputs
        if first is None or second is None:
            return None
        if _made_by(first, "MatMul", "Einsum", "Mul", "Div"):
            return _Masked(first, second)
        return _Masked(second, first) if _made_by(second, "MatMul", "Einsum", "Mul", "Div") else None
    condition, chosen, other = node.inputs
    if condition is None or chosen is None or other is None:
        return None
    for fill, scores, hides in ((chosen, other, True), (other, chosen, False)):
        number = _number(fill)
        # Of doubles, those that the attribute that says it to the call can hold: the lowest would become -inf there.
        if number is not None and number < 0 and (math.isinf(number) or _is_float32(number)):
            return _Masked(scores, condition, hides, number)
    return None


def _is_float32(number: float) -> bool:
    with np.errstate(over="ignore"):
        return float(np.float32(number)) == number  # NumPy compares in float32


def _made_by(value: Value, *types: str) -> bool:
    node = value.producer()
    return node is not None and node.op_type in types and node.domain in ("", "ai.onnx")


def _sizes(Q: Value, KT: Value, V: Value, usual: Usual) -> blockwise.Sizes | None:
    """Return the sizes of a product Q KT and of V, if they are known, long, and of as many heads.

    The numbers of queries and of keys may be free, if the usual ones are known.
    """
    dims = [shapes.dims(v) for v in (Q, KT, V)]
    if any(d is None or len(d) < 3 for d in dims) or any(v.dtype not in _TYPES for v in (Q, KT, V)):
        return None
    (q, k, v) = (d or () for d in dims)
    if not q[:-2] == k[:-2] == v[:-2] or None in q[:-2]:
        return None
    queries, width, keys, value_width = q[-2], q[-1], k[-1], v[-1]
    if not isinstance(width, int) or not isinstance(value_width, int) or keys != v[-2]:
        return None
    lengths = [usual.get(size, 0) if isinstance(size, str) else size or 0 for size in (queries, keys)]
    if not is_long(*lengths):
        return None
    stated = [size if isinstance(size, int) else None for size in (queries, keys)]
    return blockwise.Sizes(stated[0], stated[1], width, value_width)


def _fits(mask: Value, scores: Value, Q: Dims) -> bool:
    """Return whether the mask has a row for each query, or one for all, and a column for each key; and no more heads
    or samples than the queries, which it would broadcast."""
    dims, (queries, keys) = shapes.dims(mask), (shapes.dims(scores) or (None, None))[-2:]
    if dims is None or not 0 < len(dims) <= len(Q) or dims[-1] != keys or keys is None:
        return False
    for own, given in zip(dims[-3::-1], Q[-3::-1], strict=False):
        if own not in (1, given) and (given == 1 or (isinstance(own, int) and isinstance(given, int))):
            return False
    return mask.dtype in (*_TYPES, ir.DataType.BOOL) and (len(dims) == 1 or (dims[-2] or 0) in (1, queries))


def _is_causal(mask: Value) -> bool:
    """Return whether a mask to be added is 0 up to the diagonal and hides all behind it, as PyTorch writes it."""
    where = mask.producer()
    if where is not None and where.op_type == "Constant" and (constant := walk.constant_of(mask)) is not None:
        below = np.tril(np.ones(constant.shape, bool))
        return mask.dtype in _TYPES and bool(np.all(np.where(below, constant == 0, constant <= _LOWEST)))
    if where is None or where.op_type != "Where" or where.domain not in ("", "ai.onnx"):
        return False
    condition, hidden, shown = where.inputs
    lowest = _number(hidden)
    if lowest is None or lowest > _LOWEST or _number(shown) != 0:
        return False
    equal = None if condition is None else condition.producer()
    if equal is None or equal.op_type != "Equal" or _number(equal.inputs[1]) != 0:
        return False
    trilu = None if equal.inputs[0] is None else equal.inputs[0].producer()
    if trilu is None or trilu.op_type != "Trilu" or trilu.attributes.get_int("upper", 1) != 0:
        return False
    if len(trilu.inputs) > 1 and trilu.inputs[1] is not None and _number(trilu.inputs[1]) != 0:
        return False
    ones = None if trilu.inputs[0] is None else trilu.inputs[0].producer()
    return ones is not None and ones.op_type == "Expand" and _number(ones.inputs[0]) == 1


def _number(value: Value | None) -> float | None:
    constant = walk.constant_of(value)
    return None if constant is None or constant.size != 1 else float(constant.reshape(-1)[0])


def _operator(node: ir.Node, op: Builder, usual: Usual) -> _Found | None:
    """Return the attention of an `Attention` node that has only its first output and no cache."""
    given = [*node.inputs, *[None] * (7 - len(node.inputs))]
    Q, K, V, mask = given[:4]
    if Q is None or K is None or V is None or any(given[4:]) or any(v.name for v in node.outputs[1:]):
        return None
    if node.attributes.get_float("softcap", 0.0) or any(v.dtype not in _TYPES for v in (Q, K, V)):
        return None
    if mask is not None and mask.dtype not in (Q.dtype, ir.DataType.BOOL):
        return None
    if Q.shape is not None and len(Q.shape) == 3:
        heads, kept = (node.attributes.get_int(name, 0) for name in ("q_num_heads", "kv_num_heads"))
        if not heads or not kept:
            return None
        split = [_split_heads(op, Q, heads), *(_split_heads(op, v, kept) for v in (K, V))]
        if any(v is None for v in split):
            return None
        Q, K, V = (v for v in split if v is not None)
    (q, k) = (shapes.dims(v) for v in (Q, K))
    if q is None or k is None or len(k) != 4 or len(q) != 4:
        return None
    if q[1] != k[1]:
        repeated = [_repeat_heads(op, v, q[1]) for v in (K, V)]
        if any(v is None for v in repeated):
            return None
        K, V = (v for v in repeated if v is not None)
        k = shapes.dims(K) or ()
    KT = op.Transpose(K, perm=[0, 1, 3, 2])
    KT.shape = ir.Shape([*k[:2], k[3], k[2]])
    sizes = _sizes(Q, KT, V, usual)
    scores = ir.Value(shape=ir.Shape([*q[:3], k[2]]))
    dims = shapes.dims(Q)
    if sizes is None or dims is None or (mask is not None and not _fits(mask, scores, dims)):
        return None
    if mask is not None and Q.dtype == ir.DataType.FLOAT:
        # To a query that sees no key, ONNX Runtime gives zeros; of doubles, it runs the body of the standard.
        mask, sizes = _without_lowest(op, mask), dataclasses.replace(sizes, guarded=True)
    scale = node.attributes.get_float("scale", 1.0 / math.sqrt(sizes.width))
    sizes = dataclasses.replace(sizes, causal=bool(node.attributes.get_int("is_causal", 0)))
    return _Found(op, op.Mul(Q, scale), dims, KT, V, sizes, mask)


def _without_lowest(op: Builder, mask: Value) -> Value:
    """Return the mask with -inf for the lowest number, which hides a key from ONNX Runtime's operator as well."""
    if mask.dtype == ir.DataType.BOOL:
        return mask
    found = op.Where(op.LessOrEqual(mask, _LOWEST), -math.inf, mask)
    found.type, found.shape = mask.type, ir.Shape(mask.shape or ())
    return found


def _split_heads(op: Builder, value: Value, heads: int) -> Value | None:
    """Return [N, heads, S, size] of [N, S, heads * size]."""
    dims = shapes.dims(value)
    if dims is None or not isinstance(dims[2], int):
        return None
    width = dims[2] // heads
    split = op.Transpose(op.Reshape(value, [0, 0, heads, width]), perm=[0, 2, 1, 3])
    split.shape = ir.Shape([dims[0], heads, dims[1], width])
    return split


def _repeat_heads(op: Builder, value: Value, heads: int | str | None) -> Value | None:
    """Return [N, heads, T, size] of [N, fewer heads, T, size]: each head serves as many neighbours as the others."""
    sizes = shapes.dims(value)
    if sizes is None or len(sizes) != 4 or not isinstance(heads, int) or not isinstance(sizes[1], int):
        return None
    if sizes[1] < 1 or heads % sizes[1] or not isinstance(sizes[3], int):
        return None
    each = op.Expand(op.Unsqueeze(value, [2]), [1, 1, heads // sizes[1], 1, 1])
    repeated = op.Reshape(each, [0, heads, -1, sizes[3]])
    repeated.type, repeated.shape = value.type, ir.Shape([sizes[0], heads, *sizes[2:]])
    return repeated


def _has_gradient(mask: Value | None, wanted: set[str]) -> bool:
    """Return whether a gradient is taken with respect to something that the mask is computed from.

    Integers and truths pass no gradient on: a causal mask is often made of the sizes of the queries and keys.
    """
    queue, seen = [mask], {mask}
    while queue:
        value = queue.pop()
        if value is None or (value.dtype is not None and not value.dtype.is_floating_point()):
            continue
        if value.name in wanted:
            return True
        node = value.producer()
        new = [] if node is None else [v for v in walk.reads(node) if v not in seen]
        seen.update(new)
        queue += new
    return False


def _replace(node: ir.Node, found: _Found, unit: Unit) -> None:
    """Put a call of `BlockwiseAttention`, and its function, in the place of `node`."""
    op, sizes = found.op, found.sizes
    Q = _flat(op, found.Q, [sizes.queries, sizes.width])
    operands = [Q, _flat(op, found.KT, [sizes.width, sizes.keys]), _flat(op, found.V, [sizes.keys, sizes.value_width])]
    rows: int | None = 1
    if found.mask is not None:
        flat, which, rows = _flat_mask(op, found)
        operands += [flat, which]
    assert Q.dtype is not None
    kind = operands[3].dtype if found.mask is not None else None
    # One function for each call: its sizes are numbers.
    overload = str(sum(name == blockwise.NAME for _, name, _ in unit.model.functions))
    made = blockwise.function(sizes, unit.opset, Q.dtype, kind, rows)
    made.overload = overload
    unit.model.functions[made.identifier()] = made
    unit.model.opset_imports.setdefault(GRADIENT_DOMAIN, 1)
    (Y,) = op.call(blockwise.NAME, operands, domain=GRADIENT_DOMAIN, overload=overload, **blockwise.attributes(sizes))
    Y.type, Y.shape = Q.type, ir.Shape([None, sizes.queries, sizes.value_width])
    packed = node.op_type == "Attention" and len(node.outputs[0].shape or found.Q_dims) == 3
    front = list(found.Q_dims[:-1])
    if sum(not isinstance(d, int) for d in front) < 2:
        Y = op.Reshape(Y, [*(d if isinstance(d, int) else -1 for d in front), sizes.value_width])
    else:
        Y = op.Reshape(Y, op.Concat(op.Shape(found.Q, start=0, end=len(front)), [sizes.value_width], axis=0))
    Y.shape = ir.Shape([*front, sizes.value_width])
    if found.order is not None:
        Y = op.Transpose(Y, perm=found.order)
    if packed:
        Y = op.Reshape(op.Transpose(Y, perm=[0, 2, 1, 3]), [0, 0, -1])
    edit.replace_node(node, op, [Y])


def _flat(op: Builder, value: Value, last: list[int | None]) -> Value:
    """Return [G, ...] with all leading axes as one."""
    if None in last:
        flat = op.Reshape(value, op.Concat([-1], op.Shape(value, start=-len(last)), axis=0))
    else:
        flat = op.Reshape(value, [-1, *last])
    flat.shape = ir.Shape([None, *last])
    return flat


def _flat_mask(op: Builder, found: _Found) -> tuple[Value, Value, int | None]:
    """Return the mask [M, rows, T], for each head which of the M it has, and the rows."""
    mask, sizes = found.mask, found.sizes
    assert mask is not None
    dims = shapes.dims(mask)
    assert dims is not None
    rows = dims[-2] if len(dims) > 1 else 1
    rows = rows if isinstance(rows, int) else None
    axes = len(found.Q_dims) - 2  # in front of queries and width
    own = max(len(dims) - 2, 0)
    ones = op.constant(np.ones(axes - own, np.int64))
    lead = op.Concat(ones, op.Shape(mask, start=0, end=own), axis=0) if own else ones
    numbers = op.Reshape(op.Range(0, op.ReduceProd(lead, keepdims=0), 1), lead)
    which = op.Reshape(op.Expand(numbers, op.Shape(found.Q, start=0, end=axes)), [-1])
    which.shape = ir.Shape([None])
    if found.hides:
        mask = op.Not(mask)
    flat = _flat(op, op.Unsqueeze(mask, [0]) if len(dims) == 1 else mask, [rows, sizes.keys])
    return flat, which, rows
