"""Reverse mode over an onnx-ir graph. Everything common to all rules is here, once.

`backward` walks the nodes between `wrt` and `of` in reverse, calls each one's rule, sums what broadcasting spread,
casts, adds up the contributions of several uses, and names the result `grad/<name>`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onward.autodiff.registry import GRADIENT, RuleSpec, find_rule
from onward.autodiff.rule import Rule
from onward.errors import Diagnostic, NotDifferentiable, define
from onward.model import graphs
from onward.model.builder import Builder, Names, Value
from onward.model.schema import Schema, schema
from onward.model.training_model import FLOAT_TYPES

D201 = define(
    "D201",
    "no gradient rule for an operator",
    why="The operator lies between a value to differentiate by and the loss, and Onward has no rule for it.",
    fix="Freeze the parameters behind it, or add a rule with onward.register_gradient (docs/adding_a_rule.md).",
)
D202 = define(
    "D202",
    "the gradient by an input is not supported",
    why="The operator has a rule, but not for this input or this combination of attributes.",
    fix="Freeze the parameters behind it, or rewrite that part of the model as the message says.",
)
D203 = define(
    "D203",
    "no gradient through an output",
    why="The loss depends on an output of the operator that carries no gradient.",
    fix="Use a differentiable output, or freeze the parameters behind it.",
)


@dataclasses.dataclass
class Slice:
    """The part of a graph between the cut (`wrt` and `constants`) and `of`, in topological order."""

    nodes: list[ir.Node]
    active: set[ir.Value]  # values that depend on some `wrt`


def find_slice(of: Value, wrt: Sequence[Value], constants: Iterable[Value], order: Iterable[ir.Node]) -> Slice:
    """Return the nodes on a path from `wrt` to `of` that crosses neither `wrt` nor `constants` again."""
    cut = {*wrt, *constants}
    needed = graphs.ancestors([of], stop=cut)
    active: set[Value] = set(wrt)
    nodes = []
    for node in order:
        if node not in needed:
            continue
        if any(v in active for v in graphs.reads(node)):
            nodes.append(node)
            active.update(v for v in node.outputs if v not in cut)
    return Slice(nodes, active)


class Backward:
    """One reverse sweep. `nodes` of the builder `op` hold the backward graph when it is done."""

    def __init__(self, opset: int, names: Names) -> None:
        self.op = Builder(opset, names, prefix="grad/")
        self.names = names
        self.problems: list[Diagnostic] = []
        self._contributions: dict[Value, list[Value]] = {}

    def run(self, of: Value, wrt: Sequence[Value], part: Slice, seed: Value | None = None) -> list[Value | None]:
        """Return d(sum of `of`)/d(w) for each w, or with `seed`, the product of `seed` with the Jacobian.

        None stands for "independent of it". Raises NotDifferentiable with every blocking node.
        """
        if seed is None:
            seed = self._helper().full_like(of, 1.0)
        self._contributions[of] = [seed]
        wanted = set(wrt)
        for node in reversed(part.nodes):
            if any(v in self._contributions for v in node.outputs if v not in wanted or v is of):
                self._visit(node, part)
        if self.problems:
            raise NotDifferentiable(_unique(self.problems))
        return [self._total(w) for w in wrt]

    def _helper(self) -> Rule:
        return Rule(ir.Node("", "Identity", []), None, self.op, frozenset())

    def _visit(self, node: ir.Node, part: Slice) -> None:
        inputs = [
            i for i, v in enumerate(node.inputs) if v is not None and v in part.active and v.dtype in FLOAT_OR_ANY
        ]
        spec = find_rule(node.op_type, node.domain, self.op.opset)
        if spec is None:
            self._refuse(D201, node, f"no gradient rule for `{node.op_type}` ({node.domain or 'ai.onnx'})")
            return
        known = schema(node.op_type, node.domain, self.op.opset if node.domain == "" else None)
        positions = {i: _condition_name(spec, known, i) for i in inputs}
        for index, name in positions.items():
            condition = spec.conditions.get(name, GRADIENT)
            if condition.kind == "UNSUPPORTED":
                self._refuse(
                    D202,
                    node,
                    f"no gradient by input `{name}` of `{node.op_type}`: {condition.reason}",
                    node.inputs[index],
                )
        needed = frozenset(i for i, n in positions.items() if spec.conditions.get(n, GRADIENT) is GRADIENT)
        if spec.function is None or (not needed and not any(True for _ in graphs.subgraphs(node))):
            return
        before = self.op.prefix
        self.op.prefix = f"grad/{node.name or node.outputs[0].name}/"
        rule = Rule(node, known, self.op, needed)
        arguments = self._output_gradients(node, spec, known)
        if arguments is not None:
            try:
                result = spec.function(rule, *arguments)
            except Unsupported as unsupported:
                self._refuse(D202, node, f"no gradient of `{node.op_type}`: {unsupported}")
            else:
                self._distribute(node, rule, spec, result, part)
        self.op.prefix = before

    def _output_gradients(self, node: ir.Node, spec: RuleSpec, known: Schema | None) -> list[Value | None] | None:
        totals = [self._total(v) for v in node.outputs]
        if known is None:
            count = len(spec.outputs)
            return totals if spec.variadic_output else totals[:count]
        chosen: list[Value | None] = []
        used: set[int] = set()
        for name in spec.outputs:
            index = known.output_names.index(name)
            if spec.variadic_output and known.outputs[index].variadic:
                chosen += totals[index:]
                used.update(range(index, len(totals)))
            else:
                chosen.append(totals[index] if index < len(totals) else None)
                used.add(index)
        for index, total in enumerate(totals):
            if total is not None and index not in used:
                output = node.outputs[index]
                self._refuse(D203, node, f"no gradient through output `{output.name}` of `{node.op_type}`", output)
                return None
        return None if all(c is None for c in chosen) else chosen

    def _distribute(self, node: ir.Node, rule: Rule, spec: RuleSpec, result: object, part: Slice) -> None:
        assert isinstance(result, dict), f"the rule of {node.op_type} returned {type(result).__name__}, not a dict"
        expected = set(spec.conditions) | ({"captured"} if any(True for _ in graphs.subgraphs(node)) else set())
        for position, name in enumerate(result):
            if spec.conditions and name not in expected:
                raise TypeError(f"the rule of {node.op_type} returned a gradient for `{name}`, which is not an input")
            given = result[name]
            if name == "captured":
                for value, grad in given:
                    self._contribute(node, rule, spec, value, grad, part)
                continue
            start = rule.schema.input_names.index(name) if rule.schema is not None else position
            for offset, grad in enumerate(given if isinstance(given, list) else [given]):
                if start + offset < len(node.inputs):
                    self._contribute(node, rule, spec, node.inputs[start + offset], grad, part)

    def _contribute(
        self, node: ir.Node, rule: Rule, spec: RuleSpec, value: Value | None, grad: Value | None, part: Slice
    ) -> None:
        if value is None or grad is None or value not in part.active:
            return
        if spec.broadcasts:
            grad = rule.unbroadcast(grad, node.outputs[0], value)
        if grad.dtype is not None and value.dtype is not None and grad.dtype != value.dtype:
            grad = self.op.cast(grad, value.dtype)
        self._contributions.setdefault(value, []).append(grad)

    def _total(self, value: Value) -> Value | None:
        grads = self._contributions.get(value)
        if not grads:
            return None
        if len(grads) > 1:
            prefix, self.op.prefix = self.op.prefix, f"grad/{value.name}/"
            total = grads[0]
            for grad in grads[1:]:
                total = self.op.Add(total, grad, name="accumulate")
            self.op.prefix = prefix
            self._contributions[value] = grads = [total]
        grad = grads[0]
        if grad.shape is None and value.shape is not None:
            grad.shape = value.shape
        if grad.type is None:
            grad.type = value.type
        return grad

    def _refuse(self, code: str, node: ir.Node, message: str, value: Value | None = None) -> None:
        self.problems.append(
            Diagnostic(
                code,
                message,
                place=f"node `{node.name or node.op_type}`" + (f", value `{value.name}`" if value is not None else ""),
                hint="freeze the parameters behind it, or add a rule with onward.register_gradient "
                "(docs/adding_a_rule.md)",
            )
        )


class Unsupported(Exception):
    """Raised by a rule that cannot differentiate this particular node; the message says why and what to do."""


# Types that may carry a gradient; None is a type that inference did not find (sequences, optionals, unknown).
FLOAT_OR_ANY = frozenset({*FLOAT_TYPES, None})


def _condition_name(spec: RuleSpec, known: Schema | None, index: int) -> str:
    if known is not None:
        return known.input_at(index).name
    names = list(spec.conditions)
    return names[index] if index < len(names) else ""


def _unique(problems: Sequence[Diagnostic]) -> list[Diagnostic]:
    return list(dict.fromkeys(problems))


def zeros(op: Builder, like: Value) -> Value:
    """Return zeros of the shape and type of `like`: the gradient by something the result does not depend on."""
    return Rule(ir.Node("", "Identity", []), None, op, frozenset()).zeros_like(like)
