"""The ranks that operators demand of their inputs, where nothing before them tells the rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx_ir as ir

from onward.graph.walk import subgraphs


def learn_ranks(nodes: Iterable[ir.Node]) -> bool:
    """Give values of unknown rank the one that a node needs, subgraphs included; return whether there are any."""
    found = False
    for node in nodes:
        for graph in subgraphs(node):
            found |= learn_ranks(graph)
        demand = _DEMANDS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if demand is None or all(v is None or v.shape is not None for v in node.inputs):
            continue
        for position, rank in demand(node).items():
            value = node.inputs[position] if position < len(node.inputs) else None
            if value is not None and value.shape is None:
                value.shape = ir.Shape([None] * rank)
                found = True
                for output in node.outputs:  # onnx took the scores of Attention for a scalar
                    if output.shape is not None and not output.shape:
                        output.shape = None
    return found


def _attention(node: ir.Node) -> dict[int, int]:
    """Q, K and V have heads of their own, unless the node says how many heads are packed in them."""
    return dict.fromkeys(range(3), 3 if "q_num_heads" in node.attributes else 4)


def _convolution(node: ir.Node) -> dict[int, int]:
    spatial = 0
    for name, each in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("pads", 2)):
        spatial = spatial or len(node.attributes.get_ints(name, ())) // each
    return {0: spatial + 2, 1: spatial + 2} if spatial else {}


def _deform_conv(node: ir.Node) -> dict[int, int]:
    """The standard has it of images only."""
    return dict.fromkeys((0, 1, 2, 4), 4)


def _grid_sample(node: ir.Node) -> dict[int, int]:
    """Cubic interpolation is of images only; others may be of volumes."""
    return {0: 4, 1: 4} if node.attributes.get_string("mode", "linear") in ("cubic", "bicubic") else {}


def _resize(node: ir.Node) -> dict[int, int]:
    """Without `axes`, there is a scale or a size for each axis."""
    for value in node.inputs[2:4] if "axes" not in node.attributes else ():
        count = value.shape[0] if value is not None and value.shape is not None and len(value.shape) == 1 else None
        if isinstance(count, int) and count:
            return {0: count}
    return {}


_DEMANDS: dict[str, Callable[[ir.Node], dict[int, int]]] = {
    "Attention": _attention,
    "Conv": _convolution,
    "ConvTranspose": _convolution,
    "DeformConv": _deform_conv,
    "GridSample": _grid_sample,
    "Resize": _resize,
}
