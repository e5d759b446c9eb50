"""The summary of a model as plain data, for `onward show` and its `--json`."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from typing import Any

import onnx_ir as ir

from onward.author.loss_scale import loss_scale_of
from onward.graph.schema import TRAINING_DOMAIN, attribute_default, schema
from onward.graph.walk import subgraphs
from onward.model.origin import ORIGIN
from onward.model.roles import loss_of
from onward.model.text import attribute_text, shape_text, type_text
from onward.model.training_model import TrainingEntry, TrainingModel

_OPTIMIZERS = ("Adam", "Adagrad", "Momentum")


def summarize(model: TrainingModel) -> dict[str, Any]:
    """Return a summary of the model as plain data that `json.dumps` accepts.

    >>> from onward.samples import build
    >>> facts = summarize(build("linear"))
    >>> facts["parameters"]["count"], facts["entries"][0]["loss"]["name"]
    (1, 'loss')
    """
    return {
        "format": 1,
        "name": model.graph.name or "",
        "description": model.ir.doc_string or model.graph.doc_string or "",
        "producer": " ".join(p for p in (model.ir.producer_name, model.ir.producer_version) if p),
        "ir_version": model.ir.ir_version,
        "opsets": dict(model.ir.opset_imports),
        "metadata": {k: v for k, v in model.ir.metadata_props.items() if k != ORIGIN},
        "inputs": [_value(v) for v in model.graph.inputs if v.name not in model.graph.initializers],
        "outputs": [_value(v) for v in model.graph.outputs],
        "parameters": _tensors(model.parameters),
        "frozen": _tensors(model.frozen),
        "state": _tensors(model.state),
        "nodes": _operators(model.graph),
        "functions": [_function(f) for f in model.ir.functions.values()],
        "entries": [_entry(e, i) for i, e in enumerate(model.entries)],
    }


def _value(value: ir.Value) -> dict[str, str]:
    return {"name": value.name or "", "type": type_text(value), "shape": shape_text(value)}


def _tensors(values: dict[str, ir.Value]) -> dict[str, Any]:
    tensors: list[dict[str, Any]] = []
    for name, value in values.items():
        tensor = value.const_value
        if tensor is not None:
            shape = [int(d) for d in tensor.shape.numpy()]
            kind = tensor.dtype.name.lower()
            size = {"elements": int(tensor.size), "bytes": _bytes(tensor)}
            tensors.append({"name": name, "type": kind, "shape": shape, **size})
    return {
        "count": len(tensors),
        "elements": sum(t["elements"] for t in tensors),
        "bytes": sum(t["bytes"] for t in tensors),
        "tensors": tensors,
    }


def _bytes(tensor: ir.TensorProtocol) -> int:
    if isinstance(tensor, ir.StringTensor):
        return sum(len(s) for s in tensor.string_data())
    return int(tensor.nbytes)


def _operators(graph: ir.Graph) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    stack = [graph]
    while stack:
        for node in stack.pop():
            counts[operator_name(node)] += 1
            stack.extend(subgraphs(node))
    return {"count": sum(counts.values()), "operators": dict(counts.most_common())}


def operator_name(node: ir.Node) -> str:
    """Return the operator, with its domain unless it is a standard one."""
    return node.op_type if node.domain in ("", TRAINING_DOMAIN) else f"{node.domain}.{node.op_type}"


def _function(function: ir.Function) -> dict[str, Any]:
    return {
        "domain": function.domain,
        "name": function.name,
        "overload": function.overload,
        "inputs": [v.name for v in function.inputs],
        "outputs": [v.name for v in function.outputs],
        "attributes": list(function.attributes),
        "nodes": len(list(function)),
    }


def _entry(entry: TrainingEntry, index: int) -> dict[str, Any]:
    graph = entry.algorithm
    nodes = [] if graph is None else list(graph)
    inputs = [] if graph is None else list(graph.inputs)
    given = {} if graph is None else graph.initializers
    gradients = [n for n in nodes if n.op_type == "Gradient" and n.domain == TRAINING_DOMAIN]
    return {
        "index": index,
        "name": entry.name,
        "targets": [_value(v) for v in inputs if v.name not in given],
        "settings": [{**_value(v), "default": _scalar(given[v.name or ""])} for v in inputs if v.name in given],
        "outputs": [] if graph is None else [v.name or "" for v in graph.outputs],
        "loss": _loss(graph, gradients),
        "gradients": [{"y": _text(n, "y"), "xs": _texts(n, "xs"), "zs": _texts(n, "zs")} for n in gradients],
        "optimizer": _optimizer(entry, nodes),
        **({} if (scale := loss_scale_of(entry)) is None else {"loss_scale": dataclasses.asdict(scale)}),
        "nodes": {"count": 0, "operators": {}} if graph is None else _operators(graph),
        "update_binding": dict(entry.update_binding),
        "initialization_binding": dict(entry.initialization_binding),
        "initialization": None if entry.initialization is None else _operators(entry.initialization),
    }


def _loss(graph: ir.Graph | None, gradients: list[ir.Node]) -> dict[str, Any] | None:
    """Return the differentiated value: its name, and how it is computed."""
    if graph is None or not gradients:
        return None
    name = loss_of(gradients[0])
    producer = next((n for n in graph for v in n.outputs if v.name == name), None)
    return {
        "name": name,
        "operator": "" if producer is None else operator_name(producer),
        "settings": {} if producer is None else _attributes(producer),
        "described": graph.metadata_props.get("onward.loss", ""),
    }


def _optimizer(entry: TrainingEntry, nodes: list[ir.Node]) -> list[dict[str, Any]]:
    """Return each optimizer with its settings: from the metadata of `make_trainable`, ONNX's operators, or functions.

    `custom` means an update in plain arithmetic.
    """
    if entry.algorithm is None or not entry.update_binding:
        return []
    described = _described(entry.algorithm)
    if described is not None:
        settings = {k: v for k, v in described.items() if k != "name" and v not in (None, {}, [])}
        return [{"name": str(described.get("name", "custom")), "settings": settings}]
    makers = {v.name: n for n in nodes for v in n.outputs}
    found: list[dict[str, Any]] = []
    for result in entry.update_binding.values():
        node = makers.get(result)
        if node is None:
            continue
        if node.domain == TRAINING_DOMAIN and node.op_type in _OPTIMIZERS:
            each = {"name": node.op_type, "settings": {**_rate(node), **_defaults(node), **_attributes(node)}}
        elif node.domain not in ("", TRAINING_DOMAIN):
            each = {"name": node.op_type, "settings": _attributes(node)}
        else:
            continue
        if each not in found:
            found.append(each)
    return found or [{"name": "custom", "settings": {}}]


def _described(graph: ir.Graph) -> dict[str, Any] | None:
    """Return the description of the optimizer that `make_trainable` stored, if there is one."""
    try:
        described = json.loads(graph.metadata_props.get("onward.optimizer", "null"))
    except (ValueError, RecursionError):  # another tool's text under our key
        return None
    return described if isinstance(described, dict) else None


def _rate(node: ir.Node) -> dict[str, Any]:
    """Return the learning rate: the optimizer's first input."""
    value = node.inputs[0] if node.inputs else None
    if value is None:
        return {}
    number = _scalar(value)
    return {"learning_rate": f"`{value.name}`" if number is None else number}


