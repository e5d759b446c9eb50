"""Run a whole model on IREE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from onward.backends.iree.compiler import B503, Limits, compile_model
from onward.backends.iree.module import Device, Module, to_numpy
from onward.backends.iree.session import refused
from onward.backends.iree.static import settle
from onward.backends.iree.targets import find_target
from onward.compiler.plain import other_forms, without_denied, without_training
from onward.compiler.program import PlainGraph
from onward.errors import BackendError, Diagnostic, OnwardError
from onward.model import serde

_LIMITS = Limits(seconds=120, gigabytes=4)
_SIZING = {  # inputs that a size depends on
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "OneHot": (1,),
    "Range": (0, 1, 2),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Reshape": (1,),
    "Tile": (1,),
}


class Runner:
    """A model ready to run on IREE; `run(feeds)` returns its outputs in order.

    It is compiled when the sizes of the inputs are known. Inputs of whole numbers, such as axes, and those from which
    sizes follow, such as the scales of a Resize, become constants, because IREE's importer needs most of them so. What
    IREE refuses is tried again in the other forms of the model.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = without_training(model)
        self._outputs = [v.name for v in self._model.graph.output]
        odd = [v.name for v in (*self._model.graph.input, *self._model.graph.output) if not _is_tensor(v)]
        if odd:
            raise BackendError(Diagnostic(B503, f"IREE takes tensors of numbers only: {', '.join(odd)}"))
        self._device = Device(1)

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return all outputs for inputs by name."""
        first: OnwardError | None = None
        for form in other_forms(self._model):
            try:
                return self._run(form, feeds)
            except OnwardError as error:
                first = first or error
        assert first is not None
        raise first

    def _run(self, form: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
        model = onnx.ModelProto()
        model.CopyFrom(form)
        given: dict[str, np.ndarray] = {n: np.asarray(v) for n, v in feeds.items()}
        defaults = {t.name for t in model.graph.initializer}
        fed = [v for v in model.graph.input if v.name in given or v.name not in defaults]
        sizing = {n.input[k] for n in model.graph.node for k in _SIZING.get(n.op_type, ()) if k < len(n.input)}
        frozen = {
            v.name for v in fed if (given[v.name].dtype.kind in "iub" or v.name in sizing) and given[v.name].ndim <= 1
        }
        if len(frozen) == len(fed):  # then they are what it computes with
            frozen &= sizing
        kept = [v for v in fed if v.name not in frozen]
        initializers = [t for t in model.graph.initializer if t.name not in given]
        initializers += [onnx.numpy_helper.from_array(given[n], n) for n in frozen]
        inputs = [
            onnx.helper.make_tensor_value_info(v.name, v.type.tensor_type.elem_type, given[v.name].shape) for v in kept
        ]
        for field, values in ((model.graph.initializer, initializers), (model.graph.input, inputs)):
            del field[:]
            field.extend(values)
        settled = settle(_without_denied(model), "model")
        binary = compile_model(settled, "model", "the model", find_target("iree"), _LIMITS)
        module = Module(binary.code, self._device, "the model")
        kinds = [onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type) for v in settled.graph.output]
        results = module([given[v.name] for v in kept])
        return [to_numpy(v, kind) for v, kind in zip(results, kinds, strict=True)]


def _without_denied(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without what IREE is known to get wrong: the same one if there is nothing of it.

    Raises:
        OnwardError: some of it cannot be written with other operators.
    """
    if not refused(PlainGraph("model", serde.from_proto(model).ir)):
        return model
    return without_denied(model)


def _is_tensor(value: onnx.ValueInfoProto) -> bool:
    kind = value.type
    return kind.HasField("tensor_type") and kind.tensor_type.elem_type != onnx.TensorProto.STRING
