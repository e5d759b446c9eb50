"""GridSample and RoiAlign in the frameworks that share their arithmetic, against PyTorch's kernel and each other."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

jax = pytest.importorskip("jax")

from onward.backends.jax.framework import JAX  # noqa: E402  # after the skip
from onward.backends.jax.ops import image as on_jax  # noqa: E402
from onward.backends.torch.framework import TORCH  # noqa: E402
from onward.backends.torch.ops import image as on_torch  # noqa: E402
from whole import sample  # noqa: E402

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((2, 3, 4, 5))
GRID = RANDOM.uniform(-1.7, 1.7, (2, 3, 2, 2))
ROIS = np.array([[0.313, 0.427, 2.671, 3.139], [-2.717, -0.631, 2.153, 6.337], [0.643, 1.171, 2.233, 2.957]])
BATCH = np.array([1, 0, 1])
EVERY = list(itertools.product(["nearest", "linear", "cubic"], ["zeros", "border", "reflection"], [0, 1]))
FEW = [("nearest", "border", 1), ("linear", "reflection", 0), ("cubic", "zeros", 1)]


class Given(dict[str, Any]):
    """The attributes of a node, as a handler takes them."""

    opset = 22


@pytest.fixture(autouse=True)
def _doubles() -> Any:
    with jax.enable_x64(True):
        yield


def of_jax(function: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    """Return the result, and the gradients of a weighted sum of it."""
    result, back = jax.vjp(function, *arrays)
    weights = np.cos(np.arange(result.size)).reshape(result.shape)
    return [np.asarray(a) for a in (result, *back(jax.numpy.asarray(weights)))]


def of_torch(function: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    """Return the same for PyTorch."""
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    result = function(*tensors)
    (result * torch.cos(torch.arange(result.numel(), dtype=result.dtype)).reshape(result.shape)).sum().backward()
    return [result.detach().numpy(), *(np.zeros(t.shape) if t.grad is None else t.grad.numpy() for t in tensors)]


@pytest.mark.parametrize(
    ("mode", "padding", "corners"),
    sample(EVERY, FEW),
)
def test_a_grid_reads_and_learns_as_pytorchs_kernel(mode: str, padding: str, corners: int) -> None:
    attributes = Given(mode=mode, padding_mode=padding, align_corners=corners)
    theirs = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)

    found = of_jax(lambda x, grid: on_jax.Sampling(JAX).grid_sample(attributes, x, grid), X, GRID)

    wanted = of_torch(lambda x, grid: F.grid_sample(x, grid, theirs, padding, bool(corners)), X, GRID)
    for mine, own in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, own, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", sample([0, 2], [2]))
def test_regions_are_the_same_in_two_frameworks(mode: str, ratio: int) -> None:
    attributes = Given(mode=mode, sampling_ratio=ratio, output_height=2, output_width=3, spatial_scale=0.8)

    mine = of_jax(lambda x: on_jax.Sampling(JAX).roi_align(attributes, x, jax.numpy.asarray(ROIS), BATCH), X)

    regions, batch = torch.tensor(ROIS), torch.tensor(BATCH)
    theirs = of_torch(lambda x: on_torch.Sampling(TORCH).roi_align(attributes, x, regions, batch), X)
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
