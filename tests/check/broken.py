"""Cases of a model that is right but for one thing: how to break it, the codes that must follow, and the culprit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import onnx
from onnx import helper

from check import models
from onward.check import check

Break = Callable[[onnx.ModelProto], Any]


@dataclasses.dataclass
class Case:
    name: str
    codes: tuple[str, ...]
    culprit: str
    break_it: Break
    base: Callable[[], onnx.ModelProto]

    def model(self) -> onnx.ModelProto:
        model = self.base()
        self.break_it(model)
        return model


class Cases(list[Case]):
    def add(self, *codes: str, culprit: str, base: Callable[[], onnx.ModelProto] = models.linear):
        """Return a decorator that registers a function which breaks the model that `base` makes."""

        def register(function: Break) -> Break:
            self.append(Case(function.__name__, codes, culprit, function, base))
            return function

        return register

    def named(self, name: str) -> Case:
        return next(c for c in self if c.name == name)


def assert_reported(case: Case) -> None:
    """Check that exactly the codes of the case are reported, that a culprit is named, and every place given."""
    report = check(case.model())

    assert set(report.codes) == set(case.codes), report.render()
    assert case.culprit in report.render(), report.render()
    assert all(finding.place for finding in report.findings)


def algorithm(model: onnx.ModelProto) -> onnx.GraphProto:
    return model.training_info[0].algorithm


def initialization(model: onnx.ModelProto) -> onnx.GraphProto:
    return model.training_info[0].initialization


def then_branch(model: onnx.ModelProto) -> onnx.GraphProto:
    return next(a.g for a in algorithm(model).node[1].attribute if a.name == "then_branch")


def set_names(target: onnx.NodeProto, attribute: str, *names: str) -> None:
    found = next(a for a in target.attribute if a.name == attribute)
    found.CopyFrom(helper.make_attribute(attribute, names[0] if attribute == "y" else list(names)))
