"""The table of gradient rules, and the four conditions an input can be in.

A rule is one function; its decorator says which operator and since which opset it holds:

    @gradient("Div", opset=7)
    def div(rule, dC):
        '''C = A / B, so dA = dC / B and dB = -dC * C / B.'''
        ...
        return {"A": dA, "B": dB}

Parameters after the first are named `d<Output>` after the schema's outputs; an output that is not named has no
gradient. Every input of the operator is in one condition: a gradient (the default), `ZERO` (flat almost everywhere),
`NON_DIFFERENTIABLE` (indices, shapes) or `UNSUPPORTED("why")`. Names are checked against the ONNX schema when the
rule is registered, so that a mistake fails at import and not in somebody's training run.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from onward.graph.schema import Schema, newest_opset, schema

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.autodiff.rule import Rule
    from onward.autodiff.types import Grads
    from onward.graph.builder import Value


@dataclasses.dataclass(frozen=True)
class Condition:
    """What is known of the gradient by one input."""

    kind: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.kind} ({self.reason})" if self.reason else self.kind


GRADIENT = Condition("GRADIENT")
ZERO = Condition("ZERO")
NON_DIFFERENTIABLE = Condition("NON_DIFFERENTIABLE")


def UNSUPPORTED(reason: str) -> Condition:
    """Return the condition of an input whose gradient exists but is not given, with the reason."""
    return Condition("UNSUPPORTED", reason)


RuleFunction = Callable[..., "Grads"]


@dataclasses.dataclass(frozen=True)
class RuleSpec:
    """One registered rule, valid from `opset` up to the next registered version of the same operator."""

    domain: str
    op_type: str
    opset: int
    function: RuleFunction | None  # None: no input has a gradient
    outputs: tuple[str, ...]  # schema names of the outputs whose gradients the rule takes
    variadic_output: bool
    conditions: Mapping[str, Condition]  # by schema input name
    broadcasts: bool  # the operator broadcasts its inputs: the engine sums gradients back to each input's shape
    integers: bool = False  # integers may carry a gradient through it, as floats (DequantizeLinear, QuantizeLinear)

    @property
    def differentiable(self) -> bool:
        """Whether some gradient flows: by an input, or, for If, by what its branches capture."""
        return self.function is not None


_RULES: dict[tuple[str, str], list[RuleSpec]] = {}


def gradient(
    op_type: str,
    *,
    opset: int = 1,
    domain: str = "",
    broadcasts: bool = False,
    replace: bool = False,
    integers: bool = False,
    **conditions: Condition,
) -> Callable[[RuleFunction], RuleFunction]:
    """Register the decorated function as the rule of `op_type` from `opset` on.

    Keyword arguments named like inputs state their condition; inputs not named have a gradient, which the function
    returns under their name (a list for a variadic input). With `integers`, integer inputs and outputs may have a
    gradient too, which is a float: see rules/quantization.py.

    Raises:
        TypeError: a name is not in the ONNX schema, or the operator has this rule already (and not `replace`).
    """

    def register(function: RuleFunction) -> RuleFunction:
        parameters = list(inspect.signature(function).parameters.values())[1:]
        variadic = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
        names = tuple(p.name for p in parameters)
        for name in names:
            if not name.startswith("d"):
                raise TypeError(f"{op_type}: parameter `{name}` must be `d` followed by an output's name")
        outputs = tuple(n[1:] for n in names)
        _add(op_type, domain, opset, function, outputs, variadic, broadcasts, conditions, replace, integers)
        return function

    return register


def declare(op_type: str, *, opset: int = 1, domain: str = "", **conditions: Condition) -> None:
    """State the conditions of an operator none of whose inputs has a gradient."""
    _add(op_type, domain, opset, None, (), False, False, conditions, False)


Body = Callable[["ir.Node", int], "ir.Function | None"]
BODIES: dict[tuple[str, str], Body] = {}


def through_body(
    op_type: str, *, opset: int, domain: str = "", body: Body | None = None, **conditions: Condition
) -> None:
    """State that an operator is differentiated through its body; inputs not named have a gradient.

    `body(node, opset)` returns it where the standard has none, or None where it cannot be built for that node.
    """
    if body is not None:
        BODIES[domain, op_type] = body
    _add(op_type, domain, opset, replaced_by_its_body, (), False, False, conditions, False)


def replaced_by_its_body(rule: Rule, *outputs: Value | None) -> Grads:
    """The operator's body takes its place before gradients are taken."""
    from onward.autodiff.problems import Unsupported

    raise Unsupported("its body in the standard could not be built: its inputs need types and shapes")


