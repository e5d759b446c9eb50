"""Capture modules and losses as ONNX graphs, with PyTorch's own exporter.

The module is exported in training mode, which keeps Dropout. Batch normalisation becomes ONNX's BatchNormalization; the
exporter alone would write inference mode and lose the momentum. `make_trainable` then switches the inference graph to
inference mode, and the algorithm to training mode.
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

from onward.errors import ArgumentError, Diagnostic
from onward.frontends.torch.adaptive_pools import adaptive_pools
from onward.frontends.torch.cross_entropy import cross_entropy_loss
from onward.frontends.torch.dropouts import decompose_dropouts
from onward.frontends.torch.embeddings import decompose_bags
from onward.frontends.torch.float64_constants import activations, exact_numbers, number
from onward.frontends.torch.loss_functions import DecomposeLosses
from onward.frontends.torch.placeholders import write_placeholders
from onward.frontends.torch.projected_lstm import decompose_projected_lstms
from onward.frontends.torch.versions import always_used, installed
from onward.graph.schema import WORKING_OPSET
from onward.versions import beyond_tested

A200 = "A200"
OPSET = max(20, WORKING_OPSET)

Dynamic = Any  # True, False, or dynamic_shapes of torch.export


def export(
    module: torch.nn.Module,
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
    dynamic_shapes: Any,
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
    what: str,
) -> tuple[onnx.ModelProto, torch.export.ExportedProgram]:
    """Return `module` as an ONNX model, without folding or merging, and as the program that PyTorch captured.

    Raises:
        ArgumentError: the module cannot be captured; gives the reason of the exporter.
    """
    try:
        with _quiet(), _decompositions():
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
    except Exception as error:  # the exporter raises many types
        raise ArgumentError(
            Diagnostic(
                A200,
                f"PyTorch cannot capture {what}: {_reason(error)}",
                place=_place(error, module),
                hint=_hint(error) + ("; " + newer if (newer := beyond_tested(installed())) else ""),
            )
        ) from error
    assert program is not None
    write_placeholders(program.model)
    proto: onnx.ModelProto = program.model_proto
    exact_numbers(proto, program.exported_program)
    _drop_shapes(proto)
    return proto, program.exported_program


def _drop_shapes(proto: onnx.ModelProto) -> None:
    """Remove the shapes behind a per-sample loss: with dynamic sizes the exporter infers a scalar there."""
    losses = [n for n in proto.graph.node if n.op_type == "SoftmaxCrossEntropyLoss"]
    if any(a.s == b"none" for n in losses for a in n.attribute if a.name == "reduction"):
        del proto.graph.value_info[:]


def _hint(error: BaseException) -> str:
    """Return the hint for an error of the exporter: an unknown operator, or control flow."""
    for link in _chain(error):
        unknown = _UNKNOWN_OPERATOR.search(str(link))
        if unknown:
            return (
                f"PyTorch's exporter does not support `{unknown[1]}`: use other torch operators; a newer onnxscript "
                "may support it"
            )
        if "_ctc_loss" in str(link):
            return "call torch.nn.functional.ctc_loss instead of torch.ctc_loss"
    return (
        "data-dependent Python control flow must be written with torch operators; dynamic=False captures fixed shapes"
    )


_UNKNOWN_OPERATOR = re.compile(r"No ONNX function found for <OpOverload\(op='([^']+)'")


def _reason(error: BaseException) -> str:
    """Return the first lines of the innermost cause."""
    chain = _chain(error)
    lines = [line.strip() for line in str(chain[-1]).strip().splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] or type(chain[-1]).__name__


def _chain(error: BaseException) -> list[BaseException]:
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    return chain


def _place(error: BaseException, module: torch.nn.Module) -> str:
    """Return the module, and the line of the user's code where PyTorch stopped, if it is known."""
    found = ""
    for link in _chain(error):
        for frame in traceback.extract_tb(link.__traceback__):
            if not any(part in frame.filename for part in _NOT_THE_USERS) and frame.line:
                found = f", {os.path.basename(frame.filename)} line {frame.lineno}: {frame.line}"
    return type(module).__name__ + found


_NOT_THE_USERS = (f"{os.sep}torch{os.sep}", f"{os.sep}onnxscript{os.sep}", f"{os.sep}onward{os.sep}", "<", "contextlib")


@contextlib.contextmanager
def _decompositions() -> Iterator[None]:
    """Replace the functions of PyTorch that its exporter writes wrongly or not at all."""
    with decompose_bags(), decompose_dropouts(), DecomposeLosses(), decompose_projected_lstms():
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the progress messages and warnings of the exporter, but not its errors."""
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
    """Return our translations of batch normalisation, cross-entropy, adaptive pooling and some activations.

    A BatchNormalization in the result is in training mode. A batch normalisation that the user put into evaluation
    mode, or that keeps no statistics, becomes arithmetic. That is the same in training and evaluation, and
    `make_trainable` does not change it.
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
        **adaptive_pools(),
    }


class LossModule(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
    """A callable `loss(outputs, targets)` as a module over a tuple of tensors.

    Not over `*values`: for that signature PyTorch 2.9 writes guards that read an undefined variable.
    """

    def __init__(self, loss: Callable[..., Any], outputs: Any, targets: Any) -> None:
        super().__init__()
        import torch.utils._pytree as pytree

        self.loss = loss
        flat_outputs, self._outputs = pytree.tree_flatten(outputs)
        flat_targets, self._targets = pytree.tree_flatten(() if targets is None else targets)
        self.output_count = len(flat_outputs)
        # With a non-contiguous view, the exported loss would depend on strides, for which ONNX has no operator.
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
