"""The forward part of a gradients graph, for a framework that differentiates by itself.

The gradients graph of a program contains an explicit backward pass. A framework's own is faster, because one kernel
replaces several plain operators. Both give the same numbers up to rounding. The explicit backward pass runs if a graph
needs more than gradients of one value with respect to parameters.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.compiler.program import Entry, PlainGraph
from onward.graph import walk

# `onward.straight_through` chooses their gradient; a framework does not know it.
ROUNDING = {"QuantizeLinear", "DynamicQuantizeLinear", "DequantizeLinear"}


class ForwardPart:
    """The nodes of a gradients graph without the backward pass: `outputs` of `graph`, the value `y` among them."""

    def __init__(self, step: PlainGraph) -> None:
        """Take the graph of an entry for which `why_not` returns ""."""
        self.opset = step.opset
        self.graph = step.copy_model().graph
        (self.y,) = {y for y, _ in step.gradient_of.values()}
        self.state_of = {gradient: x for gradient, (_, x) in step.gradient_of.items()}
        self.parameters = list(dict.fromkeys(self.state_of.values()))
        self.input_names = [v.name or "" for v in self.graph.inputs]
        self.outputs: list[ir.Value] = [v for v in self.graph.outputs if v.name not in step.gradient_of]
        if self.y not in {v.name for v in self.outputs}:
            self.outputs.append(next(v for n in self.graph for v in n.outputs if v.name == self.y))


def why_not(entry: Entry) -> str:
    """Return why a framework cannot compute the gradients of an entry by itself, or "" if it can."""
    if entry.gradients is None or entry.update is None:
        return "the program has no gradients graph (compile it with split=True)"
    return why_not_graphs(entry.gradients, entry.update)


def why_not_graphs(step: PlainGraph, update: PlainGraph) -> str:
    """Return the same for a graph of gradients and the graph of an update."""
    gradients = step.gradient_of
    read = update.input_names
    if not gradients or any(n in read and n not in gradients for n in step.outputs):
        return "it differentiates with respect to values other than state, or uses your own gradient rules"
    if len({y for y, _ in gradients.values()}) > 1:
        return "it differentiates several values"
    graph = step.model.graph
    outputs = {v.name: v for v in graph.outputs}
    defined = {v.name for n in graph for v in n.outputs}
    (y,) = {y for y, _ in gradients.values()}
    if y not in defined:
        return f"`{y}` is not computed in the graph"
    given = {v.producer() for name, v in outputs.items() if name in gradients} - {None}
    forward = [v for name, v in outputs.items() if name not in gradients]
    behind = walk.ancestors([*forward, *(v for n in graph for v in n.outputs if v.name == y)])
    if given & behind:
        return "an output is computed from a gradient"
    if any(n.op_type in ROUNDING for n in behind):
        return "it rounds to integers, and the compiled program chose the gradient"
    return ""
