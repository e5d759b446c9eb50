"""A module of the dialect `onnx` as an ONNX model: what `exporting` wrote, exactly, and what onnx-mlir writes.

A text of another tool has no `onward.…` attributes. Then values are named as in the text, absent trailing inputs and
outputs are left out, and the operator set is the newest that has all operations of the text.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import onnx

from onward.errors import Diagnostic, ModelError
from onward.graph.schema import newest_opset
from onward.mlir import dialect
from onward.mlir.elements import AMPLIFIED
from onward.mlir.import_nodes import NodeReader
from onward.mlir.inference import inferred_types
from onward.mlir.messages import M131, apply, fields_of, refuse
from onward.mlir.reading import items_of, only_region, patch_of, symbol_of, text_of, without
from onward.mlir.scanner import DEFAULT, Limits
from onward.mlir.syntax import (
    NONE,
    Array,
    Attribute,
    Dense,
    Dictionary,
    Module,
    Operation,
    Region,
    Resource,
    String,
    Symbol,
    Tensor,
    Type,
    Unit,
    seen_inside,
)
from onward.mlir.tensors import element_size
from onward.mlir.types import ANYTHING, proto_of, value_info

_IR_VERSION = 10  # of a text that names none
_DROPPED = frozenset({"onnx.EntryPoint", "onnx.PrintSignature"})
_GRAPH_KEYS = ("inputs", "outputs", "value_info", "attribute")


def import_module(
    module: Module, blobs: Mapping[str, bytes | memoryview], function: str | None, limits: Limits = DEFAULT
) -> onnx.ModelProto:
    """Return the model of a module; `blobs` holds the data of resources, and `function` names the main one of several.

    Raises:
        ModelError: the module is not an ONNX model.
    """
    try:
        return Importer(module, blobs, limits).model(function)
    except UnicodeEncodeError as error:  # protobuf has texts of UTF-8 alone
        shown = error.object.encode("utf-8", "surrogateescape")[:60]
        raise ModelError(Diagnostic(M131, "a name is not UTF-8", found=f"{shown!r}")) from error


class Importer:
    """One import."""

    def __init__(self, module: Module, blobs: Mapping[str, bytes | memoryview], limits: Limits) -> None:
        self.module, self.blobs = module, blobs
        self.copied = dict.fromkeys(blobs, 0)  # how often each resource was used
        self.left = limits.splat_bytes + AMPLIFIED * sum(map(len, blobs.values()))
        self.names: set[tuple[str, int | None]] = set()

    def model(self, function: str | None) -> onnx.ModelProto:
        proto = onnx.ModelProto()
        about = self.module.attributes.get("onward.model")
        if about is not None:
            apply(proto, without(fields_of(about, "the module"), ("graph", "functions", "training_info")), "the module")
        main = self._main(function)
        FunctionReader(self).graph_function(main, proto)
        for made in self.module.functions():
            if "onward.function" in made.attributes:
                proto.functions.append(FunctionReader(self).model_function(made))
        if about is None:
            self._complete(proto)
        return proto

    def _complete(self, proto: onnx.ModelProto) -> None:
        """Give a model of another tool its versions."""
        proto.ir_version = _IR_VERSION
        proto.producer_name = "onward"
        graphs: list[Any] = [proto.graph]
        domains: set[str] = set()
        while graphs:
            graph = graphs.pop()
            domains |= {n.domain for n in graph.node}
            graphs += [a.g for n in graph.node for a in n.attribute if a.HasField("g")]
        proto.opset_import.add(domain="", version=dialect.opset_of(self.names))
        for domain in sorted(domains - {"", "ai.onnx"}):
            known = domain in dialect.DOMAINS
            proto.opset_import.add(domain=domain, version=newest_opset(domain) if known else 1)
        tensors = [o for o in proto.graph.output if o.type.HasField("tensor_type")]
        unranked = [o for o in tensors if not o.type.tensor_type.HasField("shape")]
        kinds = inferred_types(proto) if unranked else {}
        for output in unranked:  # ONNX wants the rank of an output, MLIR does not
            kind = kinds.get(output.name, ANYTHING)
            if isinstance(kind, Tensor):
                output.type.CopyFrom(proto_of(kind, "", ""))

    def _main(self, wanted: str | None) -> Operation:
        functions = {symbol_of(f): f for f in self.module.functions() if "onward.function" not in f.attributes}
        listed = ", ".join(f"`{name}`" for name in functions) or "none"
        if wanted is not None:
            if wanted not in functions:
                refuse(f"the text has no function `{wanted}`", found=listed)
            return functions[wanted]
        entry = next((o for o in self.module.operations if o.name == dialect.ENTRY_POINT), None)
        target = None if entry is None else entry.attributes.get("func")
        if isinstance(target, Symbol) and target.name in functions:
            return functions[target.name]
        if len(functions) != 1:
            refuse(
                "the text has no function, or several and no `onnx.EntryPoint`",
                found=f"functions: {listed}",
                needed="one function",
                hint='choose one with function="NAME"' if functions else "",
            )
        return next(iter(functions.values()))

    def constant(self, value: Attribute, place: str) -> Attribute:
        """Return an attribute with the data of its resource."""
        if isinstance(value, Array) and any(isinstance(item, Resource) for item in value.items):
            return Array(tuple(self.constant(item, place) for item in value.items))
        if not isinstance(value, Resource):
            return value
        data = self.blobs.get(value.key)
        shape = value.type.shape
        if data is None or shape is None or None in shape:
            refuse(f"the data of resource `{value.key[:60]}` is missing", place=place)
        needed = element_size(value.type)
        for size in shape:
            needed *= size or 0
        if not element_size(value.type) or needed != len(data):
            refuse(
                f"the data of resource `{value.key[:60]}` does not fit its type",
                place=place,
                found=f"{len(data):,} bytes",
                needed=f"{needed:,}",
            )
        if self.copied[value.key]:
            self.left -= len(data)
        self.copied[value.key] += 1
        if self.left < 0:
            refuse(
                f"resource `{value.key[:60]}` is used too often",
                place=place,
                found=f"{self.copied[value.key]:,} times {len(data):,} bytes",
            )
        return Dense(value.type, data)


class FunctionReader(NodeReader):
    """Reads one function with its inner regions."""

    # -- functions -------------------------------------------------------------------------------------------

    def graph_function(self, made: Operation, proto: onnx.ModelProto) -> None:
        """Read the main function into the model: its graph, and the training entries in it."""
        place = f"function `{symbol_of(made)}`"
        about = made.attributes.get("onward.graph")
        header = dict(fields_of(about, place)) if about is not None else {"name": String(symbol_of(made).encode())}
        region = only_region(made, place)
        given = [dict(fields_of(g, place)) for g in items_of(made.attributes.get("arg_attrs"))]
        returned = [dict(fields_of(r, place)) for r in items_of(made.attributes.get("res_attrs"))]
        given += [{} for _ in range(len(region.arguments) - len(given))]
        if len(given) != len(region.arguments):
            refuse("a function has attributes of arguments that it does not have", place=place)
        values: dict[str, str] = {}
        kinds: dict[str, Type] = {}
        infos: dict[str, onnx.ValueInfoProto] = {}
        for (ssa, kind), described in zip(region.arguments, given, strict=True):
            name = text_of(described.get("onnx.name")) if "onnx.name" in described else self._fresh(ssa)
            self._bind(ssa, name, kind, values, kinds, place)
            infos[name] = value_info(name, kind, patch_of(described, place), place)
        graph = proto.graph
        graph.SetInParent()
        apply(graph, without(header, _GRAPH_KEYS), place)
        end = self._operations(region, graph, values, kinds, {}, header, dialect.RETURNS, place, proto)
        self._inputs(graph, header, infos, [], kinds, values, place)
        if any(not name for name, _ in end):
            refuse("a function returns a value that is not there", place=place, found="`onnx.NoValue`")
        computed = {name for node in graph.node for name in node.output}
        for index, (name, kind) in enumerate(end):
            described = returned[index] if index < len(returned) else {}
            stated = text_of(described.get("onnx.name")) if "onnx.name" in described else name
            if stated != name:  # its value came without the name that the function states
                if stated in computed:
                    refuse(f"two values are called `{stated[:60]}`", place=place)
                computed.add(stated)
                graph.node.append(onnx.helper.make_node("Identity", [name], [stated]))
            graph.output.append(value_info(stated, kind, patch_of(described, place), place))

    def model_function(self, made: Operation) -> onnx.FunctionProto:
        """Return a model-local function."""
        place = f"function `{symbol_of(made)}`"
        function = onnx.FunctionProto()
        header = dict(fields_of(made.attributes["onward.function"], place))
        apply(function, without(header, ("value_info", "node", "input", "output")), place)
        region = only_region(made, place)
        values: dict[str, str] = {}
        kinds: dict[str, Type] = {}
        given = items_of(made.attributes.get("arg_attrs"))
        for index, (ssa, kind) in enumerate(region.arguments):
            described = fields_of(given[index], place) if index < len(given) else {}
            name = text_of(described.get("onnx.name")) if "onnx.name" in described else self._fresh(ssa)
            self._bind(ssa, name, kind, values, kinds, place)
            function.input.append(name)
        end = self._operations(region, function, values, kinds, {}, header, dialect.RETURNS, place, None)
        function.output.extend(name for name, _ in end)
        return function

    # -- graphs ----------------------------------------------------------------------------------------------

    def _inner_graph(
        self, graph: onnx.GraphProto, region: Region, header: dict[str, Attribute], outer: Mapping[str, str], place: str
    ) -> None:
        """Read the region of an inner graph."""
        graph.SetInParent()
        apply(graph, without(header, _GRAPH_KEYS), place)
        stated = [dict(fields_of(i, place)) for i in items_of(header.get("inputs"))]
        plain = [entry for entry in stated if "default" not in entry]
        if "inputs" in header and len(plain) != len(region.arguments):
            refuse("a region has another number of arguments than its graph", place=place)
        values: dict[str, str] = {}
        kinds: dict[str, Type] = {}
        infos: dict[str, onnx.ValueInfoProto] = {}
        for index, (ssa, kind) in enumerate(region.arguments):
            entry = plain[index] if plain else {}
            name = text_of(entry.pop("name", None)) if entry else self._fresh(ssa)
            self._bind(ssa, name, kind, values, kinds, place)
            infos[name] = value_info(name, kind, entry, place)
        end = self._operations(region, graph, values, kinds, outer, header, dialect.YIELDS, place, None)
        order = [String(name.encode("utf-8", "surrogateescape")) for name in infos]
        defaults = [e for e in stated if "default" in e]
        listed: list[Attribute] = []
        if defaults:
            names = iter(order)
            listed = [Dictionary(e) if "default" in e else next(names) for e in stated]
        self._inputs(graph, {}, infos, listed, kinds, values, place)
        outputs = items_of(header.get("outputs"))
        if "outputs" not in header:
            computed = {name for node in graph.node for name in node.output}
            end = [(self._own(name, computed, graph, place), kind) for name, kind in end]
        for index, (name, kind) in enumerate(end):
            patch = without(fields_of(outputs[index], place), ("name",)) if index < len(outputs) else {}
            graph.output.append(value_info(name, kind, patch, place))

    def _own(self, name: str, computed: Container[str], graph: onnx.GraphProto, place: str) -> str:
        """Return an output of an inner graph that this graph itself computes, as ONNX wants it."""
        if not name:
            refuse("a region yields a value that is not there", place=place, found="`onnx.NoValue`")
        if name in computed:
            return name
        made = self._fresh(name)
        graph.node.append(onnx.helper.make_node("Identity", [name], [made]))
        return made

    def _inputs(
        self,
        graph: onnx.GraphProto,
        header: Mapping[str, Attribute],
        infos: Mapping[str, onnx.ValueInfoProto],
        listed: list[Attribute],
        kinds: Mapping[str, Type],
        values: Mapping[str, str],
        place: str,
    ) -> None:
        """Write the inputs: the arguments, and among them those with defaults."""
        listed = listed or items_of(header.get("inputs"))
        if not listed:
            graph.input.extend(infos.values())
            return
        by_name = {name: kinds[ssa] for ssa, name in values.items()}
        for item in listed:
            if isinstance(item, String):
                if item.text not in infos:
                    refuse(f"`{item.text[:60]}` is no argument", place=place)
                graph.input.append(infos[item.text])
            else:
                entry = dict(fields_of(item, place))
                name = text_of(entry.pop("name", None))
                entry.pop("default", None)
                graph.input.append(value_info(name, by_name.get(name, ANYTHING), entry, place))

    # -- operations ------------------------------------------------------------------------------------------

    def _operations(
        self,
        region: Region,
        graph: Any,
        values: dict[str, str],
        kinds: dict[str, Type],
        outer: Mapping[str, str],
        header: Mapping[str, Attribute],
        ends: tuple[str, ...],
        place: str,
        proto: onnx.ModelProto | None,
    ) -> list[tuple[str, Type]]:
        """Read the operations of a region into a graph or function and return its results."""
        carried: dict[str, onnx.ValueInfoProto] = {}
        result: list[tuple[str, Type]] | None = None
        for made in region.operations:
            here = f"line {made.line}" if made.line else place
            if result is not None:
                refuse("an operation follows the end of its region", place=here, found=f"`{made.name[:60]}`")
            if made.name in ends:
                names = [self._find(ssa, values, outer, here) for ssa in made.operands]
                result = list(zip(names, made.operand_types, strict=True))
            elif made.name == dialect.NO_VALUE or made.name == "torch.constant.none":
                for ssa in made.results:
                    self._bind(ssa, "", NONE, values, kinds, here)
            elif made.name == dialect.TRAINING and proto is not None:
                self._training(made, proto, seen_inside(values, outer), here)
            elif made.name in _DROPPED:
                continue
            elif "onward.initializer" in made.attributes and isinstance(graph, onnx.GraphProto):
                self._initializer(made, graph, values, kinds, carried, here)
            else:
                self._node(made, graph.node.add(), values, kinds, outer, carried, here)
        if result is None:
            refuse(f"a region has no end (`{ends[0]}`)", place=place)
        self._value_infos(graph, header.get("value_info"), carried, place)
        return result

    def _value_infos(
        self, graph: Any, listed: Attribute | None, carried: dict[str, onnx.ValueInfoProto], place: str
    ) -> None:
        """Write the stated types, in the order of the file."""
        if listed is None:
            graph.value_info.extend(carried.values())
            return
        for item in items_of(listed):
            if isinstance(item, String):
                if item.text not in carried:
                    refuse(f"no operation carries the type of `{item.text[:60]}`", place=place)
                graph.value_info.append(carried[item.text])
            else:
                entry = dict(fields_of(item, place))
                graph.value_info.append(value_info(text_of(entry.pop("name", None)), ANYTHING, entry, place))

    def _training(self, made: Operation, proto: onnx.ModelProto, outer: Mapping[str, str], place: str) -> None:
        """Read a training entry."""
        info = proto.training_info.add()
        headers = items_of(made.attributes.get("onward.regions"))
        apply(info, without(made.attributes, ("onward.regions", "algorithm", "initialization")), place)
        if len(made.regions) != 2 or len(headers) != 2:
            refuse(f"`{dialect.TRAINING}` has not two regions", place=place)
        for field, region, header, scope in zip(
            ("algorithm", "initialization"), made.regions, headers, (outer, {}), strict=True
        ):
            if not isinstance(header, Unit):
                graph = getattr(info, field)
                self._inner_graph(graph, region, dict(fields_of(header, place)), scope, place)
