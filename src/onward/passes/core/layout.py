"""Sizes, order and repetition of elements; tensors made from sizes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.autodiff.problems import Unsupported
from onward.graph.builder import Value
from onward.passes.core.registry import Lowering, decomposition

_LAST = (1 << 63) - 1
INT64 = ir.DataType.INT64


@decomposition("Size")
def size(at: Lowering) -> Value:
    """The product of the shape."""
    static = at.static_shape(at.input("data"))
    if static is not None:
        return at.op.constant(np.array(np.prod(static, dtype=np.int64), np.int64))
    return at.op.ReduceProd(at.op.Shape(at.input("data")), keepdims=0)


@decomposition("Flatten")
def flatten(at: Lowering) -> Value:
    """Reshape to a matrix."""
    op, x = at.op, at.input("input")
    axis = int(at.attr("axis"))
    static, rank = at.static_shape(x), at.rank(x)
    if static is not None and rank is not None:
        axis = axis + rank if axis < 0 else axis
        return at.reshape(x, [int(np.prod(static[:axis])), int(np.prod(static[axis:]))])
    if axis == 0:
        return op.Reshape(x, [1, -1])
    shape = op.Shape(x)
    parts = [
        op.ReduceProd(op.Slice(shape, [0], [axis], [0]), keepdims=1),
        op.ReduceProd(op.Slice(shape, [axis], [_LAST], [0]), keepdims=1),
    ]
    return op.Reshape(x, op.Concat(*parts, axis=0), allowzero=1)


@decomposition("Unsqueeze")
def unsqueeze(at: Lowering) -> Value:
    """Reshape with further axes of size 1."""
    op, x, axes = at.op, at.input("data"), at.constant_input("axes")
    rank = at.rank(x)
    if axes is not None and rank is not None:
        total = rank + axes.size
        places = {int(a) % total for a in axes.reshape(-1)}
        own = iter(range(rank))
        return _kept(at, x, [None if axis in places else next(own) for axis in range(total)])
    given = op.Reshape(at.input("axes"), [-1])
    total_size = op.Add(op.Shape(op.Shape(x)), op.Shape(given))
    positive = op.Where(op.Less(given, 0), op.Add(given, total_size), given)
    new = op.ScatterElements(op.Expand(0, total_size), positive, op.Expand(1, op.Shape(given)), axis=0)
    old = op.Reshape(op.NonZero(op.Equal(new, 0)), [-1])
    shape = op.ScatterElements(op.Expand(1, total_size), old, op.Shape(x), axis=0)
    return op.Reshape(x, shape, allowzero=1)


@decomposition("Squeeze")
def squeeze(at: Lowering) -> Value:
    """Reshape without axes of size 1."""
    op, x, axes = at.op, at.input("data"), at.constant_input("axes")
    rank, given = at.rank(x), at.optional_input("axes")
    if rank is not None and axes is not None:
        gone = {int(a) % rank for a in axes.reshape(-1)} if rank else set()
        return _kept(at, x, [axis for axis in range(rank) if axis not in gone])
    static = at.static_shape(x)
    if given is None and static is not None:
        return at.reshape(x, [d for d in static if d != 1])
    shape = op.Shape(x)
    if given is None:
        left = op.Not(op.Equal(shape, 1))
    else:
        flat, count = op.Reshape(given, [-1]), op.Shape(shape)
        positive = op.Where(op.Less(flat, 0), op.Add(flat, count), flat)
        left = op.Equal(op.ScatterElements(op.Expand(0, count), positive, op.Expand(1, op.Shape(flat)), axis=0), 0)
    return op.Reshape(x, op.Gather(shape, op.Reshape(op.NonZero(left), [-1])), allowzero=1)


def _kept(at: Lowering, x: Value, axes: list[int | None]) -> Value:
    """Return `x` with these of its axes, and with an axis of size 1 for each None."""
    known = [1 if a is None else at.known_dim(x, a) for a in axes]
    if None not in known:
        return at.reshape(x, [k for k in known if k is not None])
    if known.count(None) == 1 and 0 not in known:
        out = at.op.Reshape(x, np.array([-1 if k is None else k for k in known], np.int64))
        dims = at.dims(x)
        assert dims is not None
        out.shape = ir.Shape([1 if a is None else dims[a] for a in axes])
        return out
    out = at.reshape(x, [1 if a is None else at.size(x, a) for a in axes])
    dims = at.dims(x)
    assert dims is not None
    out.shape = ir.Shape([1 if a is None else dims[a] for a in axes])
    return out


@decomposition("Split")
def split(at: Lowering) -> list[Value]:
    """One Slice per part."""
    op, x, axis = at.op, at.input("input"), int(at.attr("axis"))
    count = len(at.node.outputs)
    given, sizes = at.optional_input("split"), at.constant_input("split")
    known = at.known_dim(x, axis) if at.rank(x) is not None else None
    if given is None and known is not None:
        each = -(-known // count)
        sizes = np.array([max(0, min(each, known - i * each)) for i in range(count)])
    if sizes is not None:
        ends = np.cumsum(sizes).astype(np.int64)
        return [op.Slice(x, [int(e - s)], [int(e)], [axis]) for s, e in zip(sizes, ends, strict=True)]
    if given is not None:
        stops = op.CumSum(given, 0)
        starts = op.Sub(stops, given)
        return [op.Slice(x, *(op.Slice(v, [i], [i + 1], [0]) for v in (starts, stops)), [axis]) for i in range(count)]
    total = op.Gather(op.Shape(x), [axis])
    each_size = op.Div(op.Add(total, count - 1), count)
    return [op.Slice(x, op.Mul(each_size, i), op.Mul(each_size, i + 1), [axis]) for i in range(count)]


@decomposition("Tile")
def tile(at: Lowering) -> Value:
    """An axis for the copies before each axis: Reshape, Expand, Reshape."""
    op, x, repeats = at.op, at.input("input"), at.input("repeats")
    static, numbers = at.static_shape(x), at.constant_input("repeats")
    if static is not None and numbers is not None:
        apart = [d for size in static for d in (1, size)]
        wide = [d for size, n in zip(static, numbers.tolist(), strict=True) for d in (n, size)]
        whole = [size * n for size, n in zip(static, numbers.tolist(), strict=True)]
        return at.reshape(op.Expand(at.reshape(x, apart), np.array(wide, np.int64)), whole)
    shape = op.Shape(x)
    column = op.Reshape(shape, [-1, 1])
    apart_shape = op.Reshape(op.Concat(op.Expand(1, op.Shape(column)), column, axis=1), [-1])
    wide_shape = op.Reshape(op.Concat(op.Reshape(repeats, [-1, 1]), column, axis=1), [-1])
    spread = op.Expand(op.Reshape(x, apart_shape, allowzero=1), wide_shape)
    return op.Reshape(spread, op.Mul(shape, repeats), allowzero=1)


@decomposition("DepthToSpace")
def depth_to_space(at: Lowering) -> Value:
    """Reshape, Transpose, Reshape."""
    x, b = at.input("input"), int(at.attr("blocksize"))
    n, c, h, w = (at.size(x, a) for a in range(4))
    depth = at.div(c, b * b)
    if at.attr("mode") == "CRD":
        apart = at.op.Transpose(at.reshape(x, [n, depth, b, b, h, w]), perm=[0, 1, 4, 2, 5, 3])
    else:
        apart = at.op.Transpose(at.reshape(x, [n, b, b, depth, h, w]), perm=[0, 3, 4, 1, 5, 2])
    return at.reshape(apart, [n, depth, at.mul(h, b), at.mul(w, b)])


@decomposition("SpaceToDepth")
def space_to_depth(at: Lowering) -> Value:
    """Reshape, Transpose, Reshape."""
    x, b = at.input("input"), int(at.attr("blocksize"))
    n, c, h, w = (at.size(x, a) for a in range(4))
    high, wide = at.div(h, b), at.div(w, b)
    perm = [0, 1, 3, 5, 2, 4] if at.attr("mode") == "CRD" else [0, 3, 5, 1, 2, 4]
    apart = at.op.Transpose(at.reshape(x, [n, c, high, b, wide, b]), perm=perm)
    return at.reshape(apart, [n, at.mul(c, b * b), high, wide])


@decomposition("Pad")
def pad(at: Lowering) -> Value:
    """Modes reflect, edge and wrap: one Gather per axis, with a computed index. Mode constant is core."""
    op, x, mode = at.op, at.input("data"), at.attr("mode")
    rank, pads, axes = at.rank_of(x), at.input("pads"), at.constant_input("axes")
    if at.optional_input("axes") is not None and axes is None:
        raise Unsupported("its axes are known only at run time")
    places = list(range(rank)) if axes is None else [int(a) % rank for a in axes]
    numbers = at.constant_input("pads")
    for position, axis in enumerate(places):
        if numbers is not None:
            before: int | Value = int(numbers[position])
            after: int | Value = int(numbers[position + len(places)])
            if before == 0 and after == 0:
                continue
        else:
            before = op.Slice(pads, [position], [position + 1], [0])
            after = op.Slice(pads, [position + len(places)], [position + len(places) + 1], [0])
        n = at.size(x, axis)
        cuts = [at.most(at.mul(p, -1), 0) for p in (before, after)]  # negative pads cut first
        if any(not isinstance(c, int) or c for c in cuts):
            end = at.sub(n, cuts[1])
            x = op.Slice(x, at.vector([cuts[0]]), at.vector([end]), [axis])
            n = at.sub(end, cuts[0])
            before, after = at.most(before, 0), at.most(after, 0)
        index = op.Sub(at.count(at.add(at.add(n, before), after)), _vector(at, before))
        last = _vector(at, at.sub(n, 1))
        if mode == "edge":
            index = op.Min(op.Max(index, 0), last)
        elif mode == "wrap":
            index = op.Mod(index, _vector(at, n))
        else:
            period = op.Max(op.Mul(last, 2), 1)
            turned = op.Mod(index, period)
            index = op.Min(turned, op.Sub(period, turned))
        x = op.Gather(x, index, axis=axis)
    return x


def _vector(at: Lowering, value: int | Value) -> Value:
    return at.op.constant([value]) if isinstance(value, int) else value


@decomposition("ConstantOfShape")
def constant_of_shape(at: Lowering) -> Value:
    """Expand of the value."""
    attribute = at.node.attributes.get("value")
    value = np.zeros(1, np.float32) if attribute is None else attribute.as_tensor().numpy()
    return at.op.Expand(at.op.constant(value.reshape(())), at.input("input"))


@decomposition("EyeLike")
def eye_like(at: Lowering) -> Value:
    """Equal(row + k, column), as the type."""
    op, x = at.op, at.input("input")
    to = at.node.attributes.get("dtype")
    rows, columns = at.count(at.size(x, 0)), at.count(at.size(x, 1))
    shifted = at.reshape(op.Add(rows, int(at.attr("k") or 0)), [-1, 1])
    return op.Cast(op.Equal(shifted, columns), to=at.dtype(x) if to is None else ir.DataType(to.as_int()))


@decomposition("Trilu")
def trilu(at: Lowering) -> Value:
    """Where(column - row against k, X, 0)."""
    op, x = at.op, at.input("input")
    k = at.optional_input("k")
    rank = at.rank(x)
    rows, columns = (at.size(x, a) if rank is not None else op.Gather(op.Shape(x), [a]) for a in (-2, -1))
    distance = op.Sub(at.count(columns), at.reshape(at.count(rows), [-1, 1]))
    limit = op.constant([0]) if k is None else op.Reshape(k, [1])
    kept = op.Less(limit, op.Add(distance, 1)) if at.attr("upper") else op.Less(distance, op.Add(limit, 1))
    dtype = at.dtype(x)
    if dtype == ir.DataType.BOOL:
        return op.And(kept, x)
    return op.Where(kept, x, op.constant(0, dtype))


@decomposition("OneHot")
def one_hot(at: Lowering) -> Value:
    """Where(Equal(index, class), on, off)."""
    op, indices, values = at.op, at.input("indices"), at.input("values")
    rank = at.rank_of(indices)
    axis = int(at.attr("axis"))
    axis = axis + rank + 1 if axis < 0 else axis
    depth = op.cast(op.Reshape(at.input("depth"), [1]), INT64)
    known = op.cast(indices, INT64)
    positive = op.Where(op.Less(known, 0), op.Add(known, depth), known)
    classes = op.Range(0, op.Reshape(depth, op.constant([], INT64)), 1)
    classes.shape = ir.Shape([None])
    hot = op.Equal(op.Unsqueeze(positive, [axis]), at.along(classes, axis, rank + 1))
    off, on = (op.Slice(values, [i], [i + 1], [0]) for i in (0, 1))
    return op.Where(hot, on, off)


@decomposition("ReverseSequence")
def reverse_sequence(at: Lowering) -> Value:
    """Gather of computed positions: len - 1 - t within a sequence, t behind it."""
    op, x = at.op, at.input("input")
    time, batch = int(at.attr("time_axis")), int(at.attr("batch_axis"))
    rank = at.rank_of(x)
    order = [batch, time, *(a for a in range(rank) if a not in (batch, time))]
    moved = op.Transpose(x, perm=order)
    steps, count = at.size(x, time), at.size(x, batch)
    t, lengths = at.count(steps), at.reshape(at.input("sequence_lens"), [-1, 1])
    place = op.Where(op.Less(t, lengths), op.Sub(op.Sub(lengths, 1), t), t)
    row = at.reshape(at.count(count), [-1, 1])
    flat = op.Add(op.Mul(row, at.scalar(steps)), place)
    rest = [at.size(x, a) for a in order[2:]]
    rows = op.Gather(at.reshape(moved, [at.mul(count, steps), *rest]), flat, axis=0)
    return op.Transpose(rows, perm=[order.index(a) for a in range(rank)])
