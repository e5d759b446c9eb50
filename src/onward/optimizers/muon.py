"""Muon."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import onnx_ir as ir

from onward.arguments import check_count, check_name, check_number
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Value
from onward.optimizers.base import FormulaOptimizer, Optimizer, Slot

SCALES = ("original", "match_rms_adamw")


@dataclasses.dataclass(frozen=True)
class Muon(FormulaOptimizer):
    """`torch.optim.Muon`: the momentum of a matrix, made nearly orthogonal by a Newton-Schulz iteration.

    It trains matrices only: use `train=` to choose them. Weight decay is decoupled by default, as in PyTorch.

    Args:
        a, b, c: the iteration is O ← a·O + (b·A + c·A²)·O with A = O·Oᵀ.
        iterations: their number.
        epsilon: the smallest norm by which the momentum is divided.
        scale: "original" multiplies the step by √max(1, rows/columns), "match_rms_adamw" by 0.2·√max(rows, columns).
        bfloat16: round each result of the iteration to bfloat16, as PyTorch does.
    """

    momentum: float = 0.95
    nesterov: bool = True
    a: float = 3.4445
    b: float = -4.7750
    c: float = 2.0315
    iterations: int = 5
    epsilon: float = 1e-7
    scale: str = "original"
    bfloat16: bool = True
    _: dataclasses.KW_ONLY
    weight_decay: float = 0.1
    decoupled: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        check_number("momentum", self.momentum, owner, low=0.0)
        for name in ("a", "b", "c"):
            check_number(name, getattr(self, name), owner)
        check_count("iterations", self.iterations, owner, low=0)
        check_number("epsilon", self.epsilon, owner, low=0.0)
        check_name("scale", self.scale, SCALES, place=f"optimizer `{owner}`")

    def label(self) -> str:
        return "muon"

    def fit(self, parameters: Mapping[str, tuple[int, ...]]) -> dict[str, Optimizer]:
        problems = [
            Diagnostic(
                A101,
                f"`Muon` cannot train `{name}`, which is not a matrix",
                found=f"shape {list(shape)}",
                needed="two dimensions",
                hint="choose the matrices with train=, or freeze= the others",
            )
            for name, shape in parameters.items()
            if len(shape) != 2
        ]
        if problems:
            raise ArgumentError(problems)
        tall = TallMuon(**{f.name: getattr(self, f.name) for f in dataclasses.fields(self)})
        return {name: tall if shape[0] > shape[1] else self for name, shape in parameters.items()}

    def slots(self) -> dict[str, Slot]:
        return {"m": Slot()}

    def formula(self, op: Builder, R: Value, T: Value, X: Value, G: Value, *state: Value) -> Sequence[Value]:
        """m' = m + (1 - μ)·(G - m); D = G + μ·(m' - G), or m'; X' = X - R·scale·orthogonal(D)."""
        X, G = self.decayed(op, R, X, G)
        m = _lerp(op, state[0], G, 1.0 - self.momentum)
        D = _lerp(op, G, m, self.momentum) if self.nesterov else m
        step = op.Mul(R, self._factor(op, X))
        return [op.Sub(X, op.Mul(step, op.cast(self.orthogonal(op, D), X.dtype))), m]  # type: ignore[arg-type]  # known

    def orthogonal(self, op: Builder, D: Value) -> Value:
        """Return U·S·Vᵀ of D with singular values S near 1; `D` has at most as many rows as columns."""
        O = self._rounded(op, D)
        norm = self._rounded(op, op.Sqrt(op.ReduceSumSquare(O, keepdims=0)))
        O = self._rounded(op, op.Div(O, op.Max(norm, self.epsilon)))
        for _ in range(self.iterations):
            A = self._rounded(op, op.MatMul(O, op.Transpose(O, perm=[1, 0])))
            B = self._rounded(op, op.Add(op.Mul(op.MatMul(A, A), self.c), op.Mul(A, self.b)))
            O = self._rounded(op, op.Add(op.MatMul(B, O), op.Mul(O, self.a)))
        return O

    def _rounded(self, op: Builder, value: Value) -> Value:
        """Return `value` rounded to bfloat16, but in float32, in which runtimes have matrix products."""
        if not self.bfloat16:
            return value
        return op.Cast(op.Cast(value, to=ir.DataType.BFLOAT16), to=ir.DataType.FLOAT)

    def _factor(self, op: Builder, X: Value) -> Value:
        assert X.dtype is not None
        rows, columns = (op.cast(op.Squeeze(op.Shape(X, start=i, end=i + 1)), X.dtype) for i in (0, 1))
        if self.scale == "original":
            return op.Sqrt(op.Max(op.Div(rows, columns), 1.0))
        return op.Mul(op.Sqrt(op.Max(rows, columns)), 0.2)


@dataclasses.dataclass(frozen=True)
class TallMuon(Muon):
    """`Muon` for matrices with more rows than columns."""

    FUNCTION: ClassVar[str] = "MuonOfTallMatrix"

    def orthogonal(self, op: Builder, D: Value) -> Value:
        return op.Transpose(super().orthogonal(op, op.Transpose(D, perm=[1, 0])), perm=[1, 0])


def _lerp(op: Builder, old: Value, new: Value, weight: float) -> Value:
    """Return old + weight·(new - old), computed from the nearer end as PyTorch does: bfloat16 shows the last bit."""
    difference = op.Sub(new, old)
    if abs(weight) < 0.5:
        return op.Add(old, op.Mul(difference, weight))
    return op.Sub(new, op.Mul(difference, 1.0 - weight))
