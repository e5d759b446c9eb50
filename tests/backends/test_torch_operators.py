"""The torch interpreter against ONNX's own node tests, with a strict list of what it cannot do."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tomllib
import torch

from backends.node_tests import cases, difference, outcome
from onward.backends.torch.registry import supported

GAPS = tomllib.loads((Path(__file__).parent.parent / "known_gaps.toml").read_text())["torch_node_tests"]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {case.name: outcome(case) for case in cases()}
    finally:
        torch.set_num_threads(threads)


def test_every_node_test_passes_but_the_known_gaps(outcomes: dict[str, str]) -> None:
    known = [re.compile(gap["tests"]) for gap in GAPS]

    unexpected = {
        name: found
        for name, found in outcomes.items()
        if found != "passed" and not any(k.fullmatch(name) for k in known)
    }

    assert unexpected == {}
    assert sum(found == "passed" for found in outcomes.values()) > 1600


@pytest.mark.parametrize("gap", GAPS, ids=[g["tests"] for g in GAPS])
def test_a_known_gap_is_still_a_gap(gap: dict[str, str], outcomes: dict[str, str]) -> None:
    matching = {name: found for name, found in outcomes.items() if re.fullmatch(gap["tests"], name)}

    passing = [name for name, found in matching.items() if found == "passed"]

    assert matching, "no such test any more: remove the line"
    assert passing == [], "they pass now: make the line narrower"


def test_the_comparison_notices_what_is_wrong() -> None:
    wanted = np.array([1.0, 2.0], np.float32)

    assert difference(torch.tensor([1.0, 2.0]), wanted, 1e-3, 1e-7) is None
    assert difference(torch.tensor([1.0, 2.01]), wanted, 1e-3, 1e-7) == "numbers off by 0.01"
    assert difference(torch.tensor([1.0]), wanted, 1e-3, 1e-7) == "shape (1,), not (2,)"
    assert difference(torch.tensor([1, 2]), wanted, 1e-3, 1e-7) == "type int64, not float32"


def test_every_registered_operator_exists_in_the_standard() -> None:
    import onnx

    known = {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history()}

    assert set(supported()) <= known
