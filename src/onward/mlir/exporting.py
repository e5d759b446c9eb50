"""An ONNX model as a module of the dialect `onnx`, in onnx-mlir's generic form, with nothing lost.

What onnx-mlir has a place for is there: operations, constants, regions, `onnx.name`, `onnx.dim_params` and
`onnx_node_name`. All else is in attributes called `onward.…`, which other tools keep or ignore:

    onward.model          of the module: IR version, operator sets, producer, metadata
    onward.graph          of a function: the rest of a graph, such as its name; in `onward.regions` for inner graphs
    onward.function       of a function: that it is a model-local function, with its domain and attributes
    onward.outputs        of an operation: the names of its outputs in the model
    onward.level          of an operation: core, function (of core operators) or other
    onward.role           of an argument, a constant or a result: parameter, state, gradient …; for readers only
    onward.replaces       of a result of a compiled step: the argument that it replaces; for readers only
    onward.initializer    of a constant: that it is an initializer, and the rest of its tensor
    onward.regions        of an operation: for each region the attribute that holds the graph, and the rest of the graph
    onward.external       of the module: the safetensors file beside the text that has its large constants
    onward.node, onward.attributes, onward.order, onward.inputs  of an operation: the rest of its node
    onward.value_info, onward.info  of an operation, of an argument or a result: the rest of what the model states of it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx

from onward.errors import Diagnostic, ModelError
from onward.mlir import dialect
from onward.mlir.dialect import M132
from onward.mlir.export_nodes import NodeWriter
from onward.mlir.export_values import Names, role_of
from onward.mlir.inference import inferred_types
from onward.mlir.messages import encode
from onward.mlir.syntax import (
    NONE,
    UNIT,
    Array,
    Attribute,
    Dictionary,
    Function,
    Module,
    Operation,
    Region,
    Symbol,
    Type,
    TypeAttribute,
    text,
)
from onward.mlir.types import ANYTHING, DIM_PARAMS, type_of, value_patch
from onward.mlir.weights import INLINE, Weights

MAIN = "main_graph"
LISTS = ("node", "initializer", "sparse_initializer", "input", "output", "value_info")
"""The fields of a graph that are operations, arguments and results."""

GraphLike = onnx.GraphProto | onnx.FunctionProto


def export_module(
    proto: onnx.ModelProto,
    weights: Weights | None = None,
    roles: Mapping[str, str] | None = None,
    replaces: Mapping[str, str] | None = None,
) -> Module:
    """Return the module of a whole model: its graph, training entries and functions.

    `roles` says what arguments are, and `replaces` which argument a result replaces; both are for readers only.

    Raises:
        ModelError: the model is not one that MLIR can express: values that nothing defines, or that two nodes define.
    """
    return Exporter(proto, weights or Weights(INLINE), roles or {}, replaces or {}).module()


class Exporter:
    """One export; collects what is wrong with the model."""

    def __init__(
        self, proto: onnx.ModelProto, weights: Weights, roles: Mapping[str, str], replaces: Mapping[str, str]
    ) -> None:
        self.proto, self.weights, self.roles, self.replaces = proto, weights, roles, replaces
        self.problems: list[Diagnostic] = []
        self.opsets: Mapping[str, int] = {
            o.domain if o.domain != "ai.onnx" else "": o.version for o in proto.opset_import
        }
        self.functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
        self.inferred: Mapping[str, Type] = inferred_types(proto)
        self._levels: dict[tuple[str, str, str], str] = {}

    def module(self) -> Module:
        module = Module()
        rest = encode(self.proto, ("graph", "functions", "training_info"))
        module.attributes["onward.model"] = Dictionary(rest)
        main = FunctionWriter(self)
        module.operations.append(main.graph_function(self.proto.graph, self.proto.training_info))
        taken = {MAIN}
        for function in self.proto.functions:
            name = f"{function.domain}.{function.name}" + (f".{function.overload}" if function.overload else "")
            while name in taken:
                name += "_"
            taken.add(name)
            module.operations.append(FunctionWriter(self, function).model_function(function, name))
        module.operations.append(Operation(dialect.ENTRY_POINT, attributes={"func": Symbol(MAIN)}))
        if self.problems:
            raise ModelError(self.problems)
        module.resources = self.weights.resources
        return module

    def level(self, node: onnx.NodeProto) -> str:
        """Return the level of a node's operator; that of a model-local function is that of its body."""
        key = (node.domain, node.op_type, node.overload)
        if key not in self.functions:
            return dialect.level(node.op_type, "" if node.domain == "ai.onnx" else node.domain)
        if key not in self._levels:
            self._levels[key] = dialect.OTHER  # should the function call itself
            inner = {self.level(n) for n in self.functions[key].node}
            self._levels[key] = dialect.OTHER if dialect.OTHER in inner else dialect.FUNCTION
        return self._levels[key]

    def report(self, message: str, place: str = "", found: str = "") -> None:
        self.problems.append(Diagnostic(M132, message, place=place, found=found))


