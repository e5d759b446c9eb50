"""The learning rates of a run: a given one or the model's own, times a factor that callbacks change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from onward.errors import A101, ArgumentError, Diagnostic
from onward.train.arguments import Schedule

if TYPE_CHECKING:
    from onward.train.loop import Run


def next_rate(run: Run) -> float:
    """Return the learning rate of the next step, for the phase or the first entry; NaN when none can be set."""
    rate, program = _fed(run), run.trainer.program
    entry = program.for_entry(run.entry).first
    if entry is None or entry.rate is None or not entry.learning_rates:
        return rate
    name = entry.learning_rates[0]  # the schedule in the model makes something of what is fed
    fed = np.full_like(program.settings[name], rate)
    return float(np.asarray(next(iter(run.session.run_graph(entry.rate, {name: fed}).values()))))


def rates_to_feed(run: Run) -> dict[str, np.ndarray]:
    """Return the learning rates to feed: the given one for all entries, or the reduced own rate of each entry."""
    factor = run.position.rate_factor
    given = run.schedule is not None or run.settings.learning_rate is not None
    if not given and factor == 1.0:
        return {}
    own = {name: np.asarray(run.trainer.program.settings[name]) for name in run.trainer.learning_rate_names}
    if given:
        rate = _fed(run)
        return {name: np.full_like(value, rate) for name, value in own.items()}
    return {name: np.asarray(value * factor, dtype=value.dtype) for name, value in own.items()}


def require_rate(run: Run, wanted_by: str) -> None:
    """Raise if the model has no learning rate that can be set."""
    if not run.trainer.learning_rate_names:
        raise ArgumentError(
            Diagnostic(
                A101,
                f"{wanted_by} cannot set the learning rate: this model has none that can be fed",
                found="settings: " + (", ".join(run.trainer.program.settings) or "none"),
                needed="a setting called learning_rate",
            )
        )


def _fed(run: Run) -> float:
    """Return the learning rate that the next step is fed, or that it takes by default."""
    if run.schedule is not None:
        base = _scheduled(run.schedule, run.position.step)
    elif isinstance(run.settings.learning_rate, (int, float)):
        base = float(run.settings.learning_rate)
    else:
        program = run.trainer.program
        names = program.for_entry(run.entry).learning_rates
        base = float(np.asarray(program.settings[names[0]])) if names else float("nan")
    return base * run.position.rate_factor


def _scheduled(schedule: Schedule, step: int) -> float:
    rate = schedule(step)
    try:
        number = float(rate)
    except (TypeError, ValueError):
        number = float("nan")
    if not 0.0 <= number < float("inf"):
        raise ArgumentError(
            Diagnostic(
                A101,
                f"the function for the learning rate gave {rate!r} for step {step}",
                needed="a finite number ≥ 0",
            )
        )
    return number
