"""Operators that onnx's reference evaluator computes wrongly (onnx 1.23), as the standard defines them.

Each class says what is wrong upstream; delete it when upstream is right.
"""

from __future__ import annotations

from onnx.reference.op_run import OpRun

FIXED_OPERATORS: list[type[OpRun]] = []
