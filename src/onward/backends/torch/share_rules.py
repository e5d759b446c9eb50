"""How operators run on shares: one rule per kind of operator.

A rule takes the interpreter, the instruction and its inputs, of which at least one is a `Share` or a `Partial`, and
returns the outputs, or None where the inputs must be made whole. It decides by shapes of the whole and by how values
are cut, never by numbers, so that all processes decide alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from onward.backends.torch.host import Host, ints, number
from onward.backends.torch.interpreter import Instruction
from onward.backends.torch.ops.elementwise import _BINARY, _UNARY
from onward.backends.torch.shares import Cut, Partial, Share, Shared, elements, rule, spread

# -- element by element ----------------------------------------------------------------------------------------------

_MORE_ELEMENTWISE = [
    "Div",
    "Pow",
    "Mod",
    "BitShift",
    "Sum",
    "Mean",
    "Max",
    "Min",
    "Where",
    "IsInf",
    "Clip",
    "LeakyRelu",
    "PRelu",
    "Elu",
    "Celu",
    "Selu",
    "ThresholdedRelu",
    "HardSigmoid",
    "Softplus",
    "Shrink",
    "Gelu",
    "Swish",
    "BitCast",
    "Cast",
]


@rule(*_UNARY, *_BINARY, *_MORE_ELEMENTWISE)
def elementwise(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    linear = _linear(run, node, inputs)
    if linear is not None:
        return linear
    inputs = [run.team.whole(v) if isinstance(v, Partial) else v for v in inputs]
    if not any(spread(v) for v in inputs):
        return run.plain(node, inputs)
    rank = max(len(v.shape) for v in inputs if v is not None)
    leader = max((v for v in inputs if isinstance(v, Share)), key=elements)
    axis = leader.axis + rank - leader.ndim
    local = [_beside(run, v, leader, axis, rank) for v in inputs]
    if any(v is _NO for v in local):
        return None
    return leader.like(run.plain(node, local), axis)


_NO = object()


def _beside(run: Shared, value: Any, leader: Share, axis: int, rank: int) -> Any:
    """Return this process's part of `value` beside `leader`, whose cut axis is `axis` of `rank`; `_NO` if none fits."""
    if value is None or (isinstance(value, Host) and not value.shape):
        return value
    if isinstance(value, Share) and (value.axis + rank - value.ndim, value.cut) == (axis, leader.cut):
        return value.tensor
    value = run.team.whole(value)
    own = axis - (rank - len(value.shape))
    if own < 0 or (value.shape[own] == 1 and leader.cut.total > 1):
        return value
    if value.shape[own] != leader.cut.total:
        return _NO
    whole = value.tensor() if isinstance(value, Host) else value
    return run.team.cut(whole, own, leader.cut)


