"""Types and shapes of every value: onnx's own strict inference, on each graph, with all complaints collected.

The combined graph of a training step is inferred in two parts: the inference graph once, then each algorithm with the
inferred types of what it reads. That equals inferring the concatenation, and stays linear with many entries.
`Gradient` has no inference in onnx: output i takes the type of `xs[i]`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import time
from collections.abc import Iterable
from typing import Any

import onnx
from onnx import TensorProto

from onward.check.report import Findings, listing, quote
from onward.check.safety import element_count, type_text
from onward.check.views import (
    BEFORE_ALL,
    GRAPH,
    GRAPHS,
    FunctionKey,
    Model,
    Node,
    View,
    domain_of,
    function_key,
    is_gradient,
    known_opset,
    strings,
)
from onward.errors import define
from onward.model.schema import raw_schema, schema

C401 = define(
    "C401",
    "types or shapes do not fit",
    why="The operator's own rule says that these input types or shapes cannot go together, or that the result is not "
    "of the type that the graph declares for it.",
    fix="Correct the shapes or types of the inputs, or what is declared for the output.",
)
C402 = define(
    "C402",
    "initializer and input of one name disagree",
    why="An initializer with the name of an input is that input's default, so it must have its type and shape.",
    fix="Give both the same element type and shape.",
)
C410 = define(
    "C410",
    "refused by onnx.checker",
    why="The standard's own checker refuses this graph for a reason that none of the other rules covers.",
    fix="Read the message of onnx.checker in `found`.",
)

_KEPT_ELEMENTS = 1024  # larger constants do not help shape inference and cost memory
_ROUNDS = 40
_SECONDS = 3.0
_TAG = re.compile(r"\(op_type:[^,()]*, node name: (#\d+#\d+)\): ?")
_NAMED = re.compile(r"node name:? (#\d+#\d+)\b")
# What ConstantOfShape may make, at every opset that has it.
_FILLABLE = (
    TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BOOL,
    TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TensorType:
    """The element type and shape of a tensor; a dim is a number, a name or None; `shape` None means unknown rank."""

    elem_type: int
    shape: tuple[int | str | None, ...] | None

    def __str__(self) -> str:
        if self.shape is None:
            return f"{type_text(self.elem_type)} of unknown rank"
        return f"{type_text(self.elem_type)}[{', '.join('?' if d is None else str(d) for d in self.shape)}]"

    def fits(self, other: TensorType) -> bool:
        """Return whether some tensor has both types: equal element types, and no two known dims that differ."""
        return self.elem_type == other.elem_type and shapes_fit(self.shape, other.shape)

    @property
    def size(self) -> int | None:
        """The number of elements, where every dim is known."""
        if self.shape is None or not all(isinstance(d, int) for d in self.shape):
            return None
        return element_count(self.shape)


def shapes_fit(a: tuple[int | str | None, ...] | None, b: tuple[int | str | None, ...] | None) -> bool:
    if a is None or b is None:
        return True
    return len(a) == len(b) and not any(
        isinstance(m, int) and isinstance(n, int) and m != n for m, n in zip(a, b, strict=True)
    )


def tensor_type(proto: Any) -> TensorType | None:
    """Return the `TensorType` of a TypeProto, or None where it is no tensor or has no element type."""
    if proto is None or proto.WhichOneof("value") != "tensor_type" or proto.tensor_type.elem_type == 0:
        return None
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return TensorType(tensor.elem_type, None)
    dims: list[int | str | None] = []
    for dim in tensor.shape.dim:
        which = dim.WhichOneof("value")
        dims.append(dim.dim_value if which == "dim_value" else (dim.dim_param or None) if which else None)
    return TensorType(tensor.elem_type, tuple(dims))


@dataclasses.dataclass
class Complaint:
    """One inference error: the culprit, the top-level node whose inference met it, and onnx's words."""

    view: View
    position: int | None
    outer: tuple[View, int] | None
    text: str


