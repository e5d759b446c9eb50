"""What IREE gets wrong in silence, or does not compile, where our decomposition to core operators is right.

What several runtimes get wrong is on the deny-list of the portable profile; this list is of IREE alone, and
docs/peer_defects.md has its evidence.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir

from onward.compiler.core import lower_to_core
from onward.graph import walk
from onward.model.serde import from_proto

_GATES = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
_BOTH = {"LSTM"}  # IREE has it in both directions; nothing backwards alone


def write_out_hazards(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in which the nodes that IREE gets wrong are decomposed; the same model if there are none.

    Raises:
        OnwardError: one of them cannot be decomposed, or the model is not valid.
    """
    if not any(node.op_type in _HAZARDS for node in _nodes(model.graph)):
        return model
    if not any(is_hazard(node) for node in walk.all_nodes(from_proto(model).ir.graph)):
        return model
    return lower_to_core(model, only=is_hazard)


def is_hazard(node: ir.Node) -> bool:
    """Return whether a node is one that IREE gets wrong or does not compile, and that has a decomposition."""
    return node.domain in ("", "ai.onnx") and node.op_type in _HAZARDS and _HAZARDS[node.op_type](node)


def _nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return [*graph.node, *(node for each in inner for node in _nodes(each))]


def _always(node: ir.Node) -> bool:
    return True


def _is_unusual(node: ir.Node) -> bool:
    """Return whether a recurrent node is more than its gates, forwards.

    IREE ignores the lengths of sequences, the clip of RNN and the peepholes of LSTM, computes other activations
    wrongly, and refuses to go backwards.
    """
    given, gates = node.attributes, _GATES[node.op_type]
    direction = given.get_string("direction", "forward")
    extra = [value for place, value in enumerate(node.inputs) if place in (4, 7)]  # sequence_lens, P
    activations = list(given.get_strings("activations", gates))
    return (
        (direction != "forward" and not (direction == "bidirectional" and node.op_type in _BOTH))
        or any(value is not None for value in extra)
        or any(activations[k : k + len(gates)] != gates for k in range(0, len(activations), len(gates)))
        or any(name in given for name in ("clip", "activation_alpha", "activation_beta"))
        or given.get_int("input_forget", 0) != 0
    )


_HAZARDS: dict[str, Callable[[ir.Node], bool]] = {
    "RNN": _is_unusual,
    "GRU": _is_unusual,
    "LSTM": _is_unusual,
    "NegativeLogLikelihoodLoss": _always,  # not compiled beyond two axes
    "SoftmaxCrossEntropyLoss": _always,  # infinite with weights and the mean; not compiled beyond two axes
    "CastLike": _always,  # to 8-bit floats: NaN instead of the largest number; Cast is refused
    "QLinearMatMul": _always,  # other numbers with three axes
    "Selu": _always,  # its default constants have six digits
    "HardSwish": _always,  # 1/6 of float64, where the standard has that of float32
    "Softsign": _always,  # not compiled
    "Attention": _always,  # not compiled
    "RMSNormalization": _always,  # not compiled
    "GroupNormalization": _always,  # onnx does not infer the shape of its result
    "Resize": _always,  # other scales than whole ones, linear, cubic with edges, and axes are not compiled
}
