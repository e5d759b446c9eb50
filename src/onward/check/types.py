"""Types and shapes of every value: onnx's own strict inference of each graph, with all errors collected.

The combined graph of a training step is inferred in two parts: the inference graph once, then each algorithm with the
inferred types of what it reads. That is equivalent to inferring the concatenation, and stays linear with many entries.
`Gradient` has no inference in onnx: output i has the type of `xs[i]`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import onnx
from google.protobuf.message import Error as ProtobufError  # type: ignore[import-untyped]  # ships no types

from onward.check.inference_copies import Copier
from onward.check.report import Findings, quote
from onward.check.safety import element_count, is_data_type, type_text
from onward.check.views import (
    GRAPH,
    GRAPHS,
    Model,
    Node,
    View,
    is_empty,
)
from onward.graph.shapes import infer

C401 = "C401"
C402 = "C402"
C410 = "C410"

C411 = "C411"
C412 = "C412"

_REFUSALS = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError)
# onnx reports one type mismatch at a time: its node is removed and the rest is inferred again, within these limits.
_ROUNDS = 40
_COPIED_NAMES = 60_000_000  # a few seconds
MAX_INFERRED_NODES = 1_000_000  # in all rounds of all graphs
_TAG = re.compile(r"\(op_type:[^,()]*, node name: (#\d+#\d+)\): ?")
_NAMED = re.compile(r"\bname:? (#\d+#\d+)\b", re.IGNORECASE)


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
        """Return the number of elements, or None if a dim is unknown."""
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
    """Return the `TensorType` of a TypeProto, or None if it is not a tensor or has no element type."""
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
    """One inference error: the node, the node that calls its function, onnx's message, and the types at that call."""

    view: View
    position: int | None
    outer: tuple[View, int] | None
    text: str
    types: Known | None = None  # None: those of the graphs


