"""`OnnxModule`: an ONNX model as a real `nn.Module`."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn

from onward.autodiff.registry import is_own
from onward.backends.torch.interpreter import Interpreter
from onward.backends.torch.tensors import to_tensor
from onward.compiler.compile import TRAINING_PREFIX, compile_model, random_inputs
from onward.compiler.unit import combine, inline_functions, state_names
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph import edit, shapes, walk
from onward.graph.builder import Builder
from onward.model.training_model import FLOAT_TYPES, TrainingEntry, TrainingModel, differentiated, initializer_behind
from onward.passes.randomness import KEY, STEP, drop_inactive_dropout, is_random, lower_random


@dataclasses.dataclass
class _Forward:
    """One way to run the model: which graph, which of its outputs are the model's, and which replace buffers."""

    interpreter: Interpreter
    outputs: list[str]
    updates: dict[str, str]  # output name -> buffer name
    constants: dict[str, str]  # input name -> the parameter that it is, without a gradient
    gradients: dict[str, str] = dataclasses.field(default_factory=dict)  # output name -> parameter, where written out
    counters: _Forward | None = None  # run after this one: what a forward pass changes and no batch decides


class _Node(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """A step on the path of a dotted name; holds parameters and buffers only."""


class OnnxModule(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """An ONNX model: `module(*inputs)` returns its output, or a tuple of them.

    In training mode it runs the training-mode forward and updates the running statistics; in evaluation mode the
    inference graph. `module.loss(*inputs, *targets)` returns the model's own loss.
    """

    def __init__(
        self,
        model: TrainingModel,
        mode: str = "both",
        entry: TrainingEntry | None = None,
        *,
        written: bool = False,
    ) -> None:
        """Make the module; with `written`, the gradient of `loss` is the backward pass that the file means."""
        super().__init__()
        self.mode = mode
        self.input_names = list(model.inputs)
        self.output_names = list(model.outputs)
        self.target_names = list(model.targets)
        self._paths: dict[str, tuple[nn.Module, str]] = {}
        trained, bound = set(model.parameters), set(state_names(model))
        for name, value in model.graph.initializers.items():
            assert value.const_value is not None
            tensor = to_tensor(value.const_value.numpy())
            if name in trained or (value.dtype in FLOAT_TYPES and name not in bound):
                self._hold(name, nn.Parameter(tensor, requires_grad=name in trained))
            else:
                self._hold(name, tensor, persistent=name in bound)
        if entry is not None and entry.algorithm is not None:
            statistics = _statistics(entry, set(model.graph.initializers) | set(state_names(model)))
            for name in statistics:
                if name not in self._paths:
                    value = entry.algorithm.initializers[name]
                    assert value.const_value is not None
                    self._hold(name, to_tensor(value.const_value.numpy()))
        self._eval = _inference(model) if mode != "training" or entry is None else None
        self._train: _Forward | None = None
        self._loss: _Forward | None = None
        if mode != "inference" and entry is not None:
            self._train = _training(model, entry, with_loss=False)
            if _loss_name(entry):
                written = written or _has_own_rules(model, entry)
                self._loss = _written_loss(model, entry) if written else _training(model, entry, with_loss=True)
        if self._train is not None and KEY in self._train.interpreter.input_slots:
            self._hold(KEY, torch.zeros((), dtype=torch.int64))
            self._hold(STEP, torch.zeros((), dtype=torch.int64))
        self._written_for = next((p.dtype for p in self.parameters()), torch.float32)
        self._drawn: list[tuple[Any, Tensor]] = []  # the inputs of the last forwards that drew masks, and their steps
        if mode == "inference":
            self.eval()

    # -- names ---------------------------------------------------------------------------------------------------

    def _hold(self, name: str, tensor: Tensor, persistent: bool = True) -> None:
        """Register a parameter or buffer so that its key in `state_dict()` is `name`."""
        *path, last = name.split(".") if _dots_are_a_path(name) else [name.replace(".", "_")]
        owner: nn.Module = self
        for part in path:
            inner = owner._modules.get(part)
            if inner is None and not hasattr(owner, part):
                inner = _Node()
                owner.add_module(part, inner)
            if inner is None:
                break
            owner = inner
        else:
            path = []
        if path or hasattr(owner, last):  # a name that a module cannot have, such as `forward`, or `a` beside `a.b`
            owner, last = self, "onnx_" + name.replace(".", "_")
            while hasattr(owner, last):
                last += "_"
        if isinstance(tensor, nn.Parameter):
            owner.register_parameter(last, tensor)
        else:
            owner.register_buffer(last, tensor, persistent=persistent)
        self._paths[name] = (owner, last)

    def tensor(self, name: str) -> Tensor:
        """Return the parameter or buffer with an ONNX name."""
        owner, last = self._paths[name]
        found: Tensor = getattr(owner, last)
        return found

    @property
    def updated_by_forward(self) -> list[str]:
        """The buffers that a forward pass in training mode replaces: running statistics and counters."""
        return [] if self._train is None else list(self._train.updates.values())

    def named_tensors(self) -> dict[str, Tensor]:
        """Return every parameter and buffer by its ONNX name."""
        return {name: self.tensor(name) for name in self._paths}

    def _apply(self, fn: Any, recurse: bool = True) -> OnnxModule:
        """Take the constants of the graphs along to another device, and `.half()` and `.bfloat16()` into the graphs."""
        super()._apply(fn, recurse)
        device = next((t.device for t in self.named_tensors().values()), None)
        narrow = next((p.dtype for p in self.parameters() if p.dtype in (torch.float16, torch.bfloat16)), None)
        counters = None if self._loss is None else self._loss.counters
        for forward in (self._eval, self._train, self._loss, counters):
            if forward is not None and device is not None:
                forward.interpreter.to(device)
                forward.interpreter.narrow(narrow if self._written_for == torch.float32 else None)
        return self

    # -- running -------------------------------------------------------------------------------------------------

    def forward(self, *inputs: Tensor, **named: Tensor) -> Any:
        feeds = self._feeds(inputs, named, self.input_names)
        chosen = self._train if self.training and self._train is not None else self._eval
        if chosen is None:
            raise ArgumentError(
                Diagnostic(A101, "this module was made for training only", hint='use mode="both" for .eval() as well')
            )
        results = self._run(chosen, feeds)
        values = [results[name] for name in chosen.outputs]
        return values[0] if len(values) == 1 else tuple(values)

    def loss(self, *values: Tensor, **named: Tensor) -> Tensor:
        """Return the model's own loss for inputs and targets, in order or by name; the training-mode forward."""
        if self._loss is None:
            raise ArgumentError(Diagnostic(A101, "the model has no loss", hint="use onward.make_trainable first"))
        feeds = self._feeds(values, named, [*self.input_names, *self.target_names])
        gradients = self._loss.gradients
        if gradients:
            feeds = self._without_gradient(feeds)
            kind = next((p.device.type for p in self.parameters()), "cpu")
            with torch.no_grad(), torch.autocast(kind, enabled=False):
                results = self._run(self._loss, feeds)
                if self._loss.counters is not None:
                    self._run(self._loss.counters, {})
        else:
            results = self._run(self._loss, feeds)
        found: Tensor = results[self._loss.outputs[0]]
        if gradients:
            known = [results[gradient] for gradient in gradients]
            found = _Differentiated.apply(found, known, *(self.tensor(n) for n in gradients.values()))
        return found

    def _without_gradient(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the feeds of a loss whose backward pass is written out, in the parameters' type.

        Raises:
            ArgumentError: one of them wants a gradient, which that pass does not find.
        """
        wanted = [n for n, v in feeds.items() if isinstance(v, Tensor) and v.requires_grad]
        if wanted and torch.is_grad_enabled():
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "the backward pass that is written out finds gradients by parameters only",
                    found="inputs that require a gradient: " + ", ".join(f"`{n}`" for n in wanted),
                    hint="detach them, or let autograd find the gradients: to_torch(model)",
                )
            )
        own = next((p.dtype for p in self.parameters()), torch.float32)
        return {
            n: v.to(own) if isinstance(v, Tensor) and v.dtype in (torch.float16, torch.bfloat16) else v
            for n, v in feeds.items()
        }

    def _feeds(self, values: Sequence[Tensor], named: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        given = {**dict(zip(names, values, strict=False)), **named}
        strange = [n for n, v in given.items() if not isinstance(v, (Tensor, list))]
        if strange:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "the inputs are not tensors",
                    found=", ".join(f"`{n}`: {type(given[n]).__name__}" for n in strange),
                    hint="use torch.as_tensor(value)",
                )
            )
        missing = [n for n in names if n not in given]
        unknown = [n for n in given if n not in names]
        if missing or unknown or len(values) > len(names):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "the inputs do not fit the model",
                    found=f"{len(values)} in order" + (f", and {', '.join(named)}" if named else ""),
                    needed=", ".join(names),
                )
            )
        return given

    def _run(self, forward: _Forward, feeds: Mapping[str, Tensor]) -> dict[str, Any]:
        tensors = {n: self.tensor(n) for n in forward.interpreter.input_slots if n in self._paths}
        tensors.update({n: self.tensor(parameter).detach() for n, parameter in forward.constants.items()})
        again = (
            STEP in list(forward.updates.values())
            and not torch.compiler.is_compiling()
            and self._is_repeated(feeds, tensors)
        )
        results = forward.interpreter.run({**tensors, **feeds})
        if not again:
            with torch.no_grad():
                for output, name in forward.updates.items():
                    self.tensor(name).copy_(results[output])
        return results

    def _is_repeated(self, feeds: Mapping[str, Tensor], tensors: dict[str, Tensor]) -> bool:
        """Return whether gradient checkpointing repeats an earlier forward; the step of its masks is then in `tensors`.

        Raises:
            ArgumentError: which one it repeats cannot be told.
        """
        key = next((v for v in feeds.values() if isinstance(v, Tensor)), None)
        if torch._C._current_graph_task_id() == -1:  # not inside of a backward pass
            self._drawn = [(k, s) for k, s in self._drawn if k() is not None and k() is not key][-7:]
            if key is not None:
                self._drawn.append((weakref.ref(key), tensors[STEP].clone()))
            return False
        step = next((s for k, s in self._drawn if k() is key), None)
        if step is None:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "a forward pass is repeated inside of a backward pass, and its dropout masks are not known",
                    hint="use torch.utils.checkpoint.checkpoint(..., use_reentrant=False) on this module itself",
                )
            )
        tensors[STEP] = step
        return True


def _dots_are_a_path(name: str) -> bool:
    return all(part for part in name.split("."))


def _statistics(entry: TrainingEntry, known: set[str]) -> list[str]:
    """Return the state that changes in the forward pass itself: no gradient is behind its new value."""
    assert entry.algorithm is not None
    outputs = {v.name: v for n in entry.algorithm for v in n.outputs}
    found = []
    for key, value in entry.update_binding.items():
        new = outputs.get(value)
        if new is None or key not in known:
            continue
        behind = walk.ancestors([new])
        if not any(n.op_type == "Gradient" for n in behind) and _reads_forward(behind, key):
            found.append(key)
    return found


def _reads_forward(nodes: set[ir.Node], key: str) -> bool:
    """Return whether the update is of running statistics or of a batch counter, and not of the optimizer's own step."""
    return any(n.op_type == "BatchNormalization" for n in nodes) or key.endswith("num_batches_tracked")


def _weights_as_inputs(graph: ir.Graph, owned: set[str]) -> None:
    """Turn the floating-point initializers in `owned` into inputs: the module holds them."""
    for name, value in list(graph.initializers.items()):
        if name in owned and value.dtype in FLOAT_TYPES:
            graph.initializers.pop(name)
            value.const_value = None
            graph.inputs.append(value)


def _constants_as_inputs(graph: ir.Graph, model: TrainingModel) -> dict[str, str]:
    """Turn what hands a parameter on as a constant of Gradient (a name in zs) into inputs; return each one's parameter.

    Autograd would differentiate by the parameter there, too.
    """
    found = {
        value.name or "": parameter
        for node in model.gradient_nodes()
        for value in node.inputs[len(differentiated(node)) :]
        if value is not None and value.producer() is not None and (parameter := initializer_behind(value)) is not None
    }
    for node in list(graph):
        value = node.outputs[0]
        if value.name in found and value.uses():
            given = edit.copy_value(value)
            value.name = f"{given.name}/cut"
            value.replace_all_uses_with(given)
            graph.inputs.append(given)
    return {v.name or "": found[v.name or ""] for v in graph.inputs if v.name in found}


def _inference(model: TrainingModel) -> _Forward:
    combined = combine(model, None)
    inline_functions(combined)
    drop_inactive_dropout(combined.graph, combined.opset, combined.names)
    constants = _constants_as_inputs(combined.graph, model)
    _weights_as_inputs(combined.graph, set(model.graph.initializers))
    values = {v.name: v for v in _defined(combined.graph)}
    outputs = [values[n] for n in model.outputs]
    interpreter = Interpreter(combined.graph, combined.opset, outputs=outputs)
    return _Forward(interpreter, list(model.outputs), {}, constants)


def _training(model: TrainingModel, entry: TrainingEntry, *, with_loss: bool) -> _Forward:
    """Return the training-mode forward: the model's outputs, or its loss; with the new running statistics."""
    combined = combine(model, entry)
    inline_functions(combined)
    graph = combined.graph
    statistics = _statistics(entry, set(model.initializers()))
    updates: dict[str, ir.Value] = {}
    if any(is_random(n) for n in graph):
        shapes.infer_shapes(combined.model)
        key, step = random_inputs(combined)
        lower_random(graph, key, step, combined.opset, combined.names)
        op = Builder(combined.opset, combined.names, prefix="random/")
        following = op.Add(step, 1)
        graph.extend(op.nodes)
        updates[STEP] = following
    values = {v.name: v for v in _defined(graph)}
    updates.update({name: values[entry.update_binding[name]] for name in statistics})
    if with_loss:
        outputs = [values[_loss_name(entry) or ""]]
    else:
        outputs = [values.get(TRAINING_PREFIX + n, values[n]) for n in model.outputs]
    wanted = [*outputs, *updates.values()]
    constants = _constants_as_inputs(graph, model)
    _weights_as_inputs(graph, set(model.graph.initializers))
    interpreter = Interpreter(graph, combined.opset, outputs=wanted)
    names = [v.name or "" for v in outputs]
    return _Forward(interpreter, names, {v.name or "": n for n, v in updates.items()}, constants)


class _Differentiated(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """A loss whose gradients by the parameters are known already."""

    @staticmethod
    def forward(context: Any, loss: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        context.save_for_backward(*gradients)
        return loss.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]  # torch is not typed here
    def backward(context: Any, upstream: Tensor) -> tuple[Any, ...]:
        return None, None, *(upstream * gradient for gradient in context.saved_tensors)


def _written_loss(model: TrainingModel, entry: TrainingEntry) -> _Forward:
    """Return the loss with its gradients, from the program that the model is compiled to."""
    program = compile_model(TrainingModel(model.ir, [entry]), split=True)
    (step,), (update,) = program.gradients.values(), program.updates.values()
    left = {n for n in _statistics(entry, set(model.initializers())) if n not in step.replaces.values()}
    counters = None
    if left:
        counted = {output: name for output, name in update.replaces.items() if name in left}
        counters = _Forward(_interpreter(update.model, counted), [], counted, {})
    outputs = [_loss_name(entry) or ""]
    written = _interpreter(step.model, [v.name for v in step.model.graph.output])
    return _Forward(written, outputs, dict(step.replaces), {}, gradient_names(entry), counters)


def _has_own_rules(model: TrainingModel, entry: TrainingEntry) -> bool:
    """Return whether a gradient rule that the user has registered is needed, which autograd does not know."""
    assert entry.algorithm is not None
    places: list[walk.GraphLike] = [model.graph, entry.algorithm, *model.ir.functions.values()]
    return any(is_own(n.op_type, n.domain, model.opset) for place in places for n in walk.all_nodes(place))


def _interpreter(model: onnx.ModelProto, outputs: Collection[str]) -> Interpreter:
    graph = ir.serde.deserialize_model(model).graph
    wanted = [v for v in graph.outputs if v.name in outputs]
    return Interpreter(graph, model.opset_import[0].version, outputs=wanted)


def gradient_names(entry: TrainingEntry) -> dict[str, str]:
    """Return gradient value name -> parameter name, from the entry's Gradient nodes."""
    assert entry.algorithm is not None
    return {
        output.name: name
        for node in entry.algorithm
        if node.op_type == "Gradient"
        for output, name in zip(node.outputs, differentiated(node), strict=False)
        if output.name
    }


def _loss_name(entry: TrainingEntry) -> str | None:
    """Return what the entry's first Gradient differentiates: its loss."""
    assert entry.algorithm is not None
    for node in entry.algorithm:
        if node.op_type == "Gradient" and "y" in node.attributes:
            return node.attributes["y"].as_string()
    return None


def _defined(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs)]
