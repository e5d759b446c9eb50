"""onnxruntime-training 1.19.2, the last release: gradients by its GradientGraphBuilder, all else by its session."""
# packages: onnxruntime-training-cpu==1.19.2 onnx==1.17.0 numpy<2.3 protobuf<6

from __future__ import annotations

import unittest
from typing import Any

import onnx
from _gradient import Question, split
from _onnxruntime import Session, skipped
from onnxruntime.capi._pybind_state import GradientGraphBuilder

PACKAGES = ["onnxruntime-training-cpu"]


def supports_device(device: str) -> bool:
    return device == "CPU"


class Prepared:
    def __init__(self, question: Question) -> None:
        self.question = question
        model, y = onnx.ModelProto(), question.y
        model.CopyFrom(question.forward)
        (kind,) = [o.type.tensor_type.elem_type for o in model.graph.output if o.name == y]
        shape = next(o.type.tensor_type.shape for o in model.graph.output if o.name == y)
        loss = y
        if len(shape.dim):  # a Gradient of several numbers is that of their sum; the builder wants a scalar
            loss = f"{y}/sum"
            model.graph.node.append(onnx.helper.make_node("ReduceSum", [y], [loss], keepdims=0))
            model.graph.output.append(onnx.helper.make_tensor_value_info(loss, kind, []))
        try:
            builder = GradientGraphBuilder(model.SerializeToString(), {loss}, set(question.xs), loss)
            builder.build()
            made = onnx.load_model_from_string(builder.get_model())
        except Exception as error:
            text = " ".join(str(error).split())
            lacks = ("is not registered", "not supported", "guarantees* support", "Unsupported model IR", "No gradient")
            raise unittest.SkipTest(text[:500]) if any(part in text for part in lacks) else error from error
        have = {o.name for o in made.graph.output}
        for x in question.xs:
            if f"{x}_grad" not in have:
                made.graph.output.append(onnx.helper.make_empty_tensor_value_info(f"{x}_grad"))
        try:
            self.session = Session(made)
        except Exception as error:
            raise skipped(error) from error

    def run(self, inputs: Any) -> tuple[Any, ...]:
        feeds = dict(zip([n for n in self.session.names if not n.endswith("_grad")], inputs, strict=False))
        import numpy as np

        for value in self.session.session.get_inputs():
            if value.name.endswith("_grad"):
                feeds[value.name] = np.ones([], np.float64 if "double" in value.type else np.float32)
        values = self.session(feeds)
        for x, name in zip(self.question.xs, self.question.gradients, strict=False):
            if name:
                values[name] = values[f"{x}_grad"]
        return self.question.answer(values)


def prepare(model: onnx.ModelProto, device: str = "CPU", **_: Any) -> Any:
    question = split(model)
    return Session(model) if question is None else Prepared(question)