class Known:
    """The known types of the values of some graphs, and the places from which they were called."""

    def __init__(self) -> None:
        self._types: dict[int, dict[str, Any]] = {}
        self._tensor_types: dict[tuple[int, str], TensorType | None] = {}

    def views(self) -> Iterator[View]:
        """Yield the graphs, with their subgraphs."""
        raise NotImplementedError

    def of(self, view: View, name: str, before: int) -> TensorType | None:
        """Return the type of `name` as node `before` of `view` sees it, or None if it is not known."""
        found = view.lookup(name, before)
        return None if found is None else self.at(found[0], name)

    def at(self, view: View, name: str) -> TensorType | None:
        key = (id(view), name)
        if key not in self._tensor_types:
            self._tensor_types[key] = tensor_type(self._types.get(id(view), {}).get(name))
        return self._tensor_types[key]

    def known(self, view: View) -> dict[str, Any]:
        """Return the TypeProto of each value of a graph that has a known type."""
        return self._types.get(id(view), {})

    def collect(self, view: View, graph: Any, copier: Copier) -> None:
        """Store the types that onnx wrote into the copy `graph` of `view`."""
        known = self._types.setdefault(id(view), {})
        for tensor in view.initializers.values() if view.parent is not None else ():
            if element_count(tensor.dims) is not None and is_data_type(tensor.data_type):
                known[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
        for value in (*graph.input, *graph.value_info, *graph.output):
            if value.type.WhichOneof("value") is not None:
                known[value.name] = value.type
        for node in graph.node:
            graphs = [
                g for a in node.attribute if a.type in (GRAPH, GRAPHS) for g in ([a.g] if a.type == GRAPH else a.graphs)
            ]
            if graphs and node.name.startswith("#"):
                _, position = copier.located(node.name)
                for child, inner in zip(view.children_of.get(position, ()), graphs, strict=True):
                    self.collect(child, inner, copier)


class Types(Known):
    """The inferred type of each value of each graph; function bodies have one type per call (calls.py)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model
        self.complaints: list[Complaint] = []
        self.stale: list[tuple[View, str, TensorType, TensorType]] = []  # stated shapes that are wrong, and the right
        self.unread: list[tuple[View, str]] = []  # graphs that onnx could not load, and why
        self.cut_short: list[View] = []  # graphs that may have more errors than the complaints
        self.inferred_nodes = 0
        self.copier = Copier(model)
        for top in self._tops():
            self._infer(top)

    def _tops(self) -> Iterator[View]:
        return (top for top in self._model.tops() if not top.is_function)

    def views(self) -> Iterator[View]:
        for top in self._tops():
            yield from top.walk()

    def _infer(self, top: View) -> None:
        known = self._types.setdefault(id(top), {})
        for name, tensor in top.initializers.items():
            if element_count(tensor.dims) is not None and is_data_type(tensor.data_type):
                known[name] = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
        for value in (*top.proto.input, *top.proto.value_info, *top.proto.output):
            if value.type.WhichOneof("value") is not None:
                known.setdefault(value.name, value.type)
        if not self._model.expandable:
            return
        if self._is_costly(top):
            self.cut_short.append(top)
            return
        base_types: dict[str, Any] = {}
        if top.base is not None:
            base_types = self._types[id(top.base)]
            self._compare_declarations(top, top.base)
        before = len(self.complaints)
        inferred = self.infer(top, lambda dropped: self.copier.copy(top, base_types, dropped))
        if len(self.complaints) > before and top.kind == "graph":
            inferred = self._infer_without_stated_shapes(top, before) or inferred
        if inferred is not None:
            self.collect(top, inferred, self.copier)

    def _infer_without_stated_shapes(self, top: View, before: int) -> Any:
        """Return the inferred copy if only shapes that the file states cause the complaints, which are then withdrawn.

        Runtimes infer the shapes themselves and only warn where the file states others.
        """
        saved, self.complaints[before:] = self.complaints[before:], []
        misfits = self._model.misfits
        own = {id(view): set(misfits.get(id(view), ())) for view in top.walk()}
        for view in top.walk():
            stated_names = {v.name for v in (*view.proto.value_info, *view.proto.output)}
            misfits[id(view)] = own[id(view)] | stated_names.difference(view.inputs)  # a body may return an input
        inferred = self.infer(top, lambda dropped: self.copier.copy(top, {}, dropped))
        misfits.update(own)
        if inferred is None or len(self.complaints) > before:
            self.complaints[before:] = saved
            return None
        found = Known()
        found.collect(top, inferred, self.copier)
        stale = []
        for view in top.walk():
            for value in (*view.proto.value_info, *view.proto.output):
                stated, actual = tensor_type(value.type), found.at(view, value.name)
                if stated is not None and actual is not None and not stated.fits(actual):
                    stale.append((view, value.name, stated, actual))
        if any(stated.elem_type != actual.elem_type for _, _, stated, actual in stale):
            self.complaints[before:] = saved
            return None
        for view, name, _, _ in stale:
            misfits[id(view)].add(name)
        self.stale += stale
        return inferred

    def infer(self, top: View, copy_without: Callable[[set[str]], onnx.ModelProto]) -> Any:
        """Return a copy of `top` with every type that onnx can infer, or None; each error becomes a complaint.

        `copy_without` makes the copy without the nodes of the given tags, which had errors.
        """
        dropped: set[str] = set()
        for round_number in range(_ROUNDS):
            copy = copy_without(dropped)
            try:
                return infer(copy, strict=True, data_prop=False)
            except (ValueError, TypeError, ProtobufError) as error:
                self.unread.append((top, _clean(str(error))))
                return None
            except _REFUSALS as error:
                fresh = self._read(top, str(error)) - dropped
            self.inferred_nodes += len(copy.graph.node)
            out_of_bounds = round_number == _ROUNDS - 1 or self.inferred_nodes > MAX_INFERRED_NODES
            if out_of_bounds:
                self.cut_short.append(top)
            if out_of_bounds or not fresh:
                return _infer_leniently(copy)
            dropped |= fresh
        return None

    def _is_costly(self, top: View) -> bool:
        """Return whether onnx would take too long: at each subgraph and each call it copies every name around it."""
        inner = sum(view.parent is not None for view in top.walk())
        calls = sum(self._model.callee(node) is not None for view in top.walk() for node in view.nodes)
        return (inner + calls) * len(top.defined) > _COPIED_NAMES

    def _compare_declarations(self, top: View, base: View) -> None:
        """Record values of the inference graph that the algorithm declares with another type."""
        for value in (*top.proto.output, *top.proto.value_info):
            if value.name in top.defined or value.name not in base.defined:
                continue
            declared, actual = tensor_type(value.type), self.at(base, value.name)
            if declared is not None and actual is not None and not declared.fits(actual):
                words = f"{quote(value.name)} is declared as {declared}, and is {actual} in {base.place}"
                self.complaints.append(Complaint(top, None, None, words))
                self._model.misfits.setdefault(id(top), set()).add(value.name)

    def _read(self, top: View, text: str) -> set[str]:
        """Record each complaint in onnx's message and return the outermost nodes that they passed through."""
        outermost: set[str] = set()
        # Errors are joined by newlines; the tags of nested nodes precede the text of the innermost one.
        pieces = _TAG.split(text)
        if len(pieces) == 1:
            named = _NAMED.search(text)
            tags = [named.group(1)] if named else []
            self._complain(top, tags, text)
            return set(tags)
        chain: list[str] = []
        for tag, raw in zip(pieces[1::2], pieces[2::2], strict=True):
            view, _ = self.copier.located(tag)
            chain = [tag] if view is top else [*chain, tag]
            words = _clean(raw)
            if words:
                self._complain(top, chain, words)
                outermost.add(chain[0])
        return outermost

    def _complain(self, top: View, chain: list[str], text: str) -> None:
        if not chain:
            self.complaints.append(Complaint(top, None, None, _clean(text)))
            return
        if "expected to have type but instead is null" in text:
            return  # unknown is not wrong: onnx has no inference for the node that computes the input
        view, position = self.copier.located(chain[-1])
        outer = self.copier.located(chain[0]) if chain[0] != chain[-1] else None
        self.complaints.append(Complaint(view, position, outer, _clean(text)))


def _infer_leniently(copy: onnx.ModelProto) -> Any:
    try:
        return infer(copy, data_prop=False)
    except _REFUSALS:
        return None  # the complaint is already recorded; the types stay unknown


def _clean(text: str) -> str:
    text = re.sub(r"\[(Shape|Type)InferenceError\]|Inference error\(s\):|#\d+#\d+", "", text)
    text = re.sub(r"elem type: \((\d+)\) vs \((\d+)\)", _type_names, text)
    return " ".join(text.replace("\0", "").split())[:400]


def _type_names(match: re.Match[str]) -> str:
    return f"elem type: {type_text(int(match.group(1)))} and {type_text(int(match.group(2)))}"


def check_defaults(model: Model, findings: Findings) -> None:
    """Report initializers that are declared with another type, as an input, an output or a value."""
    for view in model.views():
        if view.is_function:
            continue
        declarations = [("input", v) for v in view.proto.input]
        declarations += [("output", v) for v in view.proto.output] + [("value_info", v) for v in view.proto.value_info]
        for kind, value in declarations:
            tensor = view.initializers.get(value.name)
            declared = tensor_type(value.type)
            if tensor is None or declared is None:
                continue
            actual = TensorType(tensor.data_type, tuple(tensor.dims))
            if not actual.fits(declared):
                model.misfits.setdefault(id(view), set()).add(value.name)
                findings.error(
                    C402,
                    f"the initializer {quote(value.name)} does not match the {kind} of the same name",
                    place=view.place,
                    found=str(actual),
                    needed=str(declared),
                )


def report_complaints(model: Model, types: Types, findings: Findings) -> None:
    """Report the errors of onnx's type and shape inference, except at nodes that are already reported."""
    for view, name, stated, actual in types.stale:
        findings.warning(
            C412,
            f"the file states a wrong shape for {quote(name)}",
            place=view.place,
            found=str(stated),
            needed=f"{actual}, as the nodes compute it; runtimes ignore what the file states",
        )
    for top, text in types.unread:
        findings.warning(C411, "types and shapes of this graph could not be inferred", place=top.place, found=text)
    for top in types.cut_short:
        findings.note(C411, "not every type and shape of this graph was checked", place=top.place)
    seen: set[tuple[int, int | None, str]] = set()
    for complaint in _with_types(types.complaints):
        # A node of a function may cause different messages at different calls: it is reported once.
        key = (id(complaint.view), complaint.position, "" if complaint.view.root.is_function else complaint.text)
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
        if complaint.outer is not None and complaint.view.root.is_function:
            through = f" (called from {complaint.outer[0].node_place(complaint.outer[1])})"
        findings.error(
            C401,
            f"types or shapes do not fit {quote(node.op_type)}",
            place=complaint.view.node_place(complaint.position) + through,
            found=_node_types(complaint.view, complaint.position, node, complaint.types or types),
            needed=complaint.text,
        )


def _with_types(complaints: list[Complaint]) -> list[Complaint]:
    """Return the complaints in order, each with the types of a call that has the same error, if there is one."""
    typed = {(id(c.view), c.position): c.types for c in reversed(complaints) if c.types is not None}
    return [dataclasses.replace(c, types=typed.get((id(c.view), c.position))) for c in complaints]


def _node_types(view: View, position: int, node: Node, types: Known) -> str:
    def text(names: Iterable[str], before: int) -> str:
        parts = []
        for name in list(names)[:8]:
            if name:
                known = types.of(view, name, before)
                parts.append(f"{quote(name)} {known if known is not None else '(type unknown)'}")
        return ", ".join(parts) or "nothing"

    return f"{text(node.input, position)} → {text(node.output, position + 1)}"


def check_with_onnx(model: Model, types: Types, findings: Findings) -> None:
    """Run onnx.checker if no other check found an error."""
    for top in model.tops():
        if top.is_function or (top.kind != "graph" and is_empty(top.proto)):
            continue
        base_types = types.known(top.base) if top.base is not None else {}
        copy = types.copier.copy(top, base_types, None)
        if any(v.type.WhichOneof("value") is None for v in (*copy.graph.input, *copy.graph.output)):
            continue  # a value of a foreign operator: its type cannot be known
        for output in copy.graph.output if top.kind == "graph" else ():
            if output.type.HasField("tensor_type"):
                output.type.tensor_type.shape.SetInParent()  # C119 said that it is missing, if it is
        try:
            onnx.checker.check_model(copy)
        except (ValueError, ProtobufError):
            continue  # reported as C411 already
        except onnx.checker.ValidationError as error:
            text = str(error)
            named = _NAMED.search(text)
            place = top.place
            if named:
                view, position = types.copier.located(named.group(1))
                place = view.node_place(position)
            findings.error(C410, "onnx.checker refuses the graph", place=place, found=_clean(text))
