"""Which values a gradient can reach, by the rules alone: without building the gradient."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onward.autodiff.engine import FLOAT_OR_ANY
from onward.autodiff.registry import RuleSpec, find_rule
from onward.graph import walk
from onward.graph.builder import Value
from onward.graph.schema import schema

_STOPS = ("ZERO", "NON_DIFFERENTIABLE")


def gradient_reach(outputs: Iterable[Value], opset: int) -> set[Value]:
    """Return the values from which a differentiable path leads to one of `outputs`.

    A path ends where an operator has no gradient with respect to an input (ArgMax, Round, the indices of Gather). A
    node without a rule does not end it: such a node is an error, which the gradient reports.
    """
    reached: set[Value] = set()
    queue = list(outputs)
    while queue:
        value = queue.pop()
        if value in reached:
            continue
        reached.add(value)
        node = value.producer()
        if node is None:
            continue
        queue += [v for graph in walk.subgraphs(node) for v in graph.outputs]
        queue += _sources(node, find_rule(node.op_type, node.domain, opset), opset)
    return reached


def _sources(node: ir.Node, spec: RuleSpec | None, opset: int) -> list[Value]:
    """Return the inputs that get a gradient from the outputs."""
    known = schema(node.op_type, node.domain, opset if node.domain == "" else None)
    found = []
    for index, value in enumerate(node.inputs):
        if value is None or not (value.dtype in FLOAT_OR_ANY or (spec is not None and spec.integers)):
            continue
        condition = None
        if spec is not None and known is not None:
            condition = spec.conditions.get(known.input_at(index).name)
        if condition is None or condition.kind not in _STOPS:
            found.append(value)
    return found


def barriers(value: Value, reached: set[Value]) -> list[str]:
    """Return the operators at which every path from `value` to the outputs ends, each once."""
    found: dict[str, None] = {}
    queue, seen = [value], {value}
    while queue:
        for node, _ in queue.pop().uses():
            if any(v in reached for v in node.outputs):
                found.setdefault(node.op_type)
                continue
            fresh = [v for v in node.outputs if v not in seen]
            seen.update(fresh)
            queue += fresh
            if node.op_type in ("ArgMax", "ArgMin", "NonMaxSuppression", "TopK", "NonZero"):
                found.setdefault(node.op_type)
    return list(found)
