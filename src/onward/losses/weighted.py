"""A weighted sum of losses."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from onward.arguments import check_number
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Value
from onward.losses.base import ANY_NUMBER, LabelSpec, Loss


@dataclasses.dataclass(frozen=True)
class Weighted(Loss):
    """Σ weight · loss, all over the same outputs and labels.

    >>> from onward.losses import L1, MSE
    >>> MSE() + 0.5 * L1()
    Weighted(terms=((1.0, MSE(reduction='mean')), (0.5, L1(reduction='mean'))))
    """

    terms: tuple[tuple[float, Loss], ...]

    def __post_init__(self) -> None:
        for weight, _ in self.terms:
            check_number("weight", weight, "Weighted")
        if any(loss.reads_teacher for _, loss in self.terms):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "a loss that reads a teacher cannot be part of a sum",
                    place="loss=",
                    hint="give the other loss to it: Distillation(loss=MSE() + L1(), alpha=0.5)",
                )
            )

    @classmethod
    def of(cls, loss: Loss) -> Weighted:
        """Return `loss` as a sum of one term."""
        return loss if isinstance(loss, Weighted) else cls(((1.0, loss),))

    def scaled(self, weight: float) -> Weighted:
        """Return the sum with every weight multiplied by `weight`."""
        check_number("weight", weight, "Weighted")
        return Weighted(tuple((w * weight, loss) for w, loss in self.terms))

    @property
    def num_outputs(self) -> int:  # type: ignore[override]  # depends on the terms
        numbers = [loss.num_outputs for _, loss in self.terms]
        return ANY_NUMBER if ANY_NUMBER in numbers else max(numbers)

    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec] | None:
        specs = [loss.labels(outputs) for _, loss in self.terms]
        known = [s for s in specs if s is not None]
        if not known:
            return None
        longest = max(known, key=len)
        for (_, loss), spec in zip(self.terms, specs, strict=True):
            if spec is not None and spec != longest[: len(spec)]:
                raise ArgumentError(
                    Diagnostic(
                        A101,
                        "the losses of a sum do not read the same labels",
                        place="loss=",
                        found=f"`{type(loss).__name__}` needs {_words(spec)}, another term needs {_words(longest)}",
                        hint="give each loss its own output and label: loss={'logits': ..., 'boxes': ...}",
                    )
                )
        return longest

    def emit(self, op: Builder, outputs: Sequence[Value], labels: Sequence[Value]) -> Value:
        total: Value | None = None
        for weight, loss in self.terms:
            specs = loss.labels(outputs)
            read = outputs if loss.num_outputs == ANY_NUMBER else outputs[: loss.num_outputs]
            term = loss.emit(op, read, labels if specs is None else labels[: len(specs)])
            term = term if weight == 1.0 else op.Mul(term, weight)
            total = term if total is None else op.Add(total, term)
        assert total is not None
        return total

    def least_opset(self) -> int:
        return max(loss.least_opset() for _, loss in self.terms)

    def functions(self) -> list[ir.Function]:
        return [function for _, loss in self.terms for function in loss.functions()]


def _words(specs: Sequence[LabelSpec]) -> str:
    return ", ".join(f"{s.dtype.name.lower()}{list(s.shape)}" for s in specs) or "no labels"
