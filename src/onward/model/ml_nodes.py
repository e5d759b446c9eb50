"""Operators of `ai.onnx.ml` that were written as plain operators: what they were, and how to put them back.

Their weights are attributes, which nothing can train, so plain operators with tensors take their place. The graph then
carries one entry in its metadata for each, `onward.ml/<number>`, from which `to_inference` makes the operator again,
with the trained numbers in its attributes; the file is still the ONNX-ML file that its other readers know:

    node      the node without the numbers, as protobuf, compressed, in base 64
    version   of ai.onnx.ml
    weights   attribute -> the name of the tensor that holds its numbers
    guards    attribute -> whether none of its numbers was negative, where a runtime looks at that
    mirrored  attributes that hold the numbers of the tensor twice, first negated
    paired    attributes that hold each number of the tensor after its negation
    clipped   attributes that hold 0 for each negative number of the tensor

Each plain node carries the number, too. Where surgery took away, replaced or read a part of them, they stay.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no stubs
from onnx import numpy_helper

from onward.errors import Diagnostic, Severity
from onward.graph.edit import remove_dead_nodes, take_place
from onward.graph.walk import all_nodes, ancestors, reads, subgraphs

ML = "ai.onnx.ml"
_KEY = "onward.ml"
A139 = "A139"


class PlainOperatorsWarning(UserWarning):
    """An operator of ai.onnx.ml stays written as plain operators; `diagnostic` says why."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.render())
        self.diagnostic = diagnostic


def plain_attributes(node: ir.Node) -> dict[str, Any]:
    """Return the attributes of a node: numbers, lists, text, and tensors as arrays."""
    return {
        name: a.as_tensor().numpy() if a.type == ir.AttributeType.TENSOR else a.value
        for name, a in node.attributes.items()
        if not a.is_ref()
    }


class Lifted(Protocol):
    """What a decomposition did with the attributes of a node."""

    weights: dict[str, ir.Value]
    mirrored: set[str]
    paired: set[str]
    clipped: set[str]
    guards: dict[str, bool]


def record(graph: ir.Graph, node: ir.Node, made: Sequence[ir.Node], lifted: Lifted, version: int) -> None:
    """Note in `graph` that the nodes `made` stand for `node`."""
    weights = lifted.weights
    number = 1 + max((int(k.rsplit("/", 1)[1]) for k in graph.metadata_props if k.startswith(f"{_KEY}/")), default=0)
    proto = ir.serde.serialize_node(node)
    for attribute in proto.attribute:
        if attribute.name in weights:
            attribute.ClearField("floats")
            if attribute.HasField("t"):
                for field in ("dims", "raw_data", "float_data", "double_data", "int32_data"):
                    attribute.t.ClearField(field)
    packed = base64.b64encode(zlib.compress(proto.SerializeToString(deterministic=True))).decode()
    names = {attribute: value.name for attribute, value in weights.items()}
    entry = {
        "node": packed, "version": version, "weights": names, "guards": lifted.guards,
        "mirrored": sorted(lifted.mirrored), "paired": sorted(lifted.paired), "clipped": sorted(lifted.clipped),
    }  # fmt: skip
    graph.metadata_props[f"{_KEY}/{number}"] = json.dumps(entry, sort_keys=True)
    for part in made:
        part.metadata_props[_KEY] = str(number)
        if part.op_type == "Constant":  # it may become an initializer
            part.outputs[0].metadata_props[_KEY] = str(number)


def restore(model: ir.Model) -> list[PlainOperatorsWarning]:
    """Put the operators of `ai.onnx.ml` back, with the numbers of now; return what had to stay plain, with why.

    All notes about them disappear.
    """
    graph = model.graph
    entries = {k: graph.metadata_props.pop(k) for k in [*graph.metadata_props] if k.startswith(f"{_KEY}/")}
    if not entries:
        return []
    left = []
    restored = False
    for key, text in sorted(entries.items(), key=lambda e: -int(e[0].rsplit("/", 1)[1])):
        number = key.rsplit("/", 1)[1]
        try:
            entry = json.loads(text)
            proto = onnx.NodeProto.FromString(zlib.decompress(base64.b64decode(entry["node"])))
            reason = _restore_one(model, number, proto, entry)
        except (ValueError, KeyError, TypeError, zlib.error, DecodeError):
            continue  # somebody else's metadata
        restored |= reason is None
        if reason is not None and any(n.metadata_props.get(_KEY) == number for n in graph):
            left.append(_stays(proto, reason))  # else surgery took all of it away: nothing stays
    for node in graph:
        node.metadata_props.pop(_KEY, None)
        for value in node.outputs:
            value.metadata_props.pop(_KEY, None)
    for value in graph.initializers.values():
        value.metadata_props.pop(_KEY, None)
    if restored:
        graph.sort()
    return left


