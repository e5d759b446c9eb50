"""The learning-rate finder: a short run whose rate grows at every step, and the rate at which the loss fell fastest."""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from onward import notebook
from onward.arguments import as_whole, check_number
from onward.errors import A101, ArgumentError, Diagnostic, require_extra
from onward.train.charts import Chart
from onward.train.data.source import Batch, BatchRequest
from onward.train.plot import Line, line_chart

if TYPE_CHECKING:
    from onward.compiler.program import Program
    from onward.train.data.matching import Matching
    from onward.train.data.source import DataSource
    from onward.train.trainer import Trainer

_SMOOTHING = 0.9
_DIVERGED = 4.0  # times the lowest smoothed loss


@dataclasses.dataclass(frozen=True)
class RateSearch:
    """The losses at growing learning rates, and the `suggestion`: None if no rate lowered the loss.

    It is the rate at which the smoothed loss fell fastest, and at most a tenth of that with the lowest loss.

    A notebook shows the chart; `plot().save("rates.svg")` writes it.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    suggestion: float | None
    diverged: bool
    """Whether the loss grew so much that the search ended before its highest rate."""

    def plot(self) -> Chart:
        """Return the chart of the loss over the rate, which is drawn as a power of ten."""
        points = [math.log10(r) for r in self.rates]
        limit = 3 * max(abs(v) for v in (*self.smoothed[:1], min(self.smoothed, default=1.0)))
        lines = [
            Line("each step", [(x, min(v, limit)) for x, v in zip(points, self.losses, strict=True)], 0, faint=True),
            Line("smoothed", [(x, min(v, limit)) for x, v in zip(points, self.smoothed, strict=True)], 0),
        ]
        if self.suggestion is not None:
            at = int(np.argmin([abs(r - self.suggestion) for r in self.rates]))
            lines.append(Line(f"suggestion {self.suggestion:.2g}", [(points[at], self.smoothed[at])], 1))
        return Chart(line_chart(lines, title="Loss over the learning rate", x_label="learning rate, power of ten"))

    def to_frame(self) -> Any:
        """Return a pandas frame with rate, loss and smoothed loss."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise require_extra("pandas", "data", "a frame of the search") from error
        return pandas.DataFrame({"learning_rate": self.rates, "loss": self.losses, "smoothed": self.smoothed})

    def _repr_html_(self) -> str:
        found = "no rate lowered the loss" if self.suggestion is None else f"suggestion: {self.suggestion:.2g}"
        return notebook.panel(f"Learning rates ({found})", self.plot().svg)


def find_learning_rate(
    trainer: Trainer,
    program: Program,
    source: DataSource,
    matching: Matching,
    *,
    lowest: float,
    highest: float,
    steps: int,
    batch_size: int,
    seed: int,
    entry: str | None,
) -> RateSearch:
    """Return the losses of `steps` steps whose rate grows from `lowest` to `highest`; the state is put back.

    Raises:
        ArgumentError: wrong numbers, or a model whose learning rate cannot be fed.
    """
    problems: list[Diagnostic] = []
    steps = as_whole("steps", steps, 10, problems)
    for name, value in (("lowest", lowest), ("highest", highest)):
        try:
            check_number(name, value, "find_learning_rate", above=0.0)
        except ArgumentError as error:
            problems += error.diagnostics
    if not problems and lowest >= highest:
        problems.append(Diagnostic(A101, f"lowest is {lowest:g} and highest {highest:g}", needed="lowest < highest"))
    if not program.learning_rates:
        problems.append(
            Diagnostic(
                A101,
                "this model has no learning rate that can be fed",
                found="settings: " + (", ".join(program.settings) or "none"),
                needed="a setting called learning_rate",
            )
        )
    if problems:
        raise ArgumentError(problems)
    session = trainer.session
    before = session.get_state()
    rates: list[float] = []
    losses: list[float] = []
    smoothed: list[float] = []
    mean, diverged = 0.0, False
    try:
        for i, batch in zip(range(steps), _endless(source, batch_size, seed), strict=False):
            rate = lowest * (highest / lowest) ** (i / (steps - 1))
            fed = {n: np.full_like(np.asarray(program.settings[n]), rate) for n in program.learning_rates}
            outputs = session.step({**matching.make(batch), **fed}, entry=entry)
            loss = float(np.asarray(outputs[program.loss]).ravel()[0])
            if not math.isfinite(loss):
                diverged = True
                break
            mean = _SMOOTHING * mean + (1 - _SMOOTHING) * loss
            rates.append(rate)
            losses.append(loss)
            smoothed.append(mean / (1 - _SMOOTHING ** (i + 1)))
            if i >= steps // 10 and loss > 0 and smoothed[-1] > _DIVERGED * min(smoothed):
                diverged = True
                break
    finally:
        trainer.set_state(before)
    return RateSearch(tuple(rates), tuple(losses), tuple(smoothed), suggest(rates, smoothed), diverged)


def _endless(source: DataSource, batch_size: int, seed: int) -> Iterator[Batch]:
    epoch = 0
    while True:
        yield from source.batches(BatchRequest(batch_size, True, seed, epoch))
        epoch += 1


def suggest(rates: list[float], smoothed: list[float]) -> float | None:
    """Return the rate at which the smoothed loss falls fastest over the logarithm of the rate; None if it never falls.

    The first tenth, where the smoothing begins, is left out, and so is everything after the lowest loss. It is at most
    a tenth of the rate with the lowest loss, because the loss explodes soon after that.

    >>> suggest([10.0**i for i in range(-6, 1)], [1.0, 1.0, 0.99, 0.9, 0.5, 0.45, 2.0])
    0.001
    """
    last = int(np.argmin(smoothed)) if smoothed else 0
    first = len(rates) // 10
    if last - first < 2:
        return None
    values = np.asarray(smoothed[first : last + 1])
    slopes = np.gradient(values, np.log10(rates[first : last + 1]))
    steepest = int(np.argmin(slopes))
    return min(float(rates[first + steepest]), rates[last] / 10) if slopes[steepest] < 0 else None
