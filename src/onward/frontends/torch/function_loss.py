"""`onward.losses.from_torch`: a Python function over torch tensors becomes a loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir
import torch

from onward.errors import A101, ArgumentError, BackendError, Diagnostic, OnwardError
from onward.frontends.torch import capture
from onward.frontends.torch.checks import check_dependence
from onward.frontends.torch.versions import check_versions
from onward.graph.builder import Builder, Value
from onward.losses import LabelSpec, Loss, ModelLoss
from onward.losses.base import ANY_NUMBER, shape_of

A215 = "A215"
_SAMPLES = 3  # of an example that is made from the shapes of a model
_BATCH = "batch"


def from_torch(function: Callable[..., Any], outputs: Any = None, targets: Any = None) -> TorchLoss:
    """Return the loss; `onward.losses.from_torch` describes the arguments."""
    check_versions()
    if isinstance(function, type) or not callable(function):
        raise ArgumentError(
            Diagnostic(
                A101,
                "the loss is not a function",
                place="function=",
                found=repr(function)[:100],
                needed="a function of (outputs, targets), or an object such as torch.nn.CrossEntropyLoss()",
            )
        )
    if outputs is None:
        return TorchLoss(function)
    given, wanted = _tensors(outputs, "outputs="), _tensors(targets, "targets=")
    return TorchLoss(function, _capture(function, given, wanted), len(given))


@dataclasses.dataclass(frozen=True)
class TorchLoss(Loss):
    """A function over torch tensors as a loss: PyTorch's exporter makes an ONNX graph of it, which is then compared.

    Without a `model`, the function is exported when the loss is used, with an example of the shapes that it reads.
    """

    function: Callable[..., Any]
    model: onnx.ModelProto | None = None
    num_outputs: int = ANY_NUMBER  # type: ignore[misc]  # known if there was an example

    def least_opset(self) -> int:
        return capture.OPSET

    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec] | None:
        if self.model is None:
            return None
        sizes: dict[str | int | None, str | int | None] = {}
        for value, output in zip(self.model.graph.input, outputs, strict=False):
            names = [size.dim_param for size in value.type.tensor_type.shape.dim]
            sizes.update({n: d for n, d in zip(names, shape_of(output, self), strict=False) if n})
        found = ModelLoss(self.model).labels(outputs) or []
        # PyTorch's names of free sizes that no output has mean nothing here.
        return [
            dataclasses.replace(s, shape=tuple(d if isinstance(d, int) else sizes.get(d) for d in s.shape))
            for s in found
        ]

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        model = self.model
        if model is None:
            model = _capture(self.function, *(_example(values, self) for values in (outputs, labels)))
        return ModelLoss(model).emit(op, outputs, labels)

    def __repr__(self) -> str:
        return f"TorchLoss({_name(self.function)})"


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _tensors(given: Any, place: str) -> list[torch.Tensor]:
    """Return one example, or a list of them, as tensors."""
    many = given if isinstance(given, list | tuple) else [] if given is None else [given]
    try:
        found = [torch.as_tensor(np.array(v) if isinstance(v, np.ndarray) else v).detach() for v in many]
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            Diagnostic(A101, f"the example is not a tensor: {error}", place=place, needed="tensors or numpy arrays")
        ) from error
    if any(t.ndim and len(t) < 2 for t in found):
        raise ArgumentError(
            Diagnostic(
                A101,
                "an example of one sample cannot show which sizes are free",
                place=place,
                found=", ".join(str(list(t.shape)) for t in found),
                needed="at least two samples",
            )
        )
    return found


def _example(values: Sequence[Value], loss: Loss) -> list[torch.Tensor]:
    """Return random tensors of the types and shapes of values: numbers around 0, or the classes 0 and 1."""
    rng = np.random.default_rng(0)
    found = []
    for value in values:
        shape = [d if isinstance(d, int) else _SAMPLES for d in shape_of(value, loss)]
        dtype = (value.dtype or ir.DataType.FLOAT).numpy()
        array = rng.normal(size=shape) if np.dtype(dtype).kind == "f" else rng.integers(0, 2, size=shape)
        found.append(torch.from_numpy(np.asarray(array).astype(dtype)))
    return found


def _one_or_all(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else list(values)


def _capture(function: Callable[..., Any], outputs: list[torch.Tensor], targets: list[torch.Tensor]) -> onnx.ModelProto:
    """Return the ONNX graph of the function, after it was compared: on the example, and on twice as many samples."""
    expected = _in_torch(function, outputs, targets)
    wrapped = capture.LossModule(function, _one_or_all(outputs), _one_or_all(targets) if targets else None)
    dynamic = {"values": tuple(dict.fromkeys(range(t.ndim), torch.export.Dim.AUTO) or None for t in wrapped.example)}
    what = f"the loss `{_name(function)}`"
    proto, _ = capture.export(wrapped, (wrapped.example,), {}, dynamic, None, ["loss"], what)
    proto = onnx.inliner.inline_local_functions(proto)
    free = _name_batch(proto, outputs[0].shape[0] if outputs[0].ndim else None, [*outputs, *targets])
    _compare(function, proto, [*outputs, *targets], expected, "")
    twice = [_twice(values, outputs[0].shape[0]) for values in (outputs, targets)] if outputs[0].ndim else None
    if twice is not None:
        try:
            expected = _in_torch(function, *twice)
        except ArgumentError:
            return proto  # the function itself takes no other number of samples
        if not free:
            raise _differs(function, "the graph takes no other number of samples", _FIXED)
        _compare(function, proto, [*twice[0], *twice[1]], expected, "for twice as many samples")
    return proto


_FIXED = "write x.shape[0] instead of len(x), and no int() of a size"


def _twice(values: list[torch.Tensor], batch: int) -> list[torch.Tensor]:
    return [torch.cat([t, t.flip(0)]) if t.ndim and t.shape[0] == batch else t for t in values]


def _name_batch(proto: onnx.ModelProto, batch: int | None, values: Sequence[torch.Tensor]) -> bool:
    """Name the free size of the samples; return whether it is free in all inputs that have it."""
    sizes = [
        value.type.tensor_type.shape.dim[0]
        for value, tensor in zip(proto.graph.input, values, strict=True)
        if tensor.ndim and tensor.shape[0] == batch
    ]
    names = {size.dim_param for size in sizes} - {""}
    for value in [*proto.graph.input, *proto.graph.value_info]:
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param in names:
                size.dim_param = _BATCH
    return all(size.dim_param for size in sizes)


def _in_torch(
    function: Callable[..., Any], outputs: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """Return the value and the gradient with respect to each output, as PyTorch computes them."""
    name = _name(function)
    leaves = [t.clone().requires_grad_(t.is_floating_point()) for t in outputs]
    arguments = [_one_or_all(leaves), *([_one_or_all(list(targets))] if targets else [])]
    try:
        with torch.enable_grad():
            value = function(*arguments)
    except Exception as error:  # the user's function raises any type
        raise ArgumentError(
            Diagnostic(
                A215,
                f"the function fails on the example: {type(error).__name__}: {error}"[:300],
                place=f"function {name}",
                found=", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in [*outputs, *targets]),
                hint="it gets (outputs, targets): tensors, or lists of them if there are several"
                + ("" if targets else "; there is no example of the targets, so it got the outputs only"),
            )
        ) from error
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.is_floating_point():
        found = f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise ArgumentError(
            Diagnostic(
                A215,
                "the loss is not one number",
                place=f"function {name}",
                found=found,
                needed="a floating-point tensor with one element",
                hint="reduce it with .mean() or .sum()",
            )
        )
    wanted = [t for t in leaves if t.requires_grad]
    gradients = (
        torch.autograd.grad(value.sum(), wanted, allow_unused=True, retain_graph=True) if value.requires_grad else ()
    )
    check_dependence(value, wanted, name)
    slopes = iter(gradients)
    return value.detach(), [next(slopes) if t.requires_grad else None for t in leaves]


def _compare(
    function: Callable[..., Any],
    proto: onnx.ModelProto,
    values: Sequence[torch.Tensor],
    expected: tuple[torch.Tensor, list[torch.Tensor | None]],
    when: str,
) -> None:
    """Raise if the graph gives another value or gradient than PyTorch."""
    from onward.backends import open_session
    from onward.compiler.compile import compile_model
    from onward.compiler.derivatives import gradient

    names = [v.name for v in proto.graph.input]
    wrt = [n for n, slope in zip(names, expected[1], strict=False) if slope is not None]
    program = compile_model(gradient(proto, of="loss", wrt=wrt))
    feeds = {n: t.numpy() for n, t in zip(names, values, strict=True)}
    found = None
    for backend in ("onnxruntime", "reference"):
        try:
            found = open_session(program, backend).infer(feeds)
            break
        except BackendError as error:
            problem = error
    if found is None:
        raise _differs(function, f"no backend runs the graph {when}".strip(), str(problem)) from problem
    wrong = []
    pairs = [("value", "loss", expected[0])]
    pairs += [
        (f"gradient of output {i}", f"grad/{n}", s)
        for i, (n, s) in enumerate(zip(names, expected[1], strict=False))
        if s is not None
    ]
    for what, name, wanted in pairs:
        ours = torch.as_tensor(np.array(found[name])).double().reshape(wanted.shape)
        distance = float(torch.linalg.vector_norm(ours - wanted.double()))
        size = float(torch.linalg.vector_norm(wanted.double()))
        loose = 1e-2 if wanted.dtype in (torch.float16, torch.bfloat16) else 1e-4
        if not distance <= loose * max(size, 1e-6):
            detail = f"{float(ours):.6g} instead of {float(wanted):.6g}" if name == "loss" else f"off by {distance:.3g}"
            wrong.append(f"the {what} is {detail}")
    if wrong:
        raise _differs(
            function,
            "its graph gives other numbers than the function" + (f" {when}" if when else ""),
            "; ".join(wrong),
        )


def _differs(function: Any, message: str, found: str) -> OnwardError:
    return ArgumentError(
        Diagnostic(
            A215,
            message,
            place=f"function {_name(function)}",
            found=found,
            hint="detach(), no_grad(), random numbers and Python control flow over values cannot be exported; write "
            "the loss over the builder instead: lambda op, outputs, labels: value",
        )
    )
