"""tract, Sonos' runtime in Rust, by its Python package."""
# packages: tract==0.23.9 onnx==1.23.2

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tract

PACKAGES = ["tract"]
FIXED_SIZES = True


def supports_device(device: str) -> bool:
    return device == "CPU"


class Prepared:
    def __init__(self, model: onnx.ModelProto) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(model.SerializeToString())
            self.runnable = tract.onnx().load(path).into_model().into_runnable()

    def run(self, inputs: Any) -> tuple[Any, ...]:
        return tuple(value.to_numpy() for value in self.runnable.run([np.asarray(v) for v in inputs]))


def prepare(model: onnx.ModelProto, device: str = "CPU", **_: Any) -> Prepared:
    return Prepared(model)
