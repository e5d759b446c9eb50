"""`from_torch`: convert a module, its loss and its optimizer, with their state, to a training model."""

from __future__ import annotations

import dataclasses
import glob
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
import torch.utils._pytree as pytree

from onward.author import make_trainable
from onward.errors import A101, ArgumentError, Diagnostic
from onward.frontends.torch import capture
from onward.frontends.torch.batch_size import check_batch_size
from onward.frontends.torch.checks import (
    check_dependence,
    check_evaluation,
    check_module,
    check_training,
    check_weights,
    example_fails,
    example_outputs,
    training_mode,
)
from onward.frontends.torch.embeddings import (
    all_graphs,
    check_options,
    exclude_padding_from_gradient,
    padded_lookups,
    split_padding_reads,
)
from onward.frontends.torch.entries import merge_entries, name_entry
from onward.frontends.torch.optimizers import convert_optimizer, optimizer_state
from onward.frontends.torch.running_statistics import fix_running_statistics, stand_in_momentum
from onward.frontends.torch.versions import check_versions
from onward.model.roles import entry_roles
from onward.model.training_model import TrainingModel
from onward.optimizers import Optimizer

A201 = "A201"

A213 = "A213"


def from_torch(
    module: torch.nn.Module,
    *,
    loss: Callable[..., Any] | str | Any,
    optimizer: torch.optim.Optimizer | Optimizer | str | Mapping[str, Any],
    example_inputs: Any,
    example_targets: Any = None,
    scheduler: Any = None,
    example_keywords: Mapping[str, Any] | None = None,
    dynamic: bool | Any = True,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    label: str | Sequence[str] = "labels",
) -> TrainingModel:
    """Return `module`, its loss and its optimizer, as they are now, as a `TrainingModel`.

    Weights keep their names from `state_dict()`; tied weights have their first name. A parameter trains, with the
    settings of its group, if it requires a gradient *and* is in the optimizer's `param_groups`. The model includes the
    optimizer's current state, so that a half-trained model continues. Running statistics use PyTorch's unbiased
    variance. The module, its modes and the random state do not change.

    Args:
        loss: a callable over (outputs, targets) that returns a scalar, such as `torch.nn.CrossEntropyLoss()`; or a name
            or object of `onward.losses`.
        optimizer: a `torch.optim` optimizer over the module's parameters, or one of `onward.optimizers`.
        example_inputs: a tensor, a tuple of positional inputs, or a dict of keyword inputs; `example_keywords` for
            both kinds together.
        example_targets: a tensor, or any structure of tensors, that the loss takes; None if it takes the outputs only.
        scheduler: the optimizer's scheduler, if it is stepped after every optimizer step.
        dynamic: True makes the first dimension of every input and target a free batch size; False fixes all shapes;
            or `dynamic_shapes` as torch.export takes them, for the inputs (a tuple, or a dict by name).
        label: the name of the target input, or one for each target.

    With mappings from name to loss and from name to optimizer (a GAN's two), the model has one training entry for each
    name; `example_targets`, `scheduler` and `label` are then mappings too, where given.

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
    check_weights(module)
    inputs, keywords = _arguments(module, example_inputs, example_keywords)
    check_module(module)
    check_options(module)
    parts = _parts(loss, optimizer, example_targets, scheduler, label)
    names = {id(p): n for n, p in module.named_parameters()}
    trained = [n for n, p in module.named_parameters() if p.requires_grad]
    converted = {k: _convert_optimizer(p, names, trained) for k, p in parts.items()}
    outputs = example_outputs(module, inputs, keywords)
    batch = _batch_size(inputs, keywords)
    _check_names(input_names, inputs, keywords)
    losses = {k: _loss(p, outputs, module) for k, p in parts.items()}  # check the losses before the slow export
    with training_mode(module), stand_in_momentum(module) as replaced:
        shapes = (
            _dynamic_shapes(module, inputs, keywords) if dynamic is True else (None if dynamic is False else dynamic)
        )
        proto, program = capture.export(module, inputs, keywords, shapes, input_names, output_names, "the module")
    _use_first_names(proto, module)
    lookups = padded_lookups(program, module, trained, [v.name for v in proto.graph.output])
    aliases = split_padding_reads(proto, lookups)
    models: dict[str, TrainingModel] = {}
    for key, part in parts.items():
        ours, chosen = converted[key]
        wrapped = losses[key]
        model = make_trainable(
            proto,
            loss=_capture_loss(wrapped, dynamic, batch) if isinstance(wrapped, capture.LossModule) else wrapped,
            optimizer=ours,
            train=[glob.escape(n) for n in _present(chosen, proto)],
            label=_labels(part.label, wrapped),
            loss_name="loss" if len(parts) == 1 else f"{key}/loss",
            batch_norm="always",
            unbiased_variance=True,
            keep_shared=True,  # the export merges nothing; a shared weight is tied in the module
        )
        if not models:
            check_evaluation(module, inputs, keywords, model)
        exclude_padding_from_gradient(model, aliases)
        if isinstance(wrapped, capture.LossModule):
            check_training(module, wrapped.loss, (inputs, keywords), part.targets, model)
            check_batch_size(module, wrapped.loss, (inputs, keywords), part.targets, model, batch, dynamic is True)
        else:
            probe = capture.LossModule(_probe, outputs, None)
            tried = make_trainable(
                proto,
                loss=_capture_loss(probe, dynamic, batch),
                optimizer="sgd",
                train=[glob.escape(n) for n in _present(chosen, proto)],
                label=[],
                loss_name=f"{key}/probe",
                batch_norm="always",
                keep_shared=True,
            )
            exclude_padding_from_gradient(tried, aliases)
            check_training(module, _probe, (inputs, keywords), None, tried)
            check_batch_size(module, _probe, (inputs, keywords), None, tried, batch, dynamic is True)
        fix_running_statistics(model, module, replaced)
        if isinstance(part.optimizer, torch.optim.Optimizer):
            _store_state(model, optimizer_state(part.optimizer, names, part.scheduler))
        models[key] = model
        if len(parts) > 1:
            name_entry(model, key)
            proto = _with_functions(proto, model)  # so that the next entry's functions get different names
    return merge_entries(models)


def _probe(outputs: Any) -> torch.Tensor:
    """Return a scalar of any outputs, to test the module's gradients where the loss is one of `onward.losses`."""
    found = [t for t in pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor) and t.is_floating_point()]
    return torch.stack([(0.5 * t * t + t).mean() for t in found]).sum()


