"""Follow the axis of the classes from a linear layer to the outputs, and find what depends on their number.

A file has the number of its classes in more places than the weight: in the shapes of Reshape nodes, in constants that
are added or multiplied, in the sizes of Resize. What cannot be followed is refused: a class would end up elsewhere.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Value
from onward.graph.shapes import dims
from onward.graph.walk import constant_of, reads

CLASSES = "the classes"
"""The size of the class axis, in a list of sizes."""

_SAME = frozenset(
    {
        "Identity", "Cast", "CastLike", "Dropout", "Sigmoid", "HardSigmoid", "Tanh", "Relu", "LeakyRelu", "Elu",
        "Softplus", "Clip", "Exp", "Log", "Neg", "Abs", "Sqrt", "Reciprocal", "IsNaN", "Round", "Floor", "Ceil",
    }
)  # fmt: skip
_OVER_CLASSES = frozenset({"Softmax", "LogSoftmax", "Hardmax"})
_POOLS = frozenset({"GlobalAveragePool", "GlobalMaxPool", "AveragePool", "MaxPool"})
_NEUTRAL = {"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0}
_BROADCAST = frozenset({*_NEUTRAL, "Min", "Max", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal", "Pow"})

Sizes = list[Any]  # int, CLASSES, or another object for a size that is not known: equal objects are equal sizes


@dataclasses.dataclass(frozen=True)
class Product:
    """The product of sizes that are not all known."""

    factors: tuple[Any, ...]


class Untraceable(Exception):
    """The axis of the classes cannot be followed, and why."""


@dataclasses.dataclass
class Trace:
    """Where the classes are after a linear layer."""

    axes: dict[Value, int] = dataclasses.field(default_factory=dict)
    """The class axis of each value that has one."""
    constants: list[tuple[ir.Node, int, int, float]] = dataclasses.field(default_factory=list)
    """Inputs with one number for each class, on which axis, and the number that changes nothing: biases, scales."""
    shapes: list[tuple[ir.Node, int, int]] = dataclasses.field(default_factory=list)
    """Inputs that are shapes, and the position of the number of classes in them."""
    choices: list[tuple[ir.Node, int]] = dataclasses.field(default_factory=list)
    """TopK nodes over the classes, and how many they choose."""


def follow(graph: ir.Graph, start: Value, axis: int, classes: int, computed: set[Value]) -> Trace:
    """Return where the `classes` classes of `start`, on its axis `axis`, are in all values that depend on it.

    Raises:
        Untraceable: a node mixes the classes with something else, or is not known.
    """
    trace = Trace({start: axis})
    for node in graph:
        tracked = [i for i, v in enumerate(node.inputs) if v in trace.axes]
        if tracked:
            _Step(node, trace, classes, computed).go(tracked)
        elif any(v in trace.axes for v in reads(node)):
            raise Untraceable(f"a body of {_named(node)} reads the classes")
    return trace


def _named(node: ir.Node) -> str:
    return f"{node.op_type} `{node.name or node.outputs[0].name}`"


@dataclasses.dataclass
class _Step:
    """One node that reads values with a class axis."""

    node: ir.Node
    trace: Trace
    classes: int
    computed: set[Value]

    def go(self, tracked: Sequence[int]) -> None:
        node = self.node
        kind = node.op_type if node.domain in ("", "ai.onnx") else ""
        if kind in ("Shape", "Size"):
            return
        if kind in _BROADCAST:
            self._broadcast()
            return
        if tracked != [0]:
            raise self._refuse("reads the classes as a setting")
        value = node.inputs[0]
        assert value is not None
        axis, sizes = self.trace.axes[value], self._sizes_of(value)
        if kind in _SAME:
            after: int | None = axis
        elif kind in _OVER_CLASSES:
            if node.attributes.get_int("axis", -1) % len(sizes) != axis:
                raise self._refuse("is not over the classes")
            after = axis
        elif kind in _POOLS:
            if axis != 1:
                raise self._refuse("pools over the classes")
            after = axis
        else:
            rule = _Step._reduce if kind.startswith("Reduce") else _RULES.get(kind)
            if rule is None:
                raise self._refuse("reads the classes")
            after = rule(self, axis, sizes)
        if after is not None:
            self._give(after)

    def _give(self, axis: int) -> None:
        self.trace.axes[self.node.outputs[0]] = axis

    def _refuse(self, what: str) -> Untraceable:
        return Untraceable(f"{_named(self.node)} {what}: where they are behind it is not certain")

    def _constant(self, index: int) -> np.ndarray | None:
        return constant_of(self.node.inputs[index]) if index < len(self.node.inputs) else None

    def _sizes_of(self, value: Value) -> Sizes:
        found = dims(value)
        if found is None:
            raise self._refuse("reads a value of unknown rank")
        sizes: Sizes = [d if isinstance(d, int) else self._unknown(value, i) or d for i, d in enumerate(found)]
        sizes = [(value.name, i) if d is None else d for i, d in enumerate(sizes)]
        if value in self.trace.axes:
            sizes[self.trace.axes[value]] = CLASSES
        return sizes

    def _unknown(self, value: Value, axis: int) -> Any:
        """Return a size that inference does not know as the product that a Reshape before made, else None."""
        node = value.producer()
        while node is not None and node.inputs and node.inputs[0] is not None:
            if node.op_type == "Reshape" and axis == 0:
                wanted = self._sizes(node.inputs[1])
                return wanted[0] if wanted and isinstance(wanted[0], Product) else None
            rows = node.op_type in ("Gemm", "MatMul") and axis == 0 and not node.attributes.get_int("transA", 0)
            if not rows and node.op_type not in _SAME | _OVER_CLASSES | {"Add"}:
                return None
            data = [v for v in node.inputs if v in self.computed]
            node = data[0].producer() if len(data) == 1 and data[0] is not None else None
        return None

    # -- one rule for each operator: the class axis after it, or None if the classes end here

    def _transpose(self, axis: int, sizes: Sizes) -> int:
        given = self.node.attributes.get("perm")
        order = list(given.as_ints()) if given is not None else list(range(len(sizes)))[::-1]
        return order.index(axis)

    def _flatten(self, axis: int, sizes: Sizes) -> int:
        split = self.node.attributes.get_int("axis", 1)
        split = split + len(sizes) if split < 0 else split
        group = range(split, len(sizes)) if axis >= split else range(split)
        if any(sizes[i] != 1 for i in group if i != axis):
            raise self._refuse("mixes the classes with other values")
        return int(axis >= split)

    def _squeeze(self, axis: int, sizes: Sizes) -> int:
        given = self._constant(1)
        if given is None and len(self.node.inputs) > 1 and self.node.inputs[1] is not None:
            raise self._refuse("removes axes that are computed")
        axes = [i for i, d in enumerate(sizes) if d == 1] if given is None else [int(a) % len(sizes) for a in given]
        if axis in axes or (given is None and self.classes == 1):
            raise self._refuse("removes the axis of the only class")
        return axis - sum(a < axis for a in axes)

    def _unsqueeze(self, axis: int, sizes: Sizes) -> int:
        given = self._constant(1)
        if given is None:
            raise self._refuse("adds axes that are computed")
        rank = len(sizes) + given.size
        new = {int(a) % rank for a in given.reshape(-1)}
        return [i for i in range(rank) if i not in new][axis]

    def _reduce(self, axis: int, sizes: Sizes) -> int | None:
        given = self._constant(1)
        if given is None and len(self.node.inputs) > 1 and self.node.inputs[1] is not None:
            raise self._refuse("reduces axes that are computed")
        if given is None and self.node.attributes.get_int("noop_with_empty_axes", False):
            return axis
        axes = range(len(sizes)) if given is None else {int(a) % len(sizes) for a in given.reshape(-1)}
        if axis in axes:
            return None
        return axis if self.node.attributes.get_int("keepdims", 1) else axis - sum(a < axis for a in axes)

    def _argmax(self, axis: int, sizes: Sizes) -> int | None:
        if self.node.attributes.get_int("axis", 0) % len(sizes) != axis:
            raise self._refuse("is not over the classes")
        return None

    def _topk(self, axis: int, sizes: Sizes) -> int | None:
        count = self._constant(1)
        if self.node.attributes.get_int("axis", -1) % len(sizes) != axis or count is None:
            raise self._refuse("is not a choice of a fixed number of classes")
        self.trace.choices.append((self.node, int(count.reshape(-1)[0])))
        return None

    def _gather(self, axis: int, sizes: Sizes) -> int:
        over = self.node.attributes.get_int("axis", 0) % len(sizes)
        index = self.node.inputs[1]
        rank = None if index is None or index.shape is None else len(index.shape)
        if over == axis or rank is None:
            raise self._refuse("chooses among the classes")
        return axis if over > axis else axis - 1 + rank

    def _slice(self, axis: int, sizes: Sizes) -> int:
        axes = self._constant(3)
        over = range(len(sizes)) if len(self.node.inputs) < 4 or self.node.inputs[3] is None else None
        chosen = list(over) if over is not None else None if axes is None else [int(a) % len(sizes) for a in axes]
        if chosen is None or axis in chosen[: self._length_of_starts(len(chosen))]:
            raise self._refuse("cuts the classes")
        return axis

    def _length_of_starts(self, most: int) -> int:
        starts = self._constant(1)
        return most if starts is None else starts.size

    def _resize(self, axis: int, sizes: Sizes) -> int:
        scales, wanted = self._constant(2), self._constant(3)
        if "axes" in self.node.attributes:
            if axis in [int(a) % len(sizes) for a in self.node.attributes["axes"].as_ints()]:
                raise self._refuse("resizes the classes")
            return axis
        if wanted is not None and wanted.size:
            if int(wanted[axis]) != self.classes:
                raise self._refuse("resizes the classes")
            self.trace.shapes.append((self.node, 3, axis))
        elif scales is not None and scales.size:
            if float(scales[axis]) != 1.0:
                raise self._refuse("resizes the classes")
        else:
            computed = self._sizes(self.node.inputs[3] if len(self.node.inputs) > 3 else None)
            if computed is None or len(computed) != len(sizes) or computed[axis] not in (CLASSES, self.classes):
                raise self._refuse("resizes to sizes that are computed")
            if computed[axis] == self.classes:
                self.trace.shapes.append((self.node, 3, axis))
        return axis

    def _broadcast(self) -> None:
        node = self.node
        ranks = [len(v.shape) if v is not None and v.shape is not None else None for v in node.inputs]
        if None in ranks:
            raise self._refuse("reads a value of unknown rank")
        from_end: set[int] = set()
        for value, rank in zip(node.inputs, ranks, strict=True):
            if value in self.trace.axes:
                assert rank is not None
                from_end.add(rank - self.trace.axes[value])
        if len(from_end) != 1:
            raise self._refuse("mixes the classes with other values")
        (end,) = from_end
        for index, (value, rank) in enumerate(zip(node.inputs, ranks, strict=True)):
            assert value is not None
            assert rank is not None
            size = 1 if rank < end else (dims(value) or ())[rank - end]
            bias_of_one = self.classes == 1 and node.op_type == "Add" and rank >= end and value not in self.computed
            if value in self.trace.axes or (size == 1 and not bias_of_one):
                continue
            if value in self.computed or size != self.classes or node.op_type not in _NEUTRAL:
                raise self._refuse("combines the classes with other values")
            self.trace.constants.append((node, index, rank - end, _NEUTRAL[node.op_type]))
        self._give(max(r for r in ranks if r is not None) - end)

    def _reshape(self, axis: int, sizes: Sizes) -> int:
        wanted = self._sizes(self.node.inputs[1])
        if wanted is None:
            raise self._refuse("makes a shape that is computed")
        keeps_zero = self.node.attributes.get_int("allowzero", 0)
        wanted = [sizes[i] if d == 0 and not keeps_zero and i < len(sizes) else d for i, d in enumerate(wanted)]
        known = dims(self.node.outputs[0]) or [None] * len(wanted)
        after = [k if w == -1 and isinstance(k, int) else w for w, k in zip(wanted, known, strict=True)]
        exact = [i for i, d in enumerate(after) if d is CLASSES]
        for place in exact or [i for i, d in enumerate(after) if d in (self.classes, -1)]:
            ends, starts = (after[place + 1 :], sizes[axis + 1 :]), (after[:place], sizes[:axis])
            if _equal(*ends) and (after[place] == self.classes or place in exact or _equal(*starts)):
                if wanted[place] == self.classes:
                    self.trace.shapes.append((self.node, 1, place))
                return place
        raise self._refuse("mixes the classes with other values")

    def _sizes(self, value: Value | None) -> Sizes | None:
        """Return what is known of a shape that the graph holds or computes; None if even its length is unknown."""
        constant = constant_of(value)
        if value is None or constant is not None:
            return None if constant is None else [int(d) for d in constant.reshape(-1)]
        node = value.producer()
        kind = "" if node is None else node.op_type
        found: Sizes | None = None
        if node is not None and kind == "Shape" and node.inputs[0] is not None and node.inputs[0].shape is not None:
            end = node.attributes.get("end")
            stop = None if end is None else end.as_int()
            return self._sizes_of(node.inputs[0])[node.attributes.get_int("start", 0) : stop]
        if node is not None and kind in ("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape"):
            return self._sizes(node.inputs[0])
        if node is not None and kind == "Concat":
            parts = [self._sizes(v) for v in node.inputs]
            return None if any(p is None for p in parts) else [d for p in parts for d in p or []]
        if node is not None and kind in ("Gather", "Slice"):
            inner, chosen = self._sizes(node.inputs[0]), [constant_of(v) for v in node.inputs[1:3]]
            if inner is not None and all(c is not None for c in chosen):
                numbers = [[int(i) for i in c.reshape(-1)] for c in chosen if c is not None]
                if kind == "Gather":
                    found = [inner[i] for i in numbers[0] if -len(inner) <= i < len(inner)]
                elif len(numbers[0]) == 1 and len(node.inputs) < 5:
                    found = inner[numbers[0][0] : numbers[1][0]]
        if node is not None and kind == "Mul":
            factors = [self._sizes(v) for v in node.inputs]
            if all(f is not None and len(f) == 1 for f in factors):
                return [Product(tuple(d for f in factors for d in f or []))]
        if found is None:
            length = dims(value)
            count = None if length is None else 1 if not length else length[0]
            found = None if not isinstance(count, int) else [(value.name, i) for i in range(count)]
        return found


_RULES: dict[str, Callable[[_Step, int, Sizes], int | None]] = {
    "Transpose": _Step._transpose,
    "Flatten": _Step._flatten,
    "Squeeze": _Step._squeeze,
    "Unsqueeze": _Step._unsqueeze,
    "ArgMax": _Step._argmax,
    "ArgMin": _Step._argmax,
    "TopK": _Step._topk,
    "Gather": _Step._gather,
    "Slice": _Step._slice,
    "Resize": _Step._resize,
    "Reshape": _Step._reshape,
}


def _equal(one: Sizes, other: Sizes) -> bool:
    """Return whether two lists of sizes hold the same number of elements, as far as is certain."""
    one, other = _factors(one), _factors(other)
    if all(isinstance(d, int) and d > 0 for d in [*one, *other]):
        return math.prod(one) == math.prod(other)
    return sorted(map(str, one)) == sorted(map(str, other)) and -1 not in one


def _factors(sizes: Sizes) -> Sizes:
    found = []
    for size in sizes:
        found += _factors(list(size.factors)) if isinstance(size, Product) else [size] if size != 1 else []
    return found


__all__ = ["CLASSES", "Trace", "Untraceable", "follow"]
