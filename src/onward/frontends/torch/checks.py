"""Check a module before it is captured, and compare the captured graph with the module afterwards."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree

from onward.backends.graph.interpreter import B301
from onward.errors import A101, ArgumentError, BackendError, Diagnostic, OnwardError
from onward.frontends.torch import capture
from onward.frontends.torch.embeddings import refuse_unsupported_bags
from onward.frontends.torch.gradients import WithoutDropout, evaluate, without_recurrent_dropout
from onward.frontends.torch.pieces import close, distance, largest
from onward.graph.walk import all_nodes
from onward.model.roles import entry_roles
from onward.model.training_model import TrainingModel

A202 = "A202"
A203 = "A203"
A204 = "A204"
A205 = "A205"

A206 = "A206"

A207 = "A207"
A208 = "A208"
A209 = "A209"

BatchNorm = torch.nn.modules.batchnorm._BatchNorm


@contextlib.contextmanager
def training_mode(module: torch.nn.Module) -> Iterator[None]:
    """Run in training mode, and restore the mode of every submodule, the random state and the gradient mode afterwards.

    A module in evaluation mode is switched as a whole. In a module that is already in training mode, submodules in
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
    """Run in evaluation mode, and restore the mode of every submodule and the random state afterwards."""
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
    """Raise, with every problem, unless the module is on the CPU and without backward hooks."""
    check_weights(module)
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
                    "a module has a backward hook, which a file cannot contain",
                    place=f"`{name or '(the module itself)'}` ({type(part).__name__})",
                    hint="remove the hook before converting",
                )
            )
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            problems.append(
                Diagnostic(
                    A205,
                    "a parameter has a hook on its gradient, which a file cannot contain",
                    place=f"`{name}`",
                    hint="remove the hook before converting",
                )
            )
    if problems:
        raise ArgumentError(problems)


def check_weights(module: torch.nn.Module) -> None:
    """Raise, with every problem, unless `module` is a module with weights that a file can train."""
    if not isinstance(module, torch.nn.Module):
        hint = "create an instance: Module(...)" if isinstance(module, type) else "wrap it in a torch.nn.Module"
        raise ArgumentError(
            Diagnostic(A101, "module is not a torch.nn.Module", place="module", found=repr(module)[:200],
                       needed="a torch.nn.Module", hint=hint)
        )  # fmt: skip
    lazy = torch.nn.parameter.UninitializedTensorMixin
    problems = [
        Diagnostic(A209, f"`{name}` has no value yet", place=type(module).__name__,
                   hint="the module is lazy: run it once on an example first")
        if isinstance(tensor, lazy)
        else Diagnostic(A209, f"`{name}` is complex", place=type(module).__name__, found=str(tensor.dtype),
                        hint="store real and imaginary parts as two real parameters")
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]
        if isinstance(tensor, lazy) or tensor.is_complex()
    ]  # fmt: skip
    if not problems and not list(module.parameters()):
        problems = [Diagnostic(A208, "the module has no parameters to train", place=type(module).__name__)]
    if problems:
        raise ArgumentError(problems)


@contextlib.contextmanager
def example_fails(what: str, module: torch.nn.Module, hint: str = "") -> Iterator[None]:
    """Turn any exception of the user's code on the example into an ArgumentError with its place."""
    try:
        yield
    except OnwardError:
        raise
    except Exception as error:  # a module or a loss may raise any type
        line = str(error).strip().splitlines()
        raise ArgumentError(
            Diagnostic(
                A207,
                f"{what} fails on the example: {type(error).__name__}: {line[0] if line else ''}",
                place=capture._place(error, module),
                hint=hint,
            )
        ) from error


@contextlib.contextmanager
def graph_fails(module: torch.nn.Module) -> Iterator[None]:
    """Turn any exception of the captured graph into an ArgumentError about the export."""
    try:
        yield
    except OnwardError as error:
        if error.code != B301:  # what a kernel of the torch backend raised
            raise
        raise _fails(module, error.diagnostics[0].message.split(": ", 1)[1]) from error
    except Exception as error:  # kernels raise any type
        line = str(error).strip().splitlines()
        raise _fails(module, f"{type(error).__name__}: {line[0] if line else ''}") from error


def _fails(module: torch.nn.Module, problem: str) -> ArgumentError:
    return ArgumentError(
        Diagnostic(
            A206,
            f"the graph that PyTorch's exporter made fails on the example: {problem}",
            place=type(module).__name__,
            hint="the module itself runs, so the exporter wrote an operator wrongly",
        )
    )


def second_opinion(compare: Callable[[str], None]) -> None:
    """Compare the graph with PyTorch on our own kernels and, if they differ from PyTorch, on ONNX Runtime.

    `compare(backend)` raises an ArgumentError where the graph fails or gives other numbers. If ONNX Runtime, on which
    models train unless another backend is chosen, agrees with PyTorch, the graph is right and our kernels are not: then
    there is a warning, and the model is accepted.
    """
    try:
        compare("torch")
    except ArgumentError as ours:
        try:
            compare("onnxruntime")
        except (ArgumentError, BackendError):
            raise ours from ours.__cause__
        problem = ours.diagnostics[0]
        warnings.warn(
            f"{problem.message}{': ' + problem.found if problem.found else ''}; but on ONNX Runtime the graph gives "
            "PyTorch's numbers, so the model is right and Onward's torch backend is wrong. Train on ONNX Runtime, and "
            "please report it",
            stacklevel=4,
        )


