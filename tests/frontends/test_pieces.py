"""Large gradients are compared piece by piece, with the verdict and the numbers of whole ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import onward
from onward.frontends.torch import checks
from onward.frontends.torch.pieces import PIECE, close, distance, largest

SHAPE = (3 * PIECE // 100, 100)
ONE = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))


class _Largest(TorchDispatchMode):  # type: ignore[misc]  # torch is not typed here
    """Remember how large the largest tensor of float64 was."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            self.elements = max(self.elements, result.numel())
        return result


def test_no_gradient_is_held_whole_in_float64() -> None:
    module, x, t = nn.Linear(300, 2 * PIECE // 300), torch.ones(2, 300), torch.tensor([0, 1])
    optimizer, loss = torch.optim.SGD(module.parameters(), lr=0.1), nn.CrossEntropyLoss()
    model = onward.from_torch(module, loss=loss, optimizer=optimizer, example_inputs=x, example_targets=t)

    with _Largest() as seen:
        checks.check_training(module, loss, ((x,), {}), t, model)

    assert 0 < seen.elements <= PIECE


@pytest.mark.parametrize("other", [ONE, ONE.t().contiguous().t(), ONE.to_sparse()], ids=["rows", "columns", "sparse"])
@pytest.mark.parametrize("place", [(0, 0), (-1, -1)])
def test_one_wrong_number_is_found_wherever_it_is(other: torch.Tensor, place: tuple[int, int]) -> None:
    wrong = ONE.clone()
    wrong[place] += 1.0

    assert close(ONE, other, 0.0, 1e-6)
    assert not close(wrong, other, 0.0, 0.9)
    assert distance(wrong, other) == pytest.approx(float(1.0 / torch.linalg.vector_norm(ONE.double())), rel=1e-6)


def test_largest_leaves_out_what_is_not_finite() -> None:
    gradient = torch.zeros(SHAPE)
    gradient[1, 1], gradient[-2, 1], gradient[-1, 1] = torch.inf, torch.nan, -7.0

    assert largest(gradient) == 7.0
    assert largest(torch.full((3,), torch.nan)) == 0.0
    assert largest(torch.zeros(0, 4)) == 0.0


def test_nothing_is_close_to_nothing_only_where_it_is_zero() -> None:
    assert close(torch.zeros(3, 2), None, 0.0, 0.0)
    assert not close(torch.tensor([0.0, 1.0]), None, 0.0, 0.1)
    assert close(torch.tensor(torch.nan), torch.tensor(torch.nan), 0.0, 0.0)