def _scalar(value: ir.Value) -> float | int | None:
    tensor = value.const_value
    if tensor is None or tensor.size != 1 or tensor.dtype == ir.DataType.STRING:
        return None
    item = tensor.numpy().reshape(()).item()
    return _rounded(item) if isinstance(item, int | float) and math.isfinite(item) else None


def _defaults(node: ir.Node) -> dict[str, Any]:
    known = schema(node.op_type, node.domain)
    names = () if known is None else known.attributes
    values = {n: attribute_default(node.op_type, node.domain, 1, n) for n in names}
    return {n: _rounded(v) for n, v in values.items() if v is not None}


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {name: _plain(a) for name, a in node.attributes.items()}


def _plain(attribute: ir.Attr) -> Any:
    numeric = attribute.type in (ir.AttributeType.INT, ir.AttributeType.FLOAT)
    if numeric and not attribute.is_ref() and math.isfinite(attribute.value):
        return _rounded(attribute.value)
    return attribute_text(attribute)


def _rounded(number: Any) -> Any:
    """Return a float32 rounded to its decimal digits: 0.9, not 0.8999999761581421."""
    return float(f"{number:.7g}") if isinstance(number, float) else number


def _text(node: ir.Node, name: str) -> str:
    attribute = node.attributes.get(name)
    return "" if attribute is None or attribute.is_ref() or not isinstance(attribute.value, str) else attribute.value


def _texts(node: ir.Node, name: str) -> list[str]:
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.STRINGS:
        return []
    return [s if isinstance(s, str) else s.decode("utf-8", "replace") for s in attribute.value]
