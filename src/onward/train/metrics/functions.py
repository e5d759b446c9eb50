"""A plain function as a metric: it gets the outputs and targets of all samples at once, so any function is exact."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from onward.arguments import is_number
from onward.errors import A101, ArgumentError, DataError, Diagnostic
from onward.train.data.arrays import to_array
from onward.train.metrics.base import T120, Metric

# What a parameter of a function is called decides what it gets: scikit-learn's functions take the targets first.
_OUTPUTS = {"output", "outputs", "y_pred", "y_score", "y_prob", "y_hat", "pred", "preds", "prediction", "predictions"}
_TARGETS = {"target", "targets", "y_true", "label", "labels", "y", "truth"}

Function = Callable[..., Any]


def is_function_metric(given: object) -> bool:
    """Return whether `given` is a function, or a pair of a name and a function."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        given = given[1]
    return callable(given) and not isinstance(given, type)


def function_metric(given: Any) -> FunctionMetric:
    """Return the metric that a function, or a pair (name, function), stands for.

    >>> def error(output, target):
    ...     return abs(output - target).max()
    >>> metric = function_metric(error)
    >>> metric.update(np.array([1.0]), np.array([0.5]))
    >>> metric.update(np.array([2.0]), np.array([0.0]))
    >>> metric.name, metric.compute()
    ('error', 2.0)
    """
    name, function = given if isinstance(given, tuple) else (getattr(given, "__name__", type(given).__name__), given)
    return FunctionMetric(function, "function" if name == "<lambda>" else name)


class FunctionMetric(Metric):
    """Keeps the outputs and targets of an epoch and gives them to a function of (output, target).

    A function whose parameters are called `y_true` and `y_pred`, as scikit-learn's, gets them by these names. If the
    function has an attribute `larger_is_better`, callbacks that monitor the column use it.
    """

    def __init__(self, function: Function, name: str) -> None:
        self.name = name
        self.function = function
        self.larger_is_better = getattr(function, "larger_is_better", None)
        self._swapped = _takes_target_first(function, name)
        super().__init__()

    def reset(self) -> None:
        self._batches: list[tuple[np.ndarray, np.ndarray]] = []

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        place = f"for metric `{self.name}`"
        self._batches.append(
            (np.array(to_array(output, f"the output {place}")), np.array(to_array(target, f"the target {place}")))
        )

    def _all(self) -> tuple[np.ndarray, np.ndarray]:
        try:
            outputs = np.concatenate([o for o, _ in self._batches])
            targets = np.concatenate([t for _, t in self._batches])
        except ValueError as error:
            raise DataError(
                Diagnostic(
                    T120,
                    f"metric `{self.name}` needs outputs and targets of one shape in all batches",
                    found=", ".join(sorted({str(o.shape) for o, _ in self._batches})),
                    hint="subclass onward.train.Metric, whose `update` gets one batch at a time",
                )
            ) from error
        return outputs, targets

    def compute(self) -> float:
        if not self._batches:
            return float("nan")
        outputs, targets = self._all()
        value = self.function(targets, outputs) if self._swapped else self.function(outputs, targets)
        if not is_number(value) and not (isinstance(value, np.ndarray) and value.size == 1):
            raise DataError(
                Diagnostic(
                    T120,
                    f"the function of metric `{self.name}` gave no number",
                    found=type(value).__name__,
                    needed="one number for all samples",
                )
            )
        return float(np.asarray(value).reshape(()))

    def get_state(self) -> dict[str, np.ndarray]:
        if not self._batches:
            return {}
        outputs, targets = self._all()
        return {"outputs": outputs, "targets": targets}

    def set_state(self, state: Any) -> None:
        self._batches = [(np.array(state["outputs"]), np.array(state["targets"]))] if state else []


def _takes_target_first(function: Function, name: str) -> bool:
    """Return whether the first parameter is the target, as its name says.

    Raises:
        ArgumentError: the function cannot be called with two arguments.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # some built-in functions have no signature
        return False
    try:
        signature.bind(0, 0)
    except TypeError as error:
        raise ArgumentError(
            Diagnostic(
                A101,
                f"metric `{name}` cannot be called with the outputs and the targets",
                found=f"{name}{signature}",
                needed="a function of (output, target), or of (y_true, y_pred)",
            )
        ) from error
    first, second, *_ = [p.name for p in signature.parameters.values()] + ["", ""]
    return first in _TARGETS or second in _OUTPUTS