class Types:
    """The inferred type of each value of each graph (not of function bodies, which have one type per call)."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._types: dict[int, dict[str, Any]] = {}
        self.complaints: list[Complaint] = []
        self.copies: list[tuple[View, onnx.ModelProto]] = []
        self._views = list(model.views())
        self._numbers = {id(view): number for number, view in enumerate(self._views)}
        self._reachable = _reachable_functions(model)
        for top in model.tops():
            if not top.is_function:
                self._infer(top)

    def of(self, view: View, name: str, before: int) -> TensorType | None:
        """Return the type of `name` as node `before` of `view` sees it, or None where it is not known."""
        found = view.lookup(name, before)
        return None if found is None else self.at(found[0], name)

    def at(self, view: View, name: str) -> TensorType | None:
        return tensor_type(self._types.get(id(view), {}).get(name))

    def _infer(self, top: View) -> None:
        known = self._types.setdefault(id(top), {})
        for name, tensor in top.initializers.items():
            if element_count(tensor.dims) is not None and tensor.data_type:
                known[name] = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
        for value in (*top.proto.input, *top.proto.value_info, *top.proto.output):
            if value.type.WhichOneof("value") is not None:
                known.setdefault(value.name, value.type)
        if not self._model.expandable:
            return
        dropped: set[str] = set()
        started = time.monotonic()
        inferred = None
        for round_number in range(_ROUNDS):
            copy = self._copy(top, dropped)
            try:
                inferred = onnx.shape_inference.infer_shapes(copy, check_type=True, strict_mode=True)
                break
            except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError) as error:
                fresh = self._read(top, str(error)) - dropped
            if not fresh or round_number == _ROUNDS - 2 or time.monotonic() - started > _SECONDS:
                inferred = self._infer_leniently(copy)
                break
            dropped |= fresh
        if inferred is None:
            return
        self.copies.append((top, copy))
        self._collect(top, inferred.graph)

    def _infer_leniently(self, copy: onnx.ModelProto) -> onnx.ModelProto | None:
        try:
            return onnx.shape_inference.infer_shapes(copy)
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError):
            return None  # the complaint is already recorded; the types stay unknown

    def _read(self, top: View, text: str) -> set[str]:
        """Record each complaint in onnx's message and return the outermost nodes that they came through."""
        outermost: set[str] = set()
        # Complaints are joined by newlines; the tags of nested nodes stand in front of the innermost one's text.
        pieces = _TAG.split(text)
        if len(pieces) == 1:
            named = _NAMED.search(text)
            tags = [named.group(1)] if named else []
            self._complain(top, tags, text)
            return set(tags)
        chain: list[str] = []
        for tag, words in zip(pieces[1::2], pieces[2::2], strict=True):
            chain.append(tag)
            words = _clean(words)
            if not words:
                continue
            view, _ = self._located(tag)
            if view.root is top and view.parent is None:
                chain = [tag]
            self._complain(top, chain, words)
            outermost.add(chain[0])
        return outermost

    def _located(self, tag: str) -> tuple[View, int]:
        _, number, position = tag.split("#")
        return self._views[int(number)], int(position)

    def _complain(self, top: View, chain: list[str], text: str) -> None:
        if not chain:
            self.complaints.append(Complaint(top, None, None, _clean(text)))
            return
        view, position = self._located(chain[-1])
        outer = self._located(chain[0]) if chain[0] != chain[-1] else None
        self.complaints.append(Complaint(view, position, outer, _clean(text)))

    def _collect(self, view: View, graph: Any) -> None:
        known = self._types.setdefault(id(view), {})
        for tensor in view.initializers.values():
            if element_count(tensor.dims) is not None and tensor.data_type:
                known[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
        for value in (*graph.input, *graph.value_info, *graph.output):
            if value.type.WhichOneof("value") is not None:
                known[value.name] = value.type
        for node in graph.node:
            graphs = [
                g for a in node.attribute if a.type in (GRAPH, GRAPHS) for g in ([a.g] if a.type == GRAPH else a.graphs)
            ]
            if graphs and node.name.startswith("#"):
                _, position = self._located(node.name)
                for child, inner in zip(view.children_of.get(position, ()), graphs, strict=True):
                    self._collect(child, inner)

    # Copying: tagged node names, no large data, no broken nodes, Gradient as Identity.

    def _copy(self, top: View, dropped: set[str]) -> onnx.ModelProto:
        copy = onnx.ModelProto(ir_version=min(max(self._model.proto.ir_version, 4), onnx.IR_VERSION))
        copy.opset_import.extend(self._model.proto.opset_import)
        if "" not in self._model.opsets:
            copy.opset_import.add(domain="", version=1)
        self._copy_graph(top, copy.graph, dropped)
        if top.base is not None:
            self._import(top, top.base, copy.graph)
        wanted = set().union(*(self._reachable.get(k, set()) for k in _called(self._model, top)))
        for body in self._model.bodies:
            key = function_key(body.proto)
            if key in wanted and self._model.functions[key] is body.proto:
                self._copy_function(body, copy.functions.add(), dropped)
        return copy

    def _copy_graph(self, view: View, target: Any, dropped: set[str]) -> None:
        source = view.proto
        target.name = source.name or "graph"
        target.input.extend(source.input)
        target.output.extend(source.output)
        target.value_info.extend(source.value_info)
        inputs = set(view.inputs)
        for tensor in view.initializers.values():
            count = element_count(tensor.dims)
            small = count is not None and count <= _KEPT_ELEMENTS and tensor.data_location != TensorProto.EXTERNAL
            if small and tensor.ByteSize() < 64 * _KEPT_ELEMENTS:
                target.initializer.add().CopyFrom(tensor)
            elif tensor.name not in inputs and count is not None:
                if view.parent is None:
                    target.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
                else:
                    self._fill(tensor.name, tensor, target.node)
        for name, sparse in view.sparse.items():
            if name not in inputs and view.parent is None and element_count(sparse.dims) is not None:
                target.input.append(onnx.helper.make_tensor_value_info(name, sparse.values.data_type, sparse.dims))
        self._copy_nodes(view, target.node, dropped)

    def _copy_function(self, body: View, target: Any, dropped: set[str]) -> None:
        for field in ("name", "domain", "overload"):
            setattr(target, field, getattr(body.proto, field))
        target.input.extend(body.proto.input)
        target.output.extend(body.proto.output)
        target.attribute.extend(body.proto.attribute)
        target.attribute_proto.extend(body.proto.attribute_proto)
        target.opset_import.extend(body.proto.opset_import)
        if "" not in body.opsets:
            target.opset_import.add(domain="", version=self._model.opsets.get("", 1))
        self._copy_nodes(body, target.node, dropped)

    def _copy_nodes(self, view: View, target: Any, dropped: set[str]) -> None:
        number = self._numbers[id(view)]
        for position, node in enumerate(view.nodes):
            tag = f"#{number}#{position}"
            if self._model.is_broken(view, position) or tag in dropped:
                continue
            if is_gradient(node):
                self._copy_gradient(view, position, node, target, tag)
                continue
            if node.op_type == "Constant" and not node.domain and self._fill_constant(node, target):
                continue
            children = view.children_of.get(position)
            if not children:
                fresh = target.add()
                fresh.CopyFrom(node)
                fresh.name = tag
                self._add_defaults(view, node, fresh)
                continue
            fresh = target.add(op_type=node.op_type, domain=node.domain, overload=node.overload, name=tag)
            fresh.input.extend(node.input)
            fresh.output.extend(node.output)
            remaining = iter(children)
            for attribute in node.attribute:
                added = fresh.attribute.add()
                if attribute.type == GRAPH:
                    added.name, added.type = attribute.name, GRAPH
                    self._copy_graph(next(remaining), added.g, dropped)
                elif attribute.type == GRAPHS:
                    added.name, added.type = attribute.name, GRAPHS
                    for _ in attribute.graphs:
                        self._copy_graph(next(remaining), added.graphs.add(), dropped)
                else:
                    added.CopyFrom(attribute)

    def _add_defaults(self, view: View, node: Node, fresh: Any) -> None:
        """Write out the default attributes of an operator that is a function: onnx infers its body without them."""
        domain = domain_of(node.domain)
        version = view.opsets.get(domain)
        if version is None or self._model.callee(node) is not None:
            return
        defaults = _function_defaults(node.op_type, domain, known_opset(domain, version))
        if defaults:
            given = {a.name for a in node.attribute}
            fresh.attribute.extend(a for a in defaults if a.name not in given)

    def _copy_gradient(self, view: View, position: int, node: Node, target: Any, tag: str) -> None:
        for name, output in zip(strings(node, "xs") or (), node.output, strict=False):
            if output and view.lookup(name, position) is not None:
                target.add(op_type="Identity", input=[name], output=[output], name=tag)

    def _fill_constant(self, node: Node, target: Any) -> bool:
        """Stand in for a large constant with a node of the same type that carries no data."""
        if len(node.attribute) != 1 or node.attribute[0].name != "value" or not node.output:
            return False
        tensor = node.attribute[0].t
        if self._model.opsets.get("", 0) < 9 or tensor.data_type not in _FILLABLE:
            return False
        count = element_count(tensor.dims)
        if count is None or count <= _KEPT_ELEMENTS:
            return False
        self._fill(node.output[0], tensor, target)
        return True

    def _fill(self, name: str, tensor: Any, target: Any) -> None:
        dims = f"{name}#dims"
        shape = onnx.helper.make_tensor("", TensorProto.INT64, [len(tensor.dims)], list(tensor.dims))
        target.append(onnx.helper.make_node("Constant", [], [dims], value=shape))
        kind = tensor.data_type if tensor.data_type in _FILLABLE else TensorProto.FLOAT
        fill = TensorProto(
            data_type=kind, dims=[1], raw_data=bytes(onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize)
        )
        target.append(onnx.helper.make_node("ConstantOfShape", [dims], [name], value=fill))

    def _import(self, top: View, base: View, graph: Any) -> None:
        """Make what the algorithm reads of the inference graph known to the copy: by value if small, else by type."""
        known = self._types.get(id(base), {})
        for name in sorted(_read_names(top)):
            if name in top.defined or name not in base.defined:
                continue
            tensor = base.initializers.get(name)
            position = base.defined[name]
            node = base.nodes[position] if position != BEFORE_ALL else None
            if (
                tensor is not None
                and (element_count(tensor.dims) or 0) <= _KEPT_ELEMENTS
                and (tensor.data_location != TensorProto.EXTERNAL and element_count(tensor.dims) is not None)
            ):
                graph.initializer.add().CopyFrom(tensor)
            elif node is not None and node.op_type == "Constant" and not node.domain and node.ByteSize() < 8192:
                graph.node.insert(0, node)
            else:
                value = graph.input.add(name=name)
                if name in known:
                    value.type.CopyFrom(known[name])


@functools.cache
def _function_defaults(op_type: str, domain: str, opset: int) -> tuple[Any, ...]:
    found = schema(op_type, domain, opset)
    if found is None or not found.has_function:
        return ()
    raw = raw_schema(op_type, domain, opset)
    return tuple(a.default_value for a in raw.attributes.values() if a.default_value.name)


def _clean(text: str) -> str:
    text = re.sub(r"\[(Shape|Type)InferenceError\]|Inference error\(s\):|#\d+#\d+", "", text)
    return " ".join(text.replace("\0", "").split())[:400]


def _called(model: Model, top: View) -> Iterable[FunctionKey]:
    return {key for view in top.walk() for node in view.nodes if (key := model.callee(node)) is not None}


def _reachable_functions(model: Model) -> dict[FunctionKey, set[FunctionKey]]:
    """Return for each function itself and all that it calls, directly or not (empty where that is not finite)."""
    if not model.expandable:
        return {}
    direct = {function_key(body.proto): _called(model, body) for body in model.bodies}
    reachable: dict[FunctionKey, set[FunctionKey]] = {}
    for start in direct:
        seen = {start}
        stack = [start]
        while stack:
            for key in direct[stack.pop()]:
                if key not in seen:
                    seen.add(key)
                    stack.append(key)
        reachable[start] = seen
    return reachable


def _read_names(view: View) -> set[str]:
    names = set(view.outputs)
    for inner in view.walk():
        names.update(inner.outputs)
        for node in inner.nodes:
            names.update(node.input)
            if is_gradient(node):
                names.update(strings(node, "xs") or ())
    return names - {""}


def check_defaults(model: Model, findings: Findings) -> None:
    """Report inputs whose default (the initializer of the same name) is of another type."""
    for view in model.views():
        if view.is_function:
            continue
        for value in view.proto.input:
            tensor = view.initializers.get(value.name)
            declared = tensor_type(value.type)
            if tensor is None or declared is None:
                continue
            actual = TensorType(tensor.data_type, tuple(tensor.dims))
            if not actual.fits(declared):
                findings.error(
                    C402,
                    f"the initializer {quote(value.name)} does not fit the input of the same name",
                    place=view.place,
                    found=str(actual),
                    needed=str(declared),
                )


def report_complaints(model: Model, types: Types, findings: Findings) -> None:
    """Report what onnx's type and shape inference refused, except at nodes that are reported already."""
    seen: set[tuple[int, int | None, str]] = set()
    for complaint in types.complaints:
        key = (id(complaint.view), complaint.position, complaint.text)
        if key in seen:
            continue
        seen.add(key)
        if complaint.position is None:
            findings.error(C401, "types or shapes do not fit", place=complaint.view.place, found=complaint.text)
            continue
        if model.is_broken(complaint.view, complaint.position):
            continue
        node = complaint.view.nodes[complaint.position]
        through = ""
        if complaint.outer is not None and complaint.view.is_function:
            through = f" (called from {complaint.outer[0].node_place(complaint.outer[1])})"
        findings.error(
            C401,
            f"types or shapes do not fit {quote(node.op_type)}",
            place=complaint.view.node_place(complaint.position) + through,
            found=_input_types(complaint.view, complaint.position, node, types),
            needed=complaint.text,
        )


def _input_types(view: View, position: int, node: Node, types: Types) -> str:
    parts = []
    for name in node.input[:8]:
        if name:
            known = types.of(view, name, position)
            parts.append(f"{quote(name)} {known if known is not None else '(type unknown)'}")
    return ", ".join(parts) or listing(())


def check_with_onnx(types: Types, findings: Findings) -> None:
    """Ask onnx.checker too, where nothing else was found: the last net."""
    for top, copy in types.copies:
        if any(v.type.WhichOneof("value") is None for v in (*copy.graph.input, *copy.graph.output)):
            continue  # a value of a foreign operator: its type is nobody's fault
        try:
            onnx.checker.check_model(copy)
        except onnx.checker.ValidationError as error:
            text = str(error)
            named = _NAMED.search(text)
            place = top.place
            if named:
                view, position = types._located(named.group(1))
                place = view.node_place(position)
            findings.error(C410, "onnx.checker refuses the graph", place=place, found=_clean(text))
