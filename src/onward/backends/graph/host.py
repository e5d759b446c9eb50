"""Host values: shapes, axes and sizes as Python numbers.

Where ONNX computes with int64 tensors, tracers such as `torch.compile` and `jax.jit` thus see constants or symbolic
sizes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

LARGEST = 64  # elements; larger integer constants are tensors


class Host:
    """A small tensor of Python numbers: flat `values`, a `shape`, and the name of an element type."""

    __slots__ = ("dtype", "shape", "values")

    def __init__(self, values: Sequence[Any], shape: Sequence[int], dtype: str = "int64") -> None:
        self.values = list(values)
        self.shape = tuple(shape)
        self.dtype = dtype


def is_host_constant(array: np.ndarray) -> bool:
    """Return whether a constant is kept on the host: small, and of integers or booleans."""
    return array.dtype.kind in "ib" and array.size <= LARGEST and array.dtype.itemsize in (1, 4, 8) and array.ndim <= 1


def host_constant(array: np.ndarray) -> Host:
    """Return an array as a host value."""
    return Host(array.reshape(-1).tolist(), array.shape, array.dtype.name)


# The positions of inputs that handlers need as Python numbers. All other host values become tensors.
ON_HOST: dict[str, frozenset[int]] = {
    op_type: frozenset(positions)
    for positions, op_types in {
        (0,): "ConstantOfShape If Identity Shape Size HannWindow HammingWindow BlackmanWindow",
        (0, 1): "Loop",
        (0, 1, 2): "Range MelWeightMatrix",
        (1,): "Reshape Expand Tile Squeeze Unsqueeze Split TopK OneHot Trilu CumSum CumProd CenterCropPad AffineGrid "
        "SequenceAt SequenceErase SplitToSequence ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 "
        "ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare",
        (1, 2): "DFT Col2Im",
        (1, 2, 3, 4): "Slice",
        (1, 3): "Pad STFT",
        (2,): "SequenceInsert MaxUnpool Dropout",
        (2, 3, 4): "Resize",
    }.items()
    for op_type in op_types.split()
}


_HOST: dict[str, Callable[..., Host | None]] = {}


def host_op(name: str) -> Callable[[Callable[..., Host | None]], Callable[..., Host | None]]:
    """Register a function for an operator on host values; it returns None where tensors are needed."""

    def register(function: Callable[..., Host | None]) -> Callable[..., Host | None]:
        _HOST[name] = function
        return function

    return register


def run_on_host(op_type: str, attributes: Any, inputs: Sequence[Any]) -> Host | None:
    """Return the result of an operator whose inputs are all on the host, or None if it has to run on tensors."""
    function = _HOST.get(op_type)
    if function is None or any(v is not None and not isinstance(v, Host) for v in inputs):
        return None
    return function(attributes, *inputs)


def _broadcast(a: Host, b: Host) -> tuple[list[Any], list[Any], tuple[int, ...]] | None:
    if a.shape == b.shape:
        return a.values, b.values, a.shape
    if len(a.values) == 1 and len(a.shape) <= len(b.shape):
        return a.values * len(b.values), b.values, b.shape
    if len(b.values) == 1 and len(b.shape) <= len(a.shape):
        return a.values, b.values * len(a.values), a.shape
    return None


def _binary(name: str, function: Callable[[Any, Any], Any], dtype: str | None = None) -> None:
    def run(attributes: Any, a: Host, b: Host) -> Host | None:
        pair = _broadcast(a, b)
        if pair is None:
            return None
        return Host([function(x, y) for x, y in zip(pair[0], pair[1], strict=True)], pair[2], dtype or a.dtype)

    _HOST[name] = run


_binary("Add", lambda a, b: a + b)
_binary("Sub", lambda a, b: a - b)
_binary("Mul", lambda a, b: a * b)
# ONNX divides integers towards zero; symbolic sizes are not negative, so // is the same and stays symbolic.
_binary("Div", lambda a, b: a // b if not isinstance(a, int) or (a < 0) == (b < 0) else -(-a // b))
_binary("Equal", lambda a, b: a == b, "bool")
_binary("Greater", lambda a, b: a > b, "bool")
_binary("Less", lambda a, b: a < b, "bool")


def _of_all(name: str, function: Callable[[Any, Any], Any]) -> None:
    """Register an operator over any number of inputs as that over two, from left to right."""
    _binary(name, function)
    two = _HOST[name]

    def run(attributes: Any, first: Host, *others: Host) -> Host | None:
        total: Host | None = first
        for other in others:
            total = None if total is None else two(attributes, total, other)
        return total

    _HOST[name] = run


_of_all("Max", lambda a, b: max(a, b))
_of_all("Min", lambda a, b: min(a, b))


@host_op("Concat")
def _concat(attributes: Any, *parts: Host) -> Host | None:
    if any(len(p.shape) != 1 for p in parts):
        return None
    values = list(itertools.chain.from_iterable(p.values for p in parts))
    return Host(values, (len(values),), parts[0].dtype)


@host_op("Gather")
def _gather(attributes: Any, data: Host, indices: Host) -> Host | None:
    if len(data.shape) != 1:
        return None
    return Host([data.values[i] for i in indices.values], indices.shape, data.dtype)


@host_op("Slice")
def _slice(
    attributes: Any, data: Host, starts: Host, ends: Host, axes: Host | None = None, steps: Host | None = None
) -> Host | None:
    if len(data.shape) != 1 or len(starts.values) != 1:
        return None
    step = steps.values[0] if steps is not None else 1
    start, end = starts.values[0], ends.values[0]
    if step < 0 and end < -len(data.values):
        end = None
    values = data.values[start:end:step]
    return Host(values, (len(values),), data.dtype)


@host_op("Unsqueeze")
def _unsqueeze(attributes: Any, data: Host, axes: Host | None = None) -> Host | None:
    count = len(attributes["axes"] if axes is None else axes.values)
    return Host(data.values, (1,), data.dtype) if not data.shape and count == 1 else None


@host_op("Squeeze")
def _squeeze(attributes: Any, data: Host, axes: Host | None = None) -> Host | None:
    return Host(data.values, (), data.dtype) if data.shape == (1,) else None


@host_op("Reshape")
def _reshape(attributes: Any, data: Host, shape: Host) -> Host | None:
    wanted = list(shape.values)
    if any(isinstance(v, int) and v == 0 for v in wanted):
        return None
    if wanted.count(-1):
        known = math.prod(v for v in wanted if v != -1)
        wanted[wanted.index(-1)] = len(data.values) // max(known, 1)
    return Host(data.values, wanted, data.dtype) if len(wanted) <= 1 else None


@host_op("Cast")
def _cast(attributes: Any, data: Host) -> Host | None:
    to = attributes["to"]
    if to in (6, 7):
        return Host([int(v) for v in data.values], data.shape, "int64" if to == 7 else "int32")
    if to == 9:
        return Host([bool(v) for v in data.values], data.shape, "bool")
    return None


@host_op("Identity")
def _identity(attributes: Any, data: Host) -> Host:
    return data


@host_op("ReduceProd")
def _reduce_prod(attributes: Any, data: Host, axes: Host | None = None) -> Host | None:
    if len(data.shape) > 1:
        return None
    shape = (1,) if attributes.get("keepdims", 1) and data.shape else ()
    return Host([math.prod(data.values)], shape, data.dtype)


@host_op("ReduceSum")
def _reduce_sum(attributes: Any, data: Host, axes: Host | None = None) -> Host | None:
    if len(data.shape) != 1:
        return None
    return Host([sum(data.values)], (1,) if attributes.get("keepdims", 1) else (), data.dtype)


@host_op("Where")
def _where(attributes: Any, condition: Host, a: Host, b: Host) -> Host | None:
    first, second = _broadcast(condition, a), _broadcast(condition, b)
    if first is None or second is None or first[2] != second[2]:
        return None
    values = [x if c else y for c, x, y in zip(first[0], first[1], second[1], strict=True)]
    return Host(values, first[2], a.dtype)


@host_op("Range")
def _range(attributes: Any, start: Host, limit: Host, delta: Host) -> Host | None:
    numbers = [start.values[0], limit.values[0], delta.values[0]]
    if not all(isinstance(v, int) for v in numbers) or abs(numbers[1] - numbers[0]) > LARGEST:
        return None
    values = list(range(*numbers))
    return Host(values, (len(values),), start.dtype)


@host_op("Size")
def _size(attributes: Any, data: Host) -> Host:
    return Host([len(data.values)], ())


@host_op("Shape")
def _shape(attributes: Any, data: Host) -> Host:
    sizes = data.shape[attributes.get("start", 0) : attributes.get("end")]
    return Host(sizes, (len(sizes),))


@host_op("Expand")
def _expand(attributes: Any, data: Host, shape: Host) -> Host | None:
    if len(shape.values) == 1 and len(data.values) == 1 and isinstance(shape.values[0], int):
        return (
            Host(data.values * max(shape.values[0], 1), (max(shape.values[0], 1),), data.dtype)
            if shape.values[0]
            else None
        )
    return None