def _stays(proto: onnx.NodeProto, reason: str) -> PlainOperatorsWarning:
    return PlainOperatorsWarning(
        Diagnostic(
            A139,
            f"{proto.op_type} stays written as plain operators of ai.onnx",
            place=f"node `{proto.name or proto.op_type}`",
            found=reason,
            hint="the numbers are the same; ONNX runtimes run the file, readers of ai.onnx.ml alone do not",
            severity=Severity.WARNING,
        )
    )


def _restore_one(model: ir.Model, number: str, proto: onnx.NodeProto, entry: Mapping[str, Any]) -> str | None:
    """Put one operator back; return why not, or None."""
    graph = model.graph
    known = ir.convenience.create_value_mapping(graph)
    inputs = [known.get(n) if n else None for n in proto.input]
    outputs = [known[n] for n in proto.output if n in known]
    if not outputs or any(n and v is None for n, v in zip(proto.input, inputs, strict=True)):
        return "its inputs or outputs are gone"
    weights = {a: known.get(n) for a, n in entry["weights"].items()}
    part = ancestors(outputs, stop=[v for v in inputs if v is not None])
    own = {v for v in weights.values() if v is not None}
    ends = {v for n in part for v in reads(n) if v.producer() not in part}
    strange = ends - own - {v for v in inputs if v is not None}
    foreign = any(n.metadata_props.get(_KEY) != number for n in part)
    if foreign or any(v.metadata_props.get(_KEY) != number for v in strange):
        return "the model was changed there"
    inner = {v for n in part for v in n.outputs} - set(outputs)
    bodies = {n for node in part for body in subgraphs(node) for n in all_nodes(body)}
    read = {u.node for v in inner for u in v.uses()} - part - bodies
    if read or any(v.is_graph_output() for v in inner):
        return "other nodes read values inside it"
    numbers: dict[str, np.ndarray] = {}
    for attribute, value in weights.items():
        tensor = None if value is None else value.const_value or ir.convenience.get_const_tensor(value)
        if tensor is None:
            return "its weights are gone"
        array = tensor.numpy().reshape(-1)
        array = np.maximum(array, 0) if attribute in entry["clipped"] else array
        if attribute in entry["mirrored"]:
            array = np.concatenate([-array, array])
        if attribute in entry.get("paired", ()):  # files that were written before there were pairs lack it
            array = np.stack([-array, array], axis=1).reshape(-1)
        numbers[attribute] = array
    for attribute, positive in entry["guards"].items():
        if bool((numbers[attribute] >= 0).all()) != positive:
            signs = "only positive numbers" if not positive else "negative numbers, too"
            return f"`{attribute}` now has {signs}, and runtimes then read the scores in another way"
    _fill(proto, numbers)
    node = _node(proto, inputs)
    first = outputs[0].producer()
    assert first is not None
    graph.insert_before(first, node)
    for old in outputs:
        new = node.outputs[list(proto.output).index(old.name or "")]
        new.type, new.shape = old.type, old.shape
        take_place(old, new)
    remove_dead_nodes(graph, part)
    for value in [*own, *strange]:
        if value.name and value.name in graph.initializers and not value.uses() and not value.is_graph_input():
            del graph.initializers[value.name]
    model.opset_imports[ML] = int(entry["version"])
    return None


def _fill(proto: onnx.NodeProto, numbers: Mapping[str, np.ndarray]) -> None:
    held = {a.name: a for a in proto.attribute}
    for name, array in numbers.items():
        attribute = held.get(name)
        if attribute is None:
            attribute = proto.attribute.add(name=name, type=onnx.AttributeProto.FLOATS)
        if attribute.type == onnx.AttributeProto.TENSOR:
            label = attribute.t.name
            attribute.t.CopyFrom(numpy_helper.from_array(array, label))
        else:
            attribute.floats.extend(array.astype(np.float32).tolist())


def _node(proto: onnx.NodeProto, inputs: Sequence[ir.Value | None]) -> ir.Node:
    node = ir.Node(
        proto.domain, proto.op_type, inputs, [ir.serde.deserialize_attribute(a) for a in proto.attribute],
        num_outputs=len(proto.output), name=proto.name or None, doc_string=proto.doc_string or None,
        metadata_props={p.key: p.value for p in proto.metadata_props},
    )  # fmt: skip
    for value, name in zip(node.outputs, proto.output, strict=True):
        value.name = name
    return node
