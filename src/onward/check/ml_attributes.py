"""Checks of `ai.onnx.ml`: the attributes of one operator agree with each other."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import numpy_helper

from onward.check.report import Findings
from onward.check.views import Model, Node
from onward.model.ml_attributes import attribute_problems
from onward.model.ml_nodes import ML

C148 = "C148"


def check_ml_attributes(model: Model, findings: Findings) -> None:
    """Report every operator of `ai.onnx.ml` whose attributes contradict each other."""
    for view in model.views():
        for position, node in enumerate(view.nodes):
            if node.domain != ML or model.is_broken(view, position):
                continue
            for message, found, needed in attribute_problems(node.op_type, _attributes(node)):
                findings.error(C148, message, place=view.node_place(position), found=found, needed=needed)
                model.mark_broken(view, position)


def _attributes(node: Node) -> dict[str, Any]:
    """Return the attributes as numbers, lists, text and arrays, without those that refer to a function's."""
    return {a.name: _value(a) for a in node.attribute if not a.ref_attr_name}


def _value(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return [v.decode(errors="replace") if isinstance(v, bytes) else v for v in value] if _is_list(value) else value


def _is_list(value: Any) -> bool:
    return not isinstance(value, (str, int, float)) and hasattr(value, "__iter__")
