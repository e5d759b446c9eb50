"""jaxonnxruntime, with the settings of its own tests."""
# packages: jaxonnxruntime==0.3.0 jax==0.10.2 absl-py onnx==1.23.2

from __future__ import annotations

import unittest
from typing import Any

import jax
import numpy as np
import onnx
from jaxonnxruntime import backend, config

jax.config.update("jax_enable_x64", True)
config.update("jaxort_only_allow_initializers_as_static_args", False)
PACKAGES = ["jaxonnxruntime", "jax"]


def supports_device(device: str) -> bool:
    return device == "CPU"


class Prepared:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.prepared = backend.BackendRep(model)

    def run(self, inputs: Any) -> tuple[Any, ...]:
        try:
            found = self.prepared.run(inputs)
        except NotImplementedError as error:
            raise unittest.SkipTest(" ".join(str(error).split())[:500]) from error
        return tuple(_array(v) for v in found)


def _array(value: Any) -> Any:
    return (
        [_array(v) for v in value] if isinstance(value, (list, tuple)) else None if value is None else np.asarray(value)
    )


def prepare(model: onnx.ModelProto, device: str = "CPU", **_: Any) -> Prepared:
    return Prepared(model)
