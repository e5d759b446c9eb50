"""`from_torch`: a module, its loss and its optimizer as they are now become one training model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch

from onward.author import make_trainable
from onward.errors import ArgumentError, Diagnostic, define
from onward.frontends.torch import capture
from onward.frontends.torch.optimizers import convert_optimizer, optimizer_state
from onward.frontends.torch.running_statistics import fix_running_statistics, track_plain_average
from onward.frontends.torch.versions import check_versions
from onward.model.training_model import TrainingModel
from onward.optimizers import Optimizer

A201 = define(
    "A201",
    "the loss is not one number",
    why="A training step minimises one number.",
    fix="Reduce the loss with .mean() or .sum().",
)
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


def from_torch(
    module: torch.nn.Module,
    *,
    loss: Callable[..., Any] | str | Any,
    optimizer: torch.optim.Optimizer | Optimizer | str,
    example_inputs: tuple[Any, ...] | torch.Tensor,
    example_targets: Any = None,
    example_keywords: Mapping[str, Any] | None = None,
    dynamic: bool | Any = True,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    label: str | Sequence[str] = "labels",
) -> TrainingModel:
    """Return `module`, its loss and its optimizer, as they are now, as a `TrainingModel`.

    Weights keep their names from `state_dict()`; tied weights have their first name. What requires a gradient *and* is
    in the optimizer's `param_groups` trains, with its group's settings; the optimizer's current state comes along, so a
    half-trained model continues. Running statistics use PyTorch's unbiased variance. The module is left as it was.

    Args:
        loss: a callable over (outputs, targets) that returns a scalar, such as `torch.nn.CrossEntropyLoss()`; or a name
            or object of `onward.losses`.
        optimizer: a `torch.optim` optimizer over the module's parameters, or one of `onward.optimizers`.
        example_inputs: a tensor or a tuple of positional inputs; `example_keywords` for keyword inputs.
        example_targets: a tensor, or any structure of tensors, that the loss takes.
        dynamic: True makes the first dimension of every input and target a free batch size; False fixes all shapes;
            or `dynamic_shapes` as torch.export takes them, for the inputs.

    Raises:
        ArgumentError: the module or the loss cannot be captured, or the optimizer is not exactly convertible.

    >>> import torch
    >>> net = torch.nn.Linear(4, 2)
    >>> model = from_torch(net, loss=torch.nn.MSELoss(), optimizer=torch.optim.Adam(net.parameters()),
    ...                    example_inputs=torch.randn(2, 4), example_targets=torch.randn(2, 2))
    >>> list(model.parameters)
    ['weight', 'bias']
    """
    check_versions()
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    keywords = dict(example_keywords or {})
    _check_device(module)
    names = _names(module)
    trained = [n for n, p in module.named_parameters() if p.requires_grad]
    if isinstance(optimizer, torch.optim.Optimizer):
        ours, chosen = convert_optimizer(optimizer, names, trained)
    else:
        ours, chosen = _own_optimizer(optimizer), trained
    outputs = _example_outputs(module, inputs, keywords)
    with track_plain_average(module) as averaged:
        proto = _capture_module(module, inputs, keywords, dynamic, input_names, output_names)
    _use_first_names(proto, module)
    loss_given = loss
    if callable(loss) and not isinstance(loss, type) and not _is_ours(loss):
        loss_given = _capture_loss(loss, outputs, example_targets, dynamic)
    import glob

    model = make_trainable(
        proto,
        loss=loss_given,
        optimizer=ours,
        train=[glob.escape(n) for n in _present(chosen, proto)],
        label=label,
        unbiased_variance=True,
    )
    _check_modes(module, inputs, keywords, model)
    fix_running_statistics(model, module, averaged)
    if isinstance(optimizer, torch.optim.Optimizer):
        _put_state(model, optimizer_state(optimizer, names, ours.label()))
    return model


def _own_optimizer(optimizer: Optimizer | str) -> Optimizer:
    from onward.optimizers import by_name

    return by_name(optimizer) if isinstance(optimizer, str) else optimizer


def _is_ours(loss: object) -> bool:
    from onward.losses import Loss

    return isinstance(loss, Loss)


def _check_device(module: torch.nn.Module) -> None:
    elsewhere = [n for n, t in [*module.named_parameters(), *module.named_buffers()] if t.device.type != "cpu"]
    if elsewhere:
        raise ArgumentError(
            Diagnostic(A202, "the module is not on the CPU", found=", ".join(elsewhere[:5]), hint="call module.cpu()")
        )


def _names(module: torch.nn.Module) -> dict[int, str]:
    """Return id(parameter) -> its first name."""
    return {id(p): n for n, p in module.named_parameters()}


def _present(chosen: Sequence[str], proto: onnx.ModelProto) -> list[str]:
    """Return the trained parameters that the graph uses; one that the forward does not read has no gradient."""
    known = {i.name for i in proto.graph.initializer}
    return [n for n in chosen if n in known]


def _example_outputs(module: torch.nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Return the outputs in training mode; a buffer that changes and is no running statistic is an error."""
    mode = module.training
    before = {n: b.detach().clone() for n, b in module.named_buffers()}
    random = torch.get_rng_state()
    module.train()
    try:
        with torch.no_grad():
            outputs = module(*inputs, **keywords)
        allowed = _statistics(module)
        changed = [
            n
            for n, b in module.named_buffers()
            if n not in allowed and not torch.equal(b.nan_to_num(), before[n].nan_to_num())
        ]
    finally:
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                buffer.copy_(before[name])
        torch.set_rng_state(random)
        module.train(mode)
    if changed:
        raise ArgumentError(
            [
                Diagnostic(A204, f"buffer `{n}` changes during the forward pass", place=type(module).__name__)
                for n in changed
            ]
        )
    return outputs


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)) if a.is_floating_point() else torch.equal(a, b)


