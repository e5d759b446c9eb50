"""What each operator does with the order of axes of its inputs (`layout.py`).

An operator without a rule gets ONNX's order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from onward.backends.graph.host import Host
from onward.backends.graph.interpreter import Instruction
from onward.backends.graph.shapes import reduced_axes
from onward.backends.tensorflow.framework import TENSORFLOW, ints, is_known, is_traced, known_ints, shape_of
from onward.backends.tensorflow.layout import Laid, Moves, Order, channels_last, in_order, laid

Plain = Callable[[Instruction, list[Any]], Any]
Rule = Callable[[Plain, Instruction, list[Any], Moves], Any]

_ELEMENTWISE = frozenset([
    "Neg", "Abs", "Exp", "Log", "Sqrt", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh",
    "Asinh", "Acosh", "Atanh", "Erf", "Floor", "Ceil", "Round", "Sign", "Reciprocal", "Relu", "Sigmoid", "Not",
    "IsNaN", "Softsign", "Mish", "HardSwish", "BitwiseNot", "Add", "Sub", "Mul", "Equal", "Greater", "Less",
    "GreaterOrEqual", "LessOrEqual", "And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Pow",
    "Mod", "BitShift", "Sum", "Mean", "Max", "Min", "Where", "IsInf", "Clip", "LeakyRelu", "PRelu", "Elu",
    "Celu", "Selu", "ThresholdedRelu", "HardSigmoid", "Softplus", "Shrink", "Gelu", "Swish", "Cast", "CastLike",
    "Dropout", "Identity",
])  # fmt: skip
_ASKS = frozenset([
    "Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool",
    "GlobalLpPool",
])  # fmt: skip
_BY_CHANNEL = frozenset(["BatchNormalization", "InstanceNormalization"])
_BY_AXIS = frozenset(["Softmax", "LogSoftmax", "Hardmax"])
_REDUCTIONS = frozenset([
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
])  # fmt: skip


def call(plain: Plain, instruction: Instruction, arguments: list[Any], moves: Moves) -> Any:
    """Return the outputs of a node; `plain` runs it on tensors in ONNX's order."""
    name = instruction.op_type
    moves.place = instruction.place
    if name in _ASKS:
        return _asks(plain, instruction, arguments, moves)
    if name == "Transpose":
        return _transpose(instruction, arguments[0], moves)
    if any(isinstance(a, Laid) for a in arguments):
        rule = _RULES.get(name)
        result = None if rule is None else rule(plain, instruction, arguments, moves)
        if result is not None:
            return result
    return plain(instruction, [a.plain() if isinstance(a, Laid) else a for a in arguments])


def _with(instruction: Instruction, **changes: Any) -> Instruction:
    return dataclasses.replace(instruction, attributes=instruction.attributes.replaced(**changes))


def _results(result: Any, order: Order, moves: Moves) -> Any:
    if isinstance(result, tuple):
        return tuple(_results(r, order, moves) for r in result)
    return laid(result, order, moves) if result.shape.rank == len(order) else result


def _asks(plain: Plain, instruction: Instruction, arguments: list[Any], moves: Moves) -> Any:
    """Give the image with the channels last; all other inputs stay in ONNX's order."""
    order = channels_last(len(shape_of(arguments[0])))
    image = in_order(TENSORFLOW.tensor(arguments[0]) if isinstance(arguments[0], Host) else arguments[0], order, moves)
    others = [a.plain() if isinstance(a, Laid) else a for a in arguments[1:]]
    return _results(plain(instruction, [image, *others]), order, moves)


def _transpose(instruction: Instruction, x: Any, moves: Moves) -> Any:
    """Only note the new order: the next operator says which one it wants."""
    x = TENSORFLOW.tensor(x) if isinstance(x, Host) else x
    order = x.order if isinstance(x, Laid) else tuple(range(len(shape_of(x))))
    perm = list(instruction.attributes.get("perm") or reversed(range(len(order))))
    tensor = x.tensor if isinstance(x, Laid) else x
    return laid(tensor, tuple(perm.index(axis) for axis in order), moves)


