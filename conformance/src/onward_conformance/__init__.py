"""A conformance suite for ONNX training that any backend can run: `python -m onward_conformance --backend MODULE`.

>>> import onward_conformance
>>> case = onward_conformance.cases(kind="optimizer", operator="Adam")[0]  # doctest: +SKIP
>>> onward_conformance.run(case, my_backend).status  # doctest: +SKIP
'passed'

SPEC.md says what each kind of case asks of a backend.
"""

from __future__ import annotations

from onward_conformance.cases import KINDS, VERSION, Case, SuiteError, cases
from onward_conformance.runner import Result, run

__all__ = ["KINDS", "VERSION", "Case", "Result", "SuiteError", "cases", "run"]
