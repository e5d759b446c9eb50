"""The table of operators in PyTorch: see `onward.backends.graph.registry`."""

from __future__ import annotations

from onward.backends.graph.registry import Attributes as Attributes
from onward.backends.graph.registry import Registry

REGISTRY = Registry("torch", "onward.backends.torch.ops")
op = REGISTRY.op
