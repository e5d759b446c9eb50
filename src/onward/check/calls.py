"""Checks of the types inside function bodies, once for each signature of the calls.

A signature is the input types and attributes of a call. Each signature is inferred only once, so functions that call
each other twice at each level do not cause exponential work. Only functions with something to check are visited: a
training operator, or a node for which onnx reported an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import onnx

from onward.check.gradient_nodes import check_gradient_types
from onward.check.inference_copies import ABSENT, Signature, bind_attributes
from onward.check.optimizers import check_optimizer_types, is_optimizer
from onward.check.report import Findings
from onward.check.types import MAX_INFERRED_NODES, Known, Types
from onward.check.views import GRAPH, GRAPHS, FunctionKey, Model, Node, View, function_key, is_gradient

_Key = tuple[Any, ...]


class CallTypes(Known):
    """The types of the values in a function's body for one signature."""

    def __init__(self, signature: Signature, caller: tuple[View, int]) -> None:
        super().__init__()
        self.signature = signature
        self.caller = caller  # the first call with this signature

    def views(self) -> Iterator[View]:
        return self.signature.body.walk()

    def leaves_out(self, view: View, name: str) -> bool:
        """Return whether `name` in `view` is an input of the function that this call omits."""
        body = self.signature.body
        return view is body and name in body.inputs and self.signature.inputs[body.inputs.index(name)] is ABSENT


def check_calls(model: Model, types: Types, findings: Findings) -> None:
    """Report training operators in function bodies whose tensors have the wrong type at one of the calls.

    A violation at several signatures is reported for the first of them. The errors of the inference of a body are added
    to `types.complaints`.
    """
    reported: set[tuple[str, str]] = set()
    for call in _Calls(model, types).infer_all():
        here = Findings()
        check_gradient_types(model, call, here)
        check_optimizer_types(model, call, here)
        fresh = [d for d in here.found if (d.code, d.place) not in reported]
        reported.update((d.code, d.place) for d in fresh)
        view, position = call.caller
        findings.found += [
            dataclasses.replace(d, place=f"{d.place} (called from {view.node_place(position)})") for d in fresh
        ]


class _Calls:
    """Visits all calls of the functions that have something to check, each signature once."""

    def __init__(self, model: Model, types: Types) -> None:
        self._model = model
        self._types = types
        self._copier = types.copier
        self._sizes: dict[FunctionKey, int] = {}
        self._callers: dict[FunctionKey, list[FunctionKey]] = {key: [] for key in model.functions}
        for key in model.functions:
            for called in self._copier.calls(key):
                self._callers[called].append(key)
        self._wanted: set[FunctionKey] = set()
        self._seen: set[_Key] = set()
        self._complaints_read = 0

    def infer_all(self) -> Iterator[CallTypes]:
        if not self._model.expandable or not self._model.bodies:
            return
        for body in self._model.bodies:
            if any(is_gradient(n) or is_optimizer(self._model, n) for view in body.walk() for n in view.nodes):
                self._want(function_key(body.proto))
        self._read_complaints()
        if not self._wanted:
            return
        stack: list[CallTypes] = list(self._calls_from(self._types))
        while stack:
            call = stack.pop()
            body = call.signature.body
            self._types.inferred_nodes += self._size(function_key(body.proto))
            if self._types.inferred_nodes > MAX_INFERRED_NODES:
                self._types.cut_short.append(body)
                return
            self._infer(call)
            yield call
            self._read_complaints()
            stack.extend(self._calls_from(call))

    def _infer(self, call: CallTypes) -> None:
        before = len(self._types.complaints)
        graph = self._types.infer(call.signature.body, lambda dropped: self._copier.copy_call(call.signature, dropped))
        if graph is not None:
            call.collect(call.signature.body, graph, self._copier)
        for complaint in self._types.complaints[before:]:
            complaint.outer = complaint.outer or call.caller
            complaint.types = call if complaint.view.root is call.signature.body else None

    def _calls_from(self, scope: Known) -> Iterator[CallTypes]:
        for view in scope.views():
            for position, node in enumerate(view.nodes):
                key = self._model.callee(node)
                if key is None or key not in self._wanted or self._model.is_broken(view, position):
                    continue
                if any(a.type in (GRAPH, GRAPHS) for a in node.attribute):
                    continue  # the graph reads values around the call, which are unknown in the body
                signature = self._signature(scope, view, position, node, key)
                identity = _identity(key, signature)
                if identity not in self._seen:
                    self._seen.add(identity)
                    yield CallTypes(signature, (view, position))

    def _signature(self, scope: Known, view: View, position: int, node: Node, key: FunctionKey) -> Signature:
        body = self._copier.body(key)
        inputs: list[Any] = []
        for name in [*node.input, *[""] * len(body.inputs)][: len(body.inputs)]:
            found = view.lookup(name, position) if name else None
            left_out = found is not None and isinstance(scope, CallTypes) and scope.leaves_out(found[0], name)
            if not name or left_out:
                inputs.append(ABSENT)
            else:
                inputs.append(None if found is None else _renamed(scope.known(found[0]).get(name)))
        outer = scope.signature.attributes if isinstance(scope, CallTypes) else {}
        attributes = {a.name: a for a in body.proto.attribute_proto}
        attributes.update((a.name, a) for a in bind_attributes(node, outer))
        return Signature(body, tuple(inputs), attributes)

    def _want(self, key: FunctionKey) -> None:
        """Add this function and its callers to the functions to visit."""
        stack = [key]
        while stack:
            wanted = stack.pop()
            if wanted not in self._wanted:
                self._wanted.add(wanted)
                stack += self._callers[wanted]

    def _read_complaints(self) -> None:
        for complaint in self._types.complaints[self._complaints_read :]:
            if complaint.view.root.is_function:
                self._want(function_key(complaint.view.root.proto))
        self._complaints_read = len(self._types.complaints)

    def _size(self, key: FunctionKey) -> int:
        """Return the number of nodes of a function after expanding the functions that it calls."""
        if key not in self._sizes:
            size = 0
            for view in self._copier.body(key).walk():
                for node in view.nodes:
                    callee = self._model.callee(node)
                    size += 1 if callee is None else self._size(callee)
            self._sizes[key] = size
        return self._sizes[key]


def _renamed(known: Any) -> Any:
    """Return a type whose unknown dims have no names, because these names differ between calls."""
    if known is None or known.WhichOneof("value") != "tensor_type":
        return known
    plain = onnx.TypeProto()
    plain.CopyFrom(known)
    for dim in plain.tensor_type.shape.dim:
        if dim.WhichOneof("value") == "dim_param":
            dim.Clear()
    return plain


def _identity(key: FunctionKey, signature: Signature) -> _Key:
    inputs = (i if i is None or i is ABSENT else i.SerializeToString(deterministic=True) for i in signature.inputs)
    attributes = (a.SerializeToString(deterministic=True) for _, a in sorted(signature.attributes.items()))
    return key, *inputs, *attributes
