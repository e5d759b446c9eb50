"""What a value takes in memory and what a node costs, both in bytes: a node costs the bytes that it moves.

An operation on numbers counts as a fifth of a byte: a core of a CPU that moves 8 GB/s computes about 40 GFLOPS. Only
the ratio of costs matters, and only roughly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onward.graph import shapes, walk
from onward.graph.edit import copy_graph

Shape = tuple[int, ...]

PER_OPERATION = 0.2  # bytes
UNKNOWN = 200.0  # bytes moved for each byte of a result whose operator is not described here
_CONVOLUTION = 4.0  # how much longer an operation of a convolution takes than one of a matrix product

VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})  # their output has the memory of input 0
# Operators that need no memory of their own where they read a value for the last time.
IN_PLACE = frozenset(
    {
        "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Div", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid",
        "HardSwish", "LeakyRelu", "Log", "LogSoftmax", "Max", "Min", "Mish", "Mul", "Neg", "Not", "Or", "Pow", "PRelu",
        "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Softmax", "Softplus", "Softsign", "Sqrt", "Sub",
        "Sum", "Swish", "Tanh", "ThresholdedRelu", "Where", "Xor",
    }
)  # fmt: skip
_FUNCTIONS = frozenset(
    {
        "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Elu", "Erf", "Exp", "Gelu", "HardSwish",
        "Log", "LogSoftmax", "Mish", "Mod", "Pow", "Selu", "Sigmoid", "Sin", "Sinh", "Softmax", "Softplus", "Softsign",
        "Swish", "Tan", "Tanh",
    }
)  # fmt: skip
_MOVES = frozenset(
    {
        "AveragePool", "BatchNormalization", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor",
        "CastLike", "Celu", "Concat", "ConstantOfShape", "CumSum", "DepthToSpace", "Dropout", "Equal", "Expand",
        "EyeLike", "Gather", "GatherElements", "GatherND", "GlobalAveragePool", "GlobalMaxPool", "Greater",
        "GreaterOrEqual", "GroupNormalization", "InstanceNormalization", "IsInf", "IsNaN", "LRN", "LayerNormalization",
        "Less", "LessOrEqual", "LpNormalization", "MaxPool", "Mean", "OneHot", "Pad", "RMSNormalization", "Range",
        "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
        "Shape", "Size", "Slice", "SpaceToDepth", "Split", "Tile", "Transpose", "Trilu",
    }
)  # fmt: skip
# What is never run twice: a body, a generator, a sequence of steps (a backend has forms of its own for these).
_NEVER = frozenset(
    {
        "Attention", "Bernoulli", "GRU", "If", "LSTM", "Loop", "Multinomial", "Optional", "RNN", "RandomNormal",
        "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Scan", "SequenceMap",
    }
)  # fmt: skip


def may_run_twice(node: ir.Node) -> bool:
    """Return whether a second run of the node gives the same numbers, and it is of the standard."""
    return node.domain in ("", "ai.onnx") and node.op_type not in _NEVER and not any(walk.subgraphs(node))


def sized_shapes(model: ir.Model, sizes: Mapping[str, int], assumed: int) -> dict[str, Shape]:
    """Return the shape of each value of the graph for a batch of these sizes, where it can be inferred."""
    copied = ir.Model(copy_graph(model.graph), ir_version=model.ir_version)
    known: dict[str, int] = {}
    for value in copied.graph.inputs:
        dims = shapes.dims(value)
        if dims is not None:
            known.update((d, sizes.get(d, assumed)) for d in dims if isinstance(d, str))
            value.shape = ir.Shape([d if isinstance(d, int) else known.get(d or "", assumed) for d in dims])
    for value in (v for node in copied.graph for v in node.outputs):
        found = [_product(d, known) for d in shapes.dims(value) or (None,)]
        value.shape = None if None in found else ir.Shape(found)
    shapes.infer_shapes(copied)
    values = [*copied.graph.inputs, *copied.graph.initializers.values(), *(v for n in copied.graph for v in n.outputs)]
    return {v.name or "": shape for v in values if (shape := shapes.static_shape(v)) is not None}


def _product(size: int | str | None, known: Mapping[str, int]) -> int | None:
    """Return a size that is a number, a name, or a product of them.

    >>> _product("4*batch", {"batch": 8}), _product("batch?", {"batch": 8}), _product("other", {})
    (32, 8, None)
    """
    if not isinstance(size, str):
        return size
    factors = [part.strip(" ()") for part in size.removesuffix(shapes.UNPROVEN).split("*")]
    numbers = [int(part) if part.isdecimal() else known.get(part) for part in factors]
    return None if None in numbers else math.prod(n for n in numbers if n is not None)


def byte_size(value: ir.Value, shape: Shape | None) -> int | None:
    """Return the bytes of a tensor; None where they are not known."""
    if shape is None or value.dtype is None or value.dtype == ir.DataType.STRING:
        return None
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        return None
    return math.ceil(math.prod(shape) * value.dtype.bitwidth / 8)


def cost(node: ir.Node, inputs: Sequence[Shape | None], outputs: Sequence[Shape | None], moved: int) -> float:
    """Return what a run of the node costs; `moved` are the bytes of what it reads and makes."""
    kind = node.op_type
    if kind in VIEWS or kind in ("Constant", "Shape", "Size"):
        return 0.0
    out = outputs[0] if outputs else None
    first = inputs[0] if inputs else None
    if kind in ("MatMul", "Gemm", "Conv", "ConvTranspose"):
        weight = inputs[1] if len(inputs) > 1 else None
        if out is None or first is None or weight is None:
            return UNKNOWN * moved
        if kind == "MatMul":
            operations = 2.0 * math.prod(out) * (first[-1] if first else 1)
        elif kind == "Gemm":
            operations = 2.0 * math.prod(out) * first[0 if node.attributes.get_int("transA", 0) else 1]
        else:
            each = out if kind == "Conv" else first
            operations = _CONVOLUTION * 2.0 * math.prod(each) * math.prod(weight[1:])
        return moved + operations * PER_OPERATION
    if kind in _FUNCTIONS:
        return moved + 8 * (math.prod(out) if out is not None else 0) * PER_OPERATION
    if kind in ("AveragePool", "MaxPool"):
        window = math.prod(node.attributes.get_ints("kernel_shape", [1]))
        return moved + window * (math.prod(out) if out is not None else 0) * PER_OPERATION
    return float(moved) if kind in IN_PLACE or kind in _MOVES else UNKNOWN * moved
