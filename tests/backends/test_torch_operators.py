"""The torch interpreter against ONNX's own node tests, with a strict list of what it cannot do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomllib
import torch

from backends.node_tests import cases, check_gap, difference, outcome, torch_backend
from onward.backends.torch.registry import REGISTRY

GAPS = tomllib.loads((Path(__file__).parent.parent / "known_gaps.toml").read_text())["torch_node_tests"]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(0)  # a random operator gives the same numbers in every run of the tests
        with torch.no_grad():
            return {case.name: outcome(case, torch_backend()) for case in cases()}
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
def test_a_known_gap_is_still_a_gap(gap: dict[str, Any], outcomes: dict[str, str]) -> None:
    check_gap(gap, outcomes)


def test_the_comparison_notices_what_is_wrong() -> None:
    wanted, backend = np.array([1.0, 2.0], np.float32), torch_backend()

    assert difference(torch.tensor([1.0, 2.0]), wanted, 1e-3, 1e-7, backend) is None
    assert difference(torch.tensor([1.0, 2.01]), wanted, 1e-3, 1e-7, backend) == "numbers off by 0.01"
    assert difference(torch.tensor([1.0]), wanted, 1e-3, 1e-7, backend) == "shape (1,), not (2,)"
    assert difference(torch.tensor([1, 2]), wanted, 1e-3, 1e-7, backend) == "type int64, not float32"


def test_every_registered_operator_exists_in_the_standard() -> None:
    import onnx

    known = {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history()}

    assert set(REGISTRY.supported()) <= known


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_autograd_goes_through_a_deformed_convolution(rank: int) -> None:
    from onward.backends.torch.ops.convolution import deform_conv
    from onward.backends.torch.registry import Attributes

    g = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_()

    image, kernel, places = [4] * rank, [2] * rank, [5] * rank
    taps = 2**rank
    given = {"group": 2, "offset_group": 2, "pads": [1] * 2 * rank}
    attributes = Attributes("DeformConv", "", 19, given, 1)
    x, w, b = draw(2, 4, *image), draw(4, 2, *kernel), draw(4)
    offset, mask = draw(2, 2 * taps * rank, *places), draw(2, 2 * taps, *places)

    assert torch.autograd.gradcheck(
        lambda *v: deform_conv(attributes, *v), (x, w, offset, b, mask), eps=1e-7, atol=1e-5, fast_mode=True
    )
