"""Compare gradients in float64, piece by piece: whole, they would need a dozen times the memory of the model."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

PIECE = 1 << 15  # elements: so few stay in the cache, and PyTorch works on them with one thread, without waiting


def close(ours: torch.Tensor, theirs: torch.Tensor | None, relative: float, absolute: float) -> bool:
    """Return whether two gradients agree as `torch.allclose` says; None is a gradient of zeros.

    >>> close(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1]), 0.1, 0.0), close(torch.tensor([1.0]), None, 0.1, 0.1)
    (True, False)
    """
    return all(torch.allclose(a, b, relative, absolute, equal_nan=True) for a, b in _side_by_side(ours, theirs))


def largest(gradient: torch.Tensor) -> float:
    """Return the largest finite magnitude in a gradient; 0 if there is none.

    >>> largest(torch.tensor([-3.0, torch.inf, torch.nan]))
    3.0
    """
    pieces = (torch.nan_to_num(part, 0.0, 0.0, 0.0).abs() for part in _pieces(_dense(gradient)))
    return max((float(part.max()) for part in pieces if part.numel()), default=0.0)


def distance(ours: torch.Tensor, theirs: torch.Tensor | None) -> float:
    """Return ‖a - b‖ / ‖b‖, or 0 for gradients that consist of rounding errors only.

    >>> distance(torch.tensor([3.0, 6.0]), torch.tensor([3.0, 4.0]))
    0.4
    """
    squares = [(float((a - b).square().sum()), float(b.square().sum())) for a, b in _side_by_side(ours, theirs)]
    off, size = (math.sqrt(sum(column)) for column in zip(*squares, strict=True))
    return off / size if size > 1e-12 else 0.0


def _side_by_side(ours: torch.Tensor, theirs: torch.Tensor | None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    other = torch.zeros((), dtype=torch.float64) if theirs is None else _dense(theirs)
    a, b = torch.broadcast_tensors(ours, other)
    return zip(_pieces(a), _pieces(b), strict=True)


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield some rows after the other in float64."""
    rows = tensor if tensor.ndim else tensor.reshape(1)
    at_once = max(1, PIECE // max(1, math.prod(rows.shape[1:])))
    return (part.double() for part in rows.split(at_once))


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient
