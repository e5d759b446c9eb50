"""The order of axes in memory: ONNX's images have the channels second, XLA's convolutions on a CPU want them last.

A value that is stored in another order of axes is a `Laid`: it says which order, so nothing is ever guessed from sizes.
Convolution and pooling ask for the channels last, element-wise operators and reductions keep the order they meet, and a
transposition happens only where two orders meet. An operator without a rule gets ONNX's order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from onward.backends.graph.host import Host
from onward.backends.graph.interpreter import Instruction
from onward.backends.graph.shapes import reduced_axes
from onward.backends.jax.tensors import Array

Order = tuple[int, ...]
Plain = Callable[[Instruction, list[Any]], Any]

_ELEMENTWISE = frozenset([
    "Neg", "Abs", "Exp", "Log", "Sqrt", "Tanh", "Erf", "Floor", "Ceil", "Round", "Sign", "Reciprocal", "Relu",
    "Sigmoid", "Not", "IsNaN", "IsInf", "Softsign", "Mish", "HardSwish", "Add", "Sub", "Mul", "Div", "Pow", "Equal",
    "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "And", "Or", "Xor", "Sum", "Mean", "Max", "Min", "Where",
    "Clip", "Elu", "LeakyRelu", "Celu", "Selu", "ThresholdedRelu", "HardSigmoid", "Softplus", "Gelu", "Swish", "Cast",
    "CastLike", "Identity",
])  # fmt: skip
_ASKS = frozenset(["Conv", "MaxPool", "AveragePool", "GlobalAveragePool"])
_REDUCTIONS = frozenset(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2"])


class Laid:
    """A value in another order of axes: axis i of `tensor` is axis `order[i]` of the value."""

    def __init__(self, tensor: Array, order: Order) -> None:
        self.tensor = tensor
        self.order = order

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes in ONNX's order."""
        return tuple(self.tensor.shape[self.order.index(axis)] for axis in range(len(self.order)))

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.order)

    @property
    def dtype(self) -> Any:
        """The element type."""
        return self.tensor.dtype

    def plain(self) -> Array:
        """Return the value in ONNX's order."""
        return self.laid(tuple(range(len(self.order))))

    def laid(self, wanted: Order) -> Array:
        """Return the value as an array in the order `wanted`."""
        if wanted == self.order:
            return self.tensor
        return jnp.transpose(self.tensor, [self.order.index(axis) for axis in wanted])


def channels_last(rank: int) -> Order:
    """Return the order of an image with `rank` axes that XLA's convolutions want.

    >>> channels_last(4)
    (0, 2, 3, 1)
    """
    return (0, *range(2, rank), 1)


def plain(value: Any) -> Any:
    """Return any value with its axes in ONNX's order."""
    return value.plain() if isinstance(value, Laid) else value


def _laid(tensor: Array, order: Order) -> Array | Laid:
    return tensor if order == tuple(range(len(order))) else Laid(tensor, order)


def _in_order(value: Any, order: Order) -> Any:
    """Return a value as an array in `order`; one of fewer axes gets new ones in front, as broadcasting does."""
    if isinstance(value, Laid) and value.ndim == len(order):
        return value.laid(order)
    tensor = plain(value)
    if not tensor.ndim:
        return tensor
    return jnp.transpose(tensor.reshape((1,) * (len(order) - tensor.ndim) + tuple(tensor.shape)), order)


def call(run: Plain, instruction: Instruction, arguments: list[Any]) -> Any:
    """Return the outputs of a node; `run` runs it on arrays in ONNX's order."""
    name = instruction.op_type
    rule = _RULES.get(name)
    if rule is not None and (name in _ASKS or any(isinstance(a, Laid) for a in arguments)):
        result = rule(run, instruction, arguments)
        if result is not None:
            return result
    return run(instruction, [plain(a) for a in arguments])


def _with(instruction: Instruction, **changes: Any) -> Instruction:
    return dataclasses.replace(instruction, attributes=instruction.attributes.replaced(**changes))


def _asks(run: Plain, instruction: Instruction, arguments: list[Any]) -> Any:
    """Give the image with the channels last; all other inputs stay in ONNX's order."""
    if isinstance(arguments[0], Host) or arguments[0].ndim < 3 or instruction.attributes.outputs > 1:
        return None
    order = channels_last(arguments[0].ndim)
    others = [plain(a) for a in arguments[1:]]
    return _laid(run(_with(instruction, channels_last=1), [_in_order(arguments[0], order), *others]), order)


def _transpose(run: Plain, instruction: Instruction, arguments: list[Any]) -> Any:
    """Only note the new order: the next operator says which one it wants."""
    (x,) = arguments
    perm = list(instruction.attributes.get("perm") or reversed(range(x.ndim)))
    return _laid(x.tensor, tuple(perm.index(axis) for axis in x.order))


def _elementwise(run: Plain, instruction: Instruction, arguments: list[Any]) -> Any:
    arrays = [a for a in arguments if a is not None and not isinstance(a, Host)]
    rank = max(a.ndim for a in arrays)
    orders = [a.order for a in arrays if isinstance(a, Laid) and a.ndim == rank]
    if not orders or any(isinstance(a, Host) and a.shape for a in arguments):
        return None
    order = channels_last(rank) if channels_last(rank) in orders else orders[0]
    given = [a if a is None or isinstance(a, Host) else _in_order(a, order) for a in arguments]
    result = run(instruction, given)
    return _laid(result, order) if result.ndim == rank else None


def _by_channel(run: Plain, instruction: Instruction, arguments: list[Any]) -> Any:
    image = arguments[0]
    if not isinstance(image, Laid) or image.order != channels_last(image.ndim):
        return None
    found = run(_with(instruction, channels_last=1), [image.tensor, *map(plain, arguments[1:])])
    first, *rest = found if isinstance(found, tuple) else (found,)
    return (_laid(first, image.order), *rest) if rest else _laid(first, image.order)


def _reduce(run: Plain, instruction: Instruction, arguments: list[Any]) -> Any:
    x, attributes = arguments[0], instruction.attributes
    given = arguments[1] if len(arguments) > 1 else None
    if not isinstance(x, Laid) or (given is not None and not isinstance(given, Host)):
        return None
    over = reduced_axes(attributes, None if given is None else list(given.values), x.ndim)
    places = [x.order.index(axis) for axis in over]
    axes = Host(places, (len(places),)) if given is not None else None
    changed = _with(instruction, axes=places) if given is None and "axes" in attributes else instruction
    if given is None and "axes" not in attributes:
        return None
    result = run(changed, [x.tensor] if axes is None else [x.tensor, axes])
    if attributes.get("keepdims", 1):
        return _laid(result, x.order)
    kept = [axis for axis in x.order if axis not in over]
    return _laid(result, tuple(sorted(kept).index(axis) for axis in kept)) if kept else result


def _concat(run: Plain, instruction: Instruction, arguments: list[Any]) -> Any:
    orders = {a.order for a in arguments if isinstance(a, Laid)}
    if len(orders) != 1 or any(isinstance(a, Host) for a in arguments):
        return None
    (order,) = orders
    axis = order.index(instruction.attributes["axis"] % len(order))
    return _laid(run(_with(instruction, axis=axis), [_in_order(a, order) for a in arguments]), order)


def _shape(run: Plain, instruction: Instruction, arguments: list[Any]) -> Any:
    return run(instruction, arguments)  # a Laid knows its sizes in ONNX's order


_RULES: dict[str, Callable[[Plain, Instruction, list[Any]], Any]] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_ASKS, _asks),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(("Shape", "Size"), _shape),
    "BatchNormalization": _by_channel,
    "Transpose": _transpose,
    "Concat": _concat,
}
