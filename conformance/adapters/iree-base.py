"""IREE: the model is imported, compiled for this CPU and run by IREE's own runtime."""
# packages: iree-base-compiler==3.13.0 iree-base-runtime==3.13.0 onnx==1.23.2

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import iree.runtime
import numpy as np
import onnx
from iree.compiler import compile_file

PACKAGES = ["iree-base-compiler"]
FIXED_SIZES = True


def supports_device(device: str) -> bool:
    return device == "CPU"


class Prepared:
    def __init__(self, model: onnx.ModelProto) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source, text = Path(folder) / "model.onnx", Path(folder) / "model.mlir"
            source.write_bytes(model.SerializeToString())
            importer = [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(source), "-o", str(text)]
            subprocess.run(importer, check=True, capture_output=True)
            made = compile_file(
                str(text),
                target_backends=["llvm-cpu"],
                input_type="onnx",
                extra_args=["--iree-llvmcpu-target-cpu=host"],
            )
        module = iree.runtime.load_vm_flatbuffer(made, driver="local-sync")
        self.function = getattr(module, model.graph.name)

    def run(self, inputs: Any) -> tuple[Any, ...]:
        found = self.function(*(np.asarray(v) for v in inputs))
        return tuple(np.asarray(v) for v in (found if isinstance(found, (list, tuple)) else [found]))


def prepare(model: onnx.ModelProto, device: str = "CPU", **_: Any) -> Prepared:
    return Prepared(model)
