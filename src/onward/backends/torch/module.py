"""`OnnxModule`: an ONNX model as a real `nn.Module`."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from onward.backends.graph.loss import forward_graph, has_own_rules, written_loss
from onward.backends.torch.interpreter import FAILURES, Interpreter, failure
from onward.backends.torch.tensors import to_tensor
from onward.compiler.recipes import INFER, LOSS, TRAINING_FORWARD, Recipe
from onward.compiler.sources import state_names
from onward.errors import A101, ArgumentError, Diagnostic, OnwardError
from onward.model.roles import RANDOM_KEY, RANDOM_STEP, EntryRoles, entry_roles, random_step
from onward.model.training_model import FLOAT_TYPES, TrainingEntry, TrainingModel


@dataclasses.dataclass
class _Forward:
    """One way to run the model: which graph, which of its outputs are the model's, and which replace buffers."""

    interpreter: Interpreter
    outputs: list[str]
    updates: dict[str, str]  # output name -> buffer name
    constants: dict[str, str]  # input name -> parameter, read without a gradient
    gradients: dict[str, str] = dataclasses.field(default_factory=dict)  # output name -> parameter, if explicit
    counters: _Forward | None = None  # runs afterwards: state that changes independently of the batch


class _Node(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """One component of a dotted name; contains parameters and buffers only."""


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
        """Create the module; with `written`, the gradient of `loss` is the lowered Gradient node of the file."""
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
        self._eval = _forward(model, INFER, None) if mode != "training" or entry is None else None
        self._train: _Forward | None = None
        self._loss: _Forward | None = None
        if mode != "inference" and entry is not None:
            assert entry.algorithm is not None
            roles = entry_roles(model, entry)
            for name in roles.forward_state:
                if name not in self._paths:
                    value = entry.algorithm.initializers[name]
                    assert value.const_value is not None
                    self._hold(name, to_tensor(value.const_value.numpy()))
            self._train = _forward(model, TRAINING_FORWARD, entry)
            if roles.loss and (written or has_own_rules(model, entry)):
                self._loss = _written_loss(model, entry, roles)
            elif roles.loss:
                self._loss = _forward(model, LOSS, entry)
        drawing = [f for f in (self._train, self._loss) if f is not None and RANDOM_STEP in f.updates.values()]
        if drawing:
            self._hold(RANDOM_KEY, torch.zeros((), dtype=torch.int64))
            self._hold(RANDOM_STEP, torch.tensor(random_step(model), dtype=torch.int64))
        self._written_for = next((p.dtype for p in self.parameters()), torch.float32)
        self._drawn: list[tuple[Any, Tensor]] = []  # inputs and steps of the last forward passes with random masks
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
        if path or hasattr(owner, last):  # an invalid attribute name, such as `forward`, or `a` beside `a.b`
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
        """Move the constants of the graphs to another device, and apply `.half()` and `.bfloat16()` to the graphs."""
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
                Diagnostic(A101, "this module is for training only", hint='use mode="both" for .eval() as well')
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
        """Return the feeds of a loss with an explicit backward pass, in the type of the parameters.

        Raises:
            ArgumentError: a feed requires a gradient, which that pass does not compute.
        """
        wanted = [n for n, v in feeds.items() if isinstance(v, Tensor) and v.requires_grad]
        if wanted and torch.is_grad_enabled():
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "the explicit backward pass has gradients with respect to parameters only",
                    found="inputs that require a gradient: " + ", ".join(f"`{n}`" for n in wanted),
                    hint="detach them, or use autograd: to_torch(model)",
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
            RANDOM_STEP in list(forward.updates.values())
            and not torch.compiler.is_compiling()
            and self._is_repeated(feeds, tensors)
        )
        results = self._interpret(forward.interpreter, {**tensors, **feeds})
        if not again:
            with torch.no_grad():
                for output, name in forward.updates.items():
                    self.tensor(name).copy_(results[output])
        return results

    def _interpret(self, interpreter: Interpreter, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs of a graph; an exception of a kernel becomes an error that names the node."""
        if torch.compiler.is_compiling():  # the tracer has exceptions of its own
            return interpreter.run(feeds)
        try:
            return interpreter.run(feeds)
        except (OnwardError, torch.OutOfMemoryError):
            raise
        except FAILURES as error:
            raise failure("the model", error) from error

    def _is_repeated(self, feeds: Mapping[str, Tensor], tensors: dict[str, Tensor]) -> bool:
        """Return whether gradient checkpointing repeats an earlier forward; if so, put its mask step in `tensors`.

        Raises:
            ArgumentError: the repeated forward cannot be identified.
        """
        key = next((v for v in feeds.values() if isinstance(v, Tensor)), None)
        if torch._C._current_graph_task_id() == -1:  # not in a backward pass
            self._drawn = [(k, s) for k, s in self._drawn if k() is not None and k() is not key][-7:]
            if key is not None:
                self._drawn.append((weakref.ref(key), tensors[RANDOM_STEP].clone()))
            return False
        step = next((s for k, s in self._drawn if k() is key), None)
        if step is None:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "a backward pass repeats a forward pass whose dropout masks are unknown",
                    hint="use torch.utils.checkpoint.checkpoint(..., use_reentrant=False) on this module itself",
                )
            )
        tensors[RANDOM_STEP] = step
        return True


def _dots_are_a_path(name: str) -> bool:
    return all(part for part in name.split("."))


def _forward(model: TrainingModel, recipe: Recipe, entry: TrainingEntry | None) -> _Forward:
    """Return a recipe's graph with the weights as inputs, ready to run."""
    graph, held = forward_graph(model, recipe, entry)
    return _Forward(Interpreter(graph.model.graph, graph.opset), list(graph.outputs), dict(graph.replaces), held)


class _Differentiated(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """A loss whose gradients with respect to the parameters are already known."""

    @staticmethod
    def forward(context: Any, loss: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        context.save_for_backward(*gradients)
        return loss.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]  # torch is not typed here
    def backward(context: Any, upstream: Tensor) -> tuple[Any, ...]:
        return None, None, *(upstream * gradient for gradient in context.saved_tensors)


def _written_loss(model: TrainingModel, entry: TrainingEntry, roles: EntryRoles) -> _Forward:
    """Return the loss with its gradients, from the lowered Gradient node of the file."""
    found = written_loss(model, entry, roles)
    counters = None
    if found.counters:
        update = found.update.model.graph
        wanted = [v for v in update.outputs if v.name in found.counters]
        counters = _Forward(Interpreter(update, found.update.opset, outputs=wanted), [], dict(found.counters), {})
    written = Interpreter(found.step.model.graph, found.step.opset)
    return _Forward(written, [roles.loss], dict(found.step.replaces), {}, dict(found.gradients), counters)
