"""Emit the update of an optimizer: its nodes, its state and its bindings."""

from __future__ import annotations

import dataclasses
import fnmatch
import glob
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Names, Value
from onward.model.roles import STEP, Role, mark
from onward.optimizers.base import FunctionLibrary, Group, Optimizer, Slot, Trained
from onward.schedules.base import Schedule

_WIDE = {ir.DataType.FLOAT16: ir.DataType.FLOAT, ir.DataType.BFLOAT16: ir.DataType.FLOAT}


@dataclasses.dataclass
class Update:
    """What an optimizer adds to an algorithm.

    `settings` are inputs with a default. `state` are the initializers that it updates. `bindings` maps each parameter
    and state to its new value. `like` maps each averaged weight to the parameter that it starts from.
    """

    settings: list[Value]
    state: list[Value]
    bindings: dict[str, Value]
    functions: list[ir.Function]
    like: dict[str, str]


def emit_update(
    optimizer: Optimizer, op: Builder, gradients: Mapping[Value, Value], functions: FunctionLibrary
) -> Update:
    """Emit the update of every parameter in `gradients` (parameter → its gradient) through `op`."""
    return _Emitter(optimizer, op, gradients, functions).emit()


class _Emitter:
    def __init__(
        self, optimizer: Optimizer, op: Builder, gradients: Mapping[Value, Value], functions: FunctionLibrary
    ) -> None:
        self.optimizer = optimizer
        self.op = op
        self.names: Names = op.names
        self.gradients = gradients
        self.functions = functions
        self.settings: list[Value] = []
        self.state: list[Value] = []
        self.bindings: dict[str, Value] = {}
        self._bound: set[Value] = set()
        self._left: dict[Value, Value] = {}
        self.like: dict[str, str] = {}
        widths = {compute_type(p) for p in gradients}
        self.rate_type = ir.DataType.DOUBLE if widths == {ir.DataType.DOUBLE} else ir.DataType.FLOAT

    def emit(self) -> Update:
        op, optimizer = self.op, self.optimizer
        step = self._state("step", np.array(0, np.int64), slot=STEP)
        base = initializer(self.names.unique("learning_rate"), np.asarray(optimizer.rate, self.rate_type.numpy()))
        mark(base, Role.LEARNING_RATE)
        self.settings.append(base)
        rate = base
        if isinstance(optimizer.learning_rate, Schedule):
            rate = op.Mul(base, optimizer.learning_rate.emit(op, step, base), name="scheduled_learning_rate")
            mark(rate, Role.LEARNING_RATE)
        wide = {p: op.cast(g, compute_type(p)) for p, g in self.gradients.items()}
        for settings, parameters in split_groups(optimizer, list(wide)):
            if settings.maximize:
                wide.update({p: op.Neg(wide[p]) for p in parameters})
        apply: Value | None = None
        if optimizer.accumulate > 1:
            wide, apply = self._accumulate(wide)
        wide = self._clip(wide)
        new_values = self._groups(wide, rate, step, apply)
        if apply is None:
            self._bind(step, op.Add(step, 1))
        else:
            self._bind(step, op.Add(step, op.Cast(apply, to=ir.DataType.INT64)))
        for parameter, new in new_values.items():
            self._bind(parameter, new)
        if optimizer.ema is not None:
            self._average(new_values, apply)
        return Update(self.settings, self.state, self.bindings, self.functions.functions, self.like)

    def _groups(
        self, gradients: Mapping[Value, Value], rate: Value, step: Value, apply: Value | None
    ) -> dict[Value, Value]:
        op = self.op
        new_values: dict[Value, Value] = {}
        for settings, parameters in split_groups(self.optimizer, list(gradients)):
            fitted = settings.fit({p.name or "": static_shape(p) for p in parameters})
            kinds = {p: (compute_type(p), type(fitted[p.name or ""])) for p in parameters}
            for kind in dict.fromkeys(kinds.values()):
                members = [p for p in parameters if kinds[p] == kind]
                dtype, own = kind[0], fitted[members[0].name or ""]
                group_rate = op.cast(rate, dtype)
                if own.rate != self.optimizer.rate:
                    group_rate = op.Mul(group_rate, own.rate / self.optimizer.rate)
                slots = own.slots()
                trained = []
                for p in members:
                    state = {k: self._slot(own.label(), k, slot, p, dtype) for k, slot in slots.items()}
                    trained.append(Trained(p.name or "", self._whole(p, dtype), gradients[p], state))
                updated = own.update(Group(op, group_rate, step, trained, self.functions))
                for p, old, (value, state) in zip(members, trained, updated, strict=True):
                    if p.dtype != dtype:
                        value = self._round(p, value, apply)
                    new_values[p] = value if apply is None else op.Where(apply, value, p)
                    for key, new in state.items():
                        before = old.slots[key]
                        self._bind(before, new if apply is None else op.Where(apply, new, before))
        return {p: new_values[p] for p in gradients}

    def _whole(self, parameter: Value, dtype: ir.DataType) -> Value:
        """Return a parameter in the type of its update; one of 16 bits with what its last rounding left out.

        A parameter that was replaced since then is taken as it is: it is not what the sum would be rounded to.
        """
        op, wide = self.op, self.op.cast(parameter, dtype)
        if wide is parameter:
            return wide
        self._left[parameter] = self._slot("rounding", None, Slot(), parameter, dtype)
        whole = op.Add(wide, self._left[parameter])
        own = op.Equal(op.cast(op.Cast(whole, to=parameter.dtype), dtype), wide)
        return op.Where(own, whole, wide)

    def _round(self, parameter: Value, value: Value, apply: Value | None) -> Value:
        """Return the new value of a parameter of 16 bits, and keep what the rounding leaves out.

        Both together are exactly the float32 value, as if a float32 copy were kept. Without it, an update of less than
        half the distance to the next number of 16 bits would be lost.
        """
        op, left = self.op, self._left[parameter]
        rounded = op.Cast(value, to=parameter.dtype)
        rest = op.Sub(value, op.cast(rounded, left.dtype or ir.DataType.FLOAT))
        self._bind(left, rest if apply is None else op.Where(apply, rest, left))
        return rounded

    def _accumulate(self, gradients: Mapping[Value, Value]) -> tuple[dict[Value, Value], Value]:
        """Average the gradients of `accumulate` steps; the second result is whether this step updates."""
        op, count = self.op, self.optimizer.accumulate
        micro = self._state("micro_step", np.array(0, np.int64), slot="micro_step")
        following = op.Add(micro, 1)
        apply = op.Equal(following, count, name="update_now")
        self._bind(micro, op.Where(apply, 0, following))
        totals: dict[Value, Value] = {}
        for p, gradient in gradients.items():
            kept = self._slot("accumulated", None, Slot(), p, compute_type(p))
            totals[p] = op.Add(kept, op.Div(gradient, float(count)))
            self._bind(kept, op.Where(apply, 0.0, totals[p]))
        return totals, apply

    def _clip(self, gradients: Mapping[Value, Value]) -> dict[Value, Value]:
        op, clipped = self.op, dict(gradients)
        for settings, parameters in split_groups(self.optimizer, list(gradients)):
            for p in parameters:
                if settings.clip_value is not None:
                    clipped[p] = op.Clip(clipped[p], -settings.clip_value, settings.clip_value)
                if settings.clip_norm is not None:
                    norm = op.Sqrt(op.ReduceSumSquare(clipped[p], keepdims=0))
                    clipped[p] = self._scale_down(clipped[p], norm, settings.clip_norm)
        if self.optimizer.clip_global_norm is not None:
            squares = [op.cast(op.ReduceSumSquare(g, keepdims=0), self.rate_type) for g in clipped.values()]
            norm = op.Sqrt(op.Sum(*squares), name="global_norm")
            for p, gradient in clipped.items():
                norm_of_type = op.cast(norm, compute_type(p))
                clipped[p] = self._scale_down(gradient, norm_of_type, self.optimizer.clip_global_norm)
        return clipped

    def _scale_down(self, gradient: Value, norm: Value, limit: float) -> Value:
        """Return gradient · min(1, limit / (norm + epsilon))."""
        op = self.op
        divisor = op.Add(norm, self.optimizer.clip_epsilon) if self.optimizer.clip_epsilon else norm
        return op.Mul(gradient, op.Min(op.Div(limit, divisor), 1.0))

    def _average(self, new_values: Mapping[Value, Value], apply: Value | None) -> None:
        op, decay = self.op, self.optimizer.ema
        assert decay is not None
        for p, new in new_values.items():
            average = initializer(self.names.unique(f"ema/{p.name}"), const_array(p))
            mark(average, Role.AVERAGE, of=p.name)
            self.state.append(average)
            self.like[average.name or ""] = p.name or ""
            dtype = compute_type(p)
            whole = self._whole(average, dtype)
            mixed = op.Add(op.Mul(whole, decay), op.Mul(op.cast(new, dtype), 1.0 - decay))
            if p.dtype != dtype:
                mixed = self._round(average, mixed, apply)
            self._bind(average, mixed if apply is None else op.Where(apply, mixed, average))

    def _slot(self, label: str, key: str | None, slot: Slot, parameter: Value, dtype: ir.DataType) -> Value:
        shape = slot.shape(static_shape(parameter))
        path = "/".join(part for part in (label, key, parameter.name) if part)
        # np.zeros, unlike np.full, uses no memory until it is written to.
        first = np.full(shape, slot.initial, dtype.numpy()) if slot.initial else np.zeros(shape, dtype.numpy())
        return self._state(path, first, slot=key or label, of=parameter.name)

    def _state(self, name: str, value: np.ndarray, *, slot: str, of: str | None = None) -> Value:
        made = initializer(self.names.unique(name), value)
        mark(made, Role.STATE, of=of, slot=slot)
        self.state.append(made)
        return made

    def _bind(self, old: Value, new: Value) -> None:
        assert old.name is not None
        if new.producer() is None or new.is_graph_output() or new in self._bound:
            new = self.op.Identity(new)
        wanted = self.names.unique(f"new/{old.name}")
        new.name = wanted
        new.type, new.shape = old.type, None if old.shape is None else old.shape.copy()
        self.bindings[old.name] = new
        self._bound.add(new)


