"""Capture modules and losses as ONNX graphs, with PyTorch's own exporter.

The module is exported in training mode, so that Dropout is there, with batch normalisation written as ONNX's
BatchNormalization (the exporter would hard-code inference and lose the momentum). `make_trainable` then gives the
inference graph its inference mode and the algorithm its training mode.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch

from onward.errors import ArgumentError, Diagnostic, define
from onward.frontends.torch.cross_entropy import cross_entropy_loss
from onward.frontends.torch.numbers import activations, exact_numbers, number
from onward.frontends.torch.versions import always_used, installed
from onward.graph.schema import WORKING_OPSET
from onward.versions import beyond_tested

A200 = define(
    "A200",
    "the module cannot be captured",
    why="torch.export follows the module once with example inputs; it cannot follow control flow that depends on data, "
    "hooks that change values, or code that leaves the tensors. And some operators have no ONNX form.",
    fix="Write that part with other torch operators (torch.where, torch.cond), or split the module.",
)
OPSET = max(20, WORKING_OPSET)

Dynamic = Any  # True, False, or what torch.export takes as dynamic_shapes


def export(
    module: torch.nn.Module,
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
    dynamic_shapes: Any,
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
    what: str,
) -> tuple[onnx.ModelProto, torch.export.ExportedProgram]:
    """Return `module` as ONNX, nothing folded and nothing merged, and as the program that PyTorch captured.

    Raises:
        ArgumentError: with the exporter's own reason, where the module cannot be captured.
    """
    try:
        with _quiet():
            program = torch.onnx.export(
                module,
                arguments,
                kwargs=dict(keywords) or None,
                dynamo=True,
                optimize=False,
                verbose=False,
                opset_version=OPSET,
                dynamic_shapes=dynamic_shapes,
                input_names=list(input_names) if input_names else None,
                output_names=list(output_names) if output_names else None,
                custom_translation_table={op: always_used(f) for op, f in _translations().items()},
            )
    except Exception as error:  # the exporter raises many kinds; each becomes one clear error
        raise ArgumentError(
            Diagnostic(
                A200,
                f"PyTorch cannot capture {what}: {_reason(error)}",
                place=_place(error, module),
                hint=_hint(error) + ("; " + newer if (newer := beyond_tested(installed())) else ""),
            )
        ) from error
    assert program is not None
    proto: onnx.ModelProto = program.model_proto
    exact_numbers(proto, program.exported_program)
    _forget_shapes(proto)
    return proto, program.exported_program


def _forget_shapes(proto: onnx.ModelProto) -> None:
    """Drop what the exporter says of shapes behind a loss per sample: with free sizes, it takes it for one number."""
    losses = [n for n in proto.graph.node if n.op_type == "SoftmaxCrossEntropyLoss"]
    if any(a.s == b"none" for n in losses for a in n.attribute if a.name == "reduction"):
        del proto.graph.value_info[:]


def _hint(error: BaseException) -> str:
    """Return what to do: an operator that the exporter does not know is another matter than control flow."""
    for link in _chain(error):
        unknown = _UNKNOWN_OPERATOR.search(str(link))
        if unknown:
            return (
                f"PyTorch's exporter has no ONNX form of `{unknown[1]}`: write that part with other torch operators; a "
                "newer onnxscript may know more of them"
            )
        if "_ctc_loss" in str(link):
            return "PyTorch's exporter does not know CTC; onward.losses has it"
    return (
        "data-dependent Python control flow must be written with torch operators; dynamic=False captures fixed shapes"
    )


_UNKNOWN_OPERATOR = re.compile(r"No ONNX function found for <OpOverload\(op='([^']+)'")


def _reason(error: BaseException) -> str:
    """Return the first words of the innermost cause."""
    chain = _chain(error)
    lines = [line.strip() for line in str(chain[-1]).strip().splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] or type(chain[-1]).__name__


def _chain(error: BaseException) -> list[BaseException]:
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    return chain


def _place(error: BaseException, module: torch.nn.Module) -> str:
    """Return the module, and the line of the user's code that PyTorch stopped at, if it says."""
    found = ""
    for link in _chain(error):
        for frame in traceback.extract_tb(link.__traceback__):
            if not any(part in frame.filename for part in _NOT_THE_USERS) and frame.line:
                found = f", {os.path.basename(frame.filename)} line {frame.lineno}: {frame.line}"
    return type(module).__name__ + found


_NOT_THE_USERS = (f"{os.sep}torch{os.sep}", f"{os.sep}onnxscript{os.sep}", f"{os.sep}onward{os.sep}", "<", "contextlib")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's progress prints and warnings to itself; errors still come through."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), _swallowed():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)


