"""Gradient coverage of every operator: the conditions from the registry, the measurements from the tests.

The measurements (tested types, unknown dimensions, second order, cost) are in `coverage.json`, which
`python docs/generate.py` writes from tests/cases.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from onward.autodiff import rules as rules  # importing the package registers every rule
from onward.autodiff.registry import Condition, find_rule
from onward.graph.schema import all_schemas, newest_opset, versions
from onward.upgrade.microsoft.call import TABLE


@dataclasses.dataclass(frozen=True)
class Operator:
    """One operator of the standard: the conditions of its inputs, and the measurements of its test cases."""

    name: str
    domain: str
    versions: tuple[int, ...]
    deprecated: bool
    inputs: Mapping[str, Condition]  # empty for an operator without inputs
    stated: bool  # whether the registry knows the operator
    differentiable: bool
    cases: int
    dtypes: tuple[str, ...]
    dynamic: bool
    second_order: bool
    cost: int | None  # backward nodes for one forward node, in its first ordinary case

    @property
    def condition(self) -> str:
        """The operator's own condition: GRADIENT if some input has one, else the strongest of its inputs'."""
        kinds = {c.kind for c in self.inputs.values()}
        if self.differentiable:
            return "GRADIENT"
        for kind in ("UNSUPPORTED", "ZERO", "NON_DIFFERENTIABLE"):
            if kind in kinds:
                return kind
        return "NON_DIFFERENTIABLE"  # no inputs

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, for `--json`."""
        fields = dataclasses.asdict(self)
        fields["inputs"] = {name: str(condition) for name, condition in self.inputs.items()}
        return {**fields, "condition": self.condition}


def coverage(domain: str = "") -> list[Operator]:
    """Return every operator of `domain` at its newest opset, by name.

    >>> next(o for o in coverage() if o.name == "Gather").inputs["indices"].kind
    'NON_DIFFERENTIABLE'
    """
    found = []
    opset = newest_opset(domain)
    for schema in all_schemas(domain):
        rule = find_rule(schema.op_type, domain, opset)
        measured = measurements().get(schema.op_type, {}) if domain == "" else {}
        found.append(
            Operator(
                schema.op_type,
                domain or "ai.onnx",
                tuple(versions(schema.op_type, domain)),
                schema.deprecated,
                dict(rule.conditions) if rule is not None else {},
                rule is not None,
                rule is not None and rule.differentiable,
                measured.get("cases", 0),
                tuple(measured.get("dtypes", ())),
                measured.get("dynamic", False),
                measured.get("second_order", False),
                measured.get("cost"),
            )
        )
    return found


@dataclasses.dataclass(frozen=True)
class Decomposed:
    """An operator outside the standard that is decomposed into standard ones before differentiation."""

    name: str
    domain: str
    formula: str

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, for `--json`."""
        return {**dataclasses.asdict(self), "condition": "DECOMPOSED"}


def decomposed() -> list[Decomposed]:
    """Return the operators of ai.onnx.ml and com.microsoft that are decomposed, by domain and name.

    >>> next(o for o in decomposed() if o.name == "BiasGelu").formula
    'C = Gelu(A + B).'
    """
    return [Decomposed(name, domain, str(f.__doc__).splitlines()[0]) for (domain, name), f in sorted(TABLE.items())]


@functools.cache
def measurements() -> dict[str, Any]:
    """Return the measurements of the tests by operator; {} if coverage.json was never generated."""
    file = resources.files("onward.autodiff") / "coverage.json"
    return dict(json.loads(file.read_text())) if file.is_file() else {}
