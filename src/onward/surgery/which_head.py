"""Which head a caller means: the only one of the network, or that of a named output; and the errors where none is."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onward.errors import ArgumentError, Diagnostic
from onward.graph.builder import Value
from onward.graph.shapes import dims
from onward.graph.walk import reads
from onward.model.training_model import FLOAT_TYPES, TrainingModel
from onward.surgery.head import Head, NoHead, find, linear_layers, name_of
from onward.surgery.splice import A132, find_values, shape_text

_CANDIDATES = 4  # values that an error lists


def find_head(work: TrainingModel, output: str | None) -> Head:
    """Return the head in front of `output`, or the only one of the network."""
    graph = work.graph
    if output is not None:
        wanted = find_values(graph, [output], "output=")
    else:
        wanted = [v for v in graph.outputs if v.dtype in FLOAT_TYPES] or list(graph.outputs)
    found: dict[Value, Head] = {}
    reasons: list[str] = []
    for value in wanted:
        try:
            found[value] = find(graph, value)
        except NoHead as reason:
            reasons.append(str(reason))
    if len({head.linear.node for head in found.values()}) == 1:
        head = next(iter(found.values()))
        if output is not None or _computes_all(graph, head):
            return head
    if output is None and len(graph.outputs) > 1:
        raise _ambiguous(graph, found)
    raise _no_head(graph, reasons)


def _computes_all(graph: ir.Graph, head: Head) -> bool:
    """Return whether each output of the graph depends on the head."""
    reached = set(head.linear.node.outputs)
    for node in graph:
        if any(v in reached for v in reads(node)):
            reached.update(node.outputs)
    return all(v in reached for v in graph.outputs)


def _ambiguous(graph: ir.Graph, found: dict[Value, Head]) -> ArgumentError:
    described = [
        f"`{v.name}` {shape_text(dims(v))}"
        + (f" ends in {found[v].describe()}" if v in found else " has no last linear layer")
        for v in graph.outputs
    ]
    return ArgumentError(
        Diagnostic(
            A132,
            f"the model has {len(graph.outputs)} outputs, and a new head is for one of them",
            place="output=",
            found="; ".join(described),
            needed="output= with the name of the output that gets the new classes",
        )
    )


def _no_head(graph: ir.Graph, reasons: Sequence[str]) -> ArgumentError:
    return ArgumentError(
        Diagnostic(
            A132,
            "the last linear layer was not found",
            place=f"graph `{graph.name}`",
            found="; ".join(dict.fromkeys(reasons)),
            needed="cut= with the value that the new head reads: " + ("; ".join(_candidates(graph)) or "any"),
            hint="; ".join(_hints(graph)),
        )
    )


def _hints(graph: ir.Graph) -> list[str]:
    quantized = {n.op_type for n in graph} & {"MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", "QGemm"}
    found = ["dequantize=True makes a float layer of a quantised one"] if quantized else []
    return [*found, "`onward show FILE` shows the whole graph", "head= attaches a head of your own"]


def _candidates(graph: ir.Graph) -> list[str]:
    """Return the values that a new head could read, the last ones first, as a message lists them."""
    found: dict[str, str] = {}
    for value in graph.outputs:
        if value.dtype in FLOAT_TYPES and len(dims(value) or ()) >= 2:
            found[value.name or ""] = f"`{value.name}` {shape_text(dims(value))}, the output"
    for layer in reversed(linear_layers(graph)):
        value = layer.features
        text = f"`{value.name}` {shape_text(dims(value))}, what {layer.node.op_type} {name_of(layer.node)} reads"
        found.setdefault(value.name or "", text)
    return list(found.values())[:_CANDIDATES]


__all__ = ["find_head"]
