"""`LossScale`: multiply the loss before it is differentiated, so that small gradients do not become 0 in float16.

    loss -> Mul(loss, scale) -> Gradient -> Mul(gradient, 1 / scale) -> clipping, accumulation, optimizer
                                        \\-> all finite? -> Where(finite, new, old) for each state of the update

Everything is in the algorithm of the training entry, as plain operators: the file, every runtime, checkpoints and the
browser have it. The step reports the loss as it is. A dynamic scale adds three numbers to the state: the scale, the
good steps since it last changed, and all steps that were skipped.

Whether all gradients are finite is decided by sums: Inf and NaN stay in a sum. Numbers of more than 16 bits are made
smaller first, so that the sum of finite ones is finite. ReduceMax would not do: what it makes of NaN is not the same on
all runtimes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.arguments import check_count, check_number, is_number, shown
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph import edit, walk
from onward.graph.builder import Builder, Names, Value
from onward.model.roles import LOSS_SCALE, Role, entry_roles, mark, mark_scaled
from onward.model.serde import from_proto, to_proto
from onward.model.training_model import TrainingEntry, TrainingModel, is_gradient
from onward.optimizers.emit import initializer

A143 = "A143"

DYNAMIC = "dynamic"
METADATA = "onward.loss_scale"
"""The metadata entry of an algorithm that says how its loss is scaled."""

_LARGEST = float(np.finfo(np.float32).max)
_LEAST = 2.0**-100  # of a scale: at 0, gradients would be 0 / 0, and it could not grow again
_LARGEST_HALF = float(np.finfo(np.float16).max)
_WIDE = {ir.DataType.FLOAT16: ir.DataType.FLOAT, ir.DataType.BFLOAT16: ir.DataType.FLOAT}
# The largest finite number times this is small enough that any number of them has a finite sum in float32.
_SMALLER = {ir.DataType.FLOAT: 2.0**-64, ir.DataType.DOUBLE: 2.0**-1000}


@dataclasses.dataclass(frozen=True)
class LossScale:
    """How the loss is scaled before it is differentiated. The defaults are those of `torch.amp.GradScaler`.

    A dynamic scale is multiplied by `backoff_factor` when a gradient is not finite, and that step leaves weights,
    moments and counters as they are. After `growth_interval` good steps in a row it is multiplied by `growth_factor`.
    With `dynamic=False` the scale stays what it is, and no step is skipped.

    >>> LossScale(initial=1024.0, growth_interval=100)
    LossScale(initial=1024.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=100, dynamic=True)
    """

    initial: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    dynamic: bool = True

    def __post_init__(self) -> None:
        check_number("initial", self.initial, "LossScale", low=_LEAST, high=_LARGEST)
        check_number("growth_factor", self.growth_factor, "LossScale", above=1.0, high=_LARGEST)
        check_number("backoff_factor", self.backoff_factor, "LossScale", above=0.0, below=1.0)
        check_count("growth_interval", self.growth_interval, "LossScale")

    def text(self) -> str:
        """Return it as the file stores it."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    def told(self) -> str:
        """Return it in a few words."""
        if not self.dynamic:
            return f"× {self.initial:g}, the same in every step"
        return (
            f"dynamic from {self.initial:g}: × {self.growth_factor:g} after {self.growth_interval} good steps, "
            f"× {self.backoff_factor:g} and no update where a gradient is not finite"
        )


def read_loss_scale(asked: Any) -> LossScale | None:
    """Return what the argument `loss_scale` says; None without one.

    >>> read_loss_scale("dynamic") == LossScale(), read_loss_scale(1024), read_loss_scale(None)
    (True, LossScale(initial=1024.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, dynamic=False), None)

    Raises:
        ArgumentError: it is neither "dynamic", a number above 0, nor a LossScale.
    """
    if asked is None or isinstance(asked, LossScale):
        return asked
    if isinstance(asked, str):
        if asked == DYNAMIC:
            return LossScale()
        asked = _number(asked)  # as at the command line
    if is_number(asked) and _LEAST <= asked <= _LARGEST:
        return LossScale(float(asked), dynamic=False)
    raise ArgumentError(
        Diagnostic(
            A101,
            f"loss_scale is {shown(asked)}",
            needed='"dynamic", a number above 0 such as 1024.0, or an onward.LossScale',
        )
    )


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def loss_scale_of(entry: TrainingEntry) -> LossScale | None:
    """Return how the loss of an entry is scaled; None where it is not."""
    text = "" if entry.algorithm is None else entry.algorithm.metadata_props.get(METADATA, "")
    try:
        return LossScale(**json.loads(text)) if text else None
    except (ValueError, TypeError, RecursionError, ArgumentError):  # another tool's text under our key
        return None


