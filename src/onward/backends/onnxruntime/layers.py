"""Say which part of a training step an operator of ONNX Runtime's optimized graph belongs to.

ONNX Runtime fuses, inlines and renames nodes, but the values between them keep their names. So an optimized node stands
for the nodes of our graph between the values that it reads and those that it makes. A node whose values are all new,
such as one of an inlined function, belongs where its readers belong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import onnx
import onnx_ir as ir

from onward.backends.measurement import BACKWARD, FORWARD, UPDATE, Layer
from onward.backends.onnxruntime.native.library import DOMAIN
from onward.backends.onnxruntime.native.nodes import ALSO
from onward.graph import walk
from onward.graph.folding import Fold, Item, fold

_LONGEST = 4  # nodes in a row that one fused operator stands for
_GRADIENT = "grad/"  # how autodiff/engine.py begins the names of what it makes


@dataclasses.dataclass(frozen=True)
class Part:
    """A phase of the step, and the layer of the forward pass, if it belongs to one."""

    phase: str
    layer: str = ""


class Parts:
    """The part of each node of a step's graph; `wanted` are the outputs for the caller, the loss among them."""

    def __init__(self, graph: ir.Graph, wanted: Iterable[str]) -> None:
        names = set(wanted)
        self._forward = walk.ancestors([v for v in graph.outputs if v.name in names])
        self._makers = {v.name: node for node in graph for v in node.outputs if v.name}
        keys = {n: (_name(n), n.metadata_props.get(ALSO), *_made(n)) for n in graph if n in self._forward}
        self._layers = {key: _name(n) for n in keys for key in keys[n] if key}
        self._parts: dict[ir.Node, Part] = {}
        backward: set[ir.Node] = set()
        for node in reversed(list(graph)):
            readers = {use.node for v in node.outputs for use in v.uses()}
            if node not in self._forward and ((node.name or "").startswith(_GRADIENT) or readers & backward):
                backward.add(node)
        for node in graph:
            if node in self._forward:
                self._parts[node] = Part(FORWARD, _name(node))
            elif node in backward:
                self._parts[node] = Part(BACKWARD, self._differentiated(node))
            else:
                self._parts[node] = Part(UPDATE)

    def layers(self) -> tuple[Layer, ...]:
        """Return the nodes of the forward pass, each with the folds that it is in."""
        nodes = [node for node in self._makers_in_order() if node in self._forward]
        return tuple(_layers(fold(nodes), ()))

    def of_optimized(self, model: onnx.ModelProto) -> list[Part]:
        """Return the part of each node of ONNX Runtime's optimized graph."""
        nodes = model.graph.node
        ends = [[self._makers[name] for name in node.output if name in self._makers] for node in nodes]
        readers: dict[str, list[int]] = {}
        for index, node in enumerate(nodes):
            for name in node.input:
                readers.setdefault(name, []).append(index)
        for index in reversed(range(len(nodes))):
            if not ends[index]:
                after = (ends[r] for name in nodes[index].output for r in readers.get(name, ()))
                ends[index] = next((found for found in after if found), [])
        return [self._covering(node, found) if found else Part(UPDATE) for node, found in zip(nodes, ends, strict=True)]

    def _makers_in_order(self) -> Iterable[ir.Node]:
        return dict.fromkeys(self._makers.values())

    def _covering(self, node: onnx.NodeProto, ends: list[ir.Node]) -> Part:
        """Return the part of the nodes that an optimized node stands for; `ends` are the last of them."""
        part = self._parts[ends[0]]
        front = ends
        for _ in range(_LONGEST):
            for maker in front:
                if _does_work_of(node.op_type, maker.op_type) and self._parts[maker].phase == part.phase:
                    return self._parts[maker]
            inputs = [v for maker in front for v in maker.inputs if v is not None and v.name not in node.input]
            front = [before for v in inputs if (before := v.producer()) is not None]
        return part

    def _differentiated(self, node: ir.Node) -> str:
        """Return the layer in the name of a node of the backward pass; empty where its name says nothing."""
        name = (node.name or "").removeprefix(_GRADIENT)
        while name:
            if name in self._layers:
                return self._layers[name]
            name = name.rpartition("/")[0]
        return ""


def _does_work_of(fused: str, operator: str) -> bool:
    """Return whether a fused operator does the work of another one, beside that of cheaper ones.

    >>> _does_work_of("FusedConv", "Conv"), _does_work_of("Gemm", "MatMul"), _does_work_of("ReduceMean", "Gemm")
    (True, True, False)
    """
    return operator in fused or (fused == "Gemm" and operator == "MatMul")


def _name(node: ir.Node) -> str:
    """Return the name of a layer; a native kernel is called after the node that it replaced."""
    name = node.name or ""
    return (name.rpartition("/")[0] if node.domain == DOMAIN else name) or next(iter(_made(node)), "")


def _made(node: ir.Node) -> list[str]:
    return [v.name for v in node.outputs if v.name]


def _layers(items: Iterable[Item], path: tuple[str, ...]) -> Iterable[Layer]:
    for item in items:
        if isinstance(item, Fold):
            yield from _layers(item.items, (*path, item.title))
        else:
            yield Layer(_name(item), item.op_type, path)
