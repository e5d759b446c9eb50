"""Read and write files: protobuf messages, external data, tensor files, atomic writes, limits.

Everything imports this package first, so it also checks the versions of the packages that Onward needs.
"""

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