@contextlib.contextmanager
def _swallowed() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _translations() -> dict[Any, Callable[..., Any]]:
    """Return how batch normalisation and cross-entropy are written.

    A BatchNormalization in the result is one in training mode. One that the user put into evaluation mode, or that
    keeps no statistics, is written as arithmetic, which is the same in training and evaluation and which
    `make_trainable` leaves as it is.
    """
    from onnxscript import opset20 as op

    def affine(normal: Any, x: Any, weight: Any, bias: Any) -> Any:
        if weight is not None:
            normal = op.Mul(normal, per_channel(weight, x))
        return normal if bias is None else op.Add(normal, per_channel(bias, x))

    def per_channel(value: Any, x: Any) -> Any:
        rank = len(x.shape)
        return op.Reshape(value, op.Constant(value_ints=[1, -1] + [1] * (rank - 2))) if rank > 1 else value

    def from_statistics(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, epsilon: float) -> Any:
        scale = op.Sqrt(op.Add(variance, number(op, epsilon, variance)))
        return affine(op.Div(op.Sub(x, per_channel(mean, x)), per_channel(scale, x)), x, weight, bias)

    def from_batch(x: Any, weight: Any, bias: Any, epsilon: float) -> Any:
        axes = op.Constant(value_ints=[0, *range(2, len(x.shape))])
        centred = op.Sub(x, op.ReduceMean(x, axes, keepdims=1))
        variance = op.ReduceMean(op.Mul(centred, centred), axes, keepdims=1)
        scale = op.Sqrt(op.Add(variance, number(op, epsilon, variance)))
        return affine(op.Div(centred, scale), x, weight, bias)

    def filled(like: Any, number: float) -> Any:
        kind = onnx.helper.tensor_dtype_to_np_dtype(int(like.dtype))
        array = np.full([int(n) for n in like.shape], number, kind)
        return op.Constant(value=onnx.numpy_helper.from_array(array))

    def training(
        input: Any,
        weight: Any,
        bias: Any,
        running_mean: Any,
        running_var: Any,
        training: bool,
        momentum: float,
        eps: float,
    ) -> Any:
        if not training:
            return evaluation(input, weight, bias, running_mean, running_var, momentum, eps)
        if weight is None:
            weight = filled(running_mean, 1.0)
        if bias is None:
            bias = filled(running_mean, 0.0)
        y = op.BatchNormalization(input, weight, bias, running_mean, running_var, epsilon=eps, momentum=1.0 - momentum)
        unused = [op.Identity(v) for v in (running_mean, running_var, running_mean, running_var)]
        return y, *unused

    def evaluation(
        input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
    ) -> Any:
        y = from_statistics(input, weight, bias, running_mean, running_var, eps)
        return y, op.Identity(running_mean), op.Identity(running_var)

    def without_statistics(input: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
        y = from_batch(input, weight, bias, eps)
        return y, op.Constant(value_float=0.0), op.Constant(value_float=0.0)

    aten = torch.ops.aten
    return {
        aten._native_batch_norm_legit_functional.default: training,
        aten._native_batch_norm_legit_no_training.default: evaluation,
        aten._native_batch_norm_legit.no_stats: without_statistics,
        aten.cross_entropy_loss.default: cross_entropy_loss,
        **activations(),
    }


class LossModule(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
    """A callable `loss(outputs, targets)` as a module over a tuple of tensors.

    Not over `*values`: the guards that PyTorch 2.9 writes for such a signature name a variable that is not there.
    """

    def __init__(self, loss: Callable[..., Any], outputs: Any, targets: Any) -> None:
        super().__init__()
        import torch.utils._pytree as pytree

        self.loss = loss
        flat_outputs, self._outputs = pytree.tree_flatten(outputs)
        flat_targets, self._targets = pytree.tree_flatten(() if targets is None else targets)
        self.output_count = len(flat_outputs)
        # A view with gaps would make its strides part of the loss, for which ONNX has no operator.
        self.example = tuple(
            t.contiguous() if isinstance(t, torch.Tensor) else t for t in (*flat_outputs, *flat_targets)
        )
        self.target_count = len(flat_targets)

    def forward(self, values: tuple[torch.Tensor, ...]) -> torch.Tensor:
        import torch.utils._pytree as pytree

        outputs = pytree.tree_unflatten(list(values[: self.output_count]), self._outputs)
        targets = pytree.tree_unflatten(list(values[self.output_count :]), self._targets)
        result: torch.Tensor = self.loss(outputs, targets) if self.target_count else self.loss(outputs)
        return result