@dataclasses.dataclass(frozen=True)
class _Part:
    """The arguments for one training entry."""

    loss: Any
    optimizer: Any
    targets: Any
    scheduler: Any
    label: str | Sequence[str]


def _parts(loss: Any, optimizer: Any, targets: Any, scheduler: Any, label: Any) -> dict[str, _Part]:
    if not isinstance(optimizer, Mapping):
        return {"": _Part(loss, optimizer, targets, scheduler, label)}
    if not isinstance(loss, Mapping) or list(loss) != list(optimizer) or not loss:
        raise ArgumentError(
            Diagnostic(
                A101,
                "several optimizers need one loss each, under the same names",
                place="loss=",
                found=f"losses: {', '.join(loss) if isinstance(loss, Mapping) else type(loss).__name__}",
                needed=f"one for each of: {', '.join(optimizer)}",
            )
        )

    def of(given: Any, key: str, default: Any) -> Any:
        return given.get(key, default) if isinstance(given, Mapping) else default

    if targets is not None and not (isinstance(targets, Mapping) and set(targets) <= set(loss)):
        raise ArgumentError(
            Diagnostic(
                A101,
                "with several losses, example_targets= must be a mapping by the losses' names",
                place="example_targets=",
                needed=f"a mapping from {', '.join(loss)}",
            )
        )
    return {
        k: _Part(loss[k], optimizer[k], of(targets, k, None), of(scheduler, k, None), of(label, k, f"{k}/labels"))
        for k in loss
    }


def _arguments(
    module: torch.nn.Module, inputs: Any, keywords: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword inputs, the latter in the order of the module's signature."""
    given = {**inputs, **(keywords or {})} if isinstance(inputs, Mapping) else dict(keywords or {})
    positional = () if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple) else (inputs,)
    signature = inspect.signature(module.forward)
    try:
        signature.bind(*positional, **given)
    except TypeError as error:
        raise ArgumentError(
            Diagnostic(
                A101,
                f"the example inputs do not fit the module: {error}",
                place="example_inputs=",
                found=f"{len(positional)} in order" + (f", and {', '.join(given)}" if given else ""),
                needed=f"{type(module).__name__}.forward{signature}",
            )
        ) from error
    order = {name: i for i, name in enumerate(signature.parameters)}
    return positional, dict(sorted(given.items(), key=lambda item: order.get(item[0], len(order))))


