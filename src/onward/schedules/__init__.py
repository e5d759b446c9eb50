"""Learning-rate schedules, as ONNX operators over the step counter and as Python functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.arguments import check_name
from onward.schedules.base import Schedule
from onward.schedules.combined import Product, Sequential
from onward.schedules.constant import Constant
from onward.schedules.cosine import Cosine, CosineAnnealing, CosineRestarts
from onward.schedules.exponential import Exponential
from onward.schedules.linear import Linear
from onward.schedules.one_cycle import OneCycle
from onward.schedules.piecewise import Piecewise
from onward.schedules.polynomial import Polynomial
from onward.schedules.step import Step
from onward.schedules.warmup import Warmup

NAMES: dict[str, type[Schedule]] = {
    cls.__name__: cls
    for cls in (
        Constant,
        Cosine,
        CosineAnnealing,
        CosineRestarts,
        Exponential,
        Linear,
        OneCycle,
        Piecewise,
        Polynomial,
        Product,
        Sequential,
        Step,
        Warmup,
    )
}


def from_description(description: Mapping[str, Any]) -> Schedule:
    """Return the schedule that `Schedule.describe()` described.

    >>> schedule = Warmup(Cosine(0.1, steps=100), steps=10)
    >>> from_description(schedule.describe()) == schedule
    True
    """
    settings = dict(description)
    name = str(settings.pop("name", ""))
    check_name("schedule", name, NAMES)
    if "parts" in settings:
        settings["parts"] = [from_description(part) for part in settings["parts"]]
    after = settings.pop("after", None)  # what follows a warm-up
    if after is not None:
        settings["learning_rate"] = from_description(after)
    return NAMES[name](**settings)


__all__ = [
    "NAMES",
    "Constant",
    "Cosine",
    "CosineAnnealing",
    "CosineRestarts",
    "Exponential",
    "Linear",
    "OneCycle",
    "Piecewise",
    "Polynomial",
    "Product",
    "Schedule",
    "Sequential",
    "Step",
    "Warmup",
    "from_description",
]
