"""Bytes: protobuf messages, external data, tensor files, atomic writes, limits. Imported first by everything, so the
packages that Onward needs are checked here."""

from __future__ import annotations

import numpy
import onnx
import onnx_ir
from google.protobuf import __version__ as protobuf  # type: ignore[import-untyped]  # has no stubs

from onward import versions

versions.check(
    {
        "numpy": numpy.__version__,
        "onnx": onnx.__version__,
        "onnx-ir": onnx_ir.__version__,
        "protobuf": protobuf,
    }
)
