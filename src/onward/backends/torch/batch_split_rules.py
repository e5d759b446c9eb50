"""Rules for operators on shares: one rule per kind of operator.

A rule takes the interpreter, the instruction and its inputs, of which at least one is a `Share` or a `Partial`. It
returns the outputs, or None if the inputs must be made whole. The decision depends on whole shapes and on cuts, never
on numbers, so that all processes decide alike. Layers, indices and losses are in `batch_split_layers`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from onward.backends.graph.host import Host
from onward.backends.graph.interpreter import Instruction
from onward.backends.graph.shapes import reduced_axes
from onward.backends.torch.batch_split import Cut, Partial, Share, Shared, elements, needs_gradient, rule, spread
from onward.backends.torch.framework import TORCH, ints, number
from onward.backends.torch.ops.elementwise import _BINARY, _UNARY

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
    local = [beside(run, v, leader, axis, rank) for v in inputs]
    if any(v is NOT_BESIDE for v in local):
        return None
    return leader.like(run.plain(node, local), axis)


NOT_BESIDE = object()


def beside(run: Shared, value: Any, leader: Share, axis: int, rank: int) -> Any:
    """Return the local share of `value` that matches `leader`, cut along `axis` of `rank`; or `NOT_BESIDE`."""
    if value is None or (isinstance(value, Host) and not value.shape):
        return value
    if isinstance(value, Share) and (value.axis + rank - value.ndim, value.cut) == (axis, leader.cut):
        return value.tensor
    value = run.team.whole(value)
    own = axis - (rank - len(value.shape))
    if own < 0 or (value.shape[own] == 1 and leader.cut.total > 1):
        return value
    if value.shape[own] != leader.cut.total:
        return NOT_BESIDE
    whole = TORCH.tensor(value)
    return run.team.cut(whole, own, leader.cut)


def _linear(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    """Return the result as a `Partial`, if the operator is linear in its `Partial` inputs."""
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
        local = [v if o else run.team.once(v) for v, o in zip(local, is_open, strict=True)]
        return Partial(run.plain(node, local))
    return None


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
    return run.plain(node, inputs)  # the shape of a share is that of the whole tensor


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
    """Return `value` with the shape `new` of the whole; None if the cut would not be along an axis."""
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
    local = [beside(run, v, leader, leader.axis, leader.ndim) for v in values]
    if any(v is NOT_BESIDE for v in local):
        return None
    tensors = [TORCH.tensor(v) for v in local]
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
    if isinstance(a, Share) and isinstance(b, Share) and not _are_cut_alike(a, b, rank):
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
    local = [beside(run, v, leader, axis, rank) for v in (a, b)]
    return None if any(v is NOT_BESIDE for v in local) else leader.like(run.plain(node, local), axis)


def _are_cut_alike(a: Share, b: Share, rank: int) -> bool:
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
        added = None if c is None else run.team.once(run.team.whole(c))
        return Partial(run.plain(node, [left, right, added]))
    axis = 0 if leader is a else 1
    rows = leader.like(leader.tensor, axis)
    added = None if c is None else beside(run, c, rows, axis, 2)
    if added is NOT_BESIDE:
        return None
    return leader.like(run.plain(node, [*(v.tensor if isinstance(v, Share) else v for v in (a, b)), added]), axis)


# -- reductions ------------------------------------------------------------------------------------------------------


@rule("ReduceSum", "ReduceMean", "ReduceL1", "ReduceSumSquare", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceProd",
      "ReduceLogSum", "ReduceLogSumExp")  # fmt: skip
def reduce(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    value, kind = inputs[0], node.op_type
    axes = reduced_axes(node.attributes, None if len(inputs) < 2 or inputs[1] is None else ints(inputs[1]), value.ndim)
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
    if kind in ("ReduceMax", "ReduceMin") and value.dtype != torch.bool and not needs_gradient(value.tensor):
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
