"""Checks of the bindings, which assign values to state (rules 2 to 8, 14, 22)."""

from __future__ import annotations

import hashlib
from typing import Any

import onnx
from onnx import TensorProto

from onward.check.report import Findings, quote
from onward.check.safety import element_count
from onward.check.types import TensorType, Types
from onward.check.views import Model, is_empty, is_gradient, strings
from onward.errors import counted

C102 = "C102"
C103 = "C103"
C104 = "C104"
C105 = "C105"
C106 = "C106"
C107 = "C107"
C108 = "C108"
C114 = "C114"
C122 = "C122"
C124 = "C124"
C125 = "C125"
C126 = "C126"


def check_bindings(model: Model, findings: Findings) -> None:
    """Report keys that are not state and values that are not outputs, in every entry."""
    updated_by: dict[str, str] = {}
    for index, info in enumerate(model.proto.training_info):
        place = f"training_info[{index}]"
        states = _states(model, index)
        _check_initialization(model, index, states, f"{place}.initialization_binding", findings)
        _check_update(model, index, states, f"{place}.update_binding", updated_by, findings)
        algorithm = model.algorithms[index]
        if algorithm is not None and not is_empty(algorithm.proto) and not info.update_binding:
            findings.warning(
                C125,
                "the entry has an algorithm, but no update_binding",
                place=place,
                needed="an update_binding for each parameter that is to be trained",
            )


def _states(model: Model, index: int) -> dict[str, Any]:
    states = dict(model.graph.initializers)
    algorithm = model.algorithms[index]
    if algorithm is not None:
        states.update(algorithm.initializers)
    return states


def _key_hint(model: Model, index: int, key: str, states: dict[str, Any], findings: Findings) -> str:
    algorithm = model.algorithms[index]
    for view in (model.graph, algorithm):
        if view is None:
            continue
        if key in view.sparse:
            return "it is a sparse initializer; only dense ones can be state"
        kind = view.kinds.get(key)
        if kind is not None and "initializer" not in kind:
            return f"it is {'an' if kind[0] in 'aeiou' else 'a'} {kind} of {view.place}, not an initializer"
    for other, view in enumerate(model.algorithms):
        if view is not None and key in view.initializers and other != index:
            return f"it is an initializer of {view.place}, which this entry cannot read"
    return findings.near(key, states)


def _check_initialization(model: Model, index: int, states: dict[str, Any], place: str, findings: Findings) -> None:
    bindings = model.proto.training_info[index].initialization_binding
    graph = model.initializations[index]
    absent = graph is None or is_empty(graph.proto)
    if bindings and absent:
        findings.error(
            C108,
            "there are initialization_bindings, but no initialization graph",
            place=place,
            found=counted(len(bindings), "binding"),
            needed="the graph that computes their values",
        )
    outputs = dict.fromkeys(() if graph is None else graph.outputs)
    seen: set[str] = set()
    for number, binding in enumerate(bindings):
        here = f"{place}[{number}]"
        if binding.key not in states:
            findings.error(
                C102,
                f"{quote(binding.key)} is to be reset, but is not an initializer",
                place=here,
                needed=f"an initializer of the graph or of training_info[{index}].algorithm",
                hint=_key_hint(model, index, binding.key, states, findings),
            )
        if binding.value not in outputs and not absent:
            findings.error(
                C103,
                f"{quote(binding.key)} is to be reset to {quote(binding.value)}, which is not an output of the "
                "initialization graph",
                place=here,
                needed=f"an output of training_info[{index}].initialization",
                hint=findings.near(binding.value, outputs),
            )
        if binding.key in seen:
            findings.error(
                C104, f"{quote(binding.key)} is reset twice in one entry", place=here, needed="one binding for each key"
            )
        seen.add(binding.key)


def _check_update(
    model: Model, index: int, states: dict[str, Any], place: str, updated_by: dict[str, str], findings: Findings
) -> None:
    algorithm = model.algorithms[index]
    outputs = dict.fromkeys(() if algorithm is None else algorithm.outputs)
    inference_outputs = set(model.graph.outputs)
    for number, binding in enumerate(model.proto.training_info[index].update_binding):
        here = f"{place}[{number}]"
        key, value = binding.key, binding.value
        if key not in states:
            findings.error(
                C105,
                f"{quote(key)} is to be updated, but is not an initializer",
                place=here,
                needed=f"an initializer of the graph or of training_info[{index}].algorithm",
                hint=_key_hint(model, index, key, states, findings),
            )
        if value not in outputs:
            if value in inference_outputs:
                findings.note(
                    C106,
                    f"{quote(key)} is updated from {quote(value)}, an output of the inference graph, not of the "
                    "algorithm",
                    place=here,
                    hint="the proto file allows it, the text of the specification does not",
                )
            else:
                made = algorithm is not None and algorithm.defines(value)
                findings.error(
                    C106,
                    f"{quote(key)} is to be updated with {quote(value)}, which is not an output of the algorithm",
                    place=here,
                    needed=f"an output of training_info[{index}].algorithm",
                    hint=f"it is computed there: add {quote(value)} to the outputs of the algorithm"
                    if made
                    else findings.near(value, [*outputs, *model.graph.outputs]),
                )
        if key in updated_by:
            same_entry = updated_by[key].startswith(f"{place}[")
            report = findings.error if same_entry else findings.warning
            report(
                C107,
                f"{quote(key)} is updated twice",
                place=here,
                found=f"also by {updated_by[key]}",
                needed="one update_binding for each key, over all entries",
            )
        updated_by.setdefault(key, here)
        if key == value:
            findings.warning(C124, f"{quote(key)} is bound to itself: it never changes", place=here)


