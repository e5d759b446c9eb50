"""onnx's own ReferenceEvaluator."""
# packages: onnx==1.23.2

from __future__ import annotations

import unittest
from typing import Any

import onnx
from onnx.reference import ReferenceEvaluator

PACKAGES = ["onnx"]


def supports_device(device: str) -> bool:
    return device == "CPU"


class Prepared:
    def __init__(self, model: onnx.ModelProto) -> None:
        try:
            self.evaluator = ReferenceEvaluator(model)
        except NotImplementedError as error:
            raise unittest.SkipTest(str(error)) from error
        self.names = [v.name for v in model.graph.input]

    def run(self, inputs: Any) -> tuple[Any, ...]:
        try:
            return tuple(self.evaluator.run(None, dict(zip(self.names, inputs, strict=False))))
        except NotImplementedError as error:
            raise unittest.SkipTest(str(error)) from error


def prepare(model: onnx.ModelProto, device: str = "CPU", **_: Any) -> Prepared:
    return Prepared(model)
