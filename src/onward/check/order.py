"""Nodes of the inference graph that are not in execution order.

The standard wants them in order, and so does onnx. Runtimes sort them, and tools that insert casts at the end of the
file rely on that. The checker therefore says so, and looks at the sorted graph.
"""

from __future__ import annotations

import graphlib
from collections.abc import Iterator, Sequence

import onnx

from onward.check.report import Findings, listing
from onward.errors import counted

C147 = "C147"


def in_order(model: onnx.ModelProto, findings: Findings) -> onnx.ModelProto:
    """Return `model`, or a copy whose inference graph is in execution order if that is not so and can be.

    A cycle stays: it is an error, which the check of names finds.
    """
    if not any(_late(graph.node) for graph in _graphs(model.graph)):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for graph in _graphs(copy.graph):
        late = _late(graph.node)
        order = _execution_order(graph.node) if late else None
        if order is None:
            continue
        nodes = [onnx.NodeProto.FromString(graph.node[i].SerializeToString()) for i in order]
        del graph.node[:]
        graph.node.extend(nodes)
        findings.warning(
            C147,
            f"{counted(len(late), 'value')} {'is' if len(late) == 1 else 'are'} read before the node that computes it",
            place=f"graph `{graph.name}`",
            found=listing(late),
            needed="nodes in execution order; ONNX Runtime sorts them, other readers of ONNX may refuse the file",
            hint="Onward sorts them too: every file that it writes is in order. The other findings count sorted nodes",
        )
    return copy


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph and the graphs inside it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
                yield from _graphs(inner)


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, and those that the graphs inside it read and do not define themselves."""
    yield from node.input
    for attribute in node.attribute:
        for inner in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
            own = {value.name for value in (*inner.input, *inner.initializer)}
            own.update(name for other in inner.node for name in other.output)
            yield from (name for other in inner.node for name in _reads(other) if name not in own)


def _makers(nodes: Sequence[onnx.NodeProto]) -> dict[str, int]:
    return {name: i for i, node in reversed(list(enumerate(nodes))) for name in node.output if name}


def _late(nodes: Sequence[onnx.NodeProto]) -> list[str]:
    """Return the values that a node reads before they are computed."""
    makers = _makers(nodes)
    return list(
        dict.fromkeys(name for i, node in enumerate(nodes) for name in _reads(node) if makers.get(name, -1) > i)
    )


def _execution_order(nodes: Sequence[onnx.NodeProto]) -> list[int] | None:
    """Return the positions of the nodes in execution order, or None if there is a cycle."""
    makers = _makers(nodes)
    before = {i: {makers[n] for n in _reads(node) if makers.get(n, i) != i} for i, node in enumerate(nodes)}
    try:
        return list(graphlib.TopologicalSorter(before).static_order())
    except graphlib.CycleError:
        return None
