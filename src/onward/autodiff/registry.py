"""The table of gradient rules, and the four conditions an input can have.

A rule is one function. Its decorator names the operator and the first opset for which it holds:

    @gradient("Div", opset=7)
    def div(rule, dC):
        '''C = A / B, so dA = dC / B and dB = -dC * C / B.'''
        ...
        return {"A": dA, "B": dB}

Parameters after the first are named `d<Output>` after the schema's outputs; an output that is not named has no
gradient. Every input of the operator has one condition: a gradient (the default), `ZERO` (flat almost everywhere),
`NON_DIFFERENTIABLE` (indices, shapes) or `UNSUPPORTED("why")`. Names are checked against the ONNX schema when the
rule is registered, so a mistake fails at import and not in a training run.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from onward.graph.schema import GRADIENT_DOMAIN, Schema, newest_opset, schema

if TYPE_CHECKING:
    import onnx_ir as ir

    from onward.autodiff.rule import Rule
    from onward.autodiff.types import Grads
    from onward.graph.builder import Value


@dataclasses.dataclass(frozen=True)
class Condition:
    """What is known of the gradient with respect to one input."""

    kind: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.kind} ({self.reason})" if self.reason else self.kind


GRADIENT = Condition("GRADIENT")
ZERO = Condition("ZERO")
NON_DIFFERENTIABLE = Condition("NON_DIFFERENTIABLE")


def UNSUPPORTED(reason: str) -> Condition:
    """Return the condition of an input whose gradient exists but is not implemented, with the reason."""
    return Condition("UNSUPPORTED", reason)


def each(condition: Condition, *inputs: str) -> dict[str, Any]:
    """Return the keyword arguments that state one condition for several inputs."""
    return dict.fromkeys(inputs, condition)


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
        """Whether a gradient flows to an input or, for If, to what its branches capture."""
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

    Keyword arguments state the conditions of the inputs they name. All other inputs have a gradient, which the function
    returns under their name (a list for a variadic input). With `integers`, integer inputs and outputs may have a
    gradient too, which is a float: see rules/quantization.py.

    Raises:
        TypeError: a name is not in the ONNX schema, or the operator has a rule already and `replace` is false.
    """

    def register(function: RuleFunction) -> RuleFunction:
        parameters = list(inspect.signature(function).parameters.values())[1:]
        variadic = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
        names = tuple(p.name for p in parameters)
        for name in names:
            if not name.startswith("d"):
                raise TypeError(f"{op_type}: parameter `{name}` must be `d` followed by an output's name")
        outputs = tuple(n[1:] for n in names)
        spec = RuleSpec(domain, op_type, opset, function, outputs, variadic, conditions, broadcasts, integers)
        _add(spec, replace=replace)
        return function

    return register


def declare(op_type: str, *, opset: int = 1, domain: str = "", **conditions: Condition) -> None:
    """Register an operator without gradients: state the condition of every input."""
    _add(RuleSpec(domain, op_type, opset, None, (), False, conditions, False))


Body = Callable[["ir.Node", int], "ir.Function | None"]
BODIES: dict[tuple[str, str], Body] = {}


def through_body(
    op_type: str, *, opset: int, domain: str = "", body: Body | None = None, **conditions: Condition
) -> None:
    """Register an operator that is differentiated through its body; inputs not named have a gradient.

    `body(node, opset)` returns the body where the standard has none, or None where it cannot be built for that node.
    """
    if body is not None:
        BODIES[domain, op_type] = body
    _add(RuleSpec(domain, op_type, opset, replaced_by_its_body, (), False, conditions, False))


def replaced_by_its_body(rule: Rule, *outputs: Value | None) -> Grads:
    """Raise Unsupported: the operator's body should have taken its place."""
    from onward.autodiff.problems import Unsupported

    raise Unsupported("its body in the standard could not be built: its inputs need types and shapes")


def _add(spec: RuleSpec, *, replace: bool = False) -> None:
    """Check the rule against the ONNX schema and put it in the table."""
    key = (spec.domain, spec.op_type)
    if spec.domain == "" and spec.opset > newest_opset():
        return  # the installed onnx does not know the operator yet, so no graph with it can be read either
    known = schema(spec.op_type, spec.domain, spec.opset if spec.domain == "" else None)
    if known is not None:
        spec = dataclasses.replace(spec, conditions=_all_conditions(known, spec))
    elif spec.domain == "":
        raise TypeError(f"{spec.op_type} is not an operator of ai.onnx at opset {spec.opset}")
    others = [r for r in _RULES.get(key, []) if r.opset != spec.opset]
    if len(others) < len(_RULES.get(key, [])) and not replace:
        raise TypeError(f"{spec.op_type} (opset {spec.opset}) already has a rule; pass replace=True to take its place")
    _RULES[key] = sorted([*others, spec], key=lambda r: r.opset)


def _all_conditions(known: Schema, spec: RuleSpec) -> dict[str, Condition]:
    """Return the condition of every input; raise TypeError where a name is not in the schema or one is missing."""
    for kind, given, names in (
        ("output", spec.outputs, known.output_names),
        ("input", spec.conditions, known.input_names),
    ):
        for name in given:
            if name not in names:
                raise TypeError(f"{known.op_type} has no {kind} `{name}`; it has {', '.join(names)}")
    conditions = {name: spec.conditions.get(name, GRADIENT) for name in known.input_names}
    missing = [name for name, condition in conditions.items() if condition is GRADIENT]
    if missing and spec.function is None:
        raise TypeError(f"{spec.op_type}: no condition stated for input {', '.join(missing)}")
    return conditions


def find_rule(op_type: str, domain: str = "", opset: int | None = None) -> RuleSpec | None:
    """Return the rule with the highest opset that is not above `opset` (decision 6), or None."""
    rules = _RULES.get(("" if domain == "ai.onnx" else domain, op_type), [])
    if domain not in ("", "ai.onnx") or opset is None:
        return rules[-1] if rules else None
    fitting = [r for r in rules if r.opset <= opset]
    return fitting[-1] if fitting else None


def is_own(op_type: str, domain: str = "", opset: int | None = None) -> bool:
    """Return whether the rule is not what autograd would find: a user registered it (`register_gradient`), or it is
    of a function that stands for a derivative of its own."""
    if domain == GRADIENT_DOMAIN:
        return True
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

    Without `opset`, the rule replaces all rules of the operator and uses the names of the newest schema. With `opset`,
    it holds from that version up to the next registered one. For an operator without an ONNX schema, the returned names
    stand for the inputs in order.
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