def _elementwise(plain: Plain, instruction: Instruction, arguments: list[Any], moves: Moves) -> Any:
    ranks = [0 if a is None else len(shape_of(a)) for a in arguments]
    rank = max(ranks)
    full = [a for a, r in zip(arguments, ranks, strict=True) if r == rank]
    orders = [a.order for a in full if isinstance(a, Laid)]
    if not orders:
        return None
    meets = any(not isinstance(a, Laid) and is_traced(a) for a in full)  # another value in ONNX's order
    order = channels_last(rank) if channels_last(rank) in orders else orders[0]
    if meets and order != channels_last(rank):
        return None
    given = [a if a is None or isinstance(a, Host) else in_order(a, order, moves) for a in arguments]
    given = [in_order(TENSORFLOW.tensor(a), order, moves) if isinstance(a, Host) and a.shape else a for a in given]
    return _results(plain(instruction, given), order, moves)


def _by_channel(plain: Plain, instruction: Instruction, arguments: list[Any], moves: Moves) -> Any:
    image = arguments[0]
    if not isinstance(image, Laid) or image.order[0] != 0:
        return None
    others = [a.plain() if isinstance(a, Laid) else a for a in arguments[1:]]
    changed = _with(instruction, channel_axis=image.order.index(1))
    first, *rest = _as_list(plain(changed, [image.tensor, *others]))
    return (laid(first, image.order, moves), *rest)


def _by_axis(plain: Plain, instruction: Instruction, arguments: list[Any], moves: Moves) -> Any:
    x = arguments[0]
    if instruction.attributes.opset < 13:  # it flattens
        return None
    axis = x.order.index(instruction.attributes["axis"] % len(x.order))
    return _results(plain(_with(instruction, axis=axis), [x.tensor]), x.order, moves)


def _concat(plain: Plain, instruction: Instruction, arguments: list[Any], moves: Moves) -> Any:
    rank = len(shape_of(arguments[0]))
    orders = [a.order for a in arguments if isinstance(a, Laid)]
    order = channels_last(rank) if channels_last(rank) in orders else orders[0]
    if order != channels_last(rank) and len(orders) < len(arguments):
        return None
    axis = order.index(instruction.attributes["axis"] % rank)
    given = [in_order(TENSORFLOW.tensor(a) if isinstance(a, Host) else a, order, moves) for a in arguments]
    return _results(plain(_with(instruction, axis=axis), given), order, moves)


def _split(plain: Plain, instruction: Instruction, arguments: list[Any], moves: Moves) -> Any:
    x = arguments[0]
    axis = x.order.index(instruction.attributes["axis"] % len(x.order))
    return _results(plain(_with(instruction, axis=axis), [x.tensor, *arguments[1:]]), x.order, moves)


def _reduce(plain: Plain, instruction: Instruction, arguments: list[Any], moves: Moves) -> Any:
    x, attributes = arguments[0], instruction.attributes
    given = arguments[1] if len(arguments) > 1 else None
    if not isinstance(x, Laid) or not (given is None or is_known(given)):
        return None
    given = None if given is None else known_ints(given)
    over = reduced_axes(attributes, given, len(x.order))
    changed = _with(instruction, axes=[x.order.index(a) for a in over])
    result = plain(changed, [x.tensor])
    if attributes.get("keepdims", 1):
        return _results(result, x.order, moves)
    kept = [a for a in x.order if a not in over]
    return laid(result, tuple(sorted(kept).index(a) for a in kept), moves) if kept else result


def _pad(plain: Plain, instruction: Instruction, arguments: list[Any], moves: Moves) -> Any:
    x, *rest = arguments
    pads, value, axes = (*rest, None, None, None)[:3]
    if not isinstance(x, Laid) or isinstance(value, Laid) or pads is None:
        return None
    rank, amounts = len(x.order), ints(pads)
    over = list(range(rank)) if axes is None else [a % rank for a in known_ints(axes)]
    places = [x.order.index(a) for a in over]
    given = [x.tensor, Host(amounts, (len(amounts),)), value, Host(places, (len(places),))]
    return _results(plain(instruction, given), x.order, moves)


def _resize(plain: Plain, instruction: Instruction, arguments: list[Any], moves: Moves) -> Any:
    x, *others = arguments
    if not isinstance(x, Laid) or any(isinstance(a, Laid) for a in others):
        return None
    return _results(plain(_with(instruction, order=x.order), [x.tensor, *others]), x.order, moves)


def _shape(plain: Plain, instruction: Instruction, arguments: list[Any], moves: Moves) -> Any:
    return plain(instruction, arguments)  # the handler asks the framework, which knows the order


def _as_list(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_BY_CHANNEL, _by_channel),
    **dict.fromkeys(_BY_AXIS, _by_axis),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(("Shape", "Size"), _shape),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "Concat": _concat,
    "Split": _split,
    "Pad": _pad,
}