def by_depth(optimizer: Optimizer, parameters: Sequence[Value], depths: Mapping[str, int]) -> Optimizer:
    """Return the optimizer with its `layer_decay` as groups: one for each parameter.

    `depths` counts the layers from each parameter to the loss, 1 for the last. A parameter that it does not name gets
    the rate of the first layer.

    Raises:
        ArgumentError: a glob of `groups` matches no parameter.
    """
    if optimizer.layer_decay is None:
        return optimizer
    if optimizer.rate == 0:
        return dataclasses.replace(optimizer, layer_decay=None)
    first = max(depths.values(), default=1)
    groups = {}
    for pattern, members in _members(optimizer, parameters).items():
        own = {} if pattern is None else optimizer.groups[pattern]
        rate = own.get("learning_rate", optimizer.rate)
        for parameter in members:
            name = parameter.name or ""
            factor = optimizer.layer_decay ** (depths.get(name, first) - 1)
            groups[glob.escape(name)] = {**own, "learning_rate": rate * factor}
    return dataclasses.replace(optimizer, groups=groups, layer_decay=None)


def split_groups(optimizer: Optimizer, parameters: Sequence[Value]) -> list[tuple[Optimizer, list[Value]]]:
    """Return the parameters by their settings; the first matching glob of `groups` applies.

    Raises:
        ArgumentError: a glob of `groups` matches no parameter.
    """
    members = _members(optimizer, parameters)
    if optimizer.rate == 0 and any("learning_rate" in s for s in optimizer.groups.values()):
        raise ArgumentError(
            Diagnostic(
                A101,
                "a group sets a learning rate, but the optimizer's is 0",
                hint="give the optimizer a rate above 0; to keep weights unchanged, use freeze=",
            )
        )
    result: dict[str, tuple[Optimizer, list[Value]]] = {}  # globs with the same settings are one group
    for key, values in members.items():
        if values:
            settings = {} if key is None else optimizer.groups[key]
            same = repr(sorted(settings.items()))
            result.setdefault(same, (optimizer.with_settings(settings), []))[1].extend(values)
    return list(result.values())


