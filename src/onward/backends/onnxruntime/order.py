"""The order of the nodes in the file of a training step, from which ONNX Runtime derives its order of execution.

ONNX Runtime goes back from the nodes that nothing reads, the last one of the file first, and from each node to those
that it reads, again the last one first. A node runs when all that it reads has run. With the nodes in the order in
which a backward pass is built, the gradient of the first layer comes first, so that the gradients of the outputs of all
layers wait in memory for those of the weights; and what a gradient is multiplied with, such as the mask of a Relu, is
computed for all layers before the first of them needs it. The numbers are the same in any order.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.order import by_depth
from onward.graph.walk import reads


def sort_for_memory(graph: ir.Graph) -> None:
    """Sort the nodes by their depth, and behind them those that nothing reads, the deepest first.

    So ONNX Runtime begins with the result that needs the fewest steps, and before each node it follows the longest way.
    """
    nodes = list(graph)
    number = {node: index for index, node in enumerate(nodes)}
    makers = [[number[m] for v in reads(node) if (m := v.producer()) in number] for node in nodes]
    graph.remove(nodes)
    graph.extend([nodes[index] for index in by_depth(makers)])
