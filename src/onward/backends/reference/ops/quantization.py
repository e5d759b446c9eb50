"""Corrected DequantizeLinear."""

from __future__ import annotations

from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_dequantize_linear import _CommonDequantizeLinear


class DequantizeLinear(_CommonDequantizeLinear):
    """Upstream has it only from opset 19 on; its base class computes every version."""


OPERATORS: list[type[OpRun]] = [DequantizeLinear]