def _linear(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    """Return the result as a sum that is still open, where the operator is linear in what is open."""
    is_open = [isinstance(v, Partial) for v in inputs]
    if not any(is_open) or any(isinstance(v, Share) for v in inputs):
        return None
    if not next(v for v in inputs if isinstance(v, Partial)).dtype.is_floating_point:
        return None
    kind = node.op_type
    local = [v.tensor if isinstance(v, Partial) else v for v in inputs]
    if kind == "Neg" or (kind == "Mul" and sum(is_open) == 1) or (kind == "Div" and is_open == [True, False]):
        return Partial(run.plain(node, local))
    if kind in ("Add", "Sub", "Sum"):
        if run.team.rank:  # what is whole counts once
            local = [v if o else _zeros(v) for v, o in zip(local, is_open, strict=True)]
        return Partial(run.plain(node, local))
    return None


def _zeros(value: Any) -> Tensor:
    return torch.zeros_like(value.tensor() if isinstance(value, Host) else value)


@rule("CastLike")
def cast_like(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    value, like = inputs[0], inputs[1].tensor if spread(inputs[1]) else inputs[1]
    value = run.team.whole(value) if isinstance(value, Partial) else value
    if isinstance(value, Share):
        return value.like(run.plain(node, [value.tensor, like]))
    return run.plain(node, [value, like])


# -- shapes ----------------------------------------------------------------------------------------------------------


@rule("Shape", "Size")
def shape(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    return run.plain(node, inputs)  # a value knows the shape of the whole


@rule("Reshape", "Flatten")
def reshape(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    value = inputs[0]
    old = list(value.shape)
    if node.op_type == "Flatten":
        axis = node.attributes["axis"]
        axis = axis + len(old) if axis < 0 else axis
        new = [math.prod(old[:axis]), math.prod(old[axis:])]
    else:
        new = ints(run.team.whole(inputs[1]))
        if not node.attributes.get("allowzero", 0):
            new = [old[i] if n == 0 else n for i, n in enumerate(new)]
        if -1 in new:
            known = math.prod(n for n in new if n != -1)
            new[new.index(-1)] = elements(value) // known if known else 0
    return reshaped(value, new)


def reshaped(value: Any, new: Sequence[int]) -> Any:
    """Return `value` with the shape `new` of the whole; None where the cut would not lie along an axis."""
    if isinstance(value, Partial):
        return Partial(value.tensor.reshape(list(new)))
    turns, behind = math.prod(value.shape[: value.axis]) * value.cut.turns, math.prod(value.shape[value.axis + 1 :])
    for axis in reversed(range(len(new))):
        before, block = math.prod(new[:axis]), math.prod(new[axis + 1 :])
        if new[axis] <= 1 or not elements(value) or turns % before:
            continue
        if all(n * behind % block == 0 for n in value.cut.sizes):
            cut = Cut(tuple(n * behind // block for n in value.cut.sizes), turns // before)
            own = value.tensor.numel() // (before * block)
            local = value.tensor.reshape([*new[:axis], own, *new[axis + 1 :]])
            return Share(local, axis, cut, value.own_positions and cut.turns == 1)
    return None


@rule("Squeeze")
def squeeze(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    value = inputs[0]
    given = node.attributes.get("axes") if len(inputs) < 2 or inputs[1] is None else ints(inputs[1])
    axes = [i for i, n in enumerate(value.shape) if n == 1] if given is None else [a % value.ndim for a in given]
    new = [n for i, n in enumerate(value.shape) if i not in axes]
    if isinstance(value, Partial):
        return reshaped(value, new)
    if value.axis in axes:
        return None
    local = [n for i, n in enumerate(value.tensor.shape) if i not in axes]
    return value.like(value.tensor.reshape(local), value.axis - sum(a < value.axis for a in axes))


@rule("Unsqueeze")
def unsqueeze(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    value = inputs[0]
    given = node.attributes["axes"] if len(inputs) < 2 or inputs[1] is None else ints(inputs[1])
    result = run.plain(node, [value.tensor, *inputs[1:]])
    if isinstance(value, Partial):
        return Partial(result)
    added = {a % result.ndim for a in given}
    kept = [i for i in range(result.ndim) if i not in added]
    return Share(result, kept[value.axis], value.cut, value.own_positions)


@rule("Transpose")
def transpose(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    value = inputs[0]
    result = run.plain(node, [value.tensor])
    if isinstance(value, Partial):
        return Partial(result)
    order = node.attributes.get("perm") or list(reversed(range(value.ndim)))
    return value.like(result, list(order).index(value.axis))


@rule("Expand")
def expand(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    value, wanted = inputs[0], ints(run.team.whole(inputs[1]))
    if not isinstance(value, Share):
        return None
    whole = torch.broadcast_shapes(value.shape, tuple(wanted))
    axis = value.axis + len(whole) - value.ndim
    if whole[axis] != value.cut.total:
        return None
    return value.like(value.tensor.expand([*whole[:axis], value.tensor.shape[value.axis], *whole[axis + 1 :]]), axis)


@rule("Tile")
def tile(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    value = inputs[0]
    repeats = ints(run.team.whole(inputs[1]))
    if not isinstance(value, Share) or repeats[value.axis] != 1:
        return None
    return value.like(value.tensor.repeat(repeats))


@rule("Concat")
def concat(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    return _joined(run, inputs, node.attributes["axis"], new_axis=False)


@rule("ConcatFromSequence")
def concat_from_sequence(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    return _joined(run, inputs[0], node.attributes["axis"], new_axis=bool(node.attributes.get("new_axis", 0)))


def _joined(run: Shared, values: list[Any], axis: int, *, new_axis: bool) -> Any:
    join = torch.stack if new_axis else torch.cat
    if all(isinstance(v, Partial) for v in values):
        return Partial(join([v.tensor for v in values], axis))
    leader = next((v for v in values if isinstance(v, Share)), None)
    if leader is None:
        return None
    place = axis % (leader.ndim + new_axis)
    if not new_axis and place == leader.axis:
        return None
    local = [_beside(run, v, leader, leader.axis, leader.ndim) for v in values]
    if any(v is _NO for v in local):
        return None
    tensors = [v.tensor() if isinstance(v, Host) else v for v in local]
    return leader.like(join(tensors, axis), leader.axis + (new_axis and place <= leader.axis))


@rule("Split", "SplitToSequence")
def split(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    value = inputs[0]
    axis = node.attributes["axis"] % value.ndim
    if isinstance(value, Share) and value.axis == axis:
        return None
    if node.op_type == "SplitToSequence" and len(inputs) < 2 and not node.attributes.get("keepdims", 1):
        return None
    parts = run.plain(node, [value.tensor, *inputs[1:]])
    made = [Partial(p) if isinstance(value, Partial) else value.like(p) for p in parts]
    return made if node.op_type == "SplitToSequence" else tuple(made)


@rule("Slice", "Pad")
def slice_or_pad(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    value = inputs[0]
    others = [run.team.whole(v) for v in inputs[1:]]
    if not isinstance(value, Share):
        if node.op_type == "Pad":
            filled = len(others) > 1 and others[1] is not None and bool(number(others[1]))
            if filled or node.attributes.get("mode", "constant") != "constant":
                return None
        return Partial(run.plain(node, [value.tensor, *others]))
    cut = _touched(node, value, others)
    return None if value.axis in cut else value.like(run.plain(node, [value.tensor, *others]))


def _touched(node: Instruction, value: Share, others: list[Any]) -> set[int]:
    """Return the axes that a Slice or Pad changes."""
    first = node.attributes.get("starts" if node.op_type == "Slice" else "pads") if not others else ints(others[0])
    named = others[2] if len(others) > 2 else None
    axes = node.attributes.get("axes") if named is None else ints(named)
    if node.op_type == "Pad":
        over = list(range(value.ndim)) if axes is None else [a % value.ndim for a in axes]
        return {a for i, a in enumerate(over) if first[i] or first[i + len(over)]}
    over = list(range(len(first))) if axes is None else [a % value.ndim for a in axes]
    last = node.attributes["ends"] if len(others) < 2 else ints(others[1])
    steps = ints(others[3]) if len(others) > 3 and others[3] is not None else [1] * len(first)
    sizes = [value.shape[a] for a in over]
    parts = zip(over, first, last, steps, sizes, strict=True)
    return {a for a, start, end, step, size in parts if slice(start, end, step).indices(size) != (0, size, 1)}


# -- products --------------------------------------------------------------------------------------------------------


@rule("MatMul")
def mat_mul(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    a, b = (run.team.whole(v) if isinstance(v, Partial) else v for v in inputs)
    if not spread(a) and not spread(b):
        return run.plain(node, [a, b])
    if len(a.shape) < 2 or len(b.shape) < 2:
        return None
    rank = max(len(a.shape), len(b.shape))
    inner_a, inner_b = len(a.shape) - 1, len(b.shape) - 2
    if isinstance(a, Share) and isinstance(b, Share) and not _meet(a, b, rank):
        if elements(a) < elements(b):
            a = run.team.whole(a)
        else:
            b = run.team.whole(b)
    if (isinstance(a, Share) and a.axis == inner_a) or (isinstance(b, Share) and b.axis == inner_b):
        cut = a.cut if isinstance(a, Share) else b.cut
        left = a.tensor if isinstance(a, Share) else run.team.cut(a, inner_a, cut)
        right = b.tensor if isinstance(b, Share) else run.team.cut(b, inner_b, cut)
        return Partial(run.plain(node, [left, right]))
    leader = a if isinstance(a, Share) else b
    axis = leader.axis + rank - leader.ndim
    if axis >= rank - 2:  # rows of a, or columns of b
        return leader.like(run.plain(node, [v.tensor if isinstance(v, Share) else v for v in (a, b)]), axis)
    local = [_beside(run, v, leader, axis, rank) for v in (a, b)]
    return None if any(v is _NO for v in local) else leader.like(run.plain(node, local), axis)


def _meet(a: Share, b: Share, rank: int) -> bool:
    """Return whether two factors are cut along the same axis of the product, or both along the inner one."""
    if a.cut != b.cut:
        return False
    if a.axis == a.ndim - 1 or b.axis == b.ndim - 2:
        return a.axis == a.ndim - 1 and b.axis == b.ndim - 2
    place = a.axis + rank - a.ndim
    return place == b.axis + rank - b.ndim and place < rank - 2


@rule("Gemm")
def gemm(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    a, b, c = (run.team.whole(v) if isinstance(v, Partial) else v for v in [*inputs, None][:3])
    inner_a = 0 if node.attributes["transA"] else 1
    inner_b = 1 if node.attributes["transB"] else 0
    if isinstance(a, Share) and isinstance(b, Share) and (a.axis, b.axis, a.cut) != (inner_a, inner_b, b.cut):
        if elements(a) < elements(b):
            a = run.team.whole(a)
        else:
            b = run.team.whole(b)
    if not spread(a) and not spread(b):
        return run.plain(node, [a, b, run.team.whole(c)])
    leader = a if isinstance(a, Share) else b
    if leader.axis == (inner_a if leader is a else inner_b):
        left = a.tensor if isinstance(a, Share) else run.team.cut(a, inner_a, leader.cut)
        right = b.tensor if isinstance(b, Share) else run.team.cut(b, inner_b, leader.cut)
        c = run.team.whole(c)
        return Partial(run.plain(node, [left, right, None if run.team.rank else c]))
    axis = 0 if leader is a else 1
    beside = leader.like(leader.tensor, axis)
    added = None if c is None else _beside(run, c, beside, axis, 2)
    if added is _NO:
        return None
    return leader.like(run.plain(node, [*(v.tensor if isinstance(v, Share) else v for v in (a, b)), added]), axis)


# -- reductions ------------------------------------------------------------------------------------------------------


@rule("ReduceSum", "ReduceMean", "ReduceL1", "ReduceSumSquare", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceProd",
      "ReduceLogSum", "ReduceLogSumExp")  # fmt: skip
def reduce(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    value, kind = inputs[0], node.op_type
    given = node.attributes.get("axes") if len(inputs) < 2 or inputs[1] is None else ints(inputs[1])
    if not given and node.attributes.get("noop_with_empty_axes", 0):
        return value
    axes = sorted(a % value.ndim for a in given) if given else list(range(value.ndim))
    if isinstance(value, Partial):
        return Partial(run.plain(node, [value.tensor, *inputs[1:]])) if kind in ("ReduceSum", "ReduceMean") else None
    keep = bool(node.attributes.get("keepdims", 1))
    if value.axis not in axes:
        axis = value.axis if keep else value.axis - sum(a < value.axis for a in axes)
        return value.like(run.plain(node, [value.tensor, *inputs[1:]]), axis)
    if kind in ("ReduceSum", "ReduceL1", "ReduceSumSquare"):
        return Partial(run.plain(node, [value.tensor, *inputs[1:]]))
    if kind == "ReduceMean" and value.dtype.is_floating_point:
        return Partial(value.tensor.sum(axes, keepdim=keep) / math.prod(value.shape[a] for a in axes))
    if kind in ("ReduceMax", "ReduceMin") and value.dtype != torch.bool:
        operation = dist.ReduceOp.MAX if kind == "ReduceMax" else dist.ReduceOp.MIN
        return run.team.add(run.plain(node, [value.tensor, *inputs[1:]]), operation)
    return None


@rule("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "TopK", "ArgMax", "ArgMin", "CumSum", "CumProd",
      "LayerNormalization", "RMSNormalization", "Trilu")  # fmt: skip
def along_an_axis(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    value, kind = inputs[0], node.op_type
    if not isinstance(value, Share):
        return None
    others = [run.team.whole(v) for v in inputs[1:]]
    if kind in ("CumSum", "CumProd"):
        touched = {int(ints(others[0])[0]) % value.ndim}
    elif kind == "Trilu":
        touched = {value.ndim - 2, value.ndim - 1}
    else:
        axis = node.attributes["axis"] % value.ndim
        old_softmax = kind in ("Softmax", "LogSoftmax", "Hardmax") and node.attributes.opset < 13
        normalization = kind in ("LayerNormalization", "RMSNormalization") or old_softmax
        touched = set(range(axis, value.ndim)) if normalization else {axis}
    if value.axis in touched:
        return None
    result = run.plain(node, [value.tensor, *others])
    if kind in ("ArgMax", "ArgMin") and not node.attributes["keepdims"]:
        return value.like(result, value.axis - (min(touched) < value.axis))
    return tuple(value.like(r) for r in result) if isinstance(result, tuple) else value.like(result)


# -- images and sequences --------------------------------------------------------------------------------------------


@rule("Conv", "ConvTranspose", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "LRN",
      "InstanceNormalization", "GroupNormalization", "DepthToSpace", "SpaceToDepth", "Upsample", "Col2Im")  # fmt: skip
def sample_by_sample(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    value = inputs[0]
    if not isinstance(value, Share) or value.axis:
        return None
    return value.like(run.plain(node, [value.tensor, *(run.team.whole(v) for v in inputs[1:])]))


@rule("DeformConv", "GridSample")
def sample_by_sample_with_positions(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    value = inputs[0]
    positions = {2, 4} if node.op_type == "DeformConv" else {1}
    if not isinstance(value, Share) or value.axis:
        return None
    local: list[Any] = [value.tensor]
    for index, other in enumerate(inputs[1:], 1):
        if index not in positions or other is None:
            local.append(run.team.whole(other))
        elif isinstance(other, Share) and (other.axis, other.cut) == (0, value.cut):
            local.append(other.tensor)
        else:
            local.append(run.team.cut(run.team.whole(other), 0, value.cut))
    return value.like(run.plain(node, local))


@rule("Resize")
def resize(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    value, others = inputs[0], [run.team.whole(v) for v in inputs[1:]]
    if not isinstance(value, Share):
        return None
    if len(others) > 2 and others[2] is not None:
        axes = node.attributes.get("axes")
        resized = range(value.ndim) if axes is None else [a % value.ndim for a in axes]
        place = list(resized).index(value.axis) if value.axis in resized else -1
        if place >= 0:
            sizes = ints(others[2])
            if sizes[place] != value.cut.total:
                return None
            sizes[place] = value.tensor.shape[value.axis]
            others[2] = Host(sizes, (len(sizes),))
    result = run.plain(node, [value.tensor, *others])
    return value.like(result) if result.shape[value.axis] == value.tensor.shape[value.axis] else None


@rule("MaxPool")
def max_pool(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    value = inputs[0]
    if not isinstance(value, Share) or value.axis or value.cut.turns > 1:
        return None
    result = run.plain(node, [value.tensor])
    if not isinstance(result, tuple):
        return value.like(result)
    values, positions = result
    before = run.team.start(value.cut.sizes) * math.prod(value.shape[1:])
    return value.like(values), Share(positions + before, 0, value.cut, own_positions=True)


@rule("BatchNormalization")
def batch_normalization(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    """Statistics of the whole batch: the sums of all processes."""
    value = inputs[0]
    scale, bias, mean, variance = (run.team.whole(v) for v in inputs[1:])
    if not isinstance(value, Share) or value.axis:
        return None
    x = value.tensor
    if not node.attributes.get("training_mode", 0):
        return value.like(run.plain(node, [x, scale, bias, mean, variance]))
    axes, count = [0, *range(2, x.ndim)], math.prod(value.shape) // value.shape[1]
    per_channel = [1, -1] + [1] * (x.ndim - 2)
    wide = x.to(mean.dtype)
    batch_mean = run.team.add(wide.sum(axes)) / count
    centred = wide - batch_mean.reshape(per_channel)
    batch_variance = run.team.add((centred * centred).sum(axes)) / count
    factor = scale.to(mean.dtype) / torch.sqrt(batch_variance + node.attributes["epsilon"])
    y = centred * factor.reshape(per_channel) + bias.to(mean.dtype).reshape(per_channel)
    if node.attributes.outputs == 1:
        return value.like(y.to(x.dtype))
    m = node.attributes["momentum"]
    following = mean * m + batch_mean * (1 - m), variance * m + batch_variance.to(variance.dtype) * (1 - m)
    return value.like(y.to(x.dtype)), *following


@rule("RNN", "GRU", "LSTM")
def recurrent(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    value = inputs[0]
    if not isinstance(value, Share) or value.axis != 1 or node.attributes.get("layout", 0):
        return None
    cut = {4: 0, 5: 1, 6: 1}  # sequence_lens, initial_h, initial_c
    local = [value.tensor]
    for index, other in enumerate(inputs[1:], 1):
        axis = cut.get(index)
        if isinstance(other, Share) and (other.axis, other.cut) == (axis, value.cut):
            local.append(other.tensor)
            continue
        whole = run.team.whole(other)
        whole = whole.tensor() if isinstance(whole, Host) else whole
        local.append(whole if axis is None or whole is None else run.team.cut(whole, axis, value.cut))
    outputs = run.plain(node, local)
    return tuple(value.like(o, axis) for o, axis in zip(outputs, (2, 1, 1), strict=False))


# -- indices ---------------------------------------------------------------------------------------------------------


@rule("Gather")
def gather(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    data, indices = (run.team.whole(v) if isinstance(v, Partial) else v for v in inputs)
    axis = node.attributes["axis"] % len(data.shape)
    if isinstance(indices, Share):
        data = run.team.whole(data)
        return indices.like(run.plain(node, [data, indices.tensor]), axis + indices.axis)
    if not isinstance(data, Share):
        return run.plain(node, [data, indices])
    if data.axis == axis:
        return None
    moved = data.axis if data.axis < axis else data.axis + len(indices.shape) - 1
    return data.like(run.plain(node, [data.tensor, indices]), moved)


@rule("GatherElements")
def gather_elements(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    data, indices = inputs
    leader = indices if isinstance(indices, Share) else data
    if not isinstance(leader, Share) or leader.axis == node.attributes["axis"] % leader.ndim:
        return None
    local = [_beside(run, v, leader, leader.axis, leader.ndim) for v in (data, indices)]
    return None if any(v is _NO for v in local) else leader.like(run.plain(node, local))


@rule("ScatterElements")
def scatter_elements(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    data, indices, updates = (run.team.whole(v) if isinstance(v, Partial) else v for v in inputs)
    if not isinstance(indices, Share):
        return None
    axis = node.attributes["axis"] % indices.ndim
    sides = [_beside(run, v, indices, indices.axis, indices.ndim) for v in (indices, updates)]
    if any(v is _NO for v in sides):
        return None
    if indices.axis != axis:
        target = _beside(run, data, indices, indices.axis, indices.ndim)
        return None if target is _NO else indices.like(run.plain(node, [target, *sides]))
    if indices.own_positions and indices.ndim == 1 and any(run.team.samples):
        samples = sum(int(n) for n in run.team.samples)
        cut = Cut(tuple(n * (data.shape[0] // samples) for n in run.team.samples))
        if cut.total == data.shape[0]:
            target = run.team.cut(run.team.whole(data), 0, cut)
            return Share(run.plain(node, [target, sides[0] - run.team.start(cut.sizes), sides[1]]), 0, cut)
    if node.attributes.get("reduction", "none") != "add" or isinstance(data, Share):
        return None
    return Partial(run.plain(node, [torch.zeros_like(data) if run.team.rank else data, *sides]))


@rule("ScatterND")
def scatter_nd(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    data, indices, updates = (run.team.whole(v) if isinstance(v, Partial) else v for v in inputs)
    fits = isinstance(indices, Share) and indices.axis < indices.ndim - 1 and not isinstance(data, Share)
    if not fits or node.attributes.get("reduction", "none") != "add":
        return None
    if not isinstance(updates, Share) or (updates.axis, updates.cut) != (indices.axis, indices.cut):
        updates = run.team.share(run.team.whole(updates), indices.axis, indices.cut)
    start = torch.zeros_like(data) if run.team.rank else data
    return Partial(run.plain(node, [start, indices.tensor, updates.tensor]))


@rule("OneHot")
def one_hot(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    indices = inputs[0]
    if not isinstance(indices, Share):
        return None
    others = [run.team.whole(v) for v in inputs[1:]]
    place = node.attributes["axis"] % (indices.ndim + 1)
    return indices.like(run.plain(node, [indices.tensor, *others]), indices.axis + (place <= indices.axis))


# -- losses ----------------------------------------------------------------------------------------------------------


@rule("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def cross_entropy(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    """The mean is over the samples of all processes that count, by their weights."""
    scores, labels, weights = [*inputs, None][:3]
    if not isinstance(scores, Share) or scores.axis:
        return None
    target = _beside(run, labels, scores, 0, len(labels.shape))
    if target is _NO:
        return None
    weights = run.team.whole(weights)
    softmax = node.op_type == "SoftmaxCrossEntropyLoss"
    log_prob = torch.log_softmax(scores.tensor, 1) if softmax else scores.tensor
    ignored = node.attributes.get("ignore_index")
    target = target.to(torch.int64)
    keep = torch.ones_like(target, dtype=torch.bool) if ignored is None else target != ignored
    safe = torch.where(keep, target, 0)
    counts = keep.to(log_prob.dtype) if weights is None else weights[safe] * keep
    losses = -torch.gather(log_prob, 1, safe.unsqueeze(1)).squeeze(1) * counts
    reduction = node.attributes.get("reduction", "mean")
    if reduction == "none":
        loss: Any = scores.like(losses)
    else:
        both = run.team.add(torch.stack([losses.sum(), counts.sum()]))
        loss = both[0] if reduction == "sum" else both[0] / both[1]
    return (loss, scores.like(log_prob)) if softmax else loss
