"""Checks of nodes: the operator exists, and the inputs, outputs and attributes agree with it."""

from __future__ import annotations

import functools
from typing import Any

import onnx

from onward.check.functions import C118, function_hint
from onward.check.report import Findings, listing, quote
from onward.check.views import (
    OFFICIAL_DOMAINS,
    FunctionKey,
    Model,
    Node,
    View,
    domain_of,
    domain_text,
    function_text,
    known_opset,
)
from onward.graph.schema import EXPERIMENTAL, TRAINING_DOMAIN, Schema, all_schemas, newest_opset, raw_schema, schema

C116 = "C116"
C123 = "C123"
C134 = "C134"
C135 = "C135"
C136 = "C136"
C137 = "C137"
C138 = "C138"

# Domains that runtimes define; a model may also have functions in the same domain.
_RUNTIME_DOMAINS = ("com.microsoft", "com.ms", "ai.onnx.contrib", "org.pytorch", "com.nvidia", "trt.plugins")
_ATTRIBUTE_TYPES = onnx.AttributeProto.AttributeType


class _Groups:
    """Findings that many nodes share; each is reported once, at the first node, with the number of nodes."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, ...], tuple[View, int]] = {}
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, view: View, position: int, *key: str) -> None:
        key = (view.root.place, *key)
        self._first.setdefault(key, (view, position))
        self._counts[key] = self._counts.get(key, 0) + 1

    def items(self) -> list[tuple[tuple[str, ...], View, int, str]]:
        return [
            (key[1:], view, position, "" if self._counts[key] == 1 else f"{self._counts[key]} such nodes in this graph")
            for key, (view, position) in self._first.items()
        ]


def check_nodes(model: Model, findings: Findings) -> None:
    """Report every node that does not agree with its operator or function."""
    groups = _Groups()
    for view in model.views():
        for position, node in enumerate(view.nodes):
            before = len(findings.found)
            _check_node(model, view, position, node, groups, findings)
            if len(findings.found) > before:
                model.mark_broken(view, position)
    _report_groups(model, groups, findings)


def _check_node(model: Model, view: View, position: int, node: Node, groups: _Groups, findings: Findings) -> None:
    domain = domain_of(node.domain)
    _check_attribute_form(view, position, node, findings)
    if not node.op_type:
        findings.error(C134, "the node has no op_type", place=view.node_place(position), needed="an op_type")
        return
    version = view.opsets.get(domain)
    if version is None:
        groups.add(view, position, "domain", domain)
        model.mark_broken(view, position)
    key = model.callee(node)
    if key is not None:
        _check_call(model, key, view, position, node, findings)
        return
    if version is None:
        return
    found = schema(node.op_type, domain, known_opset(domain, version))
    if found is None or node.overload:
        groups.add(view, position, "operator", domain, node.op_type, node.overload)
        if domain in OFFICIAL_DOMAINS and not _is_experimental(domain, node.op_type, node.overload):
            model.mark_broken(view, position)
        else:
            model.mark_foreign(view, position)
        return
    if found.deprecated:
        groups.add(view, position, "deprecated", domain, node.op_type, node.overload)
        model.mark_broken(view, position)
        return
    _check_arity(found, view, position, node, findings)
    _check_attributes(found, known_opset(domain, version), view, position, node, findings)


def _report_groups(model: Model, groups: _Groups, findings: Findings) -> None:
    for key, view, position, many in groups.items():
        place = view.node_place(position)
        if key[0] == "domain":
            whose = "the function's" if view.root.is_function else "the model's"
            findings.error(
                C116,
                f"the domain {domain_text(key[1])} is used but not imported",
                place=place,
                found=f"{whose} opset_import has {listing(sorted(d or 'ai.onnx' for d in view.opsets))}"
                + (f"; {many}" if many else ""),
                needed=f"an opset_import of {domain_text(key[1])}",
                hint=findings.near(key[1], view.opsets),
            )
            continue
        domain, op_type, overload = key[1:]
        if key[0] == "deprecated":
            findings.error(
                C135,
                f"{quote(op_type)} is deprecated at version {view.opsets[domain]} of {domain_text(domain)}",
                place=place,
                found=many,
                needed="its successor, or an older opset_import",
            )
        elif op_type == "GraphCall" and domain == TRAINING_DOMAIN:
            findings.error(
                C123,
                "`GraphCall` has ONNX 1.7's meaning, which later versions do not support",
                place=place,
                found=many,
                needed="a training graph that continues the inference graph",
                hint="convert the file: onward upgrade FILE -o OUT",
            )
        else:
            _report_unknown(model, view, domain, op_type, overload, place, many, findings)


def _report_unknown(
    model: Model, view: View, domain: str, op_type: str, overload: str, place: str, many: str, findings: Findings
) -> None:
    key: FunctionKey = (domain, op_type, overload)
    version = view.opsets[domain]
    has_functions = domain in model.function_names
    if overload or (has_functions and domain not in OFFICIAL_DOMAINS and not domain.startswith(_RUNTIME_DOMAINS)):
        findings.error(
            C118,
            f"no function {function_text(key)} in the model",
            place=place,
            found=many or f"the functions {listing(model.function_names.get(domain, ()))}",
            needed=f"{function_text(key)} in ModelProto.functions",
            hint=function_hint(model, key, findings),
        )
    elif _is_experimental(*key):
        findings.warning(
            C138,
            f"{domain_text(domain)} has no operator {quote(op_type)} in version {version}, but ONNX Runtime runs it",
            place=place,
            found=many,
            hint="make-trainable replaces it by operators of the standard",
        )
    elif domain in OFFICIAL_DOMAINS:
        newest = schema(op_type, domain, None)
        hint = findings.near(op_type, _operators(domain))
        if newest is not None:
            hint = f"import {domain_text(domain)} version {_first_version(op_type, domain)} or above"
        findings.error(
            C134,
            f"{domain_text(domain)} has no operator {quote(op_type)} in version {version}",
            place=place,
            found=many,
            needed=f"an operator of {domain_text(domain)}, version {version}",
            hint=hint,
        )
    else:
        findings.warning(
            C138,
            f"{quote(op_type)} of {domain_text(domain)} is defined neither by the standard nor by this model",
            place=place,
            found=many,
            hint=findings.near(op_type, (k[1] for k in model.functions)),
        )


def _is_experimental(domain: str, op_type: str, overload: str) -> bool:
    return domain == "" and op_type in EXPERIMENTAL and not overload


@functools.cache
def _operators(domain: str) -> tuple[str, ...]:
    return tuple(s.op_type for s in all_schemas(domain))


def _first_version(op_type: str, domain: str) -> int:
    return next(v for v in range(1, newest_opset(domain) + 1) if schema(op_type, domain, v) is not None)


def _check_call(model: Model, key: FunctionKey, view: View, position: int, node: Node, findings: Findings) -> None:
    function = model.functions[key]
    for what, given, formal in (
        ("inputs", node.input, function.input),
        ("outputs", node.output, function.output),
    ):
        if len(given) > len(formal):
            findings.error(
                C136,
                f"the call of {function_text(key)} has too many {what}",
                place=view.node_place(position),
                found=str(len(given)),
                needed=f"at most {len(formal)}: {listing(formal)}",
            )
    declared = [*function.attribute, *(a.name for a in function.attribute_proto)]
    for attribute in node.attribute:
        if attribute.name not in declared:
            findings.error(
                C137,
                f"the function {function_text(key)} has no attribute {quote(attribute.name)}",
                place=view.node_place(position),
                needed=f"one of {listing(declared)}",
                hint=findings.near(attribute.name, declared),
            )


def _check_arity(found: Schema, view: View, position: int, node: Node, findings: Findings) -> None:
    for what, given, formal, least, most in (
        ("inputs", node.input, found.inputs, found.min_inputs, found.max_inputs),
        ("outputs", node.output, found.outputs, found.min_outputs, found.max_outputs),
    ):
        count = len(given)
        if not least <= count <= most:
            names = listing([p.name for p in formal])
            limits = f"{least}" if least == most else f"at least {least}" if most > 10**6 else f"{least} to {most}"
            findings.error(
                C136,
                f"{quote(node.op_type)} has {'too few' if count < least else 'too many'} {what}",
                place=view.node_place(position),
                found=str(count),
                needed=f"{limits}: {names}",
            )
    if "" in node.input:
        for index, (name, parameter) in enumerate(zip(node.input, found.inputs, strict=False)):
            if not name and not parameter.optional and not parameter.variadic:
                findings.error(
                    C136,
                    f"input {index} ({quote(parameter.name)}) of {quote(node.op_type)} is left out but required",
                    place=view.node_place(position),
                    needed=f"a value for {quote(parameter.name)}",
                )


@functools.cache
def _attribute_types(op_type: str, domain: str, opset: int) -> dict[str, tuple[int, bool]]:
    raw = raw_schema(op_type, domain, opset)
    return {name: (int(a.type.value), bool(a.required)) for name, a in raw.attributes.items()}


def _type_name(kind: int) -> str:
    return str(_ATTRIBUTE_TYPES.Name(kind)) if kind in _ATTRIBUTE_TYPES.values() else str(kind)


def _check_attributes(found: Schema, opset: int, view: View, position: int, node: Node, findings: Findings) -> None:
    known = _attribute_types(found.op_type, found.domain, opset)
    given = set()
    for attribute in node.attribute:
        name = attribute.name
        given.add(name)
        if name not in known:
            if not name.startswith("__"):  # reserved for tools
                findings.error(
                    C137,
                    f"{quote(node.op_type)} has no attribute {quote(name)}",
                    place=view.node_place(position),
                    needed=f"one of {listing(sorted(known))} at version {view.opsets[found.domain]}",
                    hint=findings.near(name, known),
                )
        elif attribute.type not in (known[name][0], 0):
            findings.error(
                C137,
                f"the attribute {quote(name)} of {quote(node.op_type)} has the wrong type",
                place=view.node_place(position),
                found=_type_name(attribute.type),
                needed=_type_name(known[name][0]),
            )
    for name, (_, required) in known.items():
        if required and name not in given:
            findings.error(
                C137,
                f"{quote(node.op_type)} lacks its required attribute {quote(name)}",
                place=view.node_place(position),
                found=listing(sorted(given)),
                needed=f"{quote(name)} ({_type_name(known[name][0])})",
            )


def _check_attribute_form(view: View, position: int, node: Node, findings: Findings) -> None:
    """Report attributes without a name, type or value, duplicates, and references to missing attributes."""
    if not node.attribute:
        return
    names: set[str] = set()
    for attribute in node.attribute:
        name = attribute.name
        problem, needed = "", ""
        if not name:
            problem, needed = "an attribute has no name", "a name"
        elif name in names:
            problem, needed = f"the attribute {quote(name)} is given twice", "once"
        elif attribute.type == onnx.AttributeProto.UNDEFINED:
            problem, needed = f"the attribute {quote(name)} has no type", "its type"
        elif not attribute.ref_attr_name and (wrong := _wrong_fields(attribute)):
            problem, needed = f"the attribute {quote(name)} of type {_type_name(attribute.type)} {wrong}", "its value"
        names.add(name)
        if problem:
            findings.error(C137, problem, place=view.node_place(position), needed=needed)
        if attribute.ref_attr_name:
            _check_reference(attribute, view, position, findings)


_SCALARS = {
    "FLOAT": ("f", "floats"),
    "INT": ("i", "ints"),
    "STRING": ("s", "strings"),
    "TENSOR": ("t", "tensors"),
    "GRAPH": ("g", "graphs"),
    "SPARSE_TENSOR": ("sparse_tensor", "sparse_tensors"),
    "TYPE_PROTO": ("tp", "type_protos"),
}
_VALUE_FIELDS = {_ATTRIBUTE_TYPES.Value(kind): (field, True) for kind, (field, _) in _SCALARS.items()} | {
    _ATTRIBUTE_TYPES.Value(kind + "S"): (field, False) for kind, (_, field) in _SCALARS.items()
}
_LABELS = ("name", "type", "doc_string", "ref_attr_name")


def _wrong_fields(attribute: Any) -> str:
    """Return what is wrong with the fields that hold an attribute's value, or ""."""
    expected, scalar = _VALUE_FIELDS.get(attribute.type, ("", False))
    given = [field.name for field, _ in attribute.ListFields() if field.name not in _LABELS]
    if any(name != expected for name in given):
        return f"has its value in the field {listing([n for n in given if n != expected])}"
    if scalar and not given:
        return "has no value"
    return ""


def _check_reference(attribute: Any, view: View, position: int, findings: Findings) -> None:
    root = view.root
    formal: list[str] = []
    if root.is_function:
        formal = [*root.proto.attribute, *(a.name for a in root.proto.attribute_proto)]
    if attribute.ref_attr_name not in formal:
        findings.error(
            C137,
            f"the attribute {quote(attribute.name)} refers to {quote(attribute.ref_attr_name)}, which is not an "
            + ("attribute of the function" if root.is_function else "attribute: this node is not in a function"),
            place=view.node_place(position),
            needed=f"one of {listing(formal)}" if formal else "a value",
            hint=findings.near(attribute.ref_attr_name, formal),
        )