class FunctionWriter(NodeWriter):
    """Writes one `func.func` with its inner regions; names of MLIR are unique in it."""

    # -- functions -------------------------------------------------------------------------------------------

    def graph_function(self, graph: onnx.GraphProto, entries: Iterable[onnx.TrainingInfoProto]) -> Operation:
        """Return the main function; the training entries, which read its values, are regions in it."""
        names: dict[str, tuple[str, Type]] = {}
        region, header, arguments = self._graph(graph, {}, "the graph", names)
        for index, entry in enumerate(entries):
            region.operations.append(self._training(entry, names, f"training_info[{index}]"))
        if len(arguments) < len(graph.input):  # some have defaults, which are no arguments in MLIR
            plain = {info.name for info in arguments}
            header["inputs"] = Array(
                tuple(text(i.name) if i.name in plain else self._input(i, names, default=True) for i in graph.input)
            )
        results = [self._find(o.name, names, {}, "the graph") for o in graph.output]
        returned = [self._described(o, kind) for o, (_, kind) in zip(graph.output, results, strict=True)]
        given = [self._described(info, type_of(info.type)) for info in arguments]
        return self._function(MAIN, region, given, results, returned, {"onward.graph": Dictionary(header)})

    def model_function(self, function: onnx.FunctionProto, symbol: str) -> Operation:
        """Return a model-local function; its values have the types that the function states, or any."""
        names: dict[str, tuple[str, Type]] = {}
        region = Region()
        place = f"function `{function.name}`"
        for name in function.input:
            region.arguments.append((self._define(name, ANYTHING, names, place), ANYTHING))
        infos, header = self._value_infos(function)
        self._nodes(function.node, region, names, {}, infos, {}, place)
        header.update(encode(function, ("node", "input", "output", "value_info")))
        results = [self._find(name, names, {}, place) for name in function.output]
        given: list[dict[str, Attribute]] = [{"onnx.name": text(name)} for name in function.input]
        returned: list[dict[str, Attribute]] = [{"onnx.name": text(name)} for name in function.output]
        made = self._function(symbol, region, given, results, returned, {"onward.function": Dictionary(header)})
        made.attributes["sym_visibility"] = text("private")
        return made

    def _function(
        self,
        symbol: str,
        region: Region,
        given: list[dict[str, Attribute]],
        results: Sequence[tuple[str, Type]],
        returned: list[dict[str, Attribute]],
        attributes: dict[str, Attribute],
    ) -> Operation:
        kinds = [kind for _, kind in results]
        region.operations.append(Operation("onnx.Return", [ssa for ssa, _ in results], operand_types=kinds))
        if self.needs_none:
            none = Operation(dialect.NO_VALUE, results=["none"], attributes={"value": UNIT}, result_types=[NONE])
            region.operations.insert(0, none)
        signature = Function(tuple(kind for _, kind in region.arguments), tuple(kinds))
        return Operation(
            "func.func",
            attributes={
                "sym_name": text(symbol),
                "function_type": TypeAttribute(signature),
                "arg_attrs": Array(tuple(Dictionary(g) for g in given)),
                "res_attrs": Array(tuple(Dictionary(r) for r in returned)),
                **attributes,
            },
            regions=[region],
        )

    def _described(self, info: onnx.ValueInfoProto, kind: Type) -> dict[str, Attribute]:
        """Return the attributes of an argument or result."""
        patch = value_patch(info, kind)
        described: dict[str, Attribute] = {"onnx.name": text(info.name)}
        if DIM_PARAMS in patch:
            described["onnx.dim_params"] = patch.pop(DIM_PARAMS)
        role = role_of(info) or self.exporter.roles.get(info.name, "")
        if role:
            described["onward.role"] = text(role)
        if info.name in self.exporter.replaces:
            described["onward.replaces"] = text(self.exporter.replaces[info.name])
        return {**described, "onward.info": Dictionary(patch)} if patch else described

    def _training(self, entry: onnx.TrainingInfoProto, names: Names, place: str) -> Operation:
        """Return a training entry: two regions, and the bindings."""
        made = Operation(dialect.TRAINING, attributes=encode(entry, ("algorithm", "initialization")))
        headers: list[Attribute] = []
        for field, outer in (("algorithm", names), ("initialization", {})):
            if entry.HasField(field):
                region, header = self._inner_graph(getattr(entry, field), outer, f"{place}.{field}")
                made.regions.append(region)
                headers.append(Dictionary(header))
            else:
                made.regions.append(Region())
                headers.append(UNIT)
        made.attributes["onward.regions"] = Array(tuple(headers))
        return made

    # -- graphs ----------------------------------------------------------------------------------------------

    def _inner_graph(self, graph: onnx.GraphProto, outer: Names, place: str) -> tuple[Region, dict[str, Attribute]]:
        """Return the region of an inner graph and what the text needs to know of it."""
        names: dict[str, tuple[str, Type]] = {}
        region, header, arguments = self._graph(graph, outer, place, names)
        plain = {info.name for info in arguments}
        header["inputs"] = Array(
            tuple(self._input(info, names, default=info.name not in plain) for info in graph.input)
        )
        results = [self._find(o.name, names, outer, place) for o in graph.output]
        header["outputs"] = Array(
            tuple(
                Dictionary({"name": text(o.name), **value_patch(o, kind)})
                for o, (_, kind) in zip(graph.output, results, strict=True)
            )
        )
        yielded = Operation("onnx.Yield", [ssa for ssa, _ in results], operand_types=[kind for _, kind in results])
        region.operations.append(yielded)
        return region, header

    @staticmethod
    def _input(info: onnx.ValueInfoProto, names: Names, *, default: bool) -> Dictionary:
        """Return what the text needs to know of an input; one with a default has the type of that."""
        patch = value_patch(info, names.get(info.name, ("", ANYTHING))[1])
        return Dictionary({"name": text(info.name), **({"default": UNIT} if default else {}), **patch})

    def _graph(
        self, graph: onnx.GraphProto, outer: Names, place: str, names: dict[str, tuple[str, Type]]
    ) -> tuple[Region, dict[str, Attribute], list[onnx.ValueInfoProto]]:
        """Return the region of a graph without its end, its header, and the inputs that are arguments."""
        region = Region()
        infos, header = self._value_infos(graph)
        header.update(encode(graph, LISTS))
        defaults = {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer}
        arguments = [info for info in graph.input if info.name not in defaults]
        for info in arguments:
            kind = type_of(info.type)
            region.arguments.append((self._define(info.name, kind, names, place), kind))
        for tensor in graph.initializer:
            self._initializer(tensor, region, names, infos, place)
        for sparse in graph.sparse_initializer:
            self._sparse_initializer(sparse, region, names, infos, place)
        stated = {o.name: o for o in graph.output}
        self._nodes(graph.node, region, names, outer, infos, stated, place)
        return region, header, arguments

    def _value_infos(self, graph: GraphLike) -> tuple[dict[str, onnx.ValueInfoProto], dict[str, Attribute]]:
        """Return the stated types that operations carry, by name, and the header's list of those in another order."""
        made: list[str] = []
        if isinstance(graph, onnx.GraphProto):
            made += [t.name for t in graph.initializer] + [s.values.name for s in graph.sparse_initializer]
        made += [name for node in graph.node for name in node.output if name]
        first: dict[str, onnx.ValueInfoProto] = {}
        for info in graph.value_info:
            first.setdefault(info.name, info)
        carried = {name: first[name] for name in made if name in first}
        if [info.name for info in graph.value_info] == list(carried):
            return carried, {}
        listed: list[Attribute] = []
        seen: set[str] = set()
        for info in graph.value_info:
            if info.name in carried and info.name not in seen:
                seen.add(info.name)
                listed.append(text(info.name))
            else:  # of an input, of nothing in this graph, or for the second time
                listed.append(Dictionary({"name": text(info.name), **value_patch(info, ANYTHING)}))
        return carried, {"value_info": Array(tuple(listed))}
