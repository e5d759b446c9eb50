"""Recognise batch normalisation: arithmetic over the statistics of a batch becomes a BatchNormalization node.

    mean = ΣX / n        var = Σ(X - mean)² / n, or ΣX² / n - mean²        Y = (X - mean) · scale / √(var + ε) + bias

The sums are over all axes but the second. Libraries write Y in several ways, so it is multiplied out: a polynomial in
X, mean and 1/√(var + ε) with vectors of the channels as coefficients. One node takes a third of the passes over the
batch, and its gradient fewer. With momentum 0 its running statistics are mean and variance themselves.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onward.frontends.jax.patterns import SAME, behind, number, parts
from onward.frontends.jaxpr.frame import constant_of
from onward.graph.builder import Builder, Names, Value
from onward.graph.edit import remove_dead_nodes
from onward.graph.walk import reads

_LARGEST = 8  # terms of a polynomial

Monomial = tuple[int, ...]  # sorted numbers of atoms; the first three are:
X, MEAN, INVERSE = 0, 1, 2
Polynomial = dict[Monomial, float]


@dataclasses.dataclass
class _Statistics:
    """What one √(var + ε) was computed from."""

    x: Value
    variances: list[Value]
    """The variance, and what is the same: a variance is not negative, and no batch is empty."""
    epsilon: float
    root: Value

    def means(self) -> list[Value]:
        """Return every value that is the mean of X; functions that need it compute it again."""
        queue, found = [self.x], []
        while queue:
            for use in queue.pop().uses():
                out = use.node.outputs[0]
                if use.node.op_type in ("ReduceSum", "ReduceMean", "Div", *SAME):
                    queue.append(out)
                    if _mean_of(out) is self.x and behind(out) is out:
                        found.append(out)
        return found


def recognise_batch_normalisations(graph: ir.Graph, opset: int, names: Names) -> int:
    """Replace every such group of nodes; return their number."""
    count = 0
    for node in list(graph):
        if node.op_type == "Sqrt" and node.domain == "" and (found := _statistics(node)) is not None:
            count += _replace(graph, found, Builder(opset, names, prefix="train/"))
    if count:
        remove_dead_nodes(graph)
    return count


# -- statistics ------------------------------------------------------------------------------------------------------


def _statistics(root: ir.Node) -> _Statistics | None:
    """Return the statistics of a batch under a root, if they are such."""
    sum_ = parts(root.inputs[0], "Add")
    if sum_ is None:
        return None
    variance, epsilon = sum_ if number(sum_[1]) is not None else sum_[::-1]
    small = number(epsilon)
    same = list(_without_bounds(variance))
    x = None if small is None or not same else _centered(same[-1]) or _by_squares(same[-1])
    return None if x is None or small is None else _Statistics(x, same, small, root.outputs[0])


def _without_bounds(value: Value | None) -> Iterator[Value]:
    """Yield a variance, without max(value, 0), and without the choice of NaN for an empty batch."""
    while (value := behind(value)) is not None:
        yield value
        bounded, chosen = parts(value, "Max"), parts(value, "Where")
        if bounded is not None and len(bounded) == 2 and 0.0 in (number(bounded[0]), number(bounded[1])):
            value = bounded[0] if number(bounded[1]) == 0.0 else bounded[1]
        elif chosen is not None and _is_positive(chosen[0]) and np.isnan(number(chosen[2]) or 0.0):
            value = chosen[1]
        else:
            return


def _is_positive(condition: Value) -> bool:
    """Return whether a condition says that a size is greater than 0."""
    compared = parts(condition, "Greater")
    return compared is not None and number(compared[1]) == 0.0 and (_size(compared[0], 3) or 0.0) > 0.0


def _mean_of(value: Value | None) -> Value | None:
    """Return the array whose mean over the batch a value is."""
    direct = parts(value, "ReduceMean")
    if direct is not None:
        return direct[0] if _over_batch(direct) else None
    divided = parts(value, "Div")
    total = None if divided is None else parts(divided[0], "ReduceSum")
    if divided is None or total is None or not _over_batch(total):
        return None
    return total[0] if _is_count(divided[1], total[0]) else None


def _over_batch(reduction: tuple[Value, ...]) -> bool:
    """Return whether a reduction is over all axes but the second."""
    x, axes = reduction[0], constant_of(reduction[1]) if len(reduction) == 2 else None
    rank = 0 if x.shape is None else len(x.shape)
    return rank >= 2 and axes is not None and sorted(int(a) % rank for a in axes) == [0, *range(2, rank)]


def _is_count(value: Value, x: Value) -> bool:
    """Return whether a number is that of the elements of a channel, for any batch size."""
    assert x.shape is not None
    sizes = [d for axis, d in enumerate(x.shape) if axis != 1]
    for free in (3, 7):  # two numbers tell a size from a constant
        wanted = float(np.prod([d if isinstance(d, int) else free for d in sizes]))
        names = {str(d) for d in sizes if not isinstance(d, int)}
        if len(names) > 1 or any(not name.isidentifier() for name in names) or _size(value, free) != wanted:
            return False
    return True


def _size(value: Value | None, free: int) -> float | None:
    """Return a number that is computed from constants and one free size."""
    inner = behind(value)
    known = None if inner is None else constant_of(inner)
    if known is not None:
        return float(known.reshape(-1)[0]) if known.size == 1 else None
    node = None if inner is None else inner.producer()
    if node is None or node.domain != "":
        return None
    if node.op_type == "Shape":
        shape = node.inputs[0].shape if node.inputs[0] is not None else None
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", 0)
        if shape is None or end != start + 1:
            return None
        size = shape[start]
        return float(size) if isinstance(size, int) else float(free)
    sizes = [_size(v, free) for v in node.inputs]
    if any(p is None for p in sizes):
        return None
    numbers = [p for p in sizes if p is not None]
    if node.op_type == "Cast":
        return numbers[0]
    if len(numbers) != 2:
        return None
    return {"Mul": numbers[0] * numbers[1], "Sub": numbers[0] - numbers[1]}.get(node.op_type)


def _centered(variance: Value) -> Value | None:
    """Return X, if a value is Σ(X - mean)² / n."""
    square = parts(_mean_of(variance), "Mul")
    if square is None or square[0] is not square[1]:
        return None
    difference = parts(square[0], "Sub")
    return difference[0] if difference is not None and _mean_of(difference[1]) is difference[0] else None


def _by_squares(variance: Value) -> Value | None:
    """Return X, if a value is ΣX² / n - mean²."""
    difference = parts(variance, "Sub")
    square = None if difference is None else parts(_mean_of(difference[0]), "Mul")
    other = None if difference is None else parts(difference[1], "Mul")
    if square is None or other is None or square[0] is not square[1]:
        return None
    both = [_mean_of(factor) is square[0] for factor in other]
    return square[0] if all(both) else None


# -- the normalised array --------------------------------------------------------------------------------------------


class _Terms:
    """Multiplies out what is computed from X and its statistics."""

    def __init__(self, statistics: _Statistics, graph: ir.Graph) -> None:
        self.statistics = statistics
        self.atoms: list[Value] = [statistics.x, statistics.x, statistics.root]
        self._known: dict[Value, Polynomial | None] = {}
        self._from_x = {statistics.x}  # what is computed from X
        for node in graph:
            if not self._from_x.isdisjoint(reads(node)):
                self._from_x.update(node.outputs)

    def of(self, value: Value | None) -> Polynomial | None:
        """Return a value as a polynomial; None where it is none, or too long."""
        inner = behind(value)
        if inner is None:
            return None
        if inner not in self._known:
            self._known[inner] = self._find(inner)
        return self._known[inner]

    def _find(self, value: Value) -> Polynomial | None:
        if value is self.statistics.x:
            return {(X,): 1.0}
        if _mean_of(value) is self.statistics.x:
            return {(MEAN,): 1.0}
        alone = number(value)
        if alone is not None:
            return {(): alone}
        node = value.producer()
        kind = node.op_type if node is not None and node.domain == "" else ""
        if node is not None and kind in ("Add", "Sub", "Mul", "Neg", "Div", "Reciprocal") and value in self._from_x:
            return self._combined(node, kind)
        if _is_vector(value) and value not in self._from_x:
            self.atoms.append(value)
            return {(len(self.atoms) - 1,): 1.0}
        return None

    def _combined(self, node: ir.Node, kind: str) -> Polynomial | None:
        if kind in ("Div", "Reciprocal"):
            if behind(node.inputs[-1]) is not self.statistics.root:
                return None
            one: Polynomial = {(): 1.0}
            above = self.of(node.inputs[0]) if kind == "Div" else one
            return None if above is None else _product(above, {(INVERSE,): 1.0})
        found = [self.of(v) for v in node.inputs]
        if any(p is None for p in found):
            return None
        known = [p for p in found if p is not None]
        if kind == "Neg":
            return _scaled(known[0], -1.0)
        if kind == "Mul":
            return _product(*known)
        return _sum(known[0], known[1] if kind == "Add" else _scaled(known[1], -1.0))


def _is_vector(value: Value) -> bool:
    """Return whether a value has one number for each channel."""
    shape = value.shape
    return shape is not None and len(shape) == 1 and isinstance(shape[0], int)


def _sum(a: Polynomial, b: Polynomial) -> Polynomial | None:
    total = dict(a)
    for term, factor in b.items():
        total[term] = total.get(term, 0.0) + factor
    total = {term: factor for term, factor in total.items() if factor != 0.0}
    return total if len(total) <= _LARGEST else None


def _scaled(a: Polynomial, factor: float) -> Polynomial:
    return {term: value * factor for term, value in a.items()}


def _product(a: Polynomial, b: Polynomial) -> Polynomial | None:
    total: Polynomial = {}
    for first, one in a.items():
        for second, other in b.items():
            term = tuple(sorted((*first, *second)))
            total[term] = total.get(term, 0.0) + one * other
    return total if len(total) <= _LARGEST else None


def _affine(polynomial: Polynomial) -> tuple[list[int], list[int]] | None:
    """Return the atoms of scale and bias, if a polynomial is (X - mean) / root · scale + bias."""
    of_x = [term for term in polynomial if X in term]
    if len(of_x) != 1 or polynomial[of_x[0]] != 1.0:
        return None
    counted = collections.Counter(of_x[0])
    scale = sorted((counted - collections.Counter([X, INVERSE])).elements())
    if counted[X] != 1 or counted[INVERSE] != 1 or any(atom <= INVERSE for atom in scale):
        return None
    rest = dict(polynomial)
    del rest[of_x[0]]
    if rest.pop(tuple(sorted([MEAN, INVERSE, *scale])), None) != -1.0:
        return None
    if any(atom <= INVERSE for term in rest for atom in term) or len(scale) > 1 or len(rest) > 1:
        return None
    if rest and (len(next(iter(rest))) != 1 or next(iter(rest.values())) != 1.0):
        return None
    return scale, list(next(iter(rest), ()))


def _following(value: Value) -> Iterator[Value]:
    """Yield the values that are computed from `value` by arithmetic, in any order."""
    queue, seen = [value], {value}
    while queue:
        for use in queue.pop().uses():
            if use.node.op_type in (*SAME, "Add", "Sub", "Mul", "Neg", "Div", "Reciprocal"):
                out = use.node.outputs[0]
                if out not in seen:
                    seen.add(out)
                    queue.append(out)
                    yield out


def _replace(graph: ir.Graph, statistics: _Statistics, op: Builder) -> int:
    """Replace the last value that is a normalisation with these statistics; return 1, or 0 if there is none."""
    x, terms = statistics.x, _Terms(statistics, graph)
    places = {node: place for place, node in enumerate(graph)}
    if x.dtype != ir.DataType.FLOAT or x.shape is None or not isinstance(x.shape[1], int):
        return 0  # in float64, epsilon would lose digits: it is an attribute of 32 bits
    candidates = [v for v in _following(statistics.root) if v.shape == x.shape and v.producer() in places]
    for y in sorted(candidates, key=lambda v: -places[v.producer()]):  # type: ignore[index]
        polynomial = terms.of(y)
        found = None if polynomial is None else _affine(polynomial)
        if found is None or y.is_graph_output():
            continue
        scale, bias = (terms.atoms[atoms[0]] if atoms else None for atoms in found)
        given = next((v for v in (scale, bias) if v is not None and constant_of(v) is None), None)
        if given is None:  # ONNX Runtime writes into the statistics that it is given: constants must not be
            continue
        size = int(x.shape[1])
        made = op.call(
            "BatchNormalization",
            [
                x,
                op.constant(np.ones(size, np.float32)) if scale is None else scale,
                op.constant(np.zeros(size, np.float32)) if bias is None else bias,
                given,
                given,
            ],
            outputs=3,
            epsilon=statistics.epsilon,
            momentum=0.0,
            training_mode=1,
        )
        after = max((places.get(v.producer(), -1) for v in (x, scale, bias) if v is not None), default=-1)  # type: ignore[arg-type]
        _put(graph, statistics, y, made, after, op)
        return 1
    return 0


def _put(graph: ir.Graph, statistics: _Statistics, y: Value, made: tuple[Value, ...], after: int, op: Builder) -> None:
    """Insert the new node behind the node at `after`, and let its outputs take the places of the old values."""
    nodes, x = list(graph), statistics.x
    assert x.shape is not None
    replaced = [(y, made[0])]
    for new in made[1:]:
        new.type, new.shape = x.type, ir.Shape([x.shape[1]])
    for olds, new in ((statistics.means(), made[1]), (statistics.variances, made[2])):
        for old in olds:
            assert old.shape is not None
            fits = len(old.shape) == 1
            replaced.append((old, new if fits else op.Reshape(new, np.array([int(d) for d in old.shape], np.int64))))  # type: ignore[arg-type]
    if after < 0:
        graph.insert_before(nodes[0], op.nodes)
    else:
        graph.insert_after(nodes[after], op.nodes)
    later = set(nodes[after + 1 :])
    for old, new in replaced:
        new.type, new.shape = old.type, None if old.shape is None else old.shape.copy()
        for use in list(old.uses()):
            if use.node in later:
                use.node.replace_input_with(use.idx, new)
