"""A training model as text in the config of a Keras model, and with the current values of its variables."""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.errors import ArgumentError, Diagnostic
from onward.model import serde
from onward.model.roles import keep_random_step
from onward.model.stash import Stash, from_light, to_light
from onward.model.training_model import TrainingModel

A243 = "A243"


def pack(model: TrainingModel, variables: Collection[str]) -> dict[str, Any]:
    """Return `model` as JSON; large tensors that are variables are left out, because Keras stores them."""
    proto, stash = to_light(model)
    tensors = [
        {
            "dtype": tensor.dtype.name,
            "shape": [int(n) for n in tensor.shape.numpy()],
            "data": None if tensor.name in variables else _text(tensor.tobytes()),
        }
        for tensor in stash
    ]
    return {"model": _text(serde.serialize(proto)), "tensors": tensors}


def unpack(packed: Mapping[str, Any]) -> TrainingModel:
    """Return the model of `pack`; what was left out is zero."""
    try:
        proto = onnx.ModelProto.FromString(base64.b64decode(packed["model"]))
        stash: Stash = [_tensor(known) for known in packed["tensors"]]
    except Exception as error:  # a file that somebody else wrote
        raise ArgumentError(
            Diagnostic(A243, f"the ONNX model in the .keras file cannot be read: {type(error).__name__}: {error}")
        ) from error
    return from_light(proto, stash)


def with_values(model: TrainingModel, values: Mapping[str, np.ndarray]) -> TrainingModel:
    """Return a copy of `model` that holds `values`, each in the type of the file."""
    copy = from_light(*to_light(model))
    for name, value in copy.initializers().items():
        if name in values and value.const_value is not None:
            dtype = value.const_value.dtype.numpy()
            value.const_value = ir.tensor(np.asarray(values[name]).astype(dtype), name=name)
    keep_random_step(copy, values)
    return copy


def _tensor(known: Mapping[str, Any]) -> ir.TensorProtocol:
    dtype, shape = ir.DataType[known["dtype"]], [int(n) for n in known["shape"]]
    if known["data"] is None:
        return ir.Tensor(np.broadcast_to(np.zeros((), dtype.numpy()), shape), dtype=dtype)
    proto = onnx.TensorProto(data_type=dtype.value, dims=shape, raw_data=base64.b64decode(known["data"]))
    return ir.serde.TensorProtoTensor(proto)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
