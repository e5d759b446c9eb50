"""tinygrad's OnnxRunner, which executes Gradient, Adam, Adagrad and Momentum by its own autograd."""
# packages: tinygrad==0.14.0 onnx==1.23.2 numpy

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from tinygrad import Tensor
from tinygrad.nn.onnx import OnnxRunner

PACKAGES = ["tinygrad"]


def supports_device(device: str) -> bool:
    return device == "CPU"


class Prepared:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.outputs = {o.name: o.type.tensor_type.elem_type for o in model.graph.output}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(model.SerializeToString())
            try:
                self.runner = OnnxRunner(Tensor(path.read_bytes()))
            except NotImplementedError as error:
                raise unittest.SkipTest(str(error)) from error
        self.names = [v.name for v in model.graph.input]

    def run(self, inputs: Any) -> tuple[Any, ...]:
        try:
            found = self.runner(dict(zip(self.names, inputs, strict=False)))
        except NotImplementedError as error:
            raise unittest.SkipTest(str(error)) from error
        return tuple(_array(v) for v in found.values())


def _array(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_array(v) for v in value]
    return value.numpy() if isinstance(value, Tensor) else None if value is None else np.asarray(value)


def prepare(model: onnx.ModelProto, device: str = "CPU", **_: Any) -> Prepared:
    return Prepared(model)