def check_binding_types(model: Model, types: Types, findings: Findings) -> None:
    """Report bindings whose value and state differ in element type or shape (rule 14)."""
    for index, info in enumerate(model.proto.training_info):
        states = _states(model, index)
        for field, bindings, source in (
            ("initialization_binding", info.initialization_binding, model.initializations[index]),
            ("update_binding", info.update_binding, model.algorithms[index] or model.graph),
        ):
            for number, binding in enumerate(bindings):
                tensor = states.get(binding.key)
                if tensor is None or source is None:
                    continue
                value = types.of(source, binding.value, len(source.nodes))
                state = TensorType(tensor.data_type, tuple(tensor.dims))
                if value is not None and not value.fits(state):
                    findings.error(
                        C114,
                        f"{quote(binding.value)} cannot be assigned to {quote(binding.key)}",
                        place=f"training_info[{index}].{field}[{number}]",
                        found=f"{quote(binding.value)} is {value}",
                        needed=f"{state}, as the initializer {quote(binding.key)} is",
                    )


def check_state_use(model: Model, findings: Findings) -> None:
    """Report state that nothing reads, and Constant nodes that hold a copy of it (rule 22)."""
    bound: dict[tuple[int, str], str] = {}
    for index, info in enumerate(model.proto.training_info):
        algorithm = model.algorithms[index]
        for field, bindings in (
            ("update_binding", info.update_binding),
            ("initialization_binding", info.initialization_binding),
        ):
            for number, binding in enumerate(bindings):
                owner = algorithm if algorithm is not None and binding.key in algorithm.initializers else model.graph
                if binding.key in owner.initializers:
                    bound.setdefault((id(owner), binding.key), f"training_info[{index}].{field}[{number}]")
    if not bound:
        return
    reads = _reads(model)
    for (owner_id, key), place in bound.items():
        if (owner_id, key) not in reads:
            findings.warning(
                C122,
                f"{quote(key)} is state, but no graph reads it",
                place=place,
                needed="a node or an output that uses it",
            )
    _check_copies(model, {key for _, key in bound}, findings)


def _reads(model: Model) -> set[tuple[int, str]]:
    reads: set[tuple[int, str]] = set()
    tops = [model.graph, *(a for a in model.algorithms if a is not None)]
    for top in tops:
        names: set[str] = set()
        for view in top.walk():
            names.update(view.outputs)
            for node in view.nodes:
                names.update(node.input)
                if is_gradient(node):
                    for attribute in ("xs", "zs", "y"):
                        names.update(strings(node, attribute) or ())
        for owner in (top, model.graph):
            reads.update((id(owner), name) for name in names if name in owner.initializers)
    return reads


def _check_copies(model: Model, keys: set[str], findings: Findings) -> None:
    tops = [model.graph, *(a for a in model.algorithms if a is not None)]
    constants = [
        (view, position, attribute.t)
        for top in tops
        for view in top.walk()
        for position, node in enumerate(view.nodes)
        if node.op_type == "Constant" and not node.domain
        for attribute in node.attribute
        if attribute.type == onnx.AttributeProto.TENSOR and attribute.name == "value"
    ]
    kinds = {_kind(tensor) for _, _, tensor in constants}
    states: dict[tuple[Any, ...], str] = {}
    for top in tops:
        for name, tensor in top.initializers.items():
            if name in keys and _kind(tensor) in kinds and _has_information(tensor):
                states.setdefault((*_kind(tensor), _digest(tensor)), name)
    for view, position, tensor in constants if states else ():
        copied = states.get((*_kind(tensor), _digest(tensor)))
        if copied is not None:
            findings.warning(
                C126,
                f"this Constant holds the data of {quote(copied)}, which training changes",
                place=view.node_place(position),
                needed=f"to read {quote(copied)} itself",
            )


def _digest(tensor: Any) -> bytes:
    return hashlib.sha256(tensor.raw_data).digest()


def _kind(tensor: Any) -> tuple[Any, ...]:
    return (tensor.data_type, *tensor.dims)


def _has_information(tensor: Any) -> bool:
    """Return whether equal data cannot be accidental: several different floating point values, stored as raw bytes."""
    count = element_count(tensor.dims)
    if tensor.data_location == TensorProto.EXTERNAL or count is None or count < 4:
        return False
    data = tensor.raw_data
    width = len(data) // count if data else 0
    return width >= 2 and data.count(data[:width]) < count
