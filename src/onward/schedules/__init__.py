"""Learning-rate schedules: ONNX operators over the step counter, and the same as Python functions."""

from __future__ import annotations

from onward.schedules.base import Schedule
from onward.schedules.constant import Constant
from onward.schedules.cosine import Cosine
from onward.schedules.exponential import Exponential
from onward.schedules.linear import Linear
from onward.schedules.one_cycle import OneCycle
from onward.schedules.piecewise import Piecewise
from onward.schedules.polynomial import Polynomial
from onward.schedules.step import Step
from onward.schedules.warmup import Warmup

__all__ = [
    "Constant",
    "Cosine",
    "Exponential",
    "Linear",
    "OneCycle",
    "Piecewise",
    "Polynomial",
    "Schedule",
    "Step",
    "Warmup",
]