def scale_losses(model: TrainingModel, scale: LossScale) -> TrainingModel:
    """Return a copy of `model` whose training entries scale their loss; `model` itself does not change.

    Raises:
        ArgumentError: the model has no training entry, an entry scales its loss in another way, or has no gradient of
            its own; all at once.
    """
    copy = from_proto(to_proto(model))
    problems: list[Diagnostic] = []
    entries = [e for e in copy.entries if e.algorithm is not None and e.update_binding]
    if not entries:
        problems.append(
            Diagnostic(
                A143,
                "the model has no training entry whose loss could be scaled",
                place="loss_scale=",
                hint="use onward.make_trainable(...) first",
            )
        )
    for entry in entries:
        try:
            add_loss_scale(copy, entry, scale)
        except ArgumentError as error:
            problems += error.diagnostics
    if problems:
        raise ArgumentError(problems)
    return copy


def scaled_like(model: TrainingModel, other: TrainingModel) -> TrainingModel:
    """Return `model` with the losses scaled that `other`, which has the same entries, scales; they may be none."""
    wanted = {e.name: loss_scale_of(e) for e in other.entries}
    missing = [e.name for e in model.entries if loss_scale_of(e) is None and wanted.get(e.name) is not None]
    if not missing:
        return model
    copy = from_proto(to_proto(model))
    for entry in copy.entries:
        scale = wanted.get(entry.name)
        if entry.name in missing and scale is not None:
            add_loss_scale(copy, entry, scale)
    return copy


def check_unscaled(model: TrainingModel, function: str) -> None:
    """Raise if a loss is scaled: what `function` returns differentiates the loss itself, and does not scale it."""
    scaled = [e.name for e in model.entries if loss_scale_of(e) is not None]
    if scaled:
        raise ArgumentError(
            Diagnostic(
                A143,
                f"{function} cannot take a scaled loss along: its update expects scaled gradients",
                place=f"training entries: {', '.join(scaled)}",
                hint="convert the model without loss_scale=; the framework has its own, such as torch.amp.GradScaler",
            )
        )


def add_loss_scale(model: TrainingModel, entry: TrainingEntry, scale: LossScale) -> None:
    """Let one training entry of `model` scale its loss, in place; nothing happens if it does so already.

    Raises:
        ArgumentError: the entry scales its loss in another way, or its gradients cannot be scaled.
    """
    before = loss_scale_of(entry)
    if before is None:
        _Scaling(model, entry, scale).run()
    elif before != scale:
        raise ArgumentError(
            Diagnostic(
                A143,
                f"the training entry `{entry.name}` already scales its loss",
                place="loss_scale=",
                found=before.told(),
                needed="the same, or none",
                hint="make the model trainable again with the loss_scale that you want",
            )
        )


