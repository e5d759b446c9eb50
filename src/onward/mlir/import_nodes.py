"""Operations of MLIR as nodes and initializers of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import onnx

from onward.mlir import dialect
from onward.mlir.attributes import attribute_of, read_patches
from onward.mlir.export_nodes import RESERVED, natural_node
from onward.mlir.messages import apply, fields_of, refuse, texts
from onward.mlir.reading import items_of, text_of, without
from onward.mlir.syntax import (
    NONE,
    Attribute,
    Dense,
    Integer,
    Operation,
    Region,
    Sparse,
    String,
    Type,
    Unit,
    seen_inside,
)
from onward.mlir.tensors import from_sparse, tensor_of
from onward.mlir.types import value_info

_SKIPPED = RESERVED | {"onnx_node_name"}


class Import(Protocol):
    """One import of a module, as the readers of its functions see it."""

    names: set[tuple[str, int | None]]

    def constant(self, value: Attribute, place: str) -> Attribute:
        """Return an attribute with the data of its resource."""


class NodeReader:
    """Reads the operations of one function; who derives from it reads inner graphs."""

    def __init__(self, importer: Import) -> None:
        self.importer = importer
        self.taken: set[str] = set()
        self.repeated: dict[str, int] = {}

    def _inner_graph(
        self, graph: onnx.GraphProto, region: Region, header: dict[str, Attribute], outer: Mapping[str, str], place: str
    ) -> None:
        """Read the region of an inner graph."""
        raise NotImplementedError

    def _fresh(self, ssa: str) -> str:
        """Return a name for a value that the text gives none."""
        base = ssa.replace("#", "_") or "value"
        name, count = base, self.repeated.get(base, 0)
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self.repeated[base] = count
        self.taken.add(name)
        return name

    def _bind(
        self, ssa: str, name: str, kind: Type, values: dict[str, str], kinds: dict[str, Type], place: str
    ) -> None:
        if not ssa:
            return  # nobody can refer to it
        if ssa in values:
            refuse(f"`%{ssa[:60]}` is defined twice", place=place)
        self.taken.add(name)
        values[ssa], kinds[ssa] = name, kind

    @staticmethod
    def _find(ssa: str, values: Mapping[str, str], outer: Mapping[str, str], place: str) -> str:
        for name in (ssa, ssa.removesuffix("#0"), f"{ssa}#0"):
            if name in values:
                return values[name]
            if name in outer:
                return outer[name]
        refuse(f"nothing defines `%{ssa[:60]}` before it is used", place=place)

    def _initializer(
        self,
        made: Operation,
        graph: onnx.GraphProto,
        values: dict[str, str],
        kinds: dict[str, Type],
        carried: dict[str, onnx.ValueInfoProto],
        place: str,
    ) -> None:
        """Read a constant that is an initializer."""
        (name,) = self._outputs(made, values, kinds, carried, place) or ("",)
        patch = fields_of(made.attributes["onward.initializer"], place)
        value = made.attributes.get("value", made.attributes.get("sparse_value"))
        shown = None if value is None else self.importer.constant(value, place)
        if isinstance(shown, Dense):
            graph.initializer.append(tensor_of(shown, patch, place, name))
        elif isinstance(shown, Sparse):
            graph.sparse_initializer.append(apply(from_sparse(shown, place), patch, place))
        else:
            refuse("an initializer has no tensor", place=place)

    def _outputs(
        self,
        made: Operation,
        values: dict[str, str],
        kinds: dict[str, Type],
        carried: dict[str, onnx.ValueInfoProto],
        place: str,
    ) -> list[str]:
        """Return the names of the outputs of an operation, which are defined from here on."""
        stated = made.attributes.get("onward.outputs")
        if stated is not None:
            names = texts(stated, place)
            if len(names) > len(made.results):
                refuse("an operation has more outputs than results", place=place)
        else:
            names = ["" if k == NONE else self._fresh(s) for s, k in zip(made.results, made.result_types, strict=True)]
            while names and not names[-1]:
                names.pop()
        infos = items_of(made.attributes.get("onward.value_info"))
        for index, (ssa, kind) in enumerate(zip(made.results, made.result_types, strict=True)):
            name = names[index] if index < len(names) else ""
            self._bind(ssa, name, kind, values, kinds, place)
            if index < len(infos) and not isinstance(infos[index], Unit):
                carried[name] = value_info(name, kind, fields_of(infos[index], place), place)
        return names

    def _node(
        self,
        made: Operation,
        node: onnx.NodeProto,
        values: dict[str, str],
        kinds: dict[str, Type],
        outer: Mapping[str, str],
        carried: dict[str, onnx.ValueInfoProto],
        place: str,
    ) -> None:
        """Read a node."""
        if not made.name.startswith(dialect.PREFIX):
            refuse(f"`{made.name[:60]}` is no operation of ONNX", place=place, needed="the dialect `onnx`")
        natural = natural_node(made)
        if made.name != dialect.CUSTOM:
            if dialect.domain_of(natural.op_type) is None:
                refuse(f"`{made.name[:60]}` is no operator of ONNX", place=place, hint="it is one of onnx-mlir's own")
            self.importer.names.add(dialect.operator_of(made.name.removeprefix(dialect.PREFIX)))
        node.CopyFrom(natural)
        names = [self._find(ssa, values, outer, place) for ssa in made.operands]
        count = made.attributes.get("onward.inputs")
        while names and not names[-1] and (not isinstance(count, Integer) or len(names) > count.value):
            names.pop()
        if isinstance(count, Integer) and len(names) != count.value:
            refuse("an operation has another number of inputs than `onward.inputs` says", place=place)
        node.input.extend(names)
        self._attributes(made, node, values, outer, place)
        patch = made.attributes.get("onward.node")
        if patch is not None:
            apply(node, without(fields_of(patch, place), ("input", "output", "attribute")), place)
        node.output.extend(self._outputs(made, values, kinds, carried, place))

    def _attributes(
        self, made: Operation, node: onnx.NodeProto, values: Mapping[str, str], outer: Mapping[str, str], place: str
    ) -> None:
        patches = read_patches(made.attributes.get("onward.attributes"), place)
        found: dict[str, onnx.AttributeProto] = {}
        for name, value in made.attributes.items():
            if name in _SKIPPED and (name == "onnx_node_name" or made.name == dialect.CUSTOM):
                continue
            if not name.startswith(("onward.", "onnx.")):
                shown = self.importer.constant(value, place)
                found[name] = attribute_of(name, shown, patches.pop(name, {}), place)
        headers = items_of(made.attributes.get("onward.regions"))
        usual = dialect.REGIONS.get(node.op_type, ())
        if made.regions and not headers and len(usual) != len(made.regions):
            refuse(f"`{made.name[:60]}` has regions that ONNX does not have", place=place)
        if headers and len(headers) != len(made.regions):
            refuse("an operation has another number of regions than `onward.regions` says", place=place)
        visible = seen_inside(values, outer) if made.regions else {}
        for index, region in enumerate(made.regions):
            header: dict[str, Attribute] = {}
            if headers:
                header.update(fields_of(headers[index], place))
            else:
                header["name"] = String(usual[index].encode())
            name = text_of(header.get("attribute")) if headers else usual[index]
            many = "graphs" if _is_list(patches.get(name, {})) else "g"
            if name not in found:
                found[name] = onnx.AttributeProto(name=name, type=onnx.AttributeProto.GRAPH)
            attribute = found[name]
            graph = attribute.graphs.add() if many == "graphs" else attribute.g
            self._inner_graph(graph, region, header, visible, place)
        for name, patch in patches.items():
            if name in found:
                apply(found[name], without(patch, ("g", "graphs")), place)
            else:
                found[name] = attribute_of(name, None, patch, place)
        order = made.attributes.get("onward.order")
        names = sorted(found) if order is None else texts(order, place)
        if sorted(names) != sorted(found):
            refuse("`onward.order` has other names than the attributes", place=place)
        node.attribute.extend(found[name] for name in names)


def _is_list(patch: Mapping[str, Attribute]) -> bool:
    kind = patch.get("type")
    return isinstance(kind, Integer) and kind.value == onnx.AttributeProto.GRAPHS
