"""Rules for layers, indexing and losses on shares; see `batch_split_rules`."""

from __future__ import annotations

import math
from typing import Any

import torch

from onward.backends.graph.host import Host
from onward.backends.graph.interpreter import Instruction
from onward.backends.torch.batch_split import Cut, Partial, Share, Shared, rule
from onward.backends.torch.batch_split_rules import NOT_BESIDE, beside
from onward.backends.torch.framework import TORCH, ints

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
    """Normalise with the statistics of the whole batch: the sums over all processes."""
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
        whole = TORCH.tensor(whole)
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
    local = [beside(run, v, leader, leader.axis, leader.ndim) for v in (data, indices)]
    return None if any(v is NOT_BESIDE for v in local) else leader.like(run.plain(node, local))


@rule("ScatterElements")
def scatter_elements(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    data, indices, updates = (run.team.whole(v) if isinstance(v, Partial) else v for v in inputs)
    if not isinstance(indices, Share):
        return None
    axis = node.attributes["axis"] % indices.ndim
    sides = [beside(run, v, indices, indices.axis, indices.ndim) for v in (indices, updates)]
    if any(v is NOT_BESIDE for v in sides):
        return None
    if indices.axis != axis:
        target = beside(run, data, indices, indices.axis, indices.ndim)
        return None if target is NOT_BESIDE else indices.like(run.plain(node, [target, *sides]))
    if indices.own_positions and indices.ndim == 1 and any(run.team.samples):
        samples = sum(int(n) for n in run.team.samples)
        cut = Cut(tuple(n * (data.shape[0] // samples) for n in run.team.samples))
        if cut.total == data.shape[0]:
            target = run.team.cut(run.team.whole(data), 0, cut)
            return Share(run.plain(node, [target, sides[0] - run.team.start(cut.sizes), sides[1]]), 0, cut)
    if node.attributes.get("reduction", "none") != "add" or isinstance(data, Share):
        return None
    return Partial(run.plain(node, [run.team.once(data), *sides]))


@rule("ScatterND")
def scatter_nd(run: Shared, node: Instruction, inputs: list[Any]) -> Any:
    data, indices, updates = (run.team.whole(v) if isinstance(v, Partial) else v for v in inputs)
    fits = isinstance(indices, Share) and indices.axis < indices.ndim - 1 and not isinstance(data, Share)
    if not fits or node.attributes.get("reduction", "none") != "add":
        return None
    if not isinstance(updates, Share) or (updates.axis, updates.cut) != (indices.axis, indices.cut):
        updates = run.team.share(run.team.whole(updates), indices.axis, indices.cut)
    return Partial(run.plain(node, [run.team.once(data), indices.tensor, updates.tensor]))


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
    """Return the loss over the samples of all processes, with weights and without ignored labels."""
    scores, labels, weights = [*inputs, None][:3]
    if not isinstance(scores, Share) or scores.axis:
        return None
    target = beside(run, labels, scores, 0, len(labels.shape))
    if target is NOT_BESIDE:
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
