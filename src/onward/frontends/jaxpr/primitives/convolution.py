"""Convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.frontends.jaxpr.frame import Frame
from onward.frontends.jaxpr.primitives.shape import _spread
from onward.frontends.jaxpr.registry import UnsupportedError, primitive
from onward.graph.builder import Value


@primitive("conv_general_dilated")
def convolution(frame: Frame, equation: Any, x: Value, kernel: Value) -> Value:
    """Conv between transposes: ONNX wants batch and channels first. A dilated input is spread with zeros first."""
    params = equation.params
    layout = params["dimension_numbers"]
    dtype = equation.invars[0].aval.dtype
    if params["batch_group_count"] != 1:
        raise UnsupportedError("a convolution with groups of the batch (the gradient of a grouped convolution)")
    shape = [equation.invars[0].aval.shape[i] for i in layout.lhs_spec]
    x, kernel = frame.transpose(x, layout.lhs_spec), frame.transpose(kernel, layout.rhs_spec)
    zero = frame.constant(0, dtype)
    for axis, factor in enumerate(params["lhs_dilation"], start=2):
        if factor != 1:
            x = _spread(frame, x, zero, axis, shape, factor - 1, dtype)
            shape[axis] = (shape[axis] - 1) * factor + 1
    pads = params["padding"]
    if any(p < 0 for pair in pads for p in pair):
        starts = np.array([max(-p[0], 0) for p in pads], np.int64)
        ends = np.array([-max(-p[1], 0) if p[1] < 0 else 2**31 for p in pads], np.int64)
        x = frame.op.Slice(x, starts, ends, np.arange(2, 2 + len(pads)))
        pads = [(max(p[0], 0), max(p[1], 0)) for p in pads]
    made = frame.op.Conv(
        x,
        kernel,
        strides=[int(s) for s in params["window_strides"]],
        dilations=[int(d) for d in params["rhs_dilation"]],
        group=int(params["feature_group_count"]),
        pads=[int(p[0]) for p in pads] + [int(p[1]) for p in pads],
        kernel_shape=[int(equation.invars[1].aval.shape[i]) for i in layout.rhs_spec[2:]],
    )
    out = equation.outvars[0].aval.shape
    from onward.frontends.jaxpr.sizes import shape_of

    made.shape = shape_of([out[i] for i in layout.out_spec])
    return frame.transpose(made, [int(i) for i in np.argsort(layout.out_spec)])
