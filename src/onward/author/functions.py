"""Inline model-local functions that hide weights or training-mode nodes."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from onward.graph.walk import all_nodes
from onward.model.training_model import FLOAT_TYPES


def inline_hiding_functions(model: ir.Model) -> None:
    """Inline every function whose body holds a BatchNormalization, a Dropout, or weights in `Constant` nodes.

    Inside a function that has several callers, a node cannot change its mode and a binding cannot name a weight.
    Other functions stay.
    """
    hiding: set[tuple[str, str, str]] = set()
    changed = True
    while changed:  # a function that calls a hiding function is hiding too
        changed = False
        for key, function in model.functions.items():
            if key not in hiding and any(_hides(node, hiding) for node in all_nodes(function)):
                hiding.add(key)
                changed = True
    if hiding:
        InlinePass(criteria=lambda function: function.identifier() in hiding)(model)


def _hides(node: ir.Node, hiding: set[tuple[str, str, str]]) -> bool:
    if (node.domain, node.op_type, node.overload) in hiding:
        return True
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type in ("BatchNormalization", "Dropout"):
        return True
    if node.op_type != "Constant" or any(a.is_ref() for a in node.attributes.values()):
        return False
    tensor = ir.convenience.get_const_tensor(node.outputs[0])
    return tensor is not None and tensor.dtype in FLOAT_TYPES and tensor.size > 1