def check_dependence(value: torch.Tensor, outputs: list[torch.Tensor], name: str) -> None:
    """Raise unless the loss `value` depends on the module's outputs."""
    gradients: tuple[torch.Tensor | None, ...] = (None,)
    if value.requires_grad and outputs:
        gradients = torch.autograd.grad(value.sum(), outputs, allow_unused=True)
    if all(g is None for g in gradients):
        raise ArgumentError(
            Diagnostic(
                A208,
                "the loss does not depend on the outputs of the module",
                place=f"loss={name}",
                found="a value that is detached or computed from the targets alone",
            )
        )


def example_outputs(module: torch.nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Return the outputs in training mode; raise if the forward changes anything but running statistics."""
    with training_mode(module), restored(module) as before:
        with torch.no_grad(), refuse_unsupported_bags(module), example_fails("the module", module, _input_hint(inputs)):
            outputs = module(*inputs, **keywords)
        allowed = _statistics(module)
        changed = [n for n, t in _tensors(module).items() if n not in allowed and not _same(t, before.get(n))]
    if changed:
        parameters = dict(module.named_parameters())
        raise ArgumentError(
            [
                Diagnostic(
                    A204,
                    f"{'parameter' if n in parameters else 'buffer'} `{n}` changes during the forward pass",
                    place=type(module).__name__,
                    hint="a file cannot express a renormalisation such as max_norm: remove it"
                    if n in parameters
                    else "a file can only update running statistics of batch normalisation",
                )
                for n in changed
            ]
        )
    return outputs


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


@contextlib.contextmanager
def restored(module: torch.nn.Module) -> Iterator[dict[str, torch.Tensor]]:
    """Yield copies of all parameters and buffers, and restore those that the forward changed."""
    before = {n: t.detach().clone() for n, t in _tensors(module).items()}
    try:
        yield before
    finally:
        with torch.no_grad():
            for name, tensor in _tensors(module).items():
                if name in before and tensor.shape == before[name].shape and not _same(tensor, before[name]):
                    tensor.copy_(before[name])


def _input_hint(inputs: tuple[Any, ...]) -> str:
    strange = next((x for x in inputs if not isinstance(x, (torch.Tensor, int, float, bool, str, dict, tuple))), None)
    if strange is None:
        return ""
    return f"example_inputs= takes a tensor, a tuple of tensors or a dict by name; found a {type(strange).__name__}"


def _same(a: torch.Tensor, b: torch.Tensor | None) -> bool:
    if b is None or a.shape != b.shape:
        return False
    same = torch.equal(a, b)  # which needs no memory, as allclose does
    return same or (a.is_floating_point() and bool(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)))


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
    """Check that the inference graph and the module in evaluation mode give the same outputs on the example."""
    with evaluation_mode(module), torch.no_grad():
        expected = [t for t in pytree.tree_leaves(module(*inputs, **keywords)) if isinstance(t, torch.Tensor)]
    flat = [t for t in pytree.tree_leaves((inputs, keywords)) if isinstance(t, torch.Tensor)]

    def compare(backend: str) -> None:
        with graph_fails(module):
            found = _run(model, flat, backend)
        _compare_outputs(module, model.outputs, found, expected)

    second_opinion(compare)


def _compare_outputs(
    module: torch.nn.Module, names: Sequence[str], found: Sequence[np.ndarray], expected: Sequence[torch.Tensor]
) -> None:
    """Raise unless the outputs of the graph are those of the module."""
    if len(found) != len(expected):
        raise _differs(module, f"{len(expected)} outputs", f"{len(found)}: {', '.join(names)}")
    for name, ours, theirs in zip(names, found, expected, strict=True):
        wanted = theirs.detach().numpy() if theirs.dtype != torch.bfloat16 else theirs.detach().float().numpy()
        wide = np.asarray(ours, wanted.dtype)
        finite = wanted[np.isfinite(wanted)]
        scale = float(np.abs(finite).max(initial=0.0)) if wanted.dtype.kind == "f" else 1.0
        tolerance = 1e-2 if wanted.dtype == np.float16 or theirs.dtype == torch.bfloat16 else 1e-3
        if wanted.shape != wide.shape or not np.allclose(
            wide, wanted, rtol=tolerance, atol=tolerance * max(scale, 1e-3), equal_nan=True
        ):
            raise _differs(module, f"output `{name}`", "different numbers on the example inputs")


def _run(model: TrainingModel, flat: list[torch.Tensor], backend: str) -> list[np.ndarray]:
    """Return the outputs of the inference graph; for the backend "torch" in numpy if torch lacks a kernel."""
    from onward.backends import open_session
    from onward.backends.torch.module import OnnxModule
    from onward.backends.torch.tensors import to_numpy
    from onward.compiler.compile import compile_model
    from onward.model.inference import to_inference

    module = None
    if backend == "torch":
        try:
            module = OnnxModule(model, "inference")
        except BackendError:
            backend = "reference"
    if module is None:
        feeds = {n: to_numpy(t) for n, t in zip(model.inputs, flat, strict=True)}
        return list(open_session(compile_model(to_inference(model)), backend).infer(feeds).values())
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
    """Check that the lowered gradients of the file equal PyTorch's on the example.

    `loss` is the callable over (outputs, targets). Both sides run without Dropout, whose masks differ. A module that
    draws other random numbers, or that no backend can run here, gives a warning instead. So do gradients that are less
    accurate than float64.
    """
    from onward.passes.randomness import is_random

    (entry,) = model.entries
    assert entry.algorithm is not None
    random = [n for n in [*all_nodes(model.graph), *all_nodes(entry.algorithm)] if is_random(n)]
    if any(n.op_type != "Dropout" for n in random):
        _warn_not_compared("the module or the loss draws random numbers of its own")
        return
    inputs, keywords = arguments
    leaves = pytree.tree_leaves((inputs, keywords)) + ([] if targets is None else pytree.tree_leaves(targets))
    trained = set(entry_roles(model, entry).gradients.values())
    weights = {n: p for n, p in module.named_parameters() if n in trained}
    with (
        training_mode(module),
        restored(module),
        torch.enable_grad(),
        without_recurrent_dropout(module),
        WithoutDropout(),
    ):
        before = torch.get_rng_state()
        outputs = module(*inputs, **keywords)
        value = loss(outputs) if targets is None else loss(outputs, targets)
        if not torch.equal(before, torch.get_rng_state()):
            _warn_not_compared("the module or the loss draws random numbers of its own")
            return
        expected = torch.autograd.grad(value, list(weights.values()), allow_unused=True)

    def compare(backend: str) -> None:
        try:
            with graph_fails(module):
                ours, gradients = evaluate(model, entry, [t for t in leaves if isinstance(t, torch.Tensor)], backend)
        except BackendError as error:
            if backend != "torch":
                raise
            _warn_not_compared(str(error), depth=2)
        else:
            _compare_step(module, weights, (ours, gradients), (value.detach(), expected))

    second_opinion(compare)


def _compare_step(
    module: torch.nn.Module,
    weights: Mapping[str, torch.Tensor],
    ours: tuple[torch.Tensor, Mapping[str, torch.Tensor]],
    theirs: tuple[torch.Tensor, Sequence[torch.Tensor | None]],
) -> None:
    """Raise unless the loss and the gradients of the file are those of PyTorch; warn of inaccurate ones."""
    value, expected = theirs
    pairs = {n: (ours[1][n], gradient) for n, gradient in zip(weights, expected, strict=True)}
    cut = [n for n, (a, b) in pairs.items() if b is None and bool(a.any())]
    tolerance = 2e-3 * max((largest(b) for _, b in pairs.values() if b is not None), default=0.0) + 1e-7
    wrong = [n for n, (a, b) in pairs.items() if not close(a, b, 2e-2, tolerance)]
    loss = value.double().reshape(ours[0].shape)
    if not torch.allclose(ours[0].double(), loss, rtol=1e-2, atol=1e-5, equal_nan=True):
        wrong.insert(0, "the loss")
    if wrong:
        raise ArgumentError(
            Diagnostic(
                A206,
                "the captured training step differs from the module's on the example",
                place=type(module).__name__,
                found=", ".join(wrong[:5]) + (", …" if len(wrong) > 5 else ""),
                hint=f"in PyTorch no gradient reaches {', '.join(f'`{n}`' for n in cut[:5])}: the forward cuts it with "
                "detach() or no_grad(); freeze them with requires_grad_(False)"
                if cut
                else "a hook on a tensor, detach(), or a torch.autograd.Function with its own backward cannot be "
                "captured; or the exporter wrote an operator wrongly",
            )
        )
    if any(p.dtype != torch.float64 for p in weights.values()):
        return
    off = max((distance(a, b) for a, b in pairs.values()), default=0.0)
    # A constant rounded to 32 bits shows as 1e-8 or more; the 1/6 of PyTorch's own hardsigmoid, in 32 bits, as 1.5e-9.
    if off > 5e-9:
        warnings.warn(
            f"the gradients of the file have a relative error of {off:.0e}, which is large for float64: an "
            "attribute of ONNX, such as an epsilon, has 32 bits, or the module computes in a narrower type",
            stacklevel=6,
        )


def _warn_not_compared(reason: str, depth: int = 0) -> None:
    warnings.warn(f"the gradients of the file were not compared with PyTorch's: {reason}", stacklevel=4 + depth)


def _differs(module: torch.nn.Module, what: str, found: str) -> ArgumentError:
    return ArgumentError(
        Diagnostic(
            A203,
            f"{what} of the module in evaluation mode differs from its graph",
            place=type(module).__name__,
            found=found,
            hint="the forward reads `self.training`, draws its own random numbers (noise, F.dropout without "
            "training=self.training), or has an operator that PyTorch's exporter writes wrongly",
        )
    )
