"""The base classes of optimizers: settings, the state per parameter, and the update as ONNX."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import onnx_ir as ir

from onward.arguments import check_count, check_name, check_number
from onward.errors import A101, ArgumentError, Diagnostic, counted
from onward.graph.builder import Builder, Names, Value
from onward.schedules.base import Schedule

DOMAIN = "onward.optimizers"


@dataclasses.dataclass(frozen=True)
class Slot:
    """One piece of state per parameter, filled with `initial`.

    It has the parameter's shape, with size 1 along `reduced` if that is an axis; or it is a scalar.
    """

    initial: float = 0.0
    scalar: bool = False
    reduced: int | None = None

    def shape(self, parameter: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the state of a parameter of the given shape."""
        sizes = [] if self.scalar else list(parameter)
        if self.reduced is not None:
            sizes[self.reduced] = 1
        return tuple(sizes)


@dataclasses.dataclass
class Trained:
    """One parameter in an update: its value, its gradient, its state by slot name; all of one element type."""

    name: str
    value: Value
    gradient: Value
    slots: dict[str, Value]


@dataclasses.dataclass
class Group:
    """Parameters that share settings, and what their update reads: the rate, and the number of updates so far."""

    op: Builder
    rate: Value
    step: Value
    parameters: list[Trained]
    functions: FunctionLibrary


Updated = tuple[Value, dict[str, Value]]  # the new value, the new state by slot name


@dataclasses.dataclass(frozen=True)
class Optimizer(abc.ABC):
    """Settings that every optimizer has. Instances are plain values: equal settings compare equal.

    Args:
        learning_rate: a number, or a schedule from `onward.schedules`.
        weight_decay: 0 for none.
        decoupled: False adds `weight_decay * X` to the gradient (L2); True shrinks X by `rate * weight_decay` first.
        groups: glob of parameter names → settings that differ there, such as
            `{"*.bias": {"weight_decay": 0.0, "learning_rate": 0.01}}`; the first matching glob applies.
        layer_decay: multiply the learning rate by this for each layer between a weight and the loss, so that early
            layers change less: the last layer has the full rate, the one before it `layer_decay` times that, …
        clip_value: clip each element of the gradient to ± this value.
        clip_norm: scale each gradient down to this norm.
        clip_global_norm: scale all gradients down together to this norm.
        clip_epsilon: added to the norm before dividing; 1e-6 as in PyTorch, 0 as in Keras.
        accumulate: average the gradients of this many steps before each update.
        ema: keep an exponential moving average of the weights with this decay.
        maximize: maximize the loss: negate the gradient before anything else.
    """

    learning_rate: float | Schedule = 1e-3
    _: dataclasses.KW_ONLY
    weight_decay: float = 0.0
    decoupled: bool = False
    groups: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    layer_decay: float | None = None
    clip_value: float | None = None
    clip_norm: float | None = None
    clip_global_norm: float | None = None
    clip_epsilon: float = 1e-6
    accumulate: int = 1
    ema: float | None = None
    maximize: bool = False

    # Settings that a group of parameters cannot override.
    COMMON: ClassVar[frozenset[str]] = frozenset({"groups", "layer_decay", "clip_global_norm", "accumulate", "ema"})

    def __post_init__(self) -> None:
        owner = type(self).__name__
        if not isinstance(self.learning_rate, Schedule):
            check_number("learning_rate", self.learning_rate, owner, low=0.0)
        check_number("weight_decay", self.weight_decay, owner, low=0.0)
        check_number("clip_epsilon", self.clip_epsilon, owner, low=0.0)
        check_count("accumulate", self.accumulate, owner)
        for name in ("clip_value", "clip_norm", "clip_global_norm"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), owner, above=0.0)
        if self.layer_decay is not None:
            check_number("layer_decay", self.layer_decay, owner, above=0.0, high=1.0)
        if self.ema is not None:
            check_number("ema", self.ema, owner, low=0.0, below=1.0)
        for pattern, settings in self.groups.items():
            self.with_settings(settings, place=f"group `{pattern}` of `{owner}`")

    @property
    def rate(self) -> float:
        """Return the learning rate, or the base rate of the schedule."""
        return self.learning_rate.learning_rate if isinstance(self.learning_rate, Schedule) else self.learning_rate

    def with_settings(self, settings: Mapping[str, Any], place: str = "") -> Optimizer:
        """Return this optimizer with some settings changed, and without groups; an unknown setting is an error."""
        known = {f.name for f in dataclasses.fields(self) if f.init} - self.COMMON
        for name in settings:
            check_name("setting", name, known, place=place or f"optimizer `{type(self).__name__}`")
        if isinstance(settings.get("learning_rate"), Schedule):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "a group's learning rate is a number",
                    place=place,
                    hint="the optimizer's own schedule also scales the group's rate",
                )
            )
        return dataclasses.replace(self, groups={}, layer_decay=None, **settings)

    def fit(self, parameters: Mapping[str, tuple[int, ...]]) -> dict[str, Optimizer]:
        """Return the optimizer that updates each parameter, by name: this one, unless the shape makes a difference.

        `parameters` holds the shapes. The state and the formula are those of the returned optimizer.
        """
        return dict.fromkeys(parameters, self)

    def slots(self) -> dict[str, Slot]:
        """Return the pieces of state that each parameter has, by name."""
        return {}

    @abc.abstractmethod
    def update(self, group: Group) -> list[Updated]:
        """Emit the update of a group; return the new value and state of each parameter, in order."""

    def describe(self) -> dict[str, Any]:
        """Return name and settings as plain values, as the file's metadata stores them (`onward.optimizer`)."""
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        rate = self.learning_rate
        settings["learning_rate"] = rate.describe() if isinstance(rate, Schedule) else rate
        settings["groups"] = {k: dict(v) for k, v in self.groups.items()}
        return {"name": type(self).__name__, **settings}

    def label(self) -> str:
        """Return the name under which the state is stored: `adam` in `adam/m/fc.weight`."""
        return type(self).__name__.lower()