class _Scaling:
    """Adds a loss scale to one training entry."""

    def __init__(self, model: TrainingModel, entry: TrainingEntry, scale: LossScale) -> None:
        assert entry.algorithm is not None
        self._model, self._entry, self._wanted, self._graph = model, entry, scale, entry.algorithm
        self._roles = entry_roles(model, entry)
        self._names = Names(walk.all_names(model.graph))
        for each in model.entries:
            if each.algorithm is not None:
                self._names.taken |= walk.all_names(each.algorithm)
        self._known = model.initializers()

    def run(self) -> None:
        nodes = self._gradient_nodes()
        if not self._wanted.dynamic:
            for node in nodes:
                op = self._builder()
                self._graph.insert_before(node, self._multiply(op, node, op.constant(self._wanted.initial)))
                op = self._builder()
                self._divide(op, node, op.constant(np.float32(1.0) / np.float32(self._wanted.initial)))
        else:
            scale = self._state("loss_scale", np.array(self._wanted.initial, np.float32), LOSS_SCALE)
            checks: list[Value] = []
            for node in nodes:
                op = self._builder()
                self._graph.insert_before(node, self._multiply(op, node, scale))
                op = self._builder()
                checks += self._divide(op, node, op.Div(1.0, scale))
            op = self._builder()
            finite = op.LessOrEqual(op.Abs(op.Sum(*checks)), _LARGEST, name="finite")
            finite.shape = ir.Shape([])
            self._keep_where_not(op, finite)
            self._adapt(op, scale, finite)
            self._graph.extend(op.nodes)
        self._graph.metadata_props[METADATA] = self._wanted.text()

    # -- the loss and its gradients --------------------------------------------------------------------------------

    def _gradient_nodes(self) -> list[ir.Node]:
        """Return the Gradient nodes that the update reads."""
        found = [n for n in self._graph if is_gradient(n) and any(v.name in self._roles.gradients for v in n.outputs)]
        if not found:
            raise ArgumentError(
                Diagnostic(
                    A143,
                    f"the loss of the training entry `{self._entry.name}` cannot be scaled: it has no Gradient node "
                    "of its own",
                    place="loss_scale=",
                    needed="a Gradient node in the algorithm with respect to what it updates",
                )
            )
        return found

    def _multiply(self, op: Builder, node: ir.Node, scale: Value) -> Sequence[ir.Node]:
        """Let a Gradient node differentiate the scaled loss; return the nodes that make it."""
        name = node.attributes["y"].as_string()
        loss = self._value(name)
        dtype = loss.dtype or ir.DataType.FLOAT
        if dtype == ir.DataType.FLOAT16 and not self._wanted.dynamic and self._wanted.initial > _LARGEST_HALF:
            raise ArgumentError(
                Diagnostic(
                    A143,
                    f"the loss of the training entry `{self._entry.name}` is float16, which ends at {_LARGEST_HALF:g}",
                    place="loss_scale=",
                    found=self._wanted.told(),
                    needed='a smaller number, such as 1024.0, or "dynamic", which finds one',
                )
            )
        wide = op.cast(loss, _WIDE.get(dtype, dtype))  # 16 bits end at 65504, which is less than the usual scale
        scaled = op.Mul(wide, op.cast(scale, _WIDE.get(dtype, dtype)), name="scaled_loss")
        scaled.shape = None if loss.shape is None else loss.shape.copy()
        node.attributes["y"] = ir.AttrString("y", scaled.name or "")
        mark_scaled(node, name)
        if scale.producer() is None:  # by the standard, xs and zs determine y
            zs = list(node.attributes["zs"].as_strings()) if "zs" in node.attributes else []
            node.resize_inputs(len(node.inputs) + 1)
            node.replace_input_with(len(node.inputs) - 1, scale)
            node.attributes["zs"] = ir.AttrStrings("zs", [*zs, scale.name or ""])
        return op.nodes

    def _value(self, name: str) -> Value:
        produced = (v for n in self._graph for v in n.outputs)
        return next((v for v in produced if v.name == name), None) or self._model.values()[name]

    def _divide(self, op: Builder, node: ir.Node, inverse: Value) -> list[Value]:
        """Let the readers of the gradients of a node read them unscaled; return a finite number for finite ones.

        A gradient of 16 bits is unscaled in float32, and read so where the update widens it: it may be too small for 16
        bits without the scale.
        """
        checks: list[Value] = []
        readers = {g: list(g.uses()) for g in node.outputs}
        for gradient, x in zip(node.outputs, node.attributes["xs"].as_strings(), strict=False):
            if not gradient.name:
                continue
            dtype = gradient.dtype or self._value_type(x)
            wide = _WIDE.get(dtype, dtype)
            g = op.cast(gradient, wide)
            unscaled = _like(gradient, op.Mul(g, op.cast(inverse, wide), name=f"unscaled/{x}"))
            checks.append(self._check(op, g, narrow=wide != dtype))
            narrow = unscaled if wide == dtype else None
            for reader, index in readers[gradient]:
                if wide != dtype and _widens(reader, wide):
                    edit.replace_uses({reader.outputs[0]: unscaled})
                    reader.graph.remove(reader, safe=True)  # type: ignore[union-attr]  # it is in the graph
                    continue
                if narrow is None:
                    narrow = _like(gradient, op.Cast(unscaled, to=dtype))
                reader.replace_input_with(index, narrow)
            if gradient in self._graph.outputs:
                self._show(op, gradient, narrow or _like(gradient, op.Cast(unscaled, to=dtype)))
        self._graph.insert_after(node, op.nodes)
        return checks

    def _value_type(self, name: str) -> ir.DataType:
        value = self._known.get(name)
        return ir.DataType.FLOAT if value is None or value.dtype is None else value.dtype

    def _check(self, op: Builder, gradient: Value, *, narrow: bool) -> Value:
        if not narrow:
            assert gradient.dtype is not None
            gradient = _like(gradient, op.Mul(gradient, _SMALLER[gradient.dtype]))
        total = op.cast(op.ReduceSum(gradient, keepdims=0), ir.DataType.FLOAT)
        total.shape = ir.Shape([])
        return total

    def _show(self, op: Builder, gradient: Value, unscaled: Value) -> None:
        """Let the algorithm report a gradient unscaled, under the same name."""
        name = gradient.name or ""
        shown_value = _like(gradient, op.Identity(unscaled))
        gradient.name = self._names.unique(f"scaled/{name}")
        shown_value.name = name
        for index, output in enumerate(self._graph.outputs):
            if output is gradient:
                self._graph.outputs[index] = shown_value

    # -- the new state ---------------------------------------------------------------------------------------------

    def _keep_where_not(self, op: Builder, finite: Value) -> None:
        """Let the states of the update keep their old value where `finite` is false."""
        outputs = {v.name: v for v in self._graph.outputs}
        gated = [k for k in self._entry.update_binding if k not in set(self._of_the_batch(outputs))]
        replaced = {self._entry.update_binding[k] for k in gated}
        others = {n for k, n in self._entry.update_binding.items() if k not in gated}
        kept = [v for v in self._graph.outputs if v.name not in replaced or v.name in others]
        for key in gated:
            old, new = self._known[key], outputs[self._entry.update_binding[key]]
            chosen = _like(old, op.Where(finite, new, old))
            chosen.name = self._names.unique(f"kept/{key}")
            self._entry.update_binding[key] = chosen.name
            kept.append(chosen)
        self._graph.outputs.clear()
        self._graph.outputs.extend(kept)

    def _of_the_batch(self, outputs: dict[str | None, Value]) -> Iterator[str]:
        """Yield the states that the forward pass changes, whatever the gradients are: running statistics.

        PyTorch and Flax update them in a skipped step as well.
        """
        yield from self._roles.forward_state
        gradients = {v for n in self._graph if is_gradient(n) for v in n.outputs}
        batch = {v for v in self._graph.inputs if v.name not in self._graph.initializers}
        batch |= {v for v in self._model.graph.inputs if v.name not in self._model.graph.initializers}
        for node in (*self._model.graph, *self._graph):
            read = walk.reads(node)
            for reached in (gradients, batch):
                if not reached.isdisjoint(read):
                    reached.update(node.outputs)
        for key, name in self._entry.update_binding.items():
            if outputs[name] in batch and outputs[name] not in gradients:
                yield key

    def _adapt(self, op: Builder, scale: Value, finite: Value) -> None:
        """Add the next scale and its counters to the new state."""
        wanted, whole = self._wanted, np.array(0, np.int64)
        good = self._state(f"{scale.name}/good_steps", whole, "good_steps")
        skipped = self._state(f"{scale.name}/skipped", whole, "skipped_steps")
        following = op.Add(good, 1)
        grows = op.GreaterOrEqual(following, wanted.growth_interval)
        larger = op.Mul(scale, wanted.growth_factor)
        larger = op.Where(op.LessOrEqual(larger, _LARGEST), larger, scale)
        smaller = op.Max(op.Mul(scale, wanted.backoff_factor), _LEAST)
        self._bind(scale, op.Where(finite, op.Where(grows, larger, scale), smaller))
        self._bind(good, op.Where(op.And(finite, op.Not(grows)), following, 0))
        self._bind(skipped, op.Where(finite, skipped, op.Add(skipped, 1)))

    def _state(self, name: str, value: np.ndarray, slot: str) -> Value:
        made = initializer(self._names.unique(name), value)
        mark(made, Role.STATE, slot=slot)
        self._graph.register_initializer(made)
        if self._entry.initialization is not None:
            op = Builder(self._model.opset, Names(walk.all_names(self._entry.initialization)), prefix="init/")
            start = op.Identity(op.constant(value), name=name)
            start.shape = ir.Shape([])
            self._entry.initialization.extend(op.nodes)
            self._entry.initialization.outputs.append(start)
            self._entry.initialization_binding[made.name or ""] = start.name or ""
        return made

    def _bind(self, old: Value, new: Value) -> None:
        new = _like(old, new)
        new.name = self._names.unique(f"new/{old.name}")
        self._graph.outputs.append(new)
        self._entry.update_binding[old.name or ""] = new.name

    def _builder(self) -> Builder:
        return Builder(self._model.opset, self._names, prefix="loss_scale/")


def _widens(node: ir.Node, dtype: ir.DataType) -> bool:
    to = node.attributes.get("to") if node.op_type == "Cast" and node.domain in ("", "ai.onnx") else None
    return to is not None and to.as_int() == dtype.value and not node.outputs[0].is_graph_output()


def _like(value: Value, made: Value) -> Value:
    """Give a value the shape of another."""
    made.shape = None if value.shape is None else value.shape.copy()
    return made
