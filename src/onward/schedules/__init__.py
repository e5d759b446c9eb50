"""Learning-rate schedules: ONNX operators over the step counter, and the same as Python functions."""

from __future__ import annotations

from onward.schedules.base import Schedule
from onward.schedules.constant import Constant
from onward.schedules.step import Step

__all__ = ["Constant", "Schedule", "Step"]
