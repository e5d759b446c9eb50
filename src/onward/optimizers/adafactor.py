"""Adafactor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from onward.arguments import check_number
from onward.graph.builder import Builder, Value
from onward.optimizers.base import FormulaOptimizer, Optimizer, Slot
from onward.optimizers.formulas import as_float
from onward.schedules.base import Schedule


@dataclasses.dataclass(frozen=True)
class Adafactor(FormulaOptimizer):
    """`torch.optim.Adafactor`: the second moment of a matrix is kept as the means of its rows and columns only.

    The step is relative to the size of the weights. Weight decay is decoupled by default, as in PyTorch. Tensors with
    more than two dimensions are factored along the last two; vectors and scalars keep the whole second moment.

    Args:
        beta2_decay: the new squares of update t have the weight t^beta2_decay in the second moment.
        epsilon1: the smallest second moment is epsilon1². None: the rounding error of the parameter's type.
        epsilon2: the smallest size of the weights to which the step is relative.
        threshold: scale an update down whose root mean square is larger.
    """

    learning_rate: float | Schedule = 1e-2
    beta2_decay: float = -0.8
    epsilon1: float | None = None
    epsilon2: float = 1e-3
    threshold: float = 1.0
    _: dataclasses.KW_ONLY
    decoupled: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        check_number("beta2_decay", self.beta2_decay, owner, high=0.0)
        if self.epsilon1 is not None:
            check_number("epsilon1", self.epsilon1, owner, low=0.0)
        check_number("epsilon2", self.epsilon2, owner, low=0.0)
        check_number("threshold", self.threshold, owner, low=1.0)

    def label(self) -> str:
        return "adafactor"

    def fit(self, parameters: Mapping[str, tuple[int, ...]]) -> dict[str, Optimizer]:
        whole = WholeAdafactor(**{f.name: getattr(self, f.name) for f in dataclasses.fields(self)})
        return {name: self if len(shape) > 1 else whole for name, shape in parameters.items()}

    def slots(self) -> dict[str, Slot]:
        return {"row": Slot(reduced=-1), "column": Slot(reduced=-2)}

    def formula(self, op: Builder, R: Value, T: Value, X: Value, G: Value, *state: Value) -> Sequence[Value]:
        """w = t^beta2_decay; row' = row + w·(mean₋₁(G²) - row), column' alike; v = row'·column'/mean(row');
        D = G/√v; X' = X - max(ε₂, rms(X))·min(R, 1/√t)·D/max(1, rms(D)/threshold)."""
        t = op.Add(as_float(op, T, X), 1.0)
        weight = op.Pow(t, self.beta2_decay)
        size = op.Max(_rms(op, X), self.epsilon2)
        X, G = self.decayed(op, R, X, G)
        new = [op.Add(old, op.Mul(weight, op.Sub(mean, old)))
               for old, mean in zip(state, self.squares(op, G), strict=True)]  # fmt: skip
        assert X.dtype is not None
        epsilon = float(np.finfo(X.dtype.numpy()).eps) if self.epsilon1 is None else self.epsilon1
        D = op.Mul(op.Reciprocal(op.Sqrt(op.Max(self.second_moment(op, new, epsilon), epsilon * epsilon))), G)
        alpha = op.Mul(size, op.Min(R, op.Reciprocal(op.Sqrt(t))))
        scale = op.Max(op.Div(_rms(op, D), self.threshold), 1.0)
        return [op.Sub(X, op.Mul(D, op.Div(alpha, scale))), *new]

    def squares(self, op: Builder, G: Value) -> list[Value]:
        """Return the squares of the gradient that each piece of state averages."""
        return [op.ReduceMean(op.Mul(G, G), [axis], keepdims=1) for axis in (-1, -2)]

    def second_moment(self, op: Builder, state: Sequence[Value], epsilon: float) -> Value:
        """Return the second moment of each element."""
        row, column = state
        return op.Div(op.Mul(row, column), op.Max(op.ReduceMean(row, [-2], keepdims=1), epsilon))


@dataclasses.dataclass(frozen=True)
class WholeAdafactor(Adafactor):
    """`Adafactor` for vectors and scalars."""

    FUNCTION: ClassVar[str] = "AdafactorOfVector"

    def slots(self) -> dict[str, Slot]:
        return {"v": Slot()}

    def squares(self, op: Builder, G: Value) -> list[Value]:
        return [op.Mul(G, G)]

    def second_moment(self, op: Builder, state: Sequence[Value], epsilon: float) -> Value:
        return state[0]


def _rms(op: Builder, X: Value) -> Value:
    """Return the root mean square of all elements."""
    return op.Sqrt(op.ReduceMean(op.Mul(X, X), keepdims=0))
