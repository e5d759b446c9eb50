"""The JAX interpreter against ONNX's own node tests, with a strict list of what it cannot do.

JAX compiles every operator for every shape, so a run of all tests takes minutes (`ONWARD_WHOLE=1`). Otherwise
every fortieth test runs, and every known gap; `make test-frameworks` takes all of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tomllib

from backends.node_tests import cases, check_gap, difference, jax_backend, operators, outcome
from whole import WHOLE

jax = pytest.importorskip("jax")

GAPS = tomllib.loads((Path(__file__).parent.parent / "known_gaps.toml").read_text())["jax_node_tests"]


def is_gap(name: str) -> bool:
    return any(re.fullmatch(gap["tests"], name) for gap in GAPS)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    found = list(cases())
    chosen = [case for i, case in enumerate(found) if WHOLE or i % 40 == 0 or is_gap(case.name)]
    assert len({case.name for case in chosen}) == len(chosen)
    return {case.name: outcome(case, jax_backend()) for case in chosen}


def test_every_node_test_passes_but_the_known_gaps(outcomes: dict[str, str]) -> None:
    unexpected = {name: found for name, found in outcomes.items() if found != "passed" and not is_gap(name)}

    assert unexpected == {}
    assert sum(found == "passed" for found in outcomes.values()) > (1780 if WHOLE else 40)


def test_the_known_gaps_are_less_than_a_tenth() -> None:
    names = [case.name for case in cases()]

    assert len([n for n in names if is_gap(n)]) < len(names) / 10


def test_each_test_is_counted_once_and_belongs_to_an_operator() -> None:
    found = operators()

    assert len(found) > 1800
    assert set(found.values()) <= {schema.name for schema in onnx.defs.get_all_schemas()}


@pytest.mark.parametrize("gap", GAPS, ids=[g["tests"] for g in GAPS])
def test_a_known_gap_is_still_a_gap(gap: dict[str, Any], outcomes: dict[str, str]) -> None:
    check_gap(gap, outcomes)


def test_the_comparison_notices_what_is_wrong() -> None:
    wanted, backend = np.array([1.0, 2.0], np.float32), jax_backend()

    assert difference(jax.numpy.array([1.0, 2.0]), wanted, 1e-3, 1e-7, backend) is None
    assert difference(jax.numpy.array([1.0, 2.01]), wanted, 1e-3, 1e-7, backend) == "numbers off by 0.01"
    assert difference(jax.numpy.array([1, 2]), wanted, 1e-3, 1e-7, backend) == "type int32, not float32"


def test_jax_has_every_operator_that_torch_has() -> None:
    pytest.importorskip("torch")
    from onward.backends.jax.registry import REGISTRY
    from onward.backends.torch.registry import REGISTRY as TORCH

    assert REGISTRY.supported() == TORCH.supported()
