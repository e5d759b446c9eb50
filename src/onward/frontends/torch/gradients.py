"""Loss and gradients as the file computes them: by its Gradient, lowered with the rules that will train it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from onward.autodiff import rules as rules  # importing the package registers every rule
from onward.autodiff.lowering import is_gradient, lower_model
from onward.compiler.unit import Combined, combine, inline_functions, set_outputs
from onward.errors import BackendError, Diagnostic
from onward.graph import edit
from onward.model import serde
from onward.model.training_model import TrainingEntry, TrainingModel, differentiated
from onward.passes.randomness import drop_inactive_dropout
from onward.passes.sequences import lower_sequences


def gradient_names(entry: TrainingEntry) -> tuple[str, dict[str, str]]:
    """Return the name of the loss, and of the gradient of each parameter."""
    assert entry.algorithm is not None
    loss, names = "", {}
    for node in entry.algorithm:
        if is_gradient(node):
            loss = node.attributes["y"].as_string()
            names.update({x: v.name or "" for x, v in zip(differentiated(node), node.outputs, strict=False) if v.name})
    return loss, names


_DROPOUTS = (F.dropout, torch.dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.feature_dropout, F.alpha_dropout,
             torch.alpha_dropout, F.feature_alpha_dropout, torch.feature_alpha_dropout)  # fmt: skip
# At which position these take `dropout_p`.
_DROPOUT_ARGUMENT: dict[Any, int] = {F.scaled_dot_product_attention: 4, F.multi_head_attention_forward: 10}


class WithoutDropout(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """Where this is active, PyTorch's dropout hands on its input."""

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
    """Take out the dropout between the layers of recurrent modules, which is inside of PyTorch's kernels."""
    found = {part: part.dropout for part in module.modules() if isinstance(part, torch.nn.RNNBase)}
    for part in found:
        part.dropout = 0.0
    try:
        yield
    finally:
        for part, dropout in found.items():
            part.dropout = dropout


def evaluate(
    model: TrainingModel, entry: TrainingEntry, names: Sequence[str], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the values called `names` of one training step, on torch's kernels or, if it lacks some, in numpy.

    Nothing is dropped out. `inputs` are the model's inputs and targets, in order.

    Raises:
        NotDifferentiable: a rule is missing.
        BackendError: neither can run the graph.
    """
    from onward.backends.torch.tensors import to_numpy, to_tensor

    data = dict(zip([*model.inputs, *model.targets], inputs, strict=True))
    state = {n: v.const_value for n, v in model.initializers().items() if v.const_value is not None}
    try:
        found = _on_torch(_plain(model, entry), names, {**{n: to_tensor(v.numpy()) for n, v in state.items()}, **data})
    except BackendError:
        arrays = {n: to_numpy(t) for n, t in data.items()}
        results = _on_reference(_plain(model, entry), names, {**{n: v.numpy() for n, v in state.items()}, **arrays})
        found = [to_tensor(a) for a in results]
    return found


def _plain(model: TrainingModel, entry: TrainingEntry) -> Combined:
    combined = combine(model, entry)
    inline_functions(combined)
    drop_inactive_dropout(combined.graph, combined.opset, combined.names)
    lower_sequences(combined.graph, combined.opset, combined.names)
    lower_model(combined.model)
    return combined


def _values(combined: Combined, names: Sequence[str]) -> list[ir.Value]:
    graph = combined.graph
    known = {v.name: v for v in [*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)]}
    return [known[n] for n in names]


def _on_torch(combined: Combined, names: Sequence[str], feeds: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    from onward.backends.torch.interpreter import Interpreter

    interpreter = Interpreter(combined.graph, combined.opset, outputs=_values(combined, names))
    with torch.no_grad():
        results = interpreter.run({n: feeds[n] for n in interpreter.input_slots})
    return [results[n] for n in interpreter.output_names]


def _on_reference(combined: Combined, names: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    from onward.backends.reference.evaluator import Evaluator
    from onward.backends.torch.registry import B300

    set_outputs(combined, list(zip(names, _values(combined, names), strict=True)))
    edit.remove_dead_nodes(combined.graph)
    given = {v.name or "": feeds[v.name or ""] for v in combined.graph.inputs}
    try:
        return list(Evaluator(serde.to_proto(TrainingModel(combined.model))).run(given).values())
    except NotImplementedError as error:
        raise BackendError(Diagnostic(B300, f"the reference backend cannot run the gradients: {error}")) from error
