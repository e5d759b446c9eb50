"""Losses over classes. The gradient of a cross entropy is the softmax, minus one at the label."""

from __future__ import annotations

import dataclasses

import numpy as np

from onward.autodiff.registry import NON_DIFFERENTIABLE, gradient
from onward.autodiff.rule import Rule
from onward.autodiff.types import Grads
from onward.graph.builder import Value


@dataclasses.dataclass
class _Picked:
    """The common part of both losses: L = reduce over i of -w_i * log_prob[i, label_i]."""

    index: Value  # the labels as [N, 1, d1 ...], ignored ones replaced by 0
    valid: Value | None  # [N, d1 ...], 0 where the label is ignored; None if none is
    weight: Value | None  # w_i as [N, d1 ...]; None if all are 1
    share: Value  # dL/d(-log_prob[i, label_i]), as [N, d1 ...] or a scalar
    total: Value | None  # the sum of w_i, where the mean divides by it
    same: bool  # the share is one scalar for all labels


def _pick(rule: Rule, dloss: Value, labels: Value, weights: Value | None) -> _Picked:
    op, reduction = rule.op, rule.attr("reduction")
    dtype = dloss.dtype
    assert dtype is not None
    assert labels.dtype is not None
    safe, valid = labels, None
    if rule.node.attributes.get("ignore_index") is not None:
        kept = op.Not(op.Equal(labels, rule.attr("ignore_index")))
        valid = op.cast(kept, dtype)
        safe = op.Mul(labels, op.cast(kept, labels.dtype))  # an ignored label may be outside the classes
        safe.shape = labels.shape
    weight = valid
    if weights is not None:
        weight = op.Gather(weights, safe)
        weight = weight if valid is None else op.Mul(weight, valid)
    total = None
    share = dloss
    if reduction == "mean":
        if weight is None:
            share = op.Div(dloss, _count(rule, labels, dtype))
        else:
            # All labels ignored: PyTorch's gradient is 0 although the mean is NaN.
            total = op.ReduceSum(weight, keepdims=0)
            total = op.Add(total, op.cast(op.Equal(total, 0.0), dtype))
            share = op.Div(dloss, total)
    share = share if weight is None else op.Mul(share, weight)
    same = weight is None and reduction != "none"
    return _Picked(op.Unsqueeze(safe, [1]), valid, weight, share, total, same)


def _count(rule: Rule, labels: Value, dtype: object) -> Value | float:
    static = rule.static_shape(labels)
    if static is not None:
        return float(max(int(np.prod(static)), 1))
    assert labels.dtype is not None
    return rule.op.Cast(rule.op.Size(labels), to=dtype)


def _per_label(rule: Rule, picked: _Picked, labels: Value) -> Value:
    """Return the share as [N, 1, d1 ...]."""
    op = rule.op
    if not picked.same:
        return op.Unsqueeze(picked.share, [1])
    static = rule.static_shape(labels)
    if static is not None:
        return op.Expand(picked.share, np.array([static[0], 1, *static[1:]], np.int64))
    return op.Expand(picked.share, op.Shape(picked.index))


def _by_weights(rule: Rule, dloss: Value, log_prob: Value, picked: _Picked, weights: Value, loss: Value) -> Value:
    """Return d(weights): class c sums dL * -log_prob (for the mean: minus the loss, over the total weight)."""
    op = rule.op
    assert dloss.dtype is not None
    gain = op.Neg(op.Squeeze(op.GatherElements(log_prob, picked.index, axis=1), [1]))
    if rule.attr("reduction") == "mean":
        gain = op.Div(op.Sub(gain, loss), picked.total)
    gain = op.Mul(gain, dloss)
    if picked.valid is not None:
        gain = op.Mul(gain, picked.valid)
    flat = np.array([-1], np.int64)
    zeros = rule.zeros_like(weights)
    return op.ScatterElements(zeros, op.Reshape(picked.index, flat), op.Reshape(gain, flat), axis=0, reduction="add")


@gradient("SoftmaxCrossEntropyLoss", opset=13, labels=NON_DIFFERENTIABLE)
def softmax_cross_entropy_loss(rule: Rule, doutput: Value | None, dlog_prob: Value | None) -> Grads:
    """output = reduce(-w[label] * log_prob[label]), log_prob = log softmax(scores) over axis 1.

    So dscores = share * (softmax - 1 at the label), where share is w[label] * doutput, over the sum of w for the mean;
    and dlog_prob - softmax * sum(dlog_prob) for what comes through log_prob.
    """
    op, labels, weights = rule.op, rule.input("labels"), rule.optional_input("weights")
    log_prob = rule.request_output("log_prob")
    log_prob.shape = rule.input("scores").shape
    grads: dict[str, Value | None] = {}
    probability = op.Exp(log_prob) if rule.needs("scores") else None
    dscores: Value | None = None
    if doutput is not None:
        picked = _pick(rule, doutput, labels, weights)
        if probability is not None:
            share = _per_label(rule, picked, labels)
            weighted = op.Mul(probability, picked.share if picked.same else share)
            dscores = op.ScatterElements(weighted, picked.index, op.Neg(share), axis=1, reduction="add")
        if weights is not None and rule.needs("weights"):
            grads["weights"] = _by_weights(rule, doutput, log_prob, picked, weights, rule.output("output"))
    if dlog_prob is not None and probability is not None:
        through = op.Mul(probability, op.ReduceSum(dlog_prob, np.array([1], np.int64), keepdims=1))
        through = op.Sub(dlog_prob, through)
        dscores = through if dscores is None else op.Add(dscores, through)
    grads["scores"] = dscores
    return grads


@gradient("NegativeLogLikelihoodLoss", opset=13, target=NON_DIFFERENTIABLE)
def negative_log_likelihood_loss(rule: Rule, dloss: Value) -> Grads:
    """loss = reduce(-w[target] * input[target]), so dinput is -share at the target and 0 elsewhere."""
    op, X, target, weight = rule.op, rule.input("input"), rule.input("target"), rule.optional_input("weight")
    picked = _pick(rule, dloss, target, weight)
    grads: dict[str, Value | None] = {}
    if rule.needs("input"):
        share = op.Neg(_per_label(rule, picked, target))
        grads["input"] = op.ScatterElements(rule.zeros_like(X), picked.index, share, axis=1)
    if weight is not None and rule.needs("weight"):
        grads["weight"] = _by_weights(rule, dloss, X, picked, weight, rule.output("loss"))
    return grads
