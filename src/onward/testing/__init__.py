"""Tests of gradient rules: build a one-node model, compute its gradients, compare them with finite differences.

>>> import numpy as np
>>> model = one_node_model("Mul", A=np.array([1.0, 2.0]), B=np.array([3.0, 4.0]))
>>> gradients(model, wrt=["A"])["A"]
array([3., 4.])
>>> assert_gradients(model)
"""

from __future__ import annotations

from onward.testing.gradcheck import assert_gradients, gradients
from onward.testing.models import OneNodeModel, one_node_model

__all__ = ["OneNodeModel", "assert_gradients", "gradients", "one_node_model"]
