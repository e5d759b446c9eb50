"""The IREE backend: a step as one native binary (docs/native.md). IREE is imported on first use."""

from __future__ import annotations

import importlib.metadata

from onward.backends.onnx_backend import OnnxBackend
from onward.backends.onnx_backend import check_model as check_model
from onward.errors import require_extra

PACKAGES = ["iree-base-compiler"]
"""The packages whose versions the scoreboard shows."""
BACKEND = OnnxBackend("iree")
"""ONNX's interface: `onnx.backend.test.BackendTest(onward.backends.iree, __name__)` runs ONNX's tests."""
prepare, run_model, run_node = BACKEND.prepare, BACKEND.run_model, BACKEND.run_node
supports_device, is_compatible = BACKEND.supports_device, BACKEND.is_compatible
prepare_training = BACKEND.prepare_training


def installed_iree(purpose: str) -> dict[str, str]:
    """Return the versions of IREE's compiler and runtime; raise an error that names `purpose` without them."""
    found = {}
    for package in ("iree-base-compiler", "iree-base-runtime"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError as error:
            raise require_extra(package, "iree", purpose) from error
    return found