def _members(optimizer: Optimizer, parameters: Sequence[Value]) -> dict[str | None, list[Value]]:
    """Return the parameters by the glob of their group; None for those without one."""
    from onward.model.trainable import no_match

    members: dict[str | None, list[Value]] = {None: []}
    members.update((pattern, []) for pattern in optimizer.groups)
    for parameter in parameters:
        name = parameter.name or ""
        chosen = next((g for g in optimizer.groups if fnmatch.fnmatchcase(name, g)), None)
        members[chosen].append(parameter)
    names = [p.name or "" for p in parameters]
    problems = [
        no_match(pattern, names, "parameter", "groups=")
        for pattern in optimizer.groups
        if not any(fnmatch.fnmatchcase(n, pattern) for n in names)
    ]
    if problems:
        raise ArgumentError(problems)
    return members


def static_shape(parameter: Value) -> tuple[int, ...]:
    """Return the shape of a parameter."""
    assert parameter.shape is not None
    return tuple(int(d) for d in parameter.shape)  # type: ignore[arg-type]  # static


def compute_type(parameter: Value) -> ir.DataType:
    """Return the type in which a parameter is updated: its own, or float32 for the 16-bit types."""
    assert parameter.dtype is not None
    return _WIDE.get(parameter.dtype, parameter.dtype)


def initializer(name: str, array: np.ndarray) -> Value:
    """Return a value that can be registered as an initializer."""
    tensor = ir.Tensor(np.asarray(array), name=name)
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)


def const_array(value: Value) -> np.ndarray:
    """Return the stored array of an initializer."""
    assert value.const_value is not None
    return value.const_value.numpy()
