"""onnxsim: forward tests run the simplified model on ONNX Runtime; gradients come from its `graph_grad`."""
# packages: onnxsim==0.8.1 onnx==1.23.2 onnxruntime==1.31.1

from __future__ import annotations

import unittest
from typing import Any

import numpy as np
import onnx
import onnxsim
from _gradient import Question, split
from _onnxruntime import Session
from onnxsim import graph_grad, qat_graph

PACKAGES = ["onnxsim", "onnxruntime"]


def supports_device(device: str) -> bool:
    return device == "CPU"


class Prepared:
    def __init__(self, question: Question) -> None:
        self.question, forward = question, question.forward
        inferred = onnx.shape_inference.infer_shapes(forward, data_prop=True)
        values = [*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output]
        shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values if _static(v)}
        shapes |= {t.name: list(t.dims) for t in forward.graph.initializer}
        if question.y not in shapes or not set(question.xs) <= set(shapes):
            raise unittest.SkipTest("it needs static shapes")
        (kind,) = [v.type.tensor_type.elem_type for v in values if v.name == question.y][:1]
        if kind != onnx.TensorProto.FLOAT:
            raise unittest.SkipTest("it differentiates float32 only")
        builder = qat_graph.GraphBuilder()
        try:
            found = graph_grad.build_backward(
                builder, list(forward.graph.node), shapes, {question.y: "seed"}, question.xs
            )
        except (graph_grad.UnsupportedOpError, NotImplementedError, ValueError, KeyError) as error:
            raise unittest.SkipTest(f"{type(error).__name__}: {error}") from error
        self.found, self.shape = found, shapes[question.y]
        model = onnx.ModelProto()
        model.CopyFrom(forward)
        model.graph.input.append(onnx.helper.make_tensor_value_info("seed", kind, self.shape))
        model.graph.node.extend(builder.nodes)
        model.graph.initializer.extend(builder.initializer)
        model.functions.extend(builder.functions)
        for domain in sorted({f.domain for f in builder.functions}):
            model.opset_import.append(onnx.helper.make_opsetid(domain, 1))
        named = {o.name for o in model.graph.output}
        for x, name in found.items():
            if name not in named and name != "seed":
                named.add(name)
                model.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, shapes[x]))
        self.session = Session(model)

    def run(self, inputs: Any) -> tuple[Any, ...]:
        seed = np.ones(self.shape, np.float32)
        values = {**self.session({**dict(zip(self.session.names, inputs, strict=False)), "seed": seed}), "seed": seed}
        for x, name in zip(self.question.xs, self.question.gradients, strict=False):
            if name:
                values[name] = values[self.found[x]]
        return self.question.answer(values)


def _static(value: onnx.ValueInfoProto) -> bool:
    kind = value.type.tensor_type
    return kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim)


def prepare(model: onnx.ModelProto, device: str = "CPU", **_: Any) -> Any:
    question = split(model)
    if question is not None:
        return Prepared(question)
    simplified, _ = onnxsim.simplify(model, check_n=0)
    return Session(simplified)
