"""The equation of an Einsum, and its gradient with respect to one operand."""

from __future__ import annotations

import string
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward.autodiff.problems import Unsupported
from onward.autodiff.rule import Rule, unbroadcast
from onward.graph.builder import Value

DOTS = "..."


def _labels(term: str) -> list[str]:
    """Return the labels of a term in order; the ellipsis is one label."""
    found: list[str] = []
    rest = term
    while rest:
        step = 3 if rest.startswith(DOTS) else 1
        found.append(rest[:step])
        rest = rest[step:]
    return found


class Equation:
    """The labels of each operand of an Einsum and of its output."""

    def __init__(self, equation: str, operands: int) -> None:
        left, arrow, right = equation.replace(" ", "").partition("->")
        self.terms = [_labels(t) for t in left.split(",")]
        assert len(self.terms) == operands, f"{equation!r} has {len(self.terms)} terms for {operands} inputs"
        if arrow:
            self.output = _labels(right)
        else:
            # Implicit form: the ellipsis, then the labels that appear once, in alphabetical order.
            every = [label for term in self.terms for label in term]
            once = sorted(label for label in set(every) if label != DOTS and every.count(label) == 1)
            self.output = ([DOTS] if DOTS in every else []) + once

    def _fresh(self, count: int) -> list[str]:
        used = {label for term in [*self.terms, self.output] for label in term}
        return [c for c in string.ascii_letters if c not in used][:count]

    def gradient(self, rule: Rule, position: int, inputs: Sequence[Value], dY: Value) -> Value:
        """Return the gradient with respect to operand `position`."""
        term, target = self.terms[position], inputs[position]
        others = [(t, v) for i, (t, v) in enumerate(zip(self.terms, inputs, strict=True)) if i != position]
        own = list(dict.fromkeys(term))
        reachable = {label for t in [self.output, *(t for t, _ in others)] for label in t}
        kept = [label for label in own if label in reachable]
        direct = self._ellipsis_fits(rule, position, inputs)
        # The ellipsis goes to the front if its axes must still be summed down to those of the operand.
        wanted = kept if direct else [DOTS, *(label for label in kept if label != DOTS)]
        grad = _contract(rule, [(self.output, dY), *others], wanted)
        if not direct:
            whole = self._broadcast_dims(rule, inputs)
            grad = self._sum_ellipsis(rule, grad, term, kept, target, whole)
        grad = self._fit_labels(rule, grad, position, kept, inputs)
        grad = self._spread(rule, grad, own, kept, term, target)
        return self._put_on_diagonal(rule, grad, term, own, target)

    def _ellipsis_fits(self, rule: Rule, position: int, inputs: Sequence[Value]) -> bool:
        """Return whether the ellipsis of the operand certainly has the same axes as that of the result."""
        if not any(DOTS in t for t in self.terms):
            return True
        if DOTS not in self.terms[position]:
            return False
        own = _ellipsis_dims(rule, self.terms[position], inputs[position])
        sole = sum(DOTS in t for t in self.terms) == 1
        return sole or (own is not None and None not in own and own == self._broadcast_dims(rule, inputs))

    def _broadcast_dims(self, rule: Rule, inputs: Sequence[Value]) -> tuple[int | str | None, ...] | None:
        """Return the dimensions of the result's ellipsis; None if the rank is unknown.

        They are not read from the output: onnx's inference gives it the dimensions of the first operand.
        """
        found = [_ellipsis_dims(rule, t, v) for t, v in zip(self.terms, inputs, strict=True) if DOTS in t]
        known = [f for f in found if f is not None]
        if len(known) != len(found):
            return None
        rank = max(len(f) for f in known)
        aligned = [(1,) * (rank - len(f)) + f for f in known]
        result: list[int | str | None] = []
        for column in zip(*aligned, strict=True):
            distinct = {d for d in column if d != 1}
            fixed = [d for d in distinct if isinstance(d, int)]
            single = next(iter(distinct), 1) if len(distinct) <= 1 else None
            result.append(fixed[0] if fixed else single)
        return tuple(result)

    def _sum_ellipsis(
        self,
        rule: Rule,
        grad: Value,
        term: list[str],
        kept: list[str],
        target: Value,
        whole: tuple[int | str | None, ...] | None,
    ) -> Value:
        """Return `grad` with its leading ellipsis axes summed down to those of the operand and moved into place."""
        op = rule.op
        named = [label for label in kept if label != DOTS]
        own = _ellipsis_dims(rule, term, target) if DOTS in term else ()
        fake: tuple[str, ...] = tuple(f"label {label}" for label in named)
        if DOTS not in term:
            rank = None if whole is None else len(whole)
            if rank is not None:
                return rule.sum_over(grad, range(rank))
            lead = op.Sub(op.Size(op.Shape(grad)), len(named))
            return op.ReduceSum(grad, op.Range(0, lead, 1), keepdims=0, noop_with_empty_axes=1)
        layout = _contract(rule, [(term, target)], [DOTS, *named])
        if own is not None and layout.shape is None:
            layout.shape = ir.Shape([*own, *(_dim_of_label(rule, term, label, target) for label in named)])
        from_dims = None if whole is None else (*whole, *fake)
        summed = unbroadcast(rule, grad, from_dims, grad, layout)
        return _contract(rule, [([DOTS, *named], summed)], kept)

    def _fit_labels(self, rule: Rule, grad: Value, position: int, kept: list[str], inputs: Sequence[Value]) -> Value:
        """Return `grad` with the operand's own sizes: a label may have size 1 in one operand and more in another.

        Sizes that are not known are taken to be equal.
        """
        summed, stretched = [], False
        for label in kept:
            if label == DOTS:
                continue
            own = _dim_of_label(rule, self.terms[position], label, inputs[position])
            others = [
                _dim_of_label(rule, t, label, v)
                for i, (t, v) in enumerate(zip(self.terms, inputs, strict=True))
                if i != position and label in t
            ]
            mixed = {d == 1 for d in (own, *others) if isinstance(d, int)} == {True, False}
            if mixed and label in self.output:
                # onnx's inference (1.23) gives the output the size of the first input. Every gradient computed from
                # that shape may be wrong.
                raise Unsupported(
                    f"label `{label}` of the output has size 1 in one input and more in another; Expand it first"
                )
            if own == 1 and mixed:
                summed.append(_axis(kept, label))
            if own != 1 and others and all(d == 1 for d in others):
                stretched = True
        grad = rule.sum_over(grad, summed, keepdims=True)
        if not stretched:
            return grad
        return rule.op.Expand(
            grad, rule.op.Concat(*(_size(rule, self.terms[position], x, inputs[position]) for x in kept), axis=0)
        )

    def _spread(
        self, rule: Rule, grad: Value, own: list[str], kept: list[str], term: list[str], target: Value
    ) -> Value:
        """Return `grad` expanded over the labels that only the operand has."""
        if kept == own:
            return grad
        op = rule.op
        dots = own.index(DOTS) if DOTS in own else len(own)
        axes = [i if i <= dots else i - len(own) for i, label in enumerate(own) if label not in kept and label != DOTS]
        if DOTS in own and DOTS not in kept:
            rank = rule.rank(target)
            assert rank is not None, "an ellipsis that is summed needs a known rank"
            count = rank - len(term) + 1
            axes = (
                [a for a in axes if a < dots and a >= 0] + [dots + k for k in range(count)] + [a for a in axes if a < 0]
            )
        grad = op.Unsqueeze(grad, axes)
        if own == term:
            return op.Expand(grad, rule.shape_of(target))
        return op.Expand(grad, op.Concat(*(_size(rule, term, label, target) for label in own), axis=0))

    def _put_on_diagonal(self, rule: Rule, grad: Value, term: list[str], own: list[str], target: Value) -> Value:
        """Return `grad` with an axis for each repetition of a label, zero off the diagonal."""
        if own == term:
            return grad
        op = rule.op
        fresh = iter(self._fresh(len(term) - len(own)))
        seen: set[str] = set()
        result: list[str] = []
        operands: list[tuple[list[str], Value]] = [(own, grad)]
        for label in term:
            if label in seen:
                size = _dim_of_label(rule, term, label, target)
                if isinstance(size, int) and size <= 64:
                    identity = op.constant(np.eye(size), target.dtype)
                else:
                    n = _size(rule, term, label, target)
                    identity = op.EyeLike(op.ConstantOfShape(op.Concat(n, n, axis=0)), dtype=target.dtype)
                new = next(fresh)
                operands.append(([label, new], identity))
                result.append(new)
            else:
                seen.add(label)
                result.append(label)
        return _contract(rule, operands, result)


