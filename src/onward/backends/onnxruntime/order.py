"""The order of the nodes in the file of a training step, from which ONNX Runtime derives its order of execution.

ONNX Runtime goes back from the nodes that nothing reads, the last one of the file first, and from each node to those
that it reads, again the last one first. A node runs when all that it reads has run. With the nodes in the order in
which a backward pass is built, the gradient of the first layer comes first, so that the gradients of the outputs of all
layers wait in memory for those of the weights; and what a gradient is multiplied with, such as the mask of a Relu, is
computed for all layers before the first of them needs it. The numbers are the same in any order.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onward.graph.walk import reads


def sort_for_memory(graph: ir.Graph) -> None:
    """Sort the nodes by their depth, and behind them those that nothing reads, the deepest first.

    So ONNX Runtime begins with the result that needs the fewest steps, and before each node it follows the longest way.
    What leads to one result only, as from the gradient of a layer's output to that of its kernel, adds no depth.
    """
    nodes = list(graph)
    many = _reach_several(nodes)
    depth: dict[ir.Node, tuple[int, int]] = {}
    for node in nodes:
        shared, own = max((depth[m] for m in _makers(node) if m in depth), default=(0, 0))
        depth[node] = (shared + 1, 0) if node in many else (shared, own + 1)
    last = [node for node in nodes if not _is_read(node)]
    inner = [node for node in nodes if _is_read(node)]
    inner.sort(key=depth.__getitem__)
    last.sort(key=depth.__getitem__, reverse=True)
    graph.remove(nodes)
    graph.extend([*inner, *last])


def _makers(node: ir.Node) -> list[ir.Node]:
    return [maker for value in reads(node) if (maker := value.producer()) is not None]


def _is_read(node: ir.Node) -> bool:
    return any(value.uses() for value in node.outputs)


def _reach_several(nodes: Sequence[ir.Node]) -> set[ir.Node]:
    """Return the nodes from which several nodes that nothing reads can be reached."""
    several: set[ir.Node] = set()
    only: dict[ir.Node, ir.Node] = {}
    for node in reversed(nodes):
        end = only.setdefault(node, node)
        for maker in _makers(node):
            if node in several or only.setdefault(maker, end) is not end:
                several.add(maker)
    return several
