"""Export losses of `torch.nn.functional` that PyTorch's exporter cannot capture: CTC and the Gaussian likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from onward.frontends.torch.placeholders import placeholder, writer
from onward.graph.builder import Builder, Value
from onward.losses import CTC


class DecomposeLosses(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """A mode in which losses of `torch.nn.functional` are operators that can be captured, however they are imported."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _WRITTEN.get(function, function)(*args, **(kwargs or {}))


def _gaussian_nll_loss(
    input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Any:
    """½·(log v + (input - target)²/v) with v = max(var, eps); PyTorch's also refuses a negative variance."""
    if not isinstance(var, torch.Tensor):
        var = torch.full_like(input, float(var))
    if var.ndim == input.ndim - 1:
        var = var.unsqueeze(-1)
    if eps:
        # In PyTorch the clamp passes its gradient everywhere. Here Round, whose gradient is zero, hides the difference
        # from the gradient; it is a multiple of the rounding error of eps.
        grain = torch.finfo(var.dtype).eps
        var = var + torch.round((var.clamp(min=eps) - var) / eps / grain) * grain * eps
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def _ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    lengths = [torch.as_tensor(n, device=log_probs.device).to(torch.int64) for n in (input_lengths, target_lengths)]
    targets, batched = targets.to(torch.int64), log_probs.ndim == 3
    if not batched:
        log_probs, targets, lengths = log_probs.unsqueeze(1), targets.reshape(1, -1), [n.reshape(1) for n in lengths]
    loss: Any = placeholder(
        "CTCLoss",
        (log_probs, targets, *lengths),
        {"blank": blank, "reduction": reduction, "zero_infinity": int(zero_infinity)},
        shape=(log_probs.shape[1],) if reduction == "none" else (),
    )
    return loss if batched or reduction != "none" else loss.squeeze(0)


_WRITTEN: dict[Any, Callable[..., Any]] = {F.gaussian_nll_loss: _gaussian_nll_loss, F.ctc_loss: _ctc_loss}


@writer("CTCLoss")
def _write_ctc(op: Builder, node: ir.Node) -> Sequence[Value]:
    scores, labels, times, counts = (v for v in node.inputs if v is not None)
    loss = CTC(
        blank=node.attributes["blank"].as_int(),
        zero_infinity=bool(node.attributes["zero_infinity"].as_int()),
        reduction=node.attributes["reduction"].as_string(),
    )
    assert labels.shape is not None
    if len(labels.shape) == 1:
        labels = _padded(op, labels, counts)
    return [loss.emit(op, [scores], [labels, times, counts])]


def _padded(op: Builder, labels: Value, counts: Value) -> Value:
    """Return the labels of all samples, which are given one after the other, as [N, S]."""
    start = op.Unsqueeze(op.Sub(op.CumSum(counts, 0), counts), [1])
    place = op.Add(start, op.Range(0, op.ReduceMax(counts, keepdims=0), 1))
    return op.Gather(op.Pad(labels, [0, 1]), op.Min(place, op.Size(labels)))  # one more label, for places past the end
