"""A strict checker of ONNX training models: it reports all problems at once, each with its place and a fix."""

from __future__ import annotations

import dataclasses
import os
import sys
from types import ModuleType
from typing import Any

import onnx

from onward.check.bindings import check_binding_types, check_bindings, check_state_use
from onward.check.calls import check_calls
from onward.check.functions import check_functions
from onward.check.gradient_nodes import check_gradient_types, check_gradients
from onward.check.ml_attributes import check_ml_attributes
from onward.check.nodes import check_nodes
from onward.check.optimizers import check_optimizer_types, check_optimizers
from onward.check.order import in_order
from onward.check.report import Findings, Report, render_codes_page
from onward.check.safety import check_readable, check_tensors
from onward.check.structure import check_structure
from onward.check.types import Types, check_defaults, check_with_onnx, report_complaints
from onward.check.views import Model
from onward.errors import A101, ArgumentError, Diagnostic, Severity
from onward.model.serde import parse_proto

__all__ = ["Report", "check", "render_codes_page"]

_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}


def check(source: Any, *, pedantic: bool = False) -> Report:
    """Return a `Report` of everything in `source` that breaks the ONNX standard or is likely a mistake.

    `source` is a path, the bytes of a file, a `ModelProto` or a `TrainingModel`; it is not changed. Errors come first,
    then warnings, then notes. With `pedantic`, warnings count as errors, and the strictest reading of the standard
    applies.

    >>> from onnx import helper
    >>> graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [], [])
    >>> report = check(helper.make_model(graph))
    >>> report.ok, report.codes
    (False, ('C132',))

    Raises:
        ModelError: `source` cannot be read or is not a model.
    """
    proto, folder, name = _read(source)
    findings = Findings()
    if check_readable(proto, findings):
        _run(Model(in_order(proto, findings), folder), findings, pedantic)
    found = findings.found
    if pedantic:
        found = [
            dataclasses.replace(d, severity=Severity.ERROR) if d.severity is Severity.WARNING else d for d in found
        ]
    return Report(tuple(sorted(found, key=lambda d: _ORDER[d.severity])), name)


def _run(model: Model, findings: Findings, pedantic: bool) -> None:
    check_structure(model, findings)
    check_functions(model, findings)
    check_nodes(model, findings)
    check_ml_attributes(model, findings)
    check_bindings(model, findings)
    check_gradients(model, findings, pedantic=pedantic)
    check_optimizers(model, findings)
    check_state_use(model, findings)
    check_tensors(model, findings)
    check_defaults(model, findings)
    types = Types(model)
    check_gradient_types(model, types, findings)
    check_optimizer_types(model, types, findings)
    check_calls(model, types, findings)
    check_binding_types(model, types, findings)
    report_complaints(model, types, findings)
    if not findings.has_errors() and model.expandable:
        check_with_onnx(model, types, findings)


def _read(source: Any) -> tuple[onnx.ModelProto, str | None, str]:
    """Return the `ModelProto` without its external data, its folder, and its name for the report."""
    if isinstance(source, onnx.ModelProto):
        return source, None, ""
    if isinstance(source, bytes | bytearray | memoryview):
        return parse_proto(bytes(source))[0], None, "bytes"
    if isinstance(source, str | os.PathLike):
        proto, folder = parse_proto(source)
        return proto, folder, str(os.fspath(source)).encode("utf-8", "backslashreplace").decode()
    if hasattr(source, "proto"):
        return source.proto(), None, ""
    raise ArgumentError(
        Diagnostic(
            A101,
            "the model to check has the wrong type",
            found=type(source).__name__,
            needed="a path, bytes, an onnx.ModelProto or a TrainingModel",
        )
    )


class _CallableModule(ModuleType):
    """A module that can be called: `onward.check` is both this package and the public function of the same name."""

    def __call__(self, source: Any, *, pedantic: bool = False) -> Report:
        return check(source, pedantic=pedantic)


sys.modules[__name__].__class__ = _CallableModule
