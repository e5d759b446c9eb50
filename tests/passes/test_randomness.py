"""The portable generator: uniform, independent between nodes and steps, the right distributions."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onward.backends.reference import Evaluator
from onward.model.roles import RANDOM_KEY, RANDOM_STEP
from onward.model.training_model import TrainingModel
from onward.passes.base import Unit
from onward.passes.randomness import LowerRandomness


def draw(op_type: str, shape: tuple[int, ...], *, key: int = 0, step: int = 0, **attributes: object) -> np.ndarray:
    """Return what one lowered random node gives."""
    node = ir.node(op_type, [], {"shape": list(shape), **attributes}, num_outputs=1, name="draw")
    return run([node], node.outputs[0], ir.Shape(shape), key, step)


def run(nodes: list[ir.Node], output: ir.Value, shape: ir.Shape, key: int, step: int) -> np.ndarray:
    output.name, output.shape, output.type = "y", shape, ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph([], [output], nodes=nodes, opset_imports={"": 18}, name="g")
    unit = Unit(TrainingModel(ir.Model(graph, ir_version=8)))
    LowerRandomness()(unit)
    proto = ir.serde.serialize_model(unit.model)
    return Evaluator(proto).run({RANDOM_KEY: np.array(key), RANDOM_STEP: np.array(step)})["y"]


def test_uniform_numbers_fill_the_interval_evenly() -> None:
    numbers = draw("RandomUniform", (100_000,), low=2.0, high=4.0)

    counts, _ = np.histogram(numbers, bins=50, range=(2.0, 4.0))
    chi_square = ((counts - 2000) ** 2 / 2000).sum()

    assert numbers.min() > 2.0
    assert numbers.max() < 4.0
    assert chi_square < 90  # 49 degrees of freedom: beyond 90 once in 3,000 fair draws


def test_normal_numbers_have_their_moments() -> None:
    numbers = draw("RandomNormal", (100_000,), mean=1.0, scale=3.0)

    standard = (numbers - 1.0) / 3.0

    assert abs(standard.mean()) < 0.015
    assert abs(standard.std() - 1.0) < 0.015
    assert abs((standard**3).mean()) < 0.05
    assert abs((standard**4).mean() - 3.0) < 0.15


@pytest.mark.parametrize("change", [{"key": 1}, {"step": 1}, {"seed": 5.0}])
def test_another_key_step_or_seed_gives_independent_numbers(change: dict[str, object]) -> None:
    first = draw("RandomUniform", (20_000,))
    second = draw("RandomUniform", (20_000,), **change)

    correlation = np.corrcoef(first.ravel(), second.ravel())[0, 1]

    assert abs(correlation) < 0.03


def test_neighbouring_numbers_are_independent() -> None:
    numbers = draw("RandomUniform", (50_000,)).ravel()

    for lag in (1, 2, 3, 7, 64, 256):
        assert abs(np.corrcoef(numbers[:-lag], numbers[lag:])[0, 1]) < 0.02, lag


def test_the_same_key_and_step_give_the_same_numbers() -> None:
    np.testing.assert_array_equal(
        draw("RandomNormal", (3, 4), key=7, step=9), draw("RandomNormal", (3, 4), key=7, step=9)
    )
