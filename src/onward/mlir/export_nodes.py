"""Nodes of a model as operations of MLIR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from onward.errors import named_nodes
from onward.mlir import dialect
from onward.mlir.attributes import natural, patch_of
from onward.mlir.export_values import Names, ValueWriter
from onward.mlir.messages import difference
from onward.mlir.syntax import (
    NONE,
    Array,
    Attribute,
    Dense,
    Dictionary,
    Integer,
    Operation,
    Region,
    Type,
    seen_inside,
    strings,
    text,
)
from onward.mlir.types import ANYTHING, type_of

NODE_PARTS = ("input", "output", "attribute")
RESERVED = frozenset({"onnx_node_name", "domain_name", "function_name"})


class NodeWriter(ValueWriter):
    """Writes the nodes of one `func.func`; who derives from it writes inner graphs."""

    def _inner_graph(self, graph: onnx.GraphProto, outer: Names, place: str) -> tuple[Region, dict[str, Attribute]]:
        """Return the region of an inner graph and what the text needs to know of it."""
        raise NotImplementedError

    def _nodes(
        self,
        nodes: Sequence[onnx.NodeProto],
        region: Region,
        names: dict[str, tuple[str, Type]],
        outer: Names,
        infos: Mapping[str, onnx.ValueInfoProto],
        stated: Mapping[str, onnx.ValueInfoProto],
        place: str,
    ) -> None:
        titles: list[str] = []
        for index, node in enumerate(nodes):
            if not node.name and not titles:
                titles = named_nodes(nodes)
            title = f"node `{node.name}`" if node.name else titles[index]
            region.operations.append(self._node(node, names, outer, infos, stated, f"{title} of {place}"))

    def _node(
        self,
        node: onnx.NodeProto,
        names: dict[str, tuple[str, Type]],
        outer: Names,
        infos: Mapping[str, onnx.ValueInfoProto],
        stated: Mapping[str, onnx.ValueInfoProto],
        place: str,
    ) -> Operation:
        domain = "" if node.domain == "ai.onnx" else node.domain
        known = dialect.domain_of(node.op_type) == domain
        opset = self.opsets.get(domain, 1)
        made = Operation(dialect.CUSTOM)
        if known:
            made.name = dialect.PREFIX + dialect.operation_name(node.op_type, opset, len(node.output))
        else:
            made.attributes["domain_name"], made.attributes["function_name"] = text(node.domain), text(node.op_type)
        self._operands(node, made, names, outer, domain if known else None, opset, place)
        visible = seen_inside(names, outer) if _has_graphs(node) else {}
        self._attributes(node, made, visible, place)
        rest = difference(natural_node(made), node, NODE_PARTS)
        if rest:
            made.attributes["onward.node"] = Dictionary(rest)
        made.attributes["onward.level"] = text(self.exporter.level(node))
        self._result_types(node, made, names, infos, stated, domain if known else None, opset, place)
        self._carry(made, node.output, infos)
        return made

    def _operands(
        self,
        node: onnx.NodeProto,
        made: Operation,
        names: Names,
        outer: Names,
        domain: str | None,
        opset: int,
        place: str,
    ) -> None:
        """Write the inputs; absent ones, and those that the schema has beyond them, are `none`."""
        inputs = list(node.input)
        found = None if domain is None else dialect.at_opset(node.op_type, domain, opset)
        if inputs and not inputs[-1]:
            made.attributes["onward.inputs"] = Integer(len(inputs))
        if found is not None and found.inputs and not found.inputs[-1].variadic:
            inputs += [""] * (len(found.inputs) - len(inputs))
        for name in inputs:
            if not name:
                self.needs_none = True
            ssa, kind = self._find(name, names, outer, place) if name else ("none", NONE)
            made.operands.append(ssa)
            made.operand_types.append(kind)

    def _result_types(
        self,
        node: onnx.NodeProto,
        made: Operation,
        names: dict[str, tuple[str, Type]],
        infos: Mapping[str, onnx.ValueInfoProto],
        stated: Mapping[str, onnx.ValueInfoProto],
        domain: str | None,
        opset: int,
        place: str,
    ) -> None:
        """Write the outputs; absent ones, and those that the schema has beyond them, have the type `none`."""
        for name in node.output:
            kind: Type = NONE
            if name:
                kind = ANYTHING
                for info in (stated.get(name), infos.get(name)):
                    if kind == ANYTHING and info is not None:
                        kind = type_of(info.type)
                kind = self.inferred.get(name, ANYTHING) if kind == ANYTHING else kind
            made.result_types.append(kind)
            made.results.append(self._define(name, kind, names, place) if name else self._unnamed())
        found = None if domain is None else dialect.at_opset(node.op_type, domain, opset)
        renamed = node.op_type in dialect.ONE_RESULT and len(node.output) == 1
        if found is not None and not renamed and found.outputs and not found.outputs[-1].variadic:
            for _ in range(len(found.outputs) - len(node.output)):
                made.result_types.append(NONE)
                made.results.append(self._unnamed())
        made.attributes["onward.outputs"] = strings(*node.output)

    def _attributes(self, node: onnx.NodeProto, made: Operation, visible: Names, place: str) -> None:
        """Write the attributes; graphs become regions."""
        given = [a.name for a in node.attribute]
        if len(set(given)) < len(given):
            self.exporter.report("two attributes have the same name", place)
            return
        if given != sorted(given):
            made.attributes["onward.order"] = strings(*given)
        patches: dict[str, Attribute] = {}
        headers: list[tuple[int, Region, Attribute]] = []
        regions = dialect.REGIONS.get(node.op_type, ())
        if node.name or node.HasField("name"):
            made.attributes["onnx_node_name"] = text(node.name)
        for attribute in node.attribute:
            is_graph = attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
            if is_graph and not attribute.ref_attr_name:
                many = attribute.type == onnx.AttributeProto.GRAPHS
                for graph in attribute.graphs if many else [attribute.g]:
                    region, header = self._inner_graph(graph, visible, f"`{attribute.name}` of {place}")
                    header["attribute"] = text(attribute.name)
                    rank = regions.index(attribute.name) if attribute.name in regions else len(regions)
                    headers.append((rank, region, Dictionary(header)))
                bare = onnx.AttributeProto()
                bare.CopyFrom(attribute)
                bare.ClearField("g")
                del bare.graphs[:]
                patch = difference(onnx.AttributeProto(name=attribute.name, type=onnx.AttributeProto.GRAPH), bare)
            else:
                shown = None
                if attribute.name not in RESERVED and not attribute.name.startswith("onward."):
                    shown = natural(attribute, is_type=node.op_type == "Cast" and attribute.name == "to")
                patch = patch_of(attribute, shown)
                if isinstance(shown, Dense):
                    name = node.output[0] if node.op_type == "Constant" and node.output else attribute.name
                    shown = self.exporter.weights.put(shown, name)
                if shown is not None:
                    made.attributes[attribute.name] = shown
            if patch:
                patches[attribute.name] = Dictionary(patch)
        headers.sort(key=lambda item: item[0])
        made.regions = [region for _, region, _ in headers]
        if headers:
            made.attributes["onward.regions"] = Array(tuple(header for _, _, header in headers))
        if patches:
            made.attributes["onward.attributes"] = Dictionary(patches)


def natural_node(made: Operation) -> onnx.NodeProto:
    """Return the node that an operation gives by its name and its plain attributes; inputs and outputs are left out."""
    node = onnx.NodeProto()
    name = made.attributes.get("onnx_node_name")
    if name is not None:
        node.name = getattr(name, "text", "")
    if made.name == dialect.CUSTOM:
        node.op_type = getattr(made.attributes.get("function_name"), "text", "")
        node.domain = getattr(made.attributes.get("domain_name"), "text", "")
        return node
    node.op_type = dialect.operator_of(made.name.removeprefix(dialect.PREFIX))[0]
    domain = dialect.domain_of(node.op_type)
    if domain:
        node.domain = domain
    return node


def _has_graphs(node: onnx.NodeProto) -> bool:
    return any(a.HasField("g") or len(a.graphs) for a in node.attribute)
