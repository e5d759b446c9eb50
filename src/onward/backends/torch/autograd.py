"""Differentiate the forward part of a gradients graph with PyTorch's autograd; DistributedDataParallel needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn

from onward.backends.graph.forward import ForwardPart
from onward.compiler.program import PlainGraph

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
        part = ForwardPart(step)
        self.y, self.state_of, self.names = part.y, part.state_of, part.parameters
        self.branches = any(n.op_type in _BRANCHING for n in part.graph)
        self.input_names = part.input_names
        self.run = make(part.graph, part.opset, part.outputs)
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
