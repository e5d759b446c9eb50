"""Each schedule against `torch.optim.lr_scheduler`, and its ONNX form against its Python form."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from onward import schedules
from onward.errors import ArgumentError
from onward.graph.builder import Builder
from onward.optimizers.emit import initializer

S = torch.optim.lr_scheduler
STEPS = 40
CASES = {
    "constant": (schedules.Constant(0.1), lambda o: S.LambdaLR(o, lambda t: 1.0)),
    "step": (schedules.Step(0.1, every=7, gamma=0.3), lambda o: S.StepLR(o, 7, 0.3)),
    "exponential": (schedules.Exponential(0.1, gamma=0.93), lambda o: S.ExponentialLR(o, 0.93)),
    "exponential every 10": (
        schedules.Exponential(0.1, gamma=0.5, every=10), lambda o: S.LambdaLR(o, lambda t: 0.5 ** (t / 10)),
    ),
    "linear": (schedules.Linear(0.1, 25, start=0.25, end=0.75), lambda o: S.LinearLR(o, 0.25, 0.75, 25)),
    "cosine": (schedules.Cosine(0.1, STEPS, end=0.1), lambda o: S.CosineAnnealingLR(o, STEPS, 0.01)),
    "cosine, again and again": (
        schedules.CosineAnnealing(0.1, 12, end=0.1), lambda o: S.CosineAnnealingLR(o, 12, 0.01),
    ),
    "polynomial": (schedules.Polynomial(0.1, 30, power=2.0), lambda o: S.PolynomialLR(o, 30, 2.0)),
    "piecewise": (
        schedules.Piecewise(0.1, [5, 20], [0.5, 0.25]), lambda o: S.MultiStepLR(o, [5, 20], 0.5),
    ),
    "warm-up": (schedules.Warmup(0.1, 10, start=0.1), lambda o: S.LinearLR(o, 0.1, 1.0, 10)),
    "warm-up, then step": (
        schedules.Warmup(schedules.Step(0.1, every=5, gamma=0.5), 10, start=0.1),
        lambda o: S.LambdaLR(o, lambda t: 0.1 + 0.9 * t / 10 if t < 10 else 0.5 ** ((t - 10) // 5)),
    ),
    "cosine with restarts": (
        schedules.CosineRestarts(0.1, 7, end=0.1), lambda o: S.CosineAnnealingWarmRestarts(o, 7, 1, 0.01),
    ),
    "cosine with longer and longer cycles": (
        schedules.CosineRestarts(0.1, 5, growth=2), lambda o: S.CosineAnnealingWarmRestarts(o, 5, 2),
    ),
    "one after the other": (
        schedules.Sequential(0.1, [
            schedules.Linear(0.1, 6, start=0.2, end=1.0), schedules.Constant(0.1), schedules.CosineAnnealing(0.1, 20),
        ], [6, 15]),
        lambda o: S.SequentialLR(
            o, [S.LinearLR(o, 0.2, 1.0, 6), S.ConstantLR(o, 1.0, 1), S.CosineAnnealingLR(o, 20)], [6, 15]
        ),
    ),
    "multiplied": (
        schedules.Product(0.1, [schedules.Linear(0.1, 10, start=0.2, end=1.0), schedules.Exponential(0.1, gamma=0.9)]),
        lambda o: S.ChainedScheduler([S.LinearLR(o, 0.2, 1.0, 10), S.ExponentialLR(o, 0.9)]),
    ),
    "one-cycle": (schedules.OneCycle(0.1, STEPS), lambda o: S.OneCycleLR(o, 0.1, total_steps=STEPS)),
    "one-cycle with an odd peak": (
        schedules.OneCycle(0.1, STEPS, rise=0.23, divide=10, final_divide=100),
        lambda o: S.OneCycleLR(o, 0.1, total_steps=STEPS, pct_start=0.23, div_factor=10, final_div_factor=100),
    ),
}  # fmt: skip


def in_onnx(schedule: schedules.Schedule, dtype: type, steps: list[int]) -> list[float]:
    op = Builder(18)
    step, rate = initializer("step", np.array(0)), initializer("rate", np.array(schedule.learning_rate, dtype))
    made = op.Mul(rate, schedule.emit(op, step, rate))
    made.shape = ir.Shape([])
    graph = ir.Graph([step, rate], [made], nodes=op.nodes, opset_imports={"": 18}, name="schedule")
    evaluator = ReferenceEvaluator(ir.serde.serialize_model(ir.Model(graph, ir_version=8)))
    outputs = [
        evaluator.run(None, {"step": np.array(t), "rate": np.array(schedule.learning_rate, dtype)})[0] for t in steps
    ]
    assert {o.dtype for o in outputs} == {np.dtype(dtype)}
    return [float(o) for o in outputs]


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # PyTorch 2.8 warns of its own SequentialLR
@pytest.mark.parametrize("name", CASES)
def test_a_schedule_equals_torch(name: str) -> None:
    schedule, make = CASES[name]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    scheduler = make(optimizer)

    found, expected = [], []
    for t in range(STEPS):
        found.append(schedule(t))
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if t + 1 < STEPS:
            scheduler.step()

    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-13), (np.float32, 2e-6)])
@pytest.mark.parametrize("name", CASES)
def test_the_onnx_form_equals_the_python_form(name: str, dtype: type, tolerance: float) -> None:
    schedule, _ = CASES[name]
    steps = [*range(STEPS + 3), 1000]

    found = in_onnx(schedule, dtype, steps)

    np.testing.assert_allclose(found, [schedule(t) for t in steps], rtol=tolerance, atol=tolerance * 1e-2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: schedules.Step(0.1, every=0),
            "`every` of `Step` is out of range\n  found: 0\n  needed: a whole number",
        ),
        (lambda: schedules.Cosine(float("nan"), 10), "`learning_rate` of `Cosine` is out of range\n  found: nan"),
        (lambda: schedules.Piecewise(0.1, [5, 3], [1.0, 1.0]), "needed: rising boundaries, and one factor for each"),
        (lambda: schedules.OneCycle(0.1, 2), "`rise * steps` of `OneCycle` is out of range"),
    ],
)
def test_a_wrong_schedule_says_what_is_right(make, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make()

    assert message in str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_a_schedule_is_what_its_description_describes(name: str) -> None:
    schedule, _ = CASES[name]

    assert schedules.from_description(json.loads(json.dumps(schedule.describe()))) == schedule


@pytest.mark.parametrize(("make", "expected"), [
    (lambda: schedules.Sequential(0.1, [], []), "the parts of `Sequential` are not schedules"),
    (lambda: schedules.Product(0.1, [0.5]), "the parts of `Product` are not schedules"),
    (lambda: schedules.Sequential(0.1, [schedules.Constant(1)], [3]), "of `Sequential` do not match its parts"),
    (lambda: schedules.CosineRestarts(0.1, 5, growth=1.5), "`growth` of `CosineRestarts` is out of range"),
])  # fmt: skip
def test_parts_that_do_not_fit_are_named(make: Callable[[], schedules.Schedule], expected: str) -> None:
    with pytest.raises(ArgumentError, match=expected):
        make()
