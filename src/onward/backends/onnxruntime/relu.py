"""Compute where a Relu lets the gradient through in one operator.

The plain graph compares the output with zero and casts the result to numbers: two passes over it. HardSigmoid with the
steepest slope is 1 above zero and 0 at zero and below. (Between 0 and 3e-39, where numbers have lost their precision
already, it is below 1.)
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph import edit, walk
from onward.graph.builder import Builder
from onward.passes.base import Pass, Unit, rewrite_nodes


class MaskByHardSigmoid(Pass):
    """Replace Cast(Greater(Relu(X), 0)) by HardSigmoid(Relu(X))."""

    def run(self, unit: Unit) -> bool:
        return rewrite_nodes(unit, "Cast", _replace)


def _replace(node: ir.Node, op: Builder) -> bool:
    compared = node.inputs[0].producer() if node.inputs[0] is not None else None
    if compared is None or compared.op_type != "Greater" or node.outputs[0].dtype != ir.DataType.FLOAT:
        return False
    Y, zero = compared.inputs
    relu = None if Y is None else walk.unrounded(Y).producer()
    number = walk.constant_of(zero)
    if (
        relu is None
        or relu.op_type != "Relu"
        or number is None
        or number.size != 1
        or number.any()
        or len(compared.outputs[0].uses()) > 1
    ):
        return False
    edit.replace_node(node, op, [op.HardSigmoid(Y, alpha=float(np.finfo(np.float32).max), beta=0.0)])
    return True
