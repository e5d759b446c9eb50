"""The implementation of `to_torch`, which imports torch."""

from __future__ import annotations

from typing import Any

import torch

from onward.arguments import check_name
from onward.author.loss_scale import check_unscaled
from onward.backends.torch.module import OnnxModule
from onward.backends.torch.optimizers import build_optimizer
from onward.compiler.compile import named_entries
from onward.errors import A101, ArgumentError, Diagnostic
from onward.upgrade import normalise

MODES = ("both", "training", "inference")
GRADIENTS = ("autograd", "graph")


def convert(
    model: Any, mode: str, *, prefer_graph: bool = False, gradients: str = "autograd"
) -> tuple[OnnxModule, torch.optim.Optimizer | dict[str, torch.optim.Optimizer] | None]:
    """Return the module and the optimizer of `model`; see `onward.backends.torch.to_torch`."""
    check_name("mode=", mode, MODES)
    check_name("gradients=", gradients, GRADIENTS)
    training = normalise(model)
    entries = named_entries(training)
    entry = next(iter(entries.values()), None)
    if gradients == "graph" and len(entries) > 1:
        raise ArgumentError(
            Diagnostic(
                A101,
                "the written backward pass is that of one training entry",
                place="gradients=",
                found=f"training entries: {', '.join(entries)}",
                hint='use gradients="autograd", or convert a model for each entry',
            )
        )
    if entry is None and mode == "training":
        raise ArgumentError(
            Diagnostic(A101, "the model has no training information", hint="use onward.make_trainable(...) first")
        )
    if mode != "inference":
        check_unscaled(training, "to_torch")
    module = OnnxModule(training, mode, None if mode == "inference" else entry, written=gradients == "graph")
    if entry is None or mode == "inference":
        return module, None
    optimizers = {n: build_optimizer(training, e, module, prefer_graph=prefer_graph) for n, e in entries.items()}
    return module, optimizers if len(entries) > 1 else next(iter(optimizers.values()))