def _statistics(module: torch.nn.Module) -> set[str]:
    return {
        f"{name}.{buffer}" if name else buffer
        for name, part in module.named_modules()
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm)
        for buffer in ("running_mean", "running_var", "num_batches_tracked")
    }


def _capture_module(
    module: torch.nn.Module,
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    dynamic: Any,
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
) -> onnx.ModelProto:
    shapes = _dynamic_shapes(inputs, keywords) if dynamic is True else (None if dynamic is False else dynamic)
    mode = module.training
    module.train()
    try:
        return capture.export(module, inputs, keywords, shapes, input_names, output_names, "the module")
    finally:
        module.train(mode)


def _dynamic_shapes(inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Return shapes whose first dimension is one free batch size, for every tensor of rank 1 or more."""
    import torch.utils._pytree as pytree

    batch = torch.export.Dim("batch", min=2)

    def shape(value: Any) -> Any:
        return {0: batch} if isinstance(value, torch.Tensor) and value.ndim else None

    positional = pytree.tree_map(shape, inputs)
    if not keywords:
        return positional
    named = pytree.tree_map(shape, dict(keywords))
    return (*positional, *named.values()) if not inputs else {**dict(enumerate(positional)), **named}


def _capture_loss(loss: Callable[..., Any], outputs: Any, targets: Any, dynamic: Any) -> onnx.ModelProto:
    wrapped = capture.LossModule(loss, outputs, targets)
    with torch.no_grad():
        value = wrapped(*wrapped.example)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        found = f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise ArgumentError(
            Diagnostic(A201, "the loss is not one number", place="loss=", found=found, hint="reduce it with .mean()")
        )
    shapes = None
    if dynamic is not False:
        (positional,) = (_dynamic_shapes(wrapped.example, {}),)
        shapes = {"values": positional}
    return capture.export(wrapped, wrapped.example, {}, shapes, None, ["loss"], "the loss")


def _use_first_names(proto: onnx.ModelProto, module: torch.nn.Module) -> None:
    """Rename tied weights, of which the exporter keeps the last alias, to their first name."""
    first = {id(t): n for n, t in [*module.named_parameters(), *module.named_buffers()]}
    aliases = {
        n: first[id(t)]
        for n, t in [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
        if first[id(t)] != n
    }
    if not aliases:
        return
    present = {i.name for i in proto.graph.initializer}
    for tensor in list(proto.graph.initializer):
        if tensor.name in aliases:
            if aliases[tensor.name] in present:
                proto.graph.initializer.remove(tensor)
            else:
                present.add(aliases[tensor.name])
                tensor.name = aliases[tensor.name]
    for graph in _all_graphs(proto.graph):
        for node in graph.node:
            for index, name in enumerate(node.input):
                if name in aliases:
                    node.input[index] = aliases[name]


def _all_graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += _all_graphs(attribute.g)
    return found


def _check_modes(
    module: torch.nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any], model: TrainingModel
) -> None:
    """Make sure that the inference graph is the module in evaluation mode: by its numbers on the example."""
    import torch.utils._pytree as pytree

    from onward.backends import open_session
    from onward.lower.pipeline import compile_model
    from onward.model.convert import to_inference

    mode = module.training
    module.eval()
    try:
        with torch.no_grad():
            expected = [t for t in pytree.tree_leaves(module(*inputs, **keywords)) if isinstance(t, torch.Tensor)]
    finally:
        module.train(mode)
    flat = [t for t in pytree.tree_leaves((inputs, keywords)) if isinstance(t, torch.Tensor)]
    feeds = {n: t.detach().cpu().numpy() for n, t in zip(model.inputs, flat, strict=True)}
    session = open_session(compile_model(to_inference(model)), "reference")
    found = list(session.infer(feeds).values())
    for name, ours, theirs in zip(model.outputs, found, expected, strict=True):
        wanted = theirs.detach().cpu().numpy()
        if wanted.shape != ours.shape or not np.allclose(ours, wanted, rtol=1e-2, atol=1e-3, equal_nan=True):
            raise ArgumentError(
                Diagnostic(
                    A203,
                    f"output `{name}` differs between the module in evaluation mode and its graph",
                    place=type(module).__name__,
                    hint="the module's forward asks `self.training` itself; give it one forward for both modes",
                )
            )


def _put_state(model: TrainingModel, state: Mapping[str, np.ndarray]) -> None:
    known = model.initializers()
    for name, array in state.items():
        value = known.get(name)
        if value is None or value.dtype is None or value.shape is None:
            continue
        shape = tuple(d if isinstance(d, int) else 0 for d in value.shape)
        fitted = np.asarray(array).astype(value.dtype.numpy()).reshape(shape)
        value.const_value = ir.tensor(fitted, name=name)
