"""Refuse parameters that no gradient can reach, before a training step is built: every way to the loss is blocked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onward.autodiff.engine import FLOAT_OR_ANY
from onward.autodiff.function_bodies import Functions, body_of
from onward.autodiff.problems import D201, D202
from onward.autodiff.registry import find_rule
from onward.errors import Diagnostic, NotDifferentiable, named_node
from onward.graph import walk
from onward.graph.builder import Value
from onward.graph.schema import schema

_STOPS = ("ZERO", "NON_DIFFERENTIABLE")


def check_ways(parameters: Sequence[Value], outputs: Iterable[Value], functions: Functions, opset: int) -> None:
    """Raise if there is a parameter whose every way to the outputs goes through an operator without a gradient.

    Raises:
        NotDifferentiable: lists every blocking node, with the parameters behind it.
    """
    reached: set[Value] = set()
    blocks: dict[ir.Node, tuple[str, str]] = {}
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
        queue += _open_inputs(node, functions, opset, blocks)
    behind: dict[ir.Node, list[Value]] = {}
    for parameter in parameters:
        if parameter not in reached:
            for node in _first_blocks(parameter, blocks):
                behind.setdefault(node, []).append(parameter)
    if behind:
        raise NotDifferentiable([_diagnostic(node, *blocks[node], found) for node, found in behind.items()])


def _open_inputs(
    node: ir.Node, functions: Functions, opset: int, blocks: dict[ir.Node, tuple[str, str]]
) -> list[Value]:
    """Return the inputs that get a gradient from the node; note in `blocks` why another one gets none."""
    spec = find_rule(node.op_type, node.domain, opset)
    floats = [(i, v) for i, v in enumerate(node.inputs) if v is not None and v.dtype in FLOAT_OR_ANY]
    if spec is None:
        if not floats or body_of(node, functions, opset) is not None or any(walk.subgraphs(node)):
            return walk.reads(node)
        version = f", opset {opset}" if node.domain == "" else ""
        blocks[node] = (D201, f"no gradient rule for `{node.op_type}` ({node.domain or 'ai.onnx'}{version})")
        return []
    known = schema(node.op_type, node.domain, opset if node.domain == "" else None)
    found = [v for v in walk.reads(node) if v not in node.inputs]  # what its bodies capture
    for index, value in enumerate(node.inputs):
        if value is None:
            continue
        name = known.input_at(index).name if known is not None else ""
        condition = spec.conditions.get(name)
        if condition is not None and condition.kind == "UNSUPPORTED":
            message = f"no gradient with respect to input `{name}` of `{node.op_type}`: {condition.reason}"
            blocks.setdefault(node, (D202, message))
        elif condition is None or condition.kind not in _STOPS:
            found.append(value)
    return found


def _first_blocks(parameter: Value, blocks: dict[ir.Node, tuple[str, str]]) -> list[ir.Node]:
    """Return the blocking nodes that the ways from the parameter come to first."""
    found: dict[ir.Node, None] = {}
    queue, seen = [parameter], {parameter}
    while queue:
        for node, _ in queue.pop().uses():
            if node in blocks:
                found.setdefault(node)
                continue
            fresh = [v for v in node.outputs if v not in seen]
            seen.update(fresh)
            queue += fresh
    return list(found)


def _diagnostic(node: ir.Node, code: str, message: str, behind: Sequence[Value]) -> Diagnostic:
    names = walk.sequence_of(behind[:3]) + (f" and {len(behind) - 3} more" if len(behind) > 3 else "")
    freeze = ", ".join(f'"{v.name}"' for v in behind[:3])
    remedy = "add a rule (docs/adding_a_rule.md)" if code == D201 else "change that part of the model"
    return Diagnostic(
        code,
        message,
        place=f"{named_node(node)}, between parameter{'s' * (len(behind) > 1)} {names} and the loss",
        found="every way to the loss goes through an operator without a gradient",
        hint=f"freeze {'it' if len(behind) == 1 else 'them'} with freeze=[{freeze}], or {remedy}",
    )
