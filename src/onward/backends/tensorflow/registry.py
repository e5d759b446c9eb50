"""The table of operators in TensorFlow: see `onward.backends.graph.registry`."""

from __future__ import annotations

from onward.backends.graph.registry import Attributes as Attributes
from onward.backends.graph.registry import Registry

REGISTRY = Registry("tensorflow", "onward.backends.tensorflow.ops")
op = REGISTRY.op
