"""Custom optimizers: a Python function over the builder, or an ONNX function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Value
from onward.optimizers.base import FormulaOptimizer, Group, Slot, Updated


@dataclasses.dataclass(frozen=True)
class Custom(FormulaOptimizer):
    """A custom update: `rule(op, R, T, X, G, *state)` returns the new X and the new state, in the order of `state`.

    `rule` may also be an ONNX function (a `FunctionProto`, or an onnxscript function) with inputs R, T, X, G and the
    state, and outputs the new X and the new state. `state` maps each piece of state to its initial value. R is the
    rate, T the number of updates so far (int64). `weight_decay` is applied before the rule.

    >>> signed = Custom(0.01, lambda op, R, T, X, G: [op.Sub(X, op.Mul(R, op.Sign(G)))])
    """

    rule: Callable[..., Sequence[Value]] | onnx.FunctionProto | Any = None
    state: Mapping[str, float] = dataclasses.field(default_factory=dict)
    name: str = "custom"

    def __post_init__(self) -> None:
        super().__post_init__()
        if hasattr(self.rule, "to_function_proto"):
            object.__setattr__(self, "rule", self.rule.to_function_proto())
        if isinstance(self.rule, onnx.FunctionProto):
            found, needed = (len(self.rule.input), len(self.rule.output)), (4 + len(self.state), 1 + len(self.state))
            if found != needed:
                raise ArgumentError(
                    Diagnostic(
                        A101,
                        f"the function `{self.rule.name}` cannot be used as an optimizer",
                        found=f"{found[0]} inputs, {found[1]} outputs",
                        needed=f"inputs R, T, X, G and the state ({needed[0]}), outputs X and the state ({needed[1]})",
                        hint="name the state: Custom(rate, function, state={'m': 0.0})",
                    )
                )
        elif not callable(self.rule):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "`rule` of `Custom` is not a function",
                    found=repr(self.rule)[:200],
                    needed="rule(op, R, T, X, G, *state), or an ONNX function",
                )
            )

    def slots(self) -> dict[str, Slot]:
        return {name: Slot(float(first)) for name, first in self.state.items()}

    def label(self) -> str:
        return self.name

    def describe(self) -> dict[str, Any]:
        named = self.rule.name if isinstance(self.rule, onnx.FunctionProto) else getattr(self.rule, "__name__", "rule")
        return {**super().describe(), "name": type(self).__name__, "label": self.name, "rule": named}

    def formula(self, op: Builder, R: Value, T: Value, X: Value, G: Value, *state: Value) -> Sequence[Value]:
        """Return the results of the user's rule."""
        X, G = self.decayed(op, R, X, G)
        assert callable(self.rule)
        return list(self.rule(op, R, T, X, G, *state))

    def update(self, group: Group) -> list[Updated]:
        proto = self.rule
        if not isinstance(proto, onnx.FunctionProto):
            return super().update(group)
        group.functions.add(ir.serde.deserialize_function(proto))
        results = []
        for p in group.parameters:
            X, G = self.decayed(group.op, group.rate, p.value, p.gradient)
            outputs = group.op.call(
                proto.name,
                [group.rate, group.step, X, G, *p.slots.values()],
                domain=proto.domain,
                overload=proto.overload,
                outputs=len(proto.output),
                name=f"{proto.name}/{p.name}",
            )
            for new, old in zip(outputs, [p.value, *p.slots.values()], strict=True):
                new.type, new.shape = old.type, None if old.shape is None else old.shape.copy()
            results.append((outputs[0], dict(zip(p.slots, outputs[1:], strict=True))))
        return results
