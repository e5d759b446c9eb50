"""`from_torch`: convert PyTorch modules to training models."""

from __future__ import annotations

from onward.frontends.torch.convert import from_torch

__all__ = ["from_torch"]
