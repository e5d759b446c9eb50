"""The peers of `make bench`, one file for each library; a file is imported only in a worker's process.

Each has `build(workload, batches, files, **options)`, which returns `step(k)`: train on batch k and return the loss
before the update.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

THREADS = 2
# Bytes of a process: a peer that makes a dense matrix of an embedding fails alone, not the machine.
MEMORY_LIMIT = int(os.environ.get("BENCH_GIB", "8")) * 2**30
Step = Callable[[int], float]
Batches = list[tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Peer:
    """A library and how it is used; `environment` names its folder in `.venvs`, where it cannot share ours."""

    module: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    environment: str = ""
    warm: int = 2  # steps before the first turn
    start: float = 120.0  # seconds until its first step must be done
    packages: tuple[str, ...] = ("torch",)  # whose versions the page names

    @property
    def python(self) -> Path:
        if not self.environment:
            return Path(sys.executable)
        return Path(__file__).parent.parent / ".venvs" / self.environment / "bin" / "python"


OURS = ("onnxruntime", "numba")
# IREE's compiler takes minutes for the unrolled steps of an LSTM. It ends itself before its process would be ended,
# which would leave the compiler running.
IREE = {"backend": "iree", "profile": "portable", "verify": False, "cache": False, "seconds": 240.0}
PEERS = {
    "onward": Peer("onward_program", {"fused": True}, packages=OURS),
    "onward plain": Peer("onward_program", {"fused": False, "native": False}, packages=OURS[:1]),
    "torch eager": Peer("pytorch"),
    "torch fused": Peer("pytorch", {"fused": True}),
    "torch tuned": Peer("pytorch", {"fused": True, "tuned": True}, warm=8),
    "torch.compile": Peer("pytorch", {"fused": True, "compiled": True}, start=240.0),
    "jax jit": Peer("jax_jit", environment="jax", packages=("jax", "jaxlib")),
    "jax kept": Peer("jax_jit", {"donate": False}, environment="jax", packages=("jax", "jaxlib")),
    "keras": Peer("keras_jax", environment="jax", packages=("keras", "jax")),
    "onnxruntime-training": Peer(
        "ort_training", environment="onnxruntime-training", packages=("onnxruntime-training-cpu",)
    ),
    "onnxsim": Peer("onnx_simplifier", environment="onnxsim", packages=("onnxsim", "onnxruntime")),
    "onnx-ad": Peer("onnx_adjoint", environment="onnx-ad", packages=("onnx-ad", "onnxruntime")),
    "iree": Peer("onward_program", IREE, start=300.0, packages=("iree-base-compiler", "iree-base-runtime")),
}


@dataclasses.dataclass(frozen=True)
class Files:
    """Where `prepare.py` put a workload's files."""

    folder: Path
    name: str

    @property
    def training(self) -> Path:
        return self._at("train.onnx")

    @property
    def weights(self) -> Path:
        return self._at("npz")

    def forward(self, opset: int) -> Path:
        return self._at(f"opset{opset}.onnx")

    def _at(self, ending: str) -> Path:
        return self.folder / f"{self.name.replace(':', '-')}.{ending}"
