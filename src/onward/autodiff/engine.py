"""Reverse mode over an onnx-ir graph. Everything common to all rules is here, once.

`Backward` walks the nodes between `wrt` and `of` in reverse and calls the rule of each. It undoes broadcasting, casts,
adds the gradients of several uses, and names the result after the forward node: `grad/<name>/…`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onward.autodiff import sequences
from onward.autodiff.emit import Emitter
from onward.autodiff.problems import D201, D202, D203, Problem, Unsupported, refusal
from onward.autodiff.registry import GRADIENT, RuleSpec, find_rule
from onward.autodiff.rule import Rule
from onward.graph import walk
from onward.graph.builder import Builder, Value
from onward.graph.schema import Schema, schema
from onward.graph.shapes import dims
from onward.model.training_model import FLOAT_TYPES

# Types that may carry a gradient; None is a type that inference did not find.
FLOAT_OR_ANY = frozenset({*FLOAT_TYPES, None})

_QUANTIZED = frozenset(t for t in ir.DataType if t.name.startswith(("INT", "UINT", "FLOAT")) and t.bitwidth <= 16) - {
    *FLOAT_TYPES
}
# Element by element, with places where value or slope is infinite.
_WITH_POLES = frozenset(
    {"Div", "Log", "Sqrt", "Pow", "Reciprocal", "Asin", "Acos", "Acosh", "Atanh", "Tan", "Exp", "Sinh", "Cosh"}
)
_INTEGERS = (
    "straight-through gradients pass integers only between QuantizeLinear and DequantizeLinear; "
    "move the node before the QuantizeLinear, or behind the DequantizeLinear"
)


@dataclasses.dataclass
class Slice:
    """The part of a graph between the cut (`wrt` and `constants`) and `of`, in topological order."""

    nodes: list[ir.Node]
    active: set[ir.Value]  # values that depend on some `wrt`


def find_slice(
    of: Value | Sequence[Value], wrt: Sequence[Value], constants: Iterable[Value], order: Iterable[ir.Node]
) -> Slice:
    """Return the nodes on the paths from `wrt` to `of` that do not pass through `constants`."""
    cut = set(constants)
    needed = walk.ancestors([of] if isinstance(of, ir.Value) else of, stop=cut)
    active: set[Value] = {w for w in wrt if w not in cut}
    nodes = []
    for node in order:
        if node in needed and any(v in active for v in walk.reads(node)):
            nodes.append(node)
            active.update(v for v in node.outputs if v not in cut)
    return Slice(nodes, active)


@dataclasses.dataclass
class Group:
    """The backward of one forward node: the nodes its rule made, and the gradients that enter and leave it."""

    forward: ir.Node
    nodes: list[ir.Node]
    arriving: list[tuple[str, Value | None]]  # by the name of the output
    leaving: dict[Value, str]  # the name of the input, by gradient
    known: Schema | None

    def names(self) -> dict[Value, str]:
        """Return the names of the values in the rule: inputs and outputs as in the schema, gradients with a d."""
        names: dict[Value, str] = {}
        if self.known is not None:
            names |= {v: self.known.input_at(i).name for i, v in enumerate(self.forward.inputs) if v is not None}
            names |= {v: self.known.output_at(i).name for i, v in enumerate(self.forward.outputs)}
        names |= {v: f"d{name}" for name, v in self.arriving if v is not None}
        return names | {v: f"d{name}" for v, name in self.leaving.items()}


class Backward:
    """One reverse sweep; at its end, `op.nodes` holds the backward graph.

    A rule for a node with subgraphs starts further sweeps inside it with `inner`.
    """

    def __init__(self, op: Emitter, within: tuple[ir.Node, ...] = (), problems: list[Problem] | None = None) -> None:
        self.op = op
        self.within = within
        self.problems: list[Problem] = [] if problems is None else problems
        self.part = Slice([], set())
        self.groups: list[Group] = []
        self._contributions: dict[Value, list[Value]] = {}

    def inner(self, node: ir.Node) -> Backward:
        """Return a sweep for a subgraph of `node`; both collect their problems in one list."""
        return Backward(self.op.inner(self.op.prefix), (*self.within, node), self.problems)

    def wants(self, value: Value) -> bool:
        """Return whether `value` may carry a gradient: it is a float and depends on something in `wrt`."""
        return value in self.part.active and value.dtype in FLOAT_OR_ANY

    def run(self, of: Value, wrt: Sequence[Value], part: Slice, seed: Value | None = None) -> list[Value | None]:
        """Return d(sum of `of`)/d(w) for each w, or with `seed`, the product of `seed` with the Jacobian.

        None means that `of` does not depend on w. Raises NotDifferentiable with every blocking node.
        """
        if seed is None:
            seed = helper(self.op).full_like(of, 1.0)
        grads = self.sweep([(of, seed)], wrt, part)
        if self.problems:
            raise refusal(self.problems, of, wrt, part)
        return grads

    def sweep(self, seeds: Iterable[tuple[Value, Value]], wrt: Sequence[Value], part: Slice) -> list[Value | None]:
        """Return the gradients with respect to `wrt`, given (value, gradient) pairs. Collect problems, raise none."""
        self.part = part
        for value, seed in seeds:
            if value in part.active:
                self._contributions.setdefault(value, []).append(seed)
        for node in reversed(part.nodes):
            if any(v in self._contributions for v in node.outputs):
                self._visit(node)
        return [self._total(w) for w in wrt]

    def _visit(self, node: ir.Node) -> None:
        """Take the gradients of the node's outputs to its inputs, or note why that is not possible."""
        spec = self._rule_of(node)
        if spec is None:
            return
        known = schema(node.op_type, node.domain, self.op.opset if node.domain == "" else None)
        needed = self._needed_inputs(node, spec, known)
        if spec.function is None or (not needed and not any(True for _ in walk.subgraphs(node))):
            return
        prefix, self.op.prefix = self.op.prefix, f"grad/{node.name or node.outputs[0].name}/"
        arguments = self._output_gradients(node, spec, known)
        if arguments is not None:
            self._apply(spec, Rule(node, known, self.op, needed, self), arguments)
        self.op.prefix = prefix

    def _rule_of(self, node: ir.Node) -> RuleSpec | None:
        """Return the node's rule, or None after noting why none can be used."""
        spec = find_rule(node.op_type, node.domain, self.op.opset)
        if spec is None:
            version = f", opset {self.op.opset}" if node.domain == "" else ""
            self._refuse(D201, node, f"no gradient rule for `{node.op_type}` ({node.domain or 'ai.onnx'}{version})")
            return None
        if (not spec.integers and any(map(self._carries_integers, node.outputs))) or self._dequantizes_inside(node):
            self._refuse(D202, node, f"no gradient of `{node.op_type}` with respect to integers: {_INTEGERS}")
            return None
        return spec

    def _needed_inputs(self, node: ir.Node, spec: RuleSpec, known: Schema | None) -> frozenset[int]:
        """Return the positions of the inputs that get a gradient; note those whose gradient is not supported."""
        needed = set()
        for index, value in enumerate(node.inputs):
            if value is None or value not in self.part.active or not (value.dtype in FLOAT_OR_ANY or spec.integers):
                continue
            name = _condition_name(spec, known, index)
            condition = spec.conditions.get(name, GRADIENT)
            if condition is GRADIENT:
                needed.add(index)
            elif condition.kind == "UNSUPPORTED":
                message = f"no gradient with respect to input `{name}` of `{node.op_type}`: {condition.reason}"
                self._refuse(D202, node, message, value)
        return frozenset(needed)

    def _apply(self, spec: RuleSpec, rule: Rule, arguments: list[Value | None]) -> None:
        """Call the rule and add what it returns to the gradients of the inputs."""
        node, start = rule.node, len(self.op.nodes)
        assert spec.function is not None
        used = self._used_elements(node)  # now: the rule may read the outputs of the node
        try:
            result = spec.function(rule, *arguments)
        except Unsupported as unsupported:
            self._refuse(D202, node, f"no gradient of `{node.op_type}`: {unsupported}")
            return
        if used is not None:
            zero = [self.op.constant(0.0, v.dtype) for v in result.values() if isinstance(v, ir.Value)][:1]
            result = {n: self.op.Where(used, v, *zero) if isinstance(v, ir.Value) else v for n, v in result.items()}
        leaving = self._distribute(node, rule, spec, result, complete=all(a is not None for a in arguments))
        named = [*spec.outputs, *spec.outputs[-1:] * (len(arguments) - len(spec.outputs))]  # variadic: the last
        arriving = list(zip(named, arguments, strict=True))
        self.groups.append(Group(node, self.op.nodes[start:], arriving, leaving, rule.schema))

    def _used_elements(self, node: ir.Node) -> Value | None:
        """Return where a Where takes the result of an operator that has poles, if that alone reads it; else None.

        In `Where(x == 0, 1, sin(x) / x)`, the gradient that reaches the division is 0 at x = 0, and 0 / 0 is not a
        number. A finite difference says 0. PyTorch and JAX say NaN.
        """
        output = node.outputs[0]
        uses = list(output.uses())
        if node.op_type not in _WITH_POLES or node.domain != "" or len(uses) != 1 or output.is_graph_output():
            return None
        reader, index = uses[0]
        condition = reader.inputs[0]
        if reader.op_type != "Where" or reader.domain != "" or index == 0 or condition is None:
            return None
        if reader not in self.part.nodes:  # the result itself is differentiated, or a branch reads it
            return None
        shape = dims(condition)
        if shape is None or None in shape or shape != dims(output):
            return None  # one element of the result may be used at one place and not at another
        return condition if index == 1 else self.op.Not(condition)

    def _output_gradients(self, node: ir.Node, spec: RuleSpec, known: Schema | None) -> list[Value | None] | None:
        """Return the rule's arguments, or None if it gets no gradient that it can use."""
        totals = [self._total(v) for v in node.outputs]
        if known is None:
            return totals if spec.variadic_output else totals[: len(spec.outputs)]
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
                name = known.output_at(index).name
                self._refuse(D203, node, f"no gradient through output `{name}` of `{node.op_type}`", output)
                return None
        return None if all(c is None for c in chosen) else chosen

    def _distribute(
        self, node: ir.Node, rule: Rule, spec: RuleSpec, result: object, *, complete: bool
    ) -> dict[Value, str]:
        """Add the gradients that a rule returned to those of the inputs; return the input's name for each gradient."""
        if not isinstance(result, dict):
            raise TypeError(f"the rule of {node.op_type} returned {type(result).__name__}, not a dict")
        expected = {*spec.conditions, "captured"}
        names: dict[Value, str] = {}
        for position, (name, given) in enumerate(result.items()):
            if spec.conditions and name not in expected:
                raise TypeError(f"the rule of {node.op_type} returned a gradient for `{name}`, which is not an input")
            if name == "captured":
                for value, grad in given:
                    self._contribute(node, rule, spec, value, grad)
                continue
            start = rule.schema.input_names.index(name) if rule.schema is not None else position
            for offset, grad in enumerate(given if isinstance(given, list) else [given]):
                if start + offset < len(node.inputs):
                    given_on = self._contribute(node, rule, spec, node.inputs[start + offset], grad)
                    if given_on is not None:
                        names[given_on] = name
        if rule.schema is not None and complete:
            _refuse_forgotten(node, rule, result)
        return names

    def _contribute(
        self, node: ir.Node, rule: Rule, spec: RuleSpec, value: Value | None, grad: Value | None
    ) -> Value | None:
        """Add `grad` to the gradient of `value`, in the shape and type of `value`; return it in that form."""
        if value is None or grad is None or value not in self.part.active:
            return None
        if _is_integer(value):  # only rules that say `integers` give these
            others = self._contributions.get(value, [grad])
            grad = grad if others[0].dtype is None else self.op.cast(grad, others[0].dtype)
            self._contributions.setdefault(value, []).append(grad)
            return grad
        if spec.broadcasts:
            grad = rule.unbroadcast(grad, node.outputs[0], value)
        if grad.dtype is not None and value.dtype is not None and grad.dtype != value.dtype:
            grad = self.op.cast(grad, value.dtype)
        self._contributions.setdefault(value, []).append(grad)
        return grad

    def _total(self, value: Value) -> Value | None:
        grads = self._contributions.get(value)
        if not grads:
            return None
        if len(grads) > 1:
            prefix, self.op.prefix = self.op.prefix, f"grad/{value.name}/"
            if isinstance(value.type, ir.SequenceType):
                total = grads[0]
                for grad in grads[1:]:
                    total = sequences.add(self.op, total, grad)
            elif len(grads) == 2:
                total = self.op.Add(*grads, name="accumulate")
            else:
                total = self.op.Sum(*grads, name="accumulate")
            self.op.prefix = prefix
            self._contributions[value] = grads = [total]
        grad = grads[0]
        if grad.shape is None and value.shape is not None:
            grad.shape = value.shape
        if grad.type is None:
            grad.type = gradient_type(value)
        return grad

    def _dequantizes_inside(self, node: ir.Node) -> bool:
        """Return whether a subgraph may turn integers that carry a gradient into floats: inner sweeps cannot follow."""
        inner = [n for g in walk.subgraphs(node) for n in walk.all_nodes(g)]
        return any(n.op_type == "DequantizeLinear" for n in inner) and any(
            v in self.part.active and _is_integer(v) for v in walk.reads(node)
        )

    def _carries_integers(self, value: Value) -> bool:
        return value in self._contributions and _is_integer(value)

    def _refuse(self, code: str, node: ir.Node, message: str, value: Value | None = None) -> None:
        """Note a blocking node and give its inputs a stand-in gradient, so that the sweep finds further problems."""
        self.problems.append(Problem(code, message, node, value, self.within))
        for source in walk.reads(node) if value is None or value not in node.inputs else [value]:
            if source in self.part.active and source.dtype in FLOAT_OR_ANY:
                stand_in = ir.Value(name=f"blocked/{source.name}", type=source.type, shape=source.shape)
                self._contributions.setdefault(source, []).append(stand_in)


