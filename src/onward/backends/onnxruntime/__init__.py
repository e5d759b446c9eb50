"""The ONNX Runtime backend."""

from __future__ import annotations