def _add(
    op_type: str,
    domain: str,
    opset: int,
    function: RuleFunction | None,
    outputs: tuple[str, ...],
    variadic: bool,
    broadcasts: bool,
    conditions: Mapping[str, Condition],
    replace: bool,
    integers: bool = False,
) -> None:
    if domain == "" and opset > newest_opset():
        return  # the installed onnx does not know the operator yet, so no graph of it can be read either
    known = schema(op_type, domain, opset) if domain == "" else schema(op_type, domain)
    full = dict(conditions)
    if known is not None:
        _check_names(known, outputs, conditions)
        full = {name: conditions.get(name, GRADIENT) for name in known.input_names}
        if function is None:
            open_inputs = [n for n, c in full.items() if c is GRADIENT]
            if open_inputs:
                raise TypeError(f"{op_type}: no condition stated for input {', '.join(open_inputs)}")
    elif domain == "":
        raise TypeError(f"{op_type} is not an operator of ai.onnx at opset {opset}")
    spec = RuleSpec(domain, op_type, opset, function, outputs, variadic, full, broadcasts, integers)
    rules = _RULES.setdefault((domain, op_type), [])
    same = [r for r in rules if r.opset == opset]
    if same and not replace:
        raise TypeError(f"{op_type} (opset {opset}) already has a rule; pass replace=True to take its place")
    _RULES[domain, op_type] = sorted([r for r in rules if r not in same] + [spec], key=lambda r: r.opset)


def _check_names(known: Schema, outputs: Iterable[str], conditions: Mapping[str, Condition]) -> None:
    for name in outputs:
        if name not in known.output_names:
            raise TypeError(f"{known.op_type} has no output `{name}`; it has {', '.join(known.output_names)}")
    for name in conditions:
        if name not in known.input_names:
            raise TypeError(f"{known.op_type} has no input `{name}`; it has {', '.join(known.input_names)}")


def find_rule(op_type: str, domain: str = "", opset: int | None = None) -> RuleSpec | None:
    """Return the rule of the highest registered version not above `opset` (decision 6), or None."""
    rules = _RULES.get(("" if domain == "ai.onnx" else domain, op_type), [])
    if domain not in ("", "ai.onnx") or opset is None:
        return rules[-1] if rules else None
    fitting = [r for r in rules if r.opset <= opset]
    return fitting[-1] if fitting else None


def is_own(op_type: str, domain: str = "", opset: int | None = None) -> bool:
    """Return whether the rule of an operator was registered from outside of Onward (`register_gradient`)."""
    found = find_rule(op_type, domain, opset)
    function = None if found is None else found.function
    return function is not None and not function.__module__.startswith("onward.autodiff.")


def all_rules() -> list[RuleSpec]:
    """Return every registered rule, by domain, operator and version."""
    return [rule for key in sorted(_RULES) for rule in _RULES[key]]


def register_gradient(
    op_type: str, *, domain: str = "", opset: int | None = None, broadcasts: bool = False, **conditions: Any
) -> Callable[[RuleFunction], RuleFunction]:
    """Add or replace the gradient rule of an operator of any domain.

    >>> @register_gradient("Triple", domain="my.ops")
    ... def triple(rule, dY):
    ...     return {"X": rule.op.Mul(dY, 3.0)}
    >>> find_rule("Triple", "my.ops").function is triple
    True

    Without `opset` the rule takes the place of all there are, with the names of the newest schema; with it, it holds
    from that version up to the next registered one. For an operator without an ONNX schema, the inputs are taken in
    the order of the returned names.
    """
    importlib.import_module("onward.autodiff.rules")  # the built-in rules first, so that this one replaces them
    if opset is not None:
        return gradient(op_type, domain=domain, opset=opset, broadcasts=broadcasts, replace=True, **conditions)

    def register(function: RuleFunction) -> RuleFunction:
        newest = schema(op_type, domain)
        since = 1 if newest is None else newest.since_version
        gradient(op_type, domain=domain, opset=since, broadcasts=broadcasts, replace=True, **conditions)(function)
        made = next(r for r in _RULES[domain, op_type] if r.opset == since)
        _RULES[domain, op_type] = [dataclasses.replace(made, opset=1)]
        return function

    return register