def _convert_optimizer(
    part: _Part, names: Mapping[int, str], trained: Sequence[str]
) -> tuple[Optimizer, Sequence[str]]:
    kind = part.optimizer
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer):
        raise ArgumentError(
            Diagnostic(
                A101,
                "the optimizer is a class",
                place="optimizer=",
                found=kind.__name__,
                needed=f"{kind.__name__}(module.parameters(), ...)",
            )
        )
    if isinstance(part.optimizer, torch.optim.Optimizer):
        return convert_optimizer(part.optimizer, names, trained, part.scheduler)
    if part.scheduler is not None:
        raise ArgumentError(
            Diagnostic(
                A101,
                "a PyTorch scheduler needs its PyTorch optimizer",
                place="scheduler=",
                hint="give an Onward optimizer a schedule of onward.schedules as its learning rate",
            )
        )
    return _own_optimizer(part.optimizer), trained


def _check_names(names: Sequence[str] | None, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
    count = sum(isinstance(t, torch.Tensor) for t in pytree.tree_leaves((inputs, keywords)))
    if names is not None and len(names) != count:
        raise ArgumentError(
            Diagnostic(
                A101,
                "the number of input names differs from the number of example inputs",
                place="input_names=",
                found=f"{len(names)}: {', '.join(names)}",
                needed=f"{count}, one for each tensor",
            )
        )


def _loss(part: _Part, outputs: Any, module: torch.nn.Module) -> Any:
    """Return a torch callable as a module over flat tensors, and any other loss unchanged."""
    loss = part.loss
    if isinstance(loss, type) and issubclass(loss, torch.nn.Module):
        raise ArgumentError(
            Diagnostic(A101, "the loss is a class", place="loss=", found=loss.__name__, needed=f"{loss.__name__}()")
        )
    if not callable(loss) or isinstance(loss, type) or _is_ours(loss):
        return loss
    wrapped = capture.LossModule(loss, outputs, part.targets)
    count = len(wrapped.example) - wrapped.target_count
    leaves = [
        t.detach().requires_grad_() if i < count and isinstance(t, torch.Tensor) and t.is_floating_point() else t
        for i, t in enumerate(wrapped.example)
    ]
    hint = "" if part.targets is not None else "example_targets= was not given, so the loss got the outputs only"
    random = torch.get_rng_state()
    try:
        with torch.enable_grad(), example_fails(f"the loss `{_callable_name(loss)}`", module, hint):
            value = wrapped(tuple(leaves))
    finally:
        torch.set_rng_state(random)
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.is_floating_point():
        found = type(value).__name__
        if isinstance(value, torch.Tensor):
            found = f"{str(value.dtype).removeprefix('torch.')} of shape {list(value.shape)}"
        raise ArgumentError(
            Diagnostic(
                A201,
                "the loss is not one number",
                place=f"loss={_callable_name(loss)}",
                found=found,
                needed="a floating-point tensor with one element",
                hint="reduce it with .mean() or .sum()",
            )
        )
    _check_reads_outputs_only(value, module, _callable_name(loss))
    check_dependence(value, [t for t in leaves[:count] if getattr(t, "requires_grad", False)], _callable_name(loss))
    return wrapped


def _check_reads_outputs_only(value: torch.Tensor, module: torch.nn.Module, name: str) -> None:
    weights = {n: p for n, p in module.named_parameters() if p.requires_grad}
    if not value.requires_grad or not weights:
        return
    found = torch.autograd.grad(value.sum(), list(weights.values()), allow_unused=True, retain_graph=True)
    read = [n for n, g in zip(weights, found, strict=True) if g is not None]
    if read:
        raise ArgumentError(
            Diagnostic(
                A213,
                "the loss reads parameters of the module",
                place=f"loss={name}",
                found=", ".join(f"`{n}`" for n in read[:5]) + (", …" if len(read) > 5 else ""),
                needed="a loss of the module's outputs and the targets",
                hint="return the penalty from the module as one more output; for L2 use the optimizer's weight_decay",
            )
        )


def _callable_name(loss: Any) -> str:
    return getattr(loss, "__qualname__", None) or type(loss).__name__


def _labels(label: str | Sequence[str], loss: Any) -> str | list[str]:
    """Return one name per target."""
    count = loss.target_count if isinstance(loss, capture.LossModule) else 1
    if isinstance(label, str):
        return label if count <= 1 else [f"{label}_{i}" for i in range(count)]
    return list(label)


def _with_functions(proto: onnx.ModelProto, model: TrainingModel) -> onnx.ModelProto:
    extended = onnx.ModelProto()
    extended.CopyFrom(proto)
    known = {(f.domain, f.name) for f in extended.functions}
    for function in model.proto().functions:
        if (function.domain, function.name) not in known:
            extended.functions.append(function)
    domains = {o.domain for o in extended.opset_import}
    for entry in model.proto().opset_import:
        if entry.domain not in domains:
            extended.opset_import.append(entry)
    return extended


def _own_optimizer(optimizer: Optimizer | str) -> Optimizer:
    from onward.optimizers import by_name

    return by_name(optimizer) if isinstance(optimizer, str) else optimizer


def _is_ours(loss: object) -> bool:
    from onward.losses import Loss

    return isinstance(loss, Loss)


def _present(chosen: Sequence[str], proto: onnx.ModelProto) -> list[str]:
    """Return the trained parameters that the graph reads; the others have no gradient."""
    known = {i.name for i in proto.graph.initializer}
    return [n for n in chosen if n in known]


def _batch_size(inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> int | None:
    """Return the first dimension of the first tensor that has one."""
    tensors = [t for t in pytree.tree_leaves((inputs, keywords)) if isinstance(t, torch.Tensor) and t.ndim]
    return int(tensors[0].shape[0]) if tensors else None


def _dynamic_shapes(module: torch.nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Return dynamic shapes, by argument, in which the first dimension of every tensor is the batch size."""
    size = _batch_size(inputs, keywords)
    if size == 1:
        raise ArgumentError(
            Diagnostic(
                A101,
                "the example batch has one sample, so PyTorch cannot distinguish the batch size from a fixed 1",
                place="example_inputs=",
                needed="at least two samples, or dynamic=False",
            )
        )
    batch = torch.export.Dim("batch", min=2)

    def shape(value: Any) -> Any:
        return {0: batch} if isinstance(value, torch.Tensor) and value.ndim and value.shape[0] == size else None

    bound = inspect.signature(module.forward).bind(*inputs, **keywords)
    return {name: pytree.tree_map(shape, value) for name, value in bound.arguments.items()}


def _capture_loss(wrapped: capture.LossModule, dynamic: Any, batch: int | None) -> onnx.ModelProto:
    shapes = None if dynamic is False else {"values": tuple(_any_size(v) for v in wrapped.example)}
    proto, _ = capture.export(wrapped, (wrapped.example,), {}, shapes, None, ["loss"], "the loss")
    symbols = {
        dim[0].dim_param
        for value, example in zip(proto.graph.input, wrapped.example, strict=True)
        if len(dim := value.type.tensor_type.shape.dim) and example.shape[0] == batch and dim[0].dim_param
    }
    for value in [*proto.graph.input, *proto.graph.output, *proto.graph.value_info]:
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param in symbols:
                size.dim_param = "batch"
    return proto


def _any_size(value: Any) -> Any:
    """Return the dynamic shape of an output or target of the loss; PyTorch decides which sizes are dynamic."""
    if not isinstance(value, torch.Tensor):
        return None
    return dict.fromkeys(range(value.ndim), torch.export.Dim.AUTO) or None


def _use_first_names(proto: onnx.ModelProto, module: torch.nn.Module) -> None:
    """Rename tied weights to their first name; the exporter keeps the last one."""
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
    for graph in all_graphs(proto.graph):
        for node in graph.node:
            for index, name in enumerate(node.input):
                if name in aliases:
                    node.input[index] = aliases[name]


def _store_state(model: TrainingModel, state: Mapping[tuple[str, str], np.ndarray]) -> None:
    known, slots = model.initializers(), entry_roles(model, model.entries[0]).slots
    for slot, array in state.items():
        name = slots.get(slot, "")
        value = known.get(name)
        if value is None or value.dtype is None or value.shape is None:
            continue
        shape = tuple(d if isinstance(d, int) else 0 for d in value.shape)
        fitted = np.asarray(array).astype(value.dtype.numpy()).reshape(shape)
        value.const_value = ir.tensor(fitted, name=name)
