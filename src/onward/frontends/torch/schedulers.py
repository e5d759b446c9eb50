"""Convert schedulers of `torch.optim.lr_scheduler` to Onward's schedules, exactly or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.optim import lr_scheduler

from onward import schedules
from onward.errors import ArgumentError, Diagnostic
from onward.schedules import CosineAnnealing, Schedule

A211 = "A211"


def convert_scheduler(scheduler: Any, optimizer: torch.optim.Optimizer) -> tuple[list[float], Schedule, int]:
    """Return the base rate of each group, the schedule (with the first group's rate), and its number of steps.

    Raises:
        ArgumentError: the scheduler has no exact equivalent, belongs to another optimizer, or was not stepped once per
            optimizer step.
    """
    kind_of = type(scheduler)
    its_optimizer: Any = getattr(scheduler, "optimizer", None)
    if its_optimizer is not optimizer:
        raise ArgumentError(Diagnostic(A211, "the scheduler belongs to another optimizer", place="scheduler="))
    if kind_of not in _TABLE:
        raise ArgumentError(
            Diagnostic(
                A211,
                f"`{kind_of.__name__}` cannot be converted",
                place="scheduler=",
                needed="one of: " + ", ".join(sorted(k.__name__ for k in _TABLE)),
                hint="omit it, and pass trainer.fit(..., learning_rate=function of the step)",
            )
        )
    if kind_of is lr_scheduler.OneCycleLR:
        rates = [float(g["max_lr"]) for g in optimizer.param_groups]
    else:
        first = scheduler._schedulers[0] if kind_of in _OF_PARTS else scheduler
        rates = [float(rate) for rate in first.base_lrs]
    schedule = _TABLE[kind_of](scheduler, rates)
    steps = steps_of(scheduler)
    problems = []
    taken = _steps_taken(optimizer)
    if taken is not None and taken != steps:
        problems.append(
            Diagnostic(
                A211,
                "the scheduler is not stepped after every optimizer step",
                place="scheduler=",
                found=f"{steps} scheduler steps, {taken} optimizer steps",
                hint="the file counts optimizer steps; without the scheduler, the current rate is kept",
            )
        )
    for index, (group, rate) in enumerate(zip(optimizer.param_groups, rates, strict=True)):
        ours = rate * schedule.factor(steps)
        if not math.isclose(float(group["lr"]), ours, rel_tol=1e-6, abs_tol=1e-12):
            problems.append(
                Diagnostic(
                    A211,
                    "the learning rate differs from that of the scheduler",
                    place=f"param_groups[{index}]",
                    found=f"lr={float(group['lr']):g}",
                    needed=f"{ours:g} after {steps} steps of {kind_of.__name__}",
                )
            )
    if problems:
        raise ArgumentError(problems)
    return rates, schedule, steps


def steps_of(scheduler: Any) -> int:
    """Return the number of steps of a scheduler."""
    chained = isinstance(scheduler, lr_scheduler.ChainedScheduler)  # it has no counter
    return int((scheduler._schedulers[0] if chained else scheduler).last_epoch)


def _steps_taken(optimizer: torch.optim.Optimizer) -> int | None:
    """Return the number of steps of the optimizer; None if it has no counter."""
    return next((int(s["step"]) for s in optimizer.state.values() if "step" in s), None)


def _refuse(name: str, option: str, hint: str) -> ArgumentError:
    return ArgumentError(Diagnostic(A211, f"`{name}` with {option} cannot be converted", place="scheduler=", hint=hint))


def _step(s: Any, rates: list[float]) -> Schedule:
    return schedules.Step(rates[0], every=s.step_size, gamma=s.gamma)


def _multi_step(s: Any, rates: list[float]) -> Schedule:
    boundaries = sorted(s.milestones)  # a Counter: a milestone may occur twice
    factors, power = [], 0
    for boundary in boundaries:
        power += s.milestones[boundary]
        factors.append(s.gamma**power)
    return schedules.Piecewise(rates[0], boundaries=boundaries, factors=factors)


def _constant(s: Any, rates: list[float]) -> Schedule:
    return schedules.Piecewise(rates[0], boundaries=[0, s.total_iters], factors=[s.factor, 1.0])


def _linear(s: Any, rates: list[float]) -> Schedule:
    return schedules.Linear(rates[0], steps=s.total_iters, start=s.start_factor, end=s.end_factor)


def _exponential(s: Any, rates: list[float]) -> Schedule:
    return schedules.Exponential(rates[0], gamma=s.gamma)


def _cosine(s: Any, rates: list[float]) -> Schedule:
    if s.eta_min and len(set(rates)) > 1:
        raise _refuse("CosineAnnealingLR", "eta_min and several rates", "use eta_min=0 or one rate for all groups")
    return CosineAnnealing(rates[0], steps=s.T_max, end=s.eta_min / rates[0] if s.eta_min else 0.0)


def _polynomial(s: Any, rates: list[float]) -> Schedule:
    return schedules.Polynomial(rates[0], steps=s.total_iters, power=s.power)


def _one_cycle(s: Any, rates: list[float]) -> Schedule:
    if s.cycle_momentum:
        raise _refuse(
            "OneCycleLR", "cycle_momentum=True", "pass cycle_momentum=False: the momentum is fixed in the file"
        )
    if getattr(s, "_anneal_func_type", "cos") != "cos":
        raise _refuse("OneCycleLR", 'anneal_strategy="linear"', 'use anneal_strategy="cos"')
    if len(s._schedule_phases) != 2:
        raise _refuse("OneCycleLR", "three_phase=True", "use three_phase=False")
    group = s.optimizer.param_groups[0]
    rise = (float(s._schedule_phases[0]["end_step"]) + 1.0) / s.total_steps
    divide = group["max_lr"] / group["initial_lr"]
    return schedules.OneCycle(
        rates[0], steps=s.total_steps, rise=rise, divide=divide, final_divide=group["initial_lr"] / group["min_lr"]
    )


def _restarts(s: Any, rates: list[float]) -> Schedule:
    if s.eta_min and len(set(rates)) > 1:
        raise _refuse("CosineAnnealingWarmRestarts", "eta_min and several rates", "use eta_min=0, or one rate")
    return schedules.CosineRestarts(
        rates[0], steps=s.T_0, growth=s.T_mult, end=s.eta_min / rates[0] if s.eta_min else 0.0
    )


def _sequential(s: Any, rates: list[float]) -> Schedule:
    return schedules.Sequential(
        rates[0], _parts(s, rates, set(_TABLE) - {lr_scheduler.OneCycleLR, *_OF_PARTS}), s._milestones
    )


def _product(s: Any, rates: list[float]) -> Schedule:
    return schedules.Product(rates[0], _parts(s, rates, _FACTORS))


def _parts(s: Any, rates: list[float], allowed: Collection[type]) -> list[Schedule]:
    """Return the schedules inside a composite scheduler; raise unless all of them have `allowed` types."""
    others = [type(part).__name__ for part in s._schedulers if type(part) not in allowed]
    if others:
        known = ", ".join(sorted(k.__name__ for k in allowed))
        raise _refuse(type(s).__name__, " and ".join(dict.fromkeys(others)), f"it may contain: {known}")
    return [_TABLE[type(part)](part, rates) for part in s._schedulers]


_OF_PARTS = {lr_scheduler.SequentialLR, lr_scheduler.ChainedScheduler}
# ChainedScheduler multiplies the current rate: exact for schedulers that only multiply.
_FACTORS = {lr_scheduler.StepLR, lr_scheduler.MultiStepLR, lr_scheduler.ConstantLR, lr_scheduler.LinearLR,
            lr_scheduler.ExponentialLR}  # fmt: skip

_TABLE: dict[type, Callable[[Any, list[float]], Schedule]] = {
    lr_scheduler.StepLR: _step,
    lr_scheduler.MultiStepLR: _multi_step,
    lr_scheduler.ConstantLR: _constant,
    lr_scheduler.LinearLR: _linear,
    lr_scheduler.ExponentialLR: _exponential,
    lr_scheduler.CosineAnnealingLR: _cosine,
    lr_scheduler.PolynomialLR: _polynomial,
    lr_scheduler.OneCycleLR: _one_cycle,
    lr_scheduler.CosineAnnealingWarmRestarts: _restarts,
    lr_scheduler.SequentialLR: _sequential,
    lr_scheduler.ChainedScheduler: _product,
}
