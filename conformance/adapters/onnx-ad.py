"""onnx-ad: it writes the derivatives of a model as another model, which runs on ONNX Runtime.

It is no runtime, so tests without a Gradient node are skipped.
"""
# packages: onnx-ad==0.3.0 onnx==1.23.2 onnxruntime==1.31.1

from __future__ import annotations

import unittest
from typing import Any

import numpy as np
import onnx
import onnx_ad
from _gradient import Question, split
from _onnxruntime import Session

PACKAGES = ["onnx-ad", "onnxruntime"]


def supports_device(device: str) -> bool:
    return device == "CPU"


class Prepared:
    def __init__(self, question: Question) -> None:
        self.question = question
        try:
            model = onnx_ad.reverse(question.forward, inputs=question.xs, outputs=[question.y], layout="onnx")
        except (onnx_ad.UnsupportedOperator, onnx_ad.UnrollTooLarge, NotImplementedError) as error:
            raise unittest.SkipTest(str(error)) from error
        self.forward, self.reverse = Session(question.forward), Session(model)

    def run(self, inputs: Any) -> tuple[Any, ...]:
        feeds = dict(zip(self.forward.names, inputs, strict=False))
        values = self.forward(feeds)
        y = values[self.question.y]
        adjoint = self.reverse({**feeds, f"adj_{self.question.y}": np.ones((*y.shape, 1), y.dtype)})
        for x, name in zip(self.question.xs, self.question.gradients, strict=False):
            if name:
                values[name] = adjoint[f"adj_{x}"][..., 0]
        return self.question.answer(values)


def prepare(model: onnx.ModelProto, device: str = "CPU", **_: Any) -> Prepared:
    question = split(model)
    if question is None:
        raise unittest.SkipTest("onnx-ad differentiates models, and does not run them")
    return Prepared(question)
