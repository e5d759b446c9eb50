from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from onward.compiler.derivatives import gradient
from onward.graph.builder import Builder
from onward.losses import Loss

Run = Callable[..., np.ndarray]


def _model(loss: Loss, outputs: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> onnx.ModelProto:
    def value(name: str, array: np.ndarray) -> ir.Value:
        return ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(array.dtype)), shape=ir.Shape(array.shape))

    outs = [value(f"output{i}", a) for i, a in enumerate(outputs)]
    labs = [value(f"label{i}", a) for i, a in enumerate(labels)]
    specs = loss.labels(outs)
    if specs is not None:
        assert all(s.dtype == v.dtype and len(s.shape) == len(v.shape) for s, v in zip(specs, labs, strict=True))
    op = Builder(18)
    made = loss.emit(op, outs, labs)
    made.name = "loss"
    graph = ir.Graph([*outs, *labs], [made], nodes=op.nodes, opset_imports={"": 18}, name="loss")
    made.shape = None
    proto = ir.serde.serialize_model(ir.Model(graph, ir_version=8, functions=loss.functions()))
    for function in proto.functions:
        proto.opset_import.add(domain=function.domain, version=1)
    proto = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    onnx.checker.check_model(proto, full_check=True)
    return proto


@pytest.fixture
def run() -> Run:
    """Run a loss on onnx's reference evaluator, or on onnxruntime."""

    def run_(
        loss: Loss, outputs: Sequence[np.ndarray], labels: Sequence[np.ndarray], on: str = "reference"
    ) -> np.ndarray:
        proto = _model(loss, outputs, labels)
        feeds = {f"output{i}": a for i, a in enumerate(outputs)} | {f"label{i}": a for i, a in enumerate(labels)}
        if on == "reference":
            return np.asarray(ReferenceEvaluator(proto).run(None, feeds)[0])
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        return np.asarray(session.run(None, feeds)[0])

    return run_


@pytest.fixture
def run_gradient() -> Run:
    """Return d loss / d output0 in float64, through Onward's own differentiation."""

    def run_(
        loss: Loss, outputs: Sequence[np.ndarray], labels: Sequence[np.ndarray], on: str = "reference"
    ) -> np.ndarray:
        proto = gradient(_model(loss, outputs, labels), of="loss", wrt=["output0"])
        feeds = {f"output{i}": a for i, a in enumerate(outputs)} | {f"label{i}": a for i, a in enumerate(labels)}
        wanted = {i.name for i in proto.graph.input}
        feeds = {k: feeds[k] for k in wanted}
        if on == "reference":
            return np.asarray(ReferenceEvaluator(proto).run(["grad/output0"], feeds)[0])
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        return np.asarray(session.run(["grad/output0"], feeds)[0])

    return run_