def _refuse_forgotten(node: ir.Node, rule: Rule, result: dict[str, object]) -> None:
    """Raise TypeError if a rule left out an input: it has to return None where no gradient flows.

    Only where all outputs have a gradient: a rule may leave out what depends on the others alone.
    """
    forgotten = rule.needed_names() - set(result)
    if forgotten and (result or not any(True for _ in walk.subgraphs(node))):
        raise TypeError(f"the rule of {node.op_type} returned no gradient for {', '.join(sorted(forgotten))}")


def _condition_name(spec: RuleSpec, known: Schema | None, index: int) -> str:
    if known is not None:
        return known.input_at(index).name
    names = list(spec.conditions)
    return names[index] if index < len(names) else ""


def _is_integer(value: Value) -> bool:
    """Return whether `value` has a type that QuantizeLinear makes: small integers or floats of 8 bits."""
    return isinstance(value.type, ir.TensorType) and value.dtype in _QUANTIZED


def gradient_type(value: Value) -> ir.TypeProtocol | None:
    """Return the type of the gradient of `value`: its own; for an optional, the type of what it holds."""
    return value.type.elem_type if isinstance(value.type, ir.OptionalType) else value.type


def helper(op: Builder) -> Rule:
    """Return a `Rule` for its tools, without a node to differentiate."""
    return Rule(ir.Node("", "Identity", []), None, op, frozenset())


def zeros(op: Builder, like: Value) -> Value:
    """Return zeros of the shape and type of `like`: its gradient where the result does not depend on it."""
    return helper(op).zeros_like(like)
