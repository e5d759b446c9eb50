"""Restore constants of float64 modules, which PyTorch's exporter writes in 32 bits and casts.

ONNX attributes, such as the epsilon of a normalisation, always have 32 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import torch
import torch.utils._pytree as pytree

from onward.frontends.torch.embeddings import all_graphs

_FLOAT, _DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
_DIGITS = 6  # decimal digits that 32 bits preserve


def exact_numbers(proto: onnx.ModelProto, program: torch.export.ExportedProgram) -> None:
    """Store constants that are cast to float64 in 64 bits, with the captured program's values; changes `proto`."""
    typed = [*proto.graph.initializer, *(v.type.tensor_type for v in proto.graph.input)]
    if not any(_DOUBLE in (getattr(t, "data_type", None), getattr(t, "elem_type", None)) for t in typed):
        return
    known = {np.float32(x): x for x in sorted(_numbers(program))}
    for graph in all_graphs(proto.graph):
        readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for index, name in enumerate(node.input):
                casts = node.op_type in ("Cast", "CastLike") and index == 0
                readers.setdefault(name, []).append(node if casts else onnx.NodeProto())
        for node in graph.node:
            if node.op_type == "Constant" and all(r.op_type for r in readers.get(node.output[0], [])):
                _widen(node, known)


def _widen(node: onnx.NodeProto, known: dict[np.float32, float]) -> None:
    (attribute,) = node.attribute
    if attribute.name == "value_float":
        array = np.array(attribute.f, np.float32)
    elif attribute.name == "value" and attribute.t.data_type == _FLOAT:
        array = onnx.numpy_helper.to_array(attribute.t)
    else:
        return
    wide = np.array([_exact(x, known) for x in array.ravel()]).reshape(array.shape)
    node.attribute[0].CopyFrom(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(wide)))


def _exact(rounded: np.float32, known: dict[np.float32, float]) -> float:
    """Return the number before rounding: a constant of the program, or the shortest decimal number."""
    if rounded in known:
        return known[rounded]
    short = float(f"{rounded:.{_DIGITS}g}")
    return short if np.float32(short) == rounded else float(rounded)


def _numbers(program: torch.export.ExportedProgram) -> Iterator[float]:
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                for number in pytree.tree_leaves((node.args, node.kwargs)):
                    if isinstance(number, float) and math.isfinite(number):
                        yield from (number, -number)


def number(op: Any, value: float, like: Any) -> Any:
    """Return a Python number in the type of `like`, rounded once."""
    return op.CastLike(op.Constant(value=onnx.numpy_helper.from_array(np.array(value, np.float64))), like)


def activations() -> dict[Any, Callable[..., Any]]:
    """Return float64 translations of activations whose ONNX operator has 32-bit attributes.

    Other types use the ONNX operator. onnxscript's Celu of float64 even computes in float32.
    """
    from onnxscript import opset20 as op

    def is_double(x: Any) -> bool:
        return int(x.dtype) == _DOUBLE

    def exponential(x: Any, alpha: float, scale: float, input_scale: float) -> Any:
        """scale·x above 0, else scale·alpha·(exp(input_scale·x) - 1), without overflow of Exp or its gradient."""
        one, zero = number(op, 1.0, x), number(op, 0.0, x)
        grown = op.Exp(op.Mul(op.Min(x, zero), number(op, input_scale, x)))
        below = op.Mul(op.Sub(grown, one), number(op, scale * alpha, x))
        return op.Where(op.Greater(x, zero), op.Mul(x, number(op, scale, x)), below)

    def elu(self: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
        if is_double(self) or scale != 1.0 or input_scale != 1.0:
            return exponential(self, float(alpha), float(scale), float(input_scale))
        return op.Elu(self, alpha=float(alpha))

    def celu(self: Any, alpha: float = 1.0) -> Any:
        return elu(self, alpha, 1.0, 1.0 / alpha) if is_double(self) else op.Celu(self, alpha=float(alpha))

    def selu(self: Any) -> Any:
        return elu(self, _SELU_ALPHA, _SELU_SCALE) if is_double(self) else op.Selu(self)

    def hardsigmoid(self: Any) -> Any:
        if not is_double(self):
            return op.HardSigmoid(self, alpha=1.0 / 6.0, beta=0.5)
        sixth = op.Div(op.Add(self, number(op, 3.0, self)), number(op, 6.0, self))
        return op.Clip(sixth, number(op, 0.0, self), number(op, 1.0, self))

    aten = torch.ops.aten
    return {
        aten.elu.default: elu,
        aten.celu.default: celu,
        aten.selu.default: selu,
        aten.hardsigmoid.default: hardsigmoid,
    }


# From the paper, with PyTorch's digits.
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946
