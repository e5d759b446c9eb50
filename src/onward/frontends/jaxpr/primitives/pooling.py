"""Windows: pools, and sums over windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.frontends.jaxpr.frame import Frame, constant_of
from onward.frontends.jaxpr.registry import UnsupportedError, primitive
from onward.graph.builder import Value


@primitive("reduce_window_max", "reduce_window_sum", "reduce_window_min")
def window(frame: Frame, equation: Any, x: Value) -> Value:
    """A MaxPool, or an AveragePool times the size of the window."""
    return _pool(frame, equation, x, equation.primitive.name.rsplit("_", 1)[1])


@primitive("reduce_window")
def general_window(frame: Frame, equation: Any, x: Value, start: Value, *rest: Value) -> Value:
    """The same, where the function of the window is given as a jaxpr."""
    body = [e.primitive.name for e in equation.params["jaxpr"].eqns]
    kinds = {("max",): ("max", -np.inf), ("add",): ("sum", 0.0), ("min",): ("min", np.inf)}
    if rest or tuple(body) not in kinds:
        raise UnsupportedError(f"a window of {' and '.join(body)}")
    kind, neutral = kinds[tuple(body)]
    given = constant_of(start)
    if given is None or (given != neutral and not _is_least(given, kind)):
        raise UnsupportedError("a window that starts from another number than the neutral one")
    return _pool(frame, equation, x, kind)


def _is_least(given: np.ndarray, kind: str) -> bool:
    """Return whether a number is the least or the greatest of its type, which is as good as infinite."""
    limits = np.finfo(given.dtype) if given.dtype.kind == "f" else np.iinfo(given.dtype)
    return bool((kind == "max" and given == limits.min) or (kind == "min" and given == limits.max))


def _pool(frame: Frame, equation: Any, x: Value, kind: str) -> Value:
    op, params = frame.op, equation.params
    sizes, strides, pads = params["window_dimensions"], params["window_strides"], params["padding"]
    dtype = equation.invars[0].aval.dtype
    dilation = params.get("window_dilation") or (1,) * len(sizes)
    if any(d != 1 for d in params.get("base_dilation") or ()):
        raise UnsupportedError("a window over a spread array")
    if dtype not in (np.float32, np.float64, np.float16):
        raise UnsupportedError(f"a window over {dtype}")
    plain = [
        i for i, v in enumerate(sizes) if v == 1 and strides[i] == 1 and tuple(pads[i]) == (0, 0) and dilation[i] == 1
    ]
    inner = [i for i in range(len(sizes)) if i not in plain]
    if not inner:
        return x
    shape = equation.invars[0].aval.shape
    # ONNX pools over all axes but the first two: the others become one of them.
    order = [*plain, *inner]
    moved = frame.transpose(x, order)
    if len(plain) != 2:
        first = [shape[i] for i in plain]
        lead = [1, 1] if not first else [1, first[0]] if len(first) == 1 else [first[0], _product(first[1:])]
        moved = frame.reshape(moved, [*lead, *(shape[i] for i in inner)])
    options = {
        "kernel_shape": [int(sizes[i]) for i in inner],
        "strides": [int(strides[i]) for i in inner],
        "pads": [int(pads[i][0]) for i in inner] + [int(pads[i][1]) for i in inner],
    }
    dilations = [int(dilation[i]) for i in inner]
    if kind == "max":
        made = op.MaxPool(moved, dilations=dilations, **options)
    elif kind == "min":
        made = op.Neg(op.MaxPool(op.Neg(moved), dilations=dilations, **options))
    else:
        if any(d != 1 for d in dilations):
            raise UnsupportedError("a sum over a dilated window")
        count = int(np.prod(options["kernel_shape"]))
        made = op.Mul(op.AveragePool(moved, count_include_pad=1, **options), frame.constant(count, dtype))
    out = equation.outvars[0].aval.shape
    if len(plain) != 2:
        made = frame.reshape(made, [out[i] for i in order])
    made.shape = ir.Shape([int(out[i]) if isinstance(out[i], int) else str(out[i]) for i in order])
    return frame.transpose(made, [int(i) for i in np.argsort(order)])


def _product(sizes: Any) -> Any:
    total = 1
    for size in sizes:
        total = total * size
    return total