def _contract(rule: Rule, operands: Sequence[tuple[list[str], Value]], result: list[str]) -> Value:
    """Return the Einsum of `operands`; for a permutation of one operand, a Transpose or the operand itself."""
    if len(operands) == 1:
        labels, value = operands[0]
        if labels == result:
            return value
        if DOTS not in labels and sorted(labels) == sorted(result) and len(set(labels)) == len(labels):
            return rule.op.Transpose(value, perm=[labels.index(label) for label in result])
    equation = ",".join("".join(labels) for labels, _ in operands) + "->" + "".join(result)
    return rule.op.Einsum(*(value for _, value in operands), equation=equation)


def _ellipsis_dims(rule: Rule, term: list[str], value: Value) -> tuple[int | str | None, ...] | None:
    """Return the dimensions under the ellipsis of `term`; None if the rank is not known."""
    dims = rule.dims(value)
    if dims is None or DOTS not in term:
        return None if dims is None else ()
    start = term.index(DOTS)
    return dims[start : start + len(dims) - len(term) + 1]


def _axis(term: list[str], label: str) -> int:
    """Return the axis of a label; it is negative if an ellipsis stands before the label."""
    axis = term.index(label)
    return axis - len(term) if DOTS in term[:axis] else axis


def _dim_of_label(rule: Rule, term: list[str], label: str, value: Value) -> int | str | None:
    dims = rule.dims(value)
    return None if dims is None else dims[_axis(term, label)]


def _size(rule: Rule, term: list[str], label: str, value: Value) -> Value:
    """Return the dimensions of a label (several for the ellipsis) as a 1-D int64 value."""
    if label != DOTS:
        return rule.dim_of(value, _axis(term, label))
    start, after = term.index(DOTS), len(term) - term.index(DOTS) - 1
    return rule.op.Shape(value, start=start, end=-after if after else None)
