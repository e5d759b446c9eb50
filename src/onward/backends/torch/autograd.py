"""Differentiate the forward half of a gradients graph with PyTorch's autograd.

The gradients graph of a program contains an explicit backward pass. Autograd is faster, because one kernel replaces
several plain operators, and DistributedDataParallel needs it. Both give the same numbers up to rounding. The explicit
backward pass runs if a graph needs more than gradients of one value with respect to parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn

from onward.compiler.program import Entry, PlainGraph
from onward.graph import walk

# `onward.straight_through` chooses their gradient; autograd does not know it.
_ROUNDING = {"QuantizeLinear", "DynamicQuantizeLinear", "DequantizeLinear"}
_BRANCHING = {"If", "Loop", "Scan"}

Run = Callable[[Mapping[str, Any]], dict[str, Any]]


class Forward(nn.Module):  # type: ignore[misc]  # torch is not typed here
    """The forward part of a gradients graph; calling it returns the value that is differentiated.

    Its parameters are placeholders; `differentiate` points them to the current states.
    """

    def __init__(
        self,
        step: PlainGraph,
        make: Callable[[ir.Graph, int, Sequence[ir.Value]], Run],
        state: Mapping[str, Tensor],
        whole: Callable[[Any], Tensor],
    ) -> None:
        """Prepare the graph of an entry for which `why_not` returns "".

        `make` returns an interpreter of a graph up to given values; `whole` gathers a value that is distributed over
        processes.
        """
        super().__init__()
        graph = step.copy_model().graph
        (self.y,) = {y for y, _ in step.gradient_of.values()}
        self.state_of = {gradient: x for gradient, (_, x) in step.gradient_of.items()}
        self.branches = any(n.op_type in _BRANCHING for n in graph)
        wanted = [v for v in graph.outputs if v.name not in step.gradient_of]
        if self.y not in {v.name for v in wanted}:
            wanted.append(next(v for n in graph for v in n.outputs if v.name == self.y))
        self.input_names = [v.name or "" for v in graph.inputs]
        self.run = make(graph, step.opset, wanted)
        self.names = list(dict.fromkeys(self.state_of.values()))
        self.tensors = nn.ParameterList([nn.Parameter(state[name]) for name in self.names])
        self.results: dict[str, Any] = {}
        self._whole = whole

    def forward(self, values: Mapping[str, Any]) -> Tensor:
        self.results = self.run({**values, **dict(zip(self.names, self.tensors, strict=True))})
        return self._whole(self.results[self.y]).sum()

    def differentiate(
        self, module: nn.Module, values: Mapping[str, Any], state: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Return the outputs, including the gradients; `module` is this one or a wrapper of it.

        The gradient with respect to a state that the value does not depend on is zero.
        """
        for name, tensor in zip(self.names, self.tensors, strict=True):
            tensor.data, tensor.grad = state[name], None
        try:
            with torch.enable_grad():
                y = module(values)
                results = {name: _detached(value) for name, value in self.results.items()}
                if y.requires_grad:
                    y.backward()
            found = {
                n: torch.zeros_like(t) if t.grad is None else t.grad
                for n, t in zip(self.names, self.tensors, strict=True)
            }
            return {**results, **{gradient: found[x] for gradient, x in self.state_of.items()}}
        finally:
            self.results = {}
            for tensor in self.tensors:
                tensor.grad = None


def why_not(entry: Entry) -> str:
    """Return why autograd cannot compute the gradients of an entry, or "" if it can."""
    step = entry.gradients
    if step is None or entry.update is None:
        return "the program has no gradients graph (compile it with split=True)"
    gradients = step.gradient_of
    read = entry.update.input_names
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
    if any(n.op_type in _ROUNDING for n in behind):
        return "it rounds to integers, and the compiled program chose the gradient"
    return ""


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, list):
        return [_detached(v) for v in value]
    if hasattr(value, "tensor"):  # a Share or a Partial
        value.tensor = value.tensor.detach()
        if getattr(value, "total", None) is not None:
            value.total = value.total.detach()
    return value
