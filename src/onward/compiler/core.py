"""`lower_to_core`: any ONNX model with only core operators (docs/core_operators.md)."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir

from onward.model.serde import Source
from onward.passes.base import Unit, collector_paused, run_passes
from onward.passes.cleanup import InferShapes, RemoveDeadNodes
from onward.passes.core.lowering import DecomposeSome, LowerToCore, Record
from onward.passes.gradients import LowerGradients
from onward.passes.inline import InlineFunctions, InlineFunctionsWithoutRules
from onward.passes.optimizers import LowerOptimizers
from onward.passes.pads import PadEveryAxis
from onward.upgrade import normalise


def lower_to_core(
    model: Source, *, record: Record | None = None, only: Callable[[ir.Node], bool] | None = None
) -> onnx.ModelProto:
    """Return the inference graph of `model` with only core operators; `model` itself does not change.

    `Gradient` nodes and operators of the training domain in it are lowered too. Inputs, outputs and initializers keep
    their names. `record` receives what each operator became. With `only`, the nodes that it names are
    decomposed, and no others.

    >>> from onnx import parser
    >>> net = parser.parse_model('''
    ...     <ir_version: 10, opset_import: ["" : 18]>
    ...     net (float[2,3] a, float[3,4] b) => (float[2,4] y) { c = Gemm(a, b) y = Relu(c) }''')
    >>> [n.op_type for n in lower_to_core(net).graph.node if n.op_type != "Constant"]
    ['MatMul', 'Max']

    Raises:
        ModelError: lists every node that cannot be written with core operators, with the reason.
    """
    with collector_paused():
        lowered = normalise(model, copy=True)
        lowered.entries.clear()
        unit = Unit(lowered, name="core")
        run_passes(
            (
                InlineFunctionsWithoutRules(),
                LowerGradients(),
                InlineFunctions(),
                LowerOptimizers(),
                PadEveryAxis(),
                LowerToCore(record) if only is None else DecomposeSome(only),
                RemoveDeadNodes(),
                InferShapes(),
            ),
            unit,
        )
        return lowered.proto()
