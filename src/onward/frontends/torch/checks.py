"""What a module must be like before it is captured, and proof afterwards that the graph is the module."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree

from onward.errors import ArgumentError, BackendError, Diagnostic, define
from onward.model.training_model import TrainingModel

A202 = define(
    "A202",
    "the module is not on the CPU",
    why="Weights are read from the module as they are; Onward does not move other people's modules.",
    fix="Call module.cpu() first; move it back after.",
)
A203 = define(
    "A203",
    "training and evaluation differ in a way that ONNX cannot tell apart",
    why="Beside Dropout and batch normalisation, the module itself asks whether it is training.",
    fix="Give the module the same forward in both modes, or convert the two modes separately.",
)
A204 = define(
    "A204",
    "a buffer changes during the forward pass",
    why="Only batch normalisation's running statistics can be updated; other mutated buffers would be lost.",
    fix="Make the buffer constant, or keep it outside the module.",
)
A205 = define(
    "A205",
    "a hook on the backward pass",
    why="Gradients are computed by the file's own graph, which holds no Python; the hook would be lost in silence.",
    fix="Remove the hook. Clipping is an option of onward.optimizers (clip_value=, clip_norm=, clip_global_norm=).",
)

A206 = define(
    "A206",
    "the captured training step is not the module's",
    why="Loss and gradients of the graph are compared with PyTorch's on the example; they must be the same.",
    fix="Please report the module: its capture is wrong in a way that was not foreseen. Nothing was written.",
)

BatchNorm = torch.nn.modules.batchnorm._BatchNorm


@contextlib.contextmanager
def training_mode(module: torch.nn.Module) -> Iterator[None]:
    """Run in training mode, and put back the mode of every part, the random state and the gradients' switch after.

    A module in evaluation mode is switched as a whole; in one that is training already, parts that the user put into
    evaluation mode (frozen batch normalisation) stay there.
    """
    modes = {part: part.training for part in module.modules()}
    random = torch.get_rng_state()
    if not module.training:
        module.train()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
        torch.set_rng_state(random)


@contextlib.contextmanager
def evaluation_mode(module: torch.nn.Module) -> Iterator[None]:
    """Run in evaluation mode, and put back the mode of every part and the random state after."""
    modes = {part: part.training for part in module.modules()}
    random = torch.get_rng_state()
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
        torch.set_rng_state(random)


def check_module(module: torch.nn.Module) -> None:
    """Raise, with every problem, unless the module can be captured: weights on the CPU, no hooks on the backward."""
    held = [*module.named_parameters(), *module.named_buffers()]
    elsewhere: dict[str, list[str]] = {}
    for name, tensor in held:
        if tensor.device.type != "cpu":
            elsewhere.setdefault(str(tensor.device), []).append(name)
    problems = [
        Diagnostic(
            A202,
            f"the module is on `{device}`, not on the CPU",
            place=type(module).__name__,
            found=", ".join(f"`{n}`" for n in names[:5]) + (", …" if len(names) > 5 else ""),
            hint="the weights have no values yet: materialise them first" if device == "meta" else "call module.cpu()",
        )
        for device, names in elsewhere.items()
    ]
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            problems.append(
                Diagnostic(
                    A205,
                    "a module has a backward hook, which a file cannot hold",
                    place=f"`{name or '(the module itself)'}` ({type(part).__name__})",
                    hint="remove the hook before converting",
                )
            )
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            problems.append(
                Diagnostic(
                    A205,
                    "a parameter has a hook on its gradient, which a file cannot hold",
                    place=f"`{name}`",
                    hint="remove the hook before converting",
                )
            )
    if problems:
        raise ArgumentError(problems)


def example_outputs(module: torch.nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Return the outputs in training mode; a buffer that changes and is no running statistic is an error."""
    before = {n: b.detach().clone() for n, b in module.named_buffers()}
    with training_mode(module):
        try:
            with torch.no_grad():
                outputs = module(*inputs, **keywords)
            allowed = _statistics(module)
            changed = [n for n, b in module.named_buffers() if n not in allowed and not _same(b, before.get(n))]
        finally:
            with torch.no_grad():
                for name, buffer in module.named_buffers():
                    if name in before and buffer.shape == before[name].shape:
                        buffer.copy_(before[name])
    if changed:
        raise ArgumentError(
            [
                Diagnostic(
                    A204,
                    f"buffer `{n}` changes during the forward pass",
                    place=type(module).__name__,
                    hint="only the running statistics of batch normalisation can be updated by a file",
                )
                for n in changed
            ]
        )
    return outputs


def _same(a: torch.Tensor, b: torch.Tensor | None) -> bool:
    if b is None or a.shape != b.shape:
        return False
    return bool(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)) if a.is_floating_point() else torch.equal(a, b)


def _statistics(module: torch.nn.Module) -> set[str]:
    return {
        f"{name}.{buffer}" if name else buffer
        for name, part in module.named_modules()
        if isinstance(part, BatchNorm)
        for buffer in ("running_mean", "running_var", "num_batches_tracked")
    }


