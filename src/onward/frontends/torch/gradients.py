"""Compute loss and gradients as the file does: with its Gradient node, lowered by Onward's rules."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from onward.compiler.compile import Compiler
from onward.compiler.program import PlainGraph
from onward.compiler.recipes import TRIAL
from onward.errors import BackendError, Diagnostic
from onward.model.roles import entry_roles
from onward.model.training_model import TrainingEntry, TrainingModel

_DROPOUTS = (F.dropout, torch.dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.feature_dropout, F.alpha_dropout,
             torch.alpha_dropout, F.feature_alpha_dropout, torch.feature_alpha_dropout)  # fmt: skip
# The position of the argument `dropout_p`.
_DROPOUT_ARGUMENT: dict[Any, int] = {F.scaled_dot_product_attention: 4, F.multi_head_attention_forward: 10}


class WithoutDropout(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """A mode in which PyTorch's dropout returns its input."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if function in _DROPOUTS:
            return args[0] if args else given["input"]
        if function in _DROPOUT_ARGUMENT:
            index = _DROPOUT_ARGUMENT[function]
            args = (*args[:index], 0.0, *args[index + 1 :]) if len(args) > index else args
            given.update({"dropout_p": 0.0} if "dropout_p" in given else {})
        return function(*args, **given)


@contextlib.contextmanager
def without_recurrent_dropout(module: torch.nn.Module) -> Iterator[None]:
    """Disable the dropout between the layers of recurrent modules, which PyTorch's kernels apply."""
    found = {part: part.dropout for part in module.modules() if isinstance(part, torch.nn.RNNBase)}
    for part in found:
        part.dropout = 0.0
    try:
        yield
    finally:
        for part, dropout in found.items():
            part.dropout = dropout


def evaluate(
    model: TrainingModel,
    entry: TrainingEntry,
    inputs: Sequence[torch.Tensor],
    backend: str = "torch",
    *,
    differentiate: bool = True,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss of one training step without dropout, and its gradient with respect to each parameter.

    `inputs` are the model's inputs and targets, in order. The graph runs on ONNX Runtime or, for the backend "torch",
    with torch's kernels and, if some are missing, in numpy. Without `differentiate` there are no gradients.

    Raises:
        NotDifferentiable: a rule is missing.
        BackendError: the backend cannot run the graph.
    """
    from onward.backends.onnxruntime.session import run_once
    from onward.backends.torch.interpreter import Interpreter
    from onward.backends.torch.tensors import to_tensor

    data = dict(zip([*model.inputs, *model.targets], inputs, strict=True))
    graph = Compiler(model).build(TRIAL, entry)
    state = {n: v.const_value for n, v in model.initializers().items() if v.const_value is not None}
    wanted = graph.output_names if differentiate else graph.output_names[:1]

    if backend == "onnxruntime":
        results = _on_arrays(run_once, graph, data, state)
    else:
        try:
            copy = graph.copy_model().graph
            interpreter = Interpreter(copy, graph.opset, outputs=[v for v in copy.outputs if v.name in wanted])
            feeds = {n: data[n] if n in data else to_tensor(state[n].numpy()) for n in graph.input_names}
            with torch.no_grad():
                results = interpreter.run(feeds)
        except BackendError:
            results = _on_arrays(_on_reference, graph, data, state)
    loss, *gradients = (results[n] for n in wanted)
    return loss, dict(zip(entry_roles(model, entry).gradients.values(), gradients, strict=False))


def _on_arrays(
    run: Callable[[PlainGraph, Mapping[str, np.ndarray]], dict[str, np.ndarray]],
    graph: PlainGraph,
    data: Mapping[str, torch.Tensor],
    state: Mapping[str, ir.TensorProtocol],
) -> dict[str, torch.Tensor]:
    """Return the outputs of a backend that takes and returns numpy arrays."""
    from onward.backends.torch.tensors import to_numpy, to_tensor

    results = run(graph, {n: to_numpy(data[n]) if n in data else state[n].numpy() for n in graph.input_names})
    return {n: to_tensor(v) for n, v in results.items()}


def _on_reference(graph: PlainGraph, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    from onward.backends.graph.registry import B300
    from onward.backends.reference.evaluator import Evaluator

    try:
        return Evaluator(graph.proto()).run(feeds)
    except NotImplementedError as error:
        raise BackendError(Diagnostic(B300, f"the reference backend cannot run the gradients: {error}")) from error
