"""Weights that a model stores as integers: what is said about them, and which operators round."""

from __future__ import annotations

import onnx_ir as ir

from onward.errors import Diagnostic, Severity, counted
from onward.upgrade.dequantize import stored_integers

A121 = "A121"

_ROUNDING = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"})


class QuantizedWeightsWarning(UserWarning):
    """The model stores weights as integers, which are not trained; `diagnostic` counts them."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.render())
        self.diagnostic = diagnostic


def quantized_weights(graph: ir.Graph) -> QuantizedWeightsWarning | None:
    """Return the warning for weights that are stored as integers; None if there are none."""
    names = [v.name or "" for v in stored_integers(graph)]
    if not names:
        return None
    listed = ", ".join(f"`{n}`" for n in names[:3])
    return QuantizedWeightsWarning(
        Diagnostic(
            A121,
            f"{counted(len(names), 'weight')} stored as integers will not be trained; the float weights will",
            found=f"{listed}{f' and {len(names) - 3} more' if len(names) > 3 else ''}",
            hint="dequantize=True makes floats of them and trains them too; "
            "to_inference(quantize=True) stores them as integers again",
            severity=Severity.WARNING,
        )
    )


def rounds(node: ir.Node) -> bool:
    """Return whether an operator rounds floats to the integers of a quantized type."""
    return node.op_type in _ROUNDING and node.domain in ("", "ai.onnx")
