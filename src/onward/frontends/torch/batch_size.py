"""Check that the captured step works for other batch sizes: PyTorch may capture `len(x)` as a constant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.utils._pytree as pytree

from onward.errors import ArgumentError, BackendError, Diagnostic, OnwardError
from onward.frontends.torch import capture
from onward.frontends.torch.checks import restored, second_opinion, training_mode
from onward.frontends.torch.gradients import WithoutDropout, evaluate, without_recurrent_dropout
from onward.graph.walk import all_nodes
from onward.model.training_model import TrainingModel
from onward.passes.randomness import is_random


def check_batch_size(
    module: torch.nn.Module,
    loss: Any,
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]],
    targets: Any,
    model: TrainingModel,
    batch: int | None,
    wanted_free: bool,
) -> None:
    """Check that file and PyTorch give the same loss for a batch of twice the example's size.

    Nothing is compared if the batch size is fixed (an error if it was `wanted_free`), if random numbers are drawn, or
    if the module or the loss itself accepts no other size.
    """
    (entry,) = model.entries
    assert entry.algorithm is not None
    tensors = [t for t in pytree.tree_leaves(arguments) if isinstance(t, torch.Tensor)]
    free = [
        not isinstance(value.shape[0], int)
        for value, tensor in zip(model.graph.inputs, tensors, strict=True)
        if tensor.ndim and tensor.shape[0] == batch and value.shape is not None
    ]
    drawn = [n for n in [*all_nodes(model.graph), *all_nodes(entry.algorithm)] if is_random(n)]
    if wanted_free and not all(free):
        raise _constant(module, batch or 0, "the file does not accept such a batch")
    if not free or not all(free) or any(n.op_type != "Dropout" for n in drawn):
        return

    def twice(value: Any) -> Any:
        batched = isinstance(value, torch.Tensor) and value.ndim > 0 and value.shape[0] == batch
        return torch.cat([value, value.flip(0)]) if batched else value

    (inputs, keywords), wanted = pytree.tree_map(twice, (arguments, targets))
    with training_mode(module), restored(module), torch.no_grad(), without_recurrent_dropout(module), WithoutDropout():
        try:
            outputs = module(*inputs, **keywords)
            expected = loss(outputs) if targets is None else loss(outputs, wanted)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
            return  # the module or the loss does not accept this batch size
    leaves = pytree.tree_leaves((inputs, keywords)) + ([] if targets is None else pytree.tree_leaves(wanted))
    given = [t for t in leaves if isinstance(t, torch.Tensor)]

    def compare(backend: str) -> None:
        try:
            found, _ = evaluate(model, entry, given, backend, differentiate=False)
        except BackendError:
            if backend != "torch":
                raise
            return  # check_training has already warned that no backend runs it
        except OnwardError:
            raise
        except Exception as error:  # kernels raise any type
            raise _constant(module, batch or 0, f"{type(error).__name__}: {error}".splitlines()[0]) from error
        if not _close(found, expected):
            problem = f"a loss of {float(found):.6g} where PyTorch has {float(expected):.6g}"
            raise _constant(module, batch or 0, problem)

    second_opinion(compare)


def _constant(module: torch.nn.Module, batch: int, problem: str) -> ArgumentError:
    return ArgumentError(
        Diagnostic(
            capture.A200,
            "the batch size of the example is a constant in the captured graph",
            place=f"{type(module).__name__}, or its loss",
            found=f"for {2 * batch} samples instead of {batch}: {problem}",
            hint="write x.shape[0] instead of len(x), and no int() of a size; dynamic=False fixes the batch size",
        )
    )


def _close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    wanted = expected.double().reshape(found.shape)
    return bool(torch.allclose(found.double(), wanted, rtol=1e-3, atol=1e-6, equal_nan=True))
