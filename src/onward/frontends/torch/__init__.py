"""`from_torch`: convert PyTorch modules to training models."""

from __future__ import annotations

from typing import Any

from onward.errors import require_extra

try:
    from onward.frontends.torch.convert import from_torch
except ModuleNotFoundError as error:
    if error.name not in ("torch", "onnxscript"):
        raise
    _missing = error.name

    def from_torch(module: Any, **_: Any) -> Any:  # type: ignore[misc]  # without torch, its types cannot be named
        """Raise the error that says how to install what is missing."""
        raise require_extra(_missing, "torch", "onward.from_torch")


__all__ = ["from_torch"]
