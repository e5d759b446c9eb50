"""Checks of the model's structure: versions, names, scopes and order (rules 1, 8 to 13, 15, 19)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx

from onward.check.report import Findings, listing, quote
from onward.check.views import BEFORE_ALL, Model, View, domain_of, domain_text, element_types, is_empty
from onward.graph.schema import newest_opset

C101 = "C101"
C109 = "C109"
C110 = "C110"
C111 = "C111"
C112 = "C112"
C113 = "C113"
C115 = "C115"
C119 = "C119"
C130 = "C130"
C131 = "C131"
C132 = "C132"
C133 = "C133"
C139 = "C139"
C140 = "C140"
C141 = "C141"


def check_structure(model: Model, findings: Findings) -> None:
    """Report wrong versions, and wrong names in all graphs, functions and subgraphs."""
    _check_versions(model, findings)
    training_names = {name: view.place for view in model.algorithms if view is not None for name in view.defined}
    for top in model.tops():
        if top.kind in ("algorithm", "initialization") and is_empty(top.proto):
            continue  # an empty graph means the same as no graph
        if top.kind == "initialization" and top.inputs:
            findings.error(
                C109,
                "the initialization graph has inputs, which nothing can feed",
                place=top.place,
                found=listing(top.inputs),
                needed="no inputs",
            )
        if not top.is_function:
            _check_value_infos(top, findings)
        for view in top.walk():
            _check_element_types(view, findings)
            _check_names(view, model, findings)
            _check_clashes(view, model, findings)
            _check_reads(view, model, training_names, findings)
    for algorithm in model.algorithms:
        if algorithm is not None:
            _check_combined_outputs(model, algorithm, findings)
    _repeated_outputs(model.graph.outputs, model.graph, findings)


def _check_versions(model: Model, findings: Findings) -> None:
    proto = model.proto
    version = proto.ir_version
    if version < 1:
        findings.error(C140, "the model has no ir_version", place="model", found=str(version), needed="1 or above")
    elif version > onnx.IR_VERSION:
        findings.warning(
            C140,
            "the model has a newer IR version than the installed onnx package",
            place="model",
            found=f"ir_version {version}",
            needed=f"at most {onnx.IR_VERSION} to be checked in full",
        )
    if proto.training_info and 1 <= version < 7:
        findings.error(
            C101,
            "training_info needs a newer IR version",
            place="model",
            found=f"ir_version {version}",
            needed="ir_version 7 or above",
        )
    if not proto.HasField("graph"):
        findings.error(C130, "the model has no graph", place="model", needed="ModelProto.graph")
    if not proto.opset_import and version >= 3:
        findings.error(C139, "the model imports no opset", place="model", needed="an opset_import")
    _check_imports(proto.opset_import, "model", findings)
    for body in model.bodies:
        _check_imports(body.proto.opset_import, body.place, findings)


def _check_imports(imports: Any, place: str, findings: Findings) -> None:
    seen: dict[str, int] = {}
    for entry in imports:
        domain = domain_of(entry.domain)
        if domain in seen:
            # onnxmltools writes the same line twice: runtimes take it.
            report = findings.warning if seen[domain] == entry.version else findings.error
            report(
                C139,
                f"opset_import names {domain_text(domain)} twice",
                place=place,
                found=f"versions {seen[domain]} and {entry.version}",
                needed="one version",
            )
            continue
        seen[domain] = entry.version
        if not 1 <= entry.version < 2**31:
            findings.error(
                C139,
                f"opset_import gives {domain_text(domain)} no valid version",
                place=place,
                found=str(entry.version),
                needed="a version of 1 or above that fits in 32 bits",
            )
        elif domain in ("", "ai.onnx.ml") and entry.version > newest_opset(domain):
            findings.warning(
                C139,
                f"version {entry.version} of {domain_text(domain)} is newer than the installed onnx package",
                place=place,
                found=f"version {entry.version}",
                needed=f"at most {newest_opset(domain)} to be checked in full",
            )


def _check_names(view: View, model: Model, findings: Findings) -> None:
    if view.is_function:
        return
    if not view.proto.name and (view.kind != "graph" or model.proto.HasField("graph")):
        report = findings.warning if view.kind == "graph" else findings.error  # runtimes run it
        report(C130, "the graph has no name", place=view.place, needed="a name")
    for kind, names in (
        ("input", view.inputs),
        ("output", view.outputs),
        ("initializer", [t.name for t in view.proto.initializer]),
        ("sparse initializer", [t.values.name for t in view.proto.sparse_initializer]),
    ):
        for index, name in enumerate(names):
            if not name:
                findings.error(C130, f"{kind} {index} has no name", place=view.place, needed="a name")
    if 0 < model.proto.ir_version < 4 and view.kind == "graph":
        inputs = set(view.inputs)
        missing = [name for name in view.initializers if name and name not in inputs]
        if missing:
            findings.warning(
                C141,
                f"initializers are missing from the inputs of {quote(view.proto.name)}",
                place=view.place,
                found=listing(missing),
                needed=f"ir_version 4 or above (it is {model.proto.ir_version}), or these among the inputs; "
                "ONNX Runtime does not mind",
            )


def _place(view: View, position: int) -> str:
    return view.place if position == BEFORE_ALL else view.node_place(position)


def _check_clashes(view: View, model: Model, findings: Findings) -> None:
    for clash in view.clashes:
        model.ambiguous.add(clash.name)
        model.mark_broken(view, clash.position)
        findings.error(
            C131,
            f"{quote(clash.name)} is defined twice",
            place=_place(view, clash.position),
            found=f"{clash.second} of the same name as {_article(clash.first)}",
            needed="a name of its own",
        )
    around = view.around()
    if around is None:
        return
    if view.kind == "algorithm":
        for name in view.defined:
            if name in around.defined:
                model.ambiguous.add(name)
                model.mark_broken(view, view.defined[name])
                _report_redefinition(view, around, name, findings)
        return
    for name, position in view.defined.items():
        outer = around.lookup(name, view.parent_position)
        if outer is None:
            continue
        inference = outer[0].kind == "graph" and view.root.kind == "algorithm"
        # The standard forbids it for node outputs only; a formal input may hide a name, which is confusing.
        report = findings.warning
        if position != BEFORE_ALL:
            report = findings.error
            model.ambiguous.add(name)
            model.mark_broken(view, position)
        report(
            C111 if inference else C131,
            f"{quote(name)} in a subgraph hides the value of the same name around it",
            place=_place(view, position),
            found=f"{view.kinds[name]} {quote(name)}, and {outer[0].kinds[name]} {quote(name)} in {outer[0].place}",
            needed="a name of its own",
        )


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _report_redefinition(view: View, graph: View, name: str, findings: Findings) -> None:
    own, other = view.kinds[name], graph.kinds[name]
    if own == "initializer" and other.startswith("input"):
        findings.error(
            C113,
            f"the training initializer {quote(name)} has the name of an input of the inference graph",
            place=view.place,
            found="it would become that input's default during training",
            needed="a name of its own",
        )
        return
    findings.error(
        C111,
        f"the {own} {quote(name)} of the training graph redefines {_article(other)} of the inference graph",
        place=_place(view, view.defined[name]),
        found=f"{other} {quote(name)} in {graph.place}",
        needed="a name of its own",
    )


def _check_reads(view: View, model: Model, training_names: dict[str, str], findings: Findings) -> None:
    for position, node in enumerate(view.nodes):
        for name in node.input:
            if not name:
                continue
            own = view.defined.get(name)
            if own is not None and own < position:
                continue
            if view.lookup(name, position) is None:
                _report_undefined(view, position, name, model, training_names, findings)
                model.mark_broken(view, position)
    end = len(view.nodes)
    for name in view.outputs:
        inner = view.kind == "subgraph"  # a subgraph may only return its own values
        if name and name not in view.defined and (inner or view.lookup(name, end) is None):
            if _report_foreign(view, view.place, name, f"the output {quote(name)}", model, training_names, findings):
                continue
            findings.error(
                C133,
                f"nothing computes the output {quote(name)}",
                place=view.place,
                needed="an input, an initializer or a node output of this name",
                hint="to return a value of an outer graph, use an Identity"
                if inner and view.lookup(name, end) is not None
                else findings.near(name, view.visible()),
            )


def _report_undefined(
    view: View, position: int, name: str, model: Model, training_names: dict[str, str], findings: Findings
) -> None:
    node = view.nodes[position]
    place = view.node_place(position)
    if view.defines(name):
        maker = next(v for v in _chain(view) if name in v.defined)
        where = maker.defined[name]
        findings.error(
            C132,
            f"{quote(node.op_type)} reads {quote(name)} before it is computed",
            place=place,
            found=f"computed by {maker.node_place(where)}" if where != BEFORE_ALL else "",
            needed="nodes in execution order",
        )
        return
    if _report_foreign(view, place, name, f"{quote(node.op_type)} reads {quote(name)}, which", model, training_names,
                       findings):  # fmt: skip
        return
    findings.error(
        C132,
        f"{quote(node.op_type)} reads {quote(name)}, which nothing defines",
        place=place,
        needed="an input, an initializer or the output of an earlier node",
        hint=findings.near(name, view.visible()),
    )


def _chain(view: View) -> Iterable[View]:
    current: View | None = view
    while current is not None:
        yield current
        current = current.around()


def _report_foreign(
    view: View, place: str, name: str, subject: str, model: Model, training_names: dict[str, str], findings: Findings
) -> bool:
    """Report a name that exists only in a graph that this one cannot read; return whether it does."""
    kind = view.root.kind
    if kind == "graph" and name in training_names:
        findings.error(
            C112,
            f"{subject} is a name of the training graph",
            place=place,
            found=f"{quote(name)} is defined in {training_names[name]}",
            needed="an inference graph that runs without training_info",
        )
        return True
    if kind == "initialization" and (name in model.graph.defined or name in training_names):
        where = model.graph.place if name in model.graph.defined else training_names[name]
        findings.error(
            C110,
            f"{subject} is not part of the initialization graph",
            place=place,
            found=f"{quote(name)} is defined in {where}",
            needed="an independent initialization graph",
        )
        return True
    return False


def _check_combined_outputs(model: Model, algorithm: View, findings: Findings) -> None:
    repeated = set(algorithm.outputs) & set(model.graph.outputs)
    for name in sorted(repeated):
        findings.error(
            C115,
            f"the training graph lists {quote(name)} as output, but the inference graph already does",
            place=algorithm.place,
            found="two outputs of one name in the combined graph",
            needed="each output once",
        )
    _repeated_outputs(algorithm.outputs, algorithm, findings)


def _repeated_outputs(outputs: list[str], view: View, findings: Findings) -> None:
    """Report outputs that are listed twice: an error in a training graph. Runtimes run inference graphs that do so."""
    report = findings.warning if view.kind == "graph" else findings.error
    seen: set[str] = set()
    for name in outputs:
        if name and name in seen:
            report(C115, f"the output {quote(name)} is listed twice", place=view.place, needed="each output once")
        seen.add(name)


def _check_value_infos(view: View, findings: Findings) -> None:
    """Report inputs and outputs of a top-level graph without a type, or of tensor type without a shape (rule 19)."""
    for kind, values in (("input", view.proto.input), ("output", view.proto.output)):
        for value in values:
            which = value.type.WhichOneof("value")
            tensor = value.type.tensor_type
            if which is None:
                lacking = "type"
            elif which != "tensor_type":
                continue
            elif tensor.elem_type == 0:
                lacking = "element type"
            elif not tensor.HasField("shape"):
                lacking = "shape"
            else:
                continue
            # Surgery tools leave the shapes of outputs to the runtimes, which find them.
            found_later = lacking == "shape" and kind == "output" and view.kind == "graph"
            report = findings.warning if found_later else findings.error
            report(
                C119,
                f"the {kind} {quote(value.name)} has no {lacking}",
                place=view.place,
                needed=f"its {lacking}" + ("; unknown dims are allowed, an unknown rank is not" * (lacking == "shape")),
                hint="ONNX Runtime finds it; onnx.checker refuses the file" * found_later,
            )


def _check_element_types(view: View, findings: Findings) -> None:
    """Report declared element types that ONNX does not have, and negative dims, in any graph."""
    values = view.proto.value_info if view.is_function else (
        *view.proto.input, *view.proto.value_info, *view.proto.output
    )  # fmt: skip
    for value in values:
        unknown = [e for e in element_types(value.type) if e != 0 and e not in onnx.TensorProto.DataType.values()]
        if unknown:
            findings.error(
                C119,
                f"{quote(value.name)} has an element type that ONNX does not know",
                place=view.place,
                found=f"elem_type {unknown[0]}",
                needed="one of TensorProto.DataType",
            )
        negative = [d.dim_value for d in value.type.tensor_type.shape.dim if d.dim_value < 0]
        if negative:
            findings.warning(
                C119,
                f"{quote(value.name)} has a negative dim",
                place=view.place,
                found=str(negative[0]),
                needed="a number, a name, or nothing for an unknown dim",
            )
