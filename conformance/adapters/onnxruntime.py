"""Plain ONNX Runtime, as a user calls it."""
# packages: onnxruntime==1.31.1 onnx==1.23.2

from __future__ import annotations

from typing import Any

import onnx
from _onnxruntime import Session

PACKAGES = ["onnxruntime"]


def supports_device(device: str) -> bool:
    return device == "CPU"


def prepare(model: onnx.ModelProto, device: str = "CPU", *, memory_pattern: bool = True, **_: Any) -> Session:
    return Session(model, memory_pattern=memory_pattern)