class FormulaOptimizer(Optimizer):
    """An optimizer whose update is a model-local function of primitive operators.

    The function's inputs are R (rate), T (updates so far, int64), X, G and the state; its outputs the new X and state.
    """

    FUNCTION: ClassVar[str] = ""  # its name, if the class is named like one of ONNX's operators

    @abc.abstractmethod
    def formula(self, op: Builder, R: Value, T: Value, X: Value, G: Value, *state: Value) -> Sequence[Value]:
        """Return the new X and the new state, in the order of `slots`."""

    def decayed(self, op: Builder, R: Value, X: Value, G: Value) -> tuple[Value, Value]:
        """Return X and G after weight decay, according to `weight_decay` and `decoupled`."""
        return decay(op, self, R, X, G)

    def update(self, group: Group) -> list[Updated]:
        names = list(self.slots())
        settings = tuple(
            (f.name, repr(getattr(self, f.name)))
            for f in dataclasses.fields(self)
            if f.name not in self.COMMON and f.name != "learning_rate"
        )
        results = []
        for parameter in group.parameters:
            state = [parameter.slots[n] for n in names]
            outputs = group.functions.call(
                group.op,
                self.FUNCTION or type(self).__name__,
                settings,
                ["R", "T", "X", "G", *names],
                [group.rate, group.step, parameter.value, parameter.gradient, *state],
                ["new_X", *(f"new_{n}" for n in names)],
                self.formula,
                label=parameter.name,
                doc=self.formula.__doc__,
            )
            results.append((outputs[0], dict(zip(names, outputs[1:], strict=True))))
        return results


def decay(op: Builder, optimizer: Optimizer, R: Value, X: Value, G: Value) -> tuple[Value, Value]:
    """Return X and G after weight decay: G + c·X, or X·(1 - R·c) when decoupled."""
    if not optimizer.weight_decay:
        return X, G
    if optimizer.decoupled:
        return op.Mul(X, op.Sub(1.0, op.Mul(R, optimizer.weight_decay))), G
    return X, op.Add(G, op.Mul(X, optimizer.weight_decay))


class FunctionLibrary:
    """The model-local functions that an algorithm calls; equal ones are created once."""

    def __init__(self, opset: int, taken: set[tuple[str, str]] | None = None) -> None:
        self.opset = opset
        self.functions: list[ir.Function] = []
        self._names = Names(name for domain, name in taken or set() if domain == DOMAIN)
        self._made: dict[tuple[Any, ...], ir.Function] = {}

    def call(
        self,
        op: Builder,
        name: str,
        settings: tuple[Any, ...],
        input_names: Sequence[str],
        inputs: Sequence[Value],
        output_names: Sequence[str],
        formula: Callable[..., Sequence[Value]],
        *,
        label: str,
        doc: str | None = None,
    ) -> tuple[Value, ...]:
        """Emit a call of the function that `formula` defines; return its outputs, typed and shaped like its inputs."""
        types = tuple(v.dtype for v in inputs)
        key = (name, settings, types)
        if key not in self._made:
            self._made[key] = self._build(name, input_names, inputs, output_names, formula, doc)
            self.functions.append(self._made[key])
        function = self._made[key]
        outputs = op.call(
            function.name, inputs, domain=DOMAIN, outputs=len(output_names), name=f"{function.name}/{label}"
        )
        # X and the state keep their types and shapes; R, T and G have no new values.
        for output, old in zip(outputs, [inputs[2], *inputs[4:]], strict=True):
            output.type, output.shape = old.type, None if old.shape is None else old.shape.copy()
        return outputs

    def add(self, function: ir.Function) -> None:
        """Add a ready-made function."""
        self.functions.append(function)

    def _build(
        self,
        name: str,
        input_names: Sequence[str],
        inputs: Sequence[Value],
        output_names: Sequence[str],
        formula: Callable[..., Sequence[Value]],
        doc: str | None,
    ) -> ir.Function:
        formal = [ir.Value(name=n, type=v.type) for n, v in zip(input_names, inputs, strict=True)]
        op = Builder(self.opset, Names([*input_names, *output_names]))
        outputs = list(formula(op, *formal))
        if len(outputs) != len(output_names):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    f"optimizer `{name}` returns the wrong number of values",
                    found=counted(len(outputs), "value"),
                    needed=f"{len(output_names)}: {', '.join(output_names)}",
                )
            )
        results = []
        for output, new_name in zip(outputs, output_names, strict=True):
            if output in formal or output in results:  # a function's output needs its own name
                output = op.Identity(output)
            output.name = new_name
            results.append(output)
        graph = ir.Graph(formal, results, nodes=op.nodes, opset_imports={"": self.opset}, doc_string=doc)
        return ir.Function(DOMAIN, self._names.unique(name), graph=graph, attributes=[])