def check_evaluation(
    module: torch.nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any], model: TrainingModel
) -> None:
    """Make sure that the inference graph is the module in evaluation mode: by its numbers on the example."""
    with evaluation_mode(module), torch.no_grad():
        expected = [t for t in pytree.tree_leaves(module(*inputs, **keywords)) if isinstance(t, torch.Tensor)]
    flat = [t for t in pytree.tree_leaves((inputs, keywords)) if isinstance(t, torch.Tensor)]
    found = _run(model, flat)
    names = model.outputs
    if len(found) != len(expected):
        raise _differs(module, f"{len(expected)} outputs", f"{len(found)}: {', '.join(names)}")
    for name, ours, theirs in zip(names, found, expected, strict=True):
        wanted = theirs.detach().numpy() if theirs.dtype != torch.bfloat16 else theirs.detach().float().numpy()
        wide = np.asarray(ours, wanted.dtype)
        scale = float(np.abs(wanted).max(initial=0.0)) if wanted.dtype.kind == "f" else 1.0
        tolerance = 1e-2 if wanted.dtype == np.float16 or theirs.dtype == torch.bfloat16 else 1e-3
        if wanted.shape != wide.shape or not np.allclose(
            wide, wanted, rtol=tolerance, atol=tolerance * max(scale, 1e-3), equal_nan=True
        ):
            raise _differs(module, f"output `{name}`", "other numbers on the example inputs")


def _run(model: TrainingModel, flat: list[torch.Tensor]) -> list[np.ndarray]:
    """Return the outputs of the inference graph, on torch's own kernels where it has them all."""
    from onward.backends.torch.module import OnnxModule
    from onward.backends.torch.tensors import to_numpy

    try:
        module = OnnxModule(model, "inference")
    except BackendError:
        from onward.backends import open_session
        from onward.lower.pipeline import compile_model
        from onward.model.convert import to_inference

        feeds = {n: to_numpy(t) for n, t in zip(model.inputs, flat, strict=True)}
        return list(open_session(compile_model(to_inference(model)), "reference").infer(feeds).values())
    with torch.no_grad():
        results = module(*flat)
    return [to_numpy(r) for r in (results if isinstance(results, tuple) else (results,))]


def check_training(
    module: torch.nn.Module,
    loss: Any,
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]],
    targets: Any,
    model: TrainingModel,
) -> None:
    """Make sure that the training graph has the module's loss and gradients, on the example.

    `loss` is the callable over (outputs, targets). A graph that draws random numbers has masks of its own and is not
    compared; nor is one with operators that the torch backend lacks.
    """
    from onward.backends.torch.module import OnnxModule
    from onward.lower.random import is_random

    (entry,) = model.entries
    assert entry.algorithm is not None
    if any(is_random(n) for n in entry.algorithm):
        return
    try:
        twin = OnnxModule(model, "training", entry)
    except BackendError:
        return
    inputs, keywords = arguments
    weights = {n: p for n, p in module.named_parameters() if n in model.parameters}
    before = {n: b.detach().clone() for n, b in module.named_buffers()}
    with training_mode(module), torch.enable_grad():
        try:
            outputs = module(*inputs, **keywords)
            value = loss(outputs) if targets is None else loss(outputs, targets)
            expected = torch.autograd.grad(value, list(weights.values()), allow_unused=True)
        finally:
            with torch.no_grad():
                for name, buffer in module.named_buffers():
                    buffer.copy_(before[name])
    leaves = pytree.tree_leaves((inputs, keywords)) + ([] if targets is None else pytree.tree_leaves(targets))
    with torch.enable_grad():
        ours = twin.train().loss(*[t for t in leaves if isinstance(t, torch.Tensor)])
        found = torch.autograd.grad(ours, [twin.tensor(n) for n in weights], allow_unused=True)
    pairs = {
        name: (torch.zeros(()) if a is None else a.double(), torch.zeros(()) if b is None else b.double())
        for name, a, b in zip(weights, found, expected, strict=True)
    }
    largest = max((float(b.abs().max()) for _, b in pairs.values() if b.numel()), default=0.0)
    wrong = [
        name
        for name, (a, b) in pairs.items()
        if not torch.allclose(*torch.broadcast_tensors(a, b), rtol=2e-2, atol=2e-3 * largest + 1e-7, equal_nan=True)
    ]
    if not torch.allclose(ours.double(), value.double().reshape(ours.shape), rtol=1e-2, atol=1e-5, equal_nan=True):
        wrong.insert(0, "the loss")
    if wrong:
        raise ArgumentError(
            Diagnostic(
                A206,
                "the captured training step differs from the module's on the example",
                place=type(module).__name__,
                found=", ".join(wrong[:5]) + (", …" if len(wrong) > 5 else ""),
            )
        )


def _differs(module: torch.nn.Module, what: str, found: str) -> ArgumentError:
    return ArgumentError(
        Diagnostic(
            A203,
            f"{what} of the module in evaluation mode differs from its graph",
            place=type(module).__name__,
            found=found,
            hint="the module's forward asks `self.training` itself; give it one forward for both modes",
        )
    )
