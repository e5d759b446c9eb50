"""Cases of autodiff/rules/deform.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases import array, case


def offsets(*shape: int, seed: int = 3) -> np.ndarray:
    """Return offsets no nearer than 0.1 to a whole number, where the interpolation has a kink."""
    rng = np.random.default_rng([seed, *shape])
    return rng.integers(-2, 2, shape) + rng.uniform(0.1, 0.9, shape)


def deform(name: str, X: tuple[int, ...], W: tuple[int, ...], image: tuple[int, ...], *, mask: bool = False,
           bias: bool = False, **rest: Any) -> Any:  # fmt: skip
    """Return a case with random data of the given shapes."""
    taps, shifts = int(np.prod(W[2:])), rest.get("offset_group", 1)
    given: dict[str, Any] = {
        "X": array(*X),
        "W": array(*W, seed=1),
        "offset": offsets(X[0], shifts * taps * len(image), *image),
    }
    if bias:
        given["B"] = array(W[0], seed=2)
    if mask:
        given["mask"] = array(X[0], shifts * taps, *image, seed=4)
    return case("DeformConv", name, **given, **rest)


CASES = [
    deform("2-D", (1, 2, 4, 4), (2, 2, 2, 2), (3, 3)),
    deform("everything", (1, 2, 4, 3), (2, 2, 2, 2), (3, 2), mask=True, bias=True),
    deform("strides pads dilations", (1, 1, 5, 4), (1, 1, 2, 2), (3, 4), strides=[2, 1], pads=[1, 1, 1, 1],
           dilations=[2, 2], mask=True),
    deform("groups", (1, 4, 3, 3), (2, 2, 2, 2), (2, 2), group=2, mask=True),
    deform("offset groups", (2, 2, 3, 3), (2, 2, 2, 1), (2, 3), offset_group=2, kernel_shape=[2, 1], mask=True),
    deform("1-D", (1, 2, 5), (2, 2, 2), (4,), onnxruntime="has two spatial axes only"),
    deform("one pixel", (1, 1, 1, 1), (1, 1, 1, 1), (1, 1), kind="edge"),
    case("DeformConv", "far outside", kind="special", X=array(1, 1, 2, 2), W=array(1, 1, 1, 1),
         offset=np.full((1, 2, 2, 2), 50.5)),
]  # fmt: skip
