"""Run a whole model on ONNX Runtime."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from onward.backends.onnxruntime.kernels import AvoidMissingKernels
from onward.backends.onnxruntime.session import _RUNTIME_ERRORS, B200, B201
from onward.compiler.plain import other_forms, without_training
from onward.errors import BackendError, Diagnostic
from onward.model import serde
from onward.passes.base import Unit, run_passes


class Runner:
    """A model ready to run on ONNX Runtime; `run(feeds)` returns its outputs in order.

    ONNX Runtime refuses some models when it loads them, and some only when it sees the data: each time, the model takes
    its next form (`other_forms`) and tries again.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._forms = _forms(without_training(model))
        self._refusal = ""  # what ONNX Runtime says of the form that the model has in the file
        session = self._next_session()
        if session is None:
            raise BackendError(
                Diagnostic(B200, f"ONNX Runtime {onnxruntime.__version__} cannot load the model: {self._refusal}")
            )
        self._session = session

    def _next_session(self) -> onnxruntime.InferenceSession | None:
        """Return a session of the next form that ONNX Runtime takes, if there is one."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what goes wrong is raised, and said once
        for form in self._forms:
            try:
                data = form.SerializeToString()
                return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
            except _RUNTIME_ERRORS as error:
                self._refusal = self._refusal or _one_line(error)
        return None

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return all outputs for inputs by name."""
        session: onnxruntime.InferenceSession | None = self._session
        refusal, first = self._refusal, None
        while session is not None:
            try:
                results = _run(session, feeds)
            except _RUNTIME_ERRORS as error:
                first = first or error
                session = self._next_session()
            else:
                self._session = session
                return results
        assert first is not None
        more = f" (in another form of it; as it is: {refusal})" if refusal else ""
        raise BackendError(Diagnostic(B201, f"ONNX Runtime failed in the model: {_one_line(first)}{more}")) from first


def _forms(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    last = model
    for last in other_forms(model, core=not _has_bfloat16(model)):
        yield last
    unit = Unit(serde.load(last), name="model")
    run_passes((AvoidMissingKernels(),), unit)
    yield unit.training.proto()


def _has_bfloat16(model: onnx.ModelProto) -> bool:
    """Return whether a model computes with bfloat16, for which ONNX Runtime has no arithmetic in any form."""
    kinds = {v.type.tensor_type.elem_type for v in [*model.graph.input, *model.graph.output]}
    kinds |= {a.i for n in model.graph.node if n.op_type == "Cast" for a in n.attribute if a.name == "to"}
    return onnx.TensorProto.BFLOAT16 in kinds


def _run(session: onnxruntime.InferenceSession, feeds: Mapping[str, Any]) -> list[Any]:
    names = {i.name for i in [*session.get_inputs(), *session.get_overridable_initializers()]}
    given = {n: v for n, v in feeds.items() if n in names}
    kinds = [v.type for v in [*session.get_inputs(), *session.get_outputs()]]
    # An OrtValue holds neither text nor sequences, and an array of numpy no type that numpy lacks.
    if not all(k.startswith("tensor(") and k != "tensor(string)" for k in kinds):
        return list(session.run(None, given))
    values = {n: _to_runtime(np.asarray(v)) for n, v in given.items()}
    return [_from_runtime(v) for v in session.run_with_ort_values([o.name for o in session.get_outputs()], values)]


def _to_runtime(array: np.ndarray) -> onnxruntime.OrtValue:
    kind = ir.DataType.from_numpy(array.dtype)
    if array.dtype.isbuiltin == 1:
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), kind.value)
    data = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), dtype=kind).tobytes()  # small types packed
    ctypes.memmove(value.data_ptr(), data, len(data))
    return value


def _from_runtime(value: onnxruntime.OrtValue) -> np.ndarray:
    """Return the array of a result, also where ONNX Runtime itself gives none, or one of bytes."""
    kind = ir.DataType(value.element_type())
    if kind.numpy().isbuiltin == 1:
        return np.asarray(value.numpy())
    size = value.tensor_size_in_bytes()
    proto = onnx.TensorProto(data_type=kind.value, dims=value.shape())
    proto.raw_data = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.asarray(onnx.numpy_helper.to_array(proto))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
