"""Cases of autodiff/rules/image.py."""

from __future__ import annotations

import itertools

import numpy as np
import torch as _torch

from cases import array, case


def ints(*values):
    return np.array(values, dtype=np.int64)


def _sample(mode, padding, align):
    name = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    return lambda X, grid: _torch.nn.functional.grid_sample(
        X, grid, mode=name, padding_mode=padding, align_corners=bool(align)
    )


IMAGE = array(2, 2, 3, 4)
INSIDE = array(2, 2, 2, 2, seed=5, low=-0.9, high=0.9)
BEYOND = array(2, 2, 3, 2, seed=6, low=-1.9, high=1.9)
VOLUME, IN_VOLUME = array(1, 1, 2, 3, 2), array(1, 2, 1, 2, 3, seed=7, low=-1.4, high=1.4)

MODES = [
    case(
        "GridSample", f"{mode} {padding} align {align}", X=IMAGE, grid=BEYOND, mode=mode, padding_mode=padding,
        align_corners=align, step=1e-5, atol=1e-7, smooth=mode != "nearest",
        torch=_sample(mode, padding, align),
    )
    for mode, padding, align in itertools.product(
        ("linear", "nearest", "cubic"), ("zeros", "border", "reflection"), (0, 1)
    )
]  # fmt: skip

CASES = [
    case("GridSample", "inside", X=IMAGE, grid=INSIDE, step=1e-5, atol=1e-7, torch=_sample("linear", "zeros", 0)),
    case("GridSample", "cubic inside", X=IMAGE, grid=INSIDE * 0.2, mode="cubic", padding_mode="border", step=1e-5,
         atol=1e-7, torch=_sample("cubic", "border", 0)),
    case("GridSample", "opset 16 bilinear", opset=18, X=IMAGE, grid=INSIDE, mode="bilinear", step=1e-5, atol=1e-7),
    case("GridSample", "opset 16 bicubic", opset=16, X=IMAGE, grid=INSIDE, mode="bicubic", step=1e-5, atol=1e-7),
    *MODES,
    case("GridSample", "volume", X=VOLUME, grid=IN_VOLUME, step=1e-5, atol=1e-7, torch=_sample("linear", "zeros", 0)),
    case("GridSample", "volume border", kind="edge", X=VOLUME, grid=IN_VOLUME, padding_mode="border", align_corners=1,
         step=1e-5, atol=1e-7, torch=_sample("linear", "border", 1)),
    case("GridSample", "volume nearest", kind="edge", X=VOLUME, grid=IN_VOLUME, mode="nearest",
         padding_mode="reflection", step=1e-5, torch=_sample("nearest", "reflection", 0)),
    case("GridSample", "one pixel", kind="edge", X=array(1, 2, 1, 1), grid=BEYOND[:1], padding_mode="reflection",
         align_corners=1, step=1e-5, atol=1e-7, onnxruntime="ONNX Runtime divides by the width of one pixel, 0"),
    case("GridSample", "infinite", kind="special", X=np.array([[[[np.inf, 1.0]]]]), grid=np.array([[[[0.5, 0.0]]]]),
         mode="nearest", expected={"X": [[[[0.0, 1.0]]]], "grid": [[[[0.0, 0.0]]]]}),
    case("AffineGrid", "plane", theta=array(2, 2, 3), size=ints(2, 1, 2, 3),
         torch=lambda theta, size: _torch.nn.functional.affine_grid(theta, [2, 1, 2, 3], align_corners=False)),
    case("AffineGrid", "align_corners", theta=array(2, 2, 3), size=ints(2, 1, 2, 3), align_corners=1,
         constants=["size"],
         torch=lambda theta: _torch.nn.functional.affine_grid(theta, [2, 1, 2, 3], align_corners=True)),
    case("AffineGrid", "volume", kind="edge", theta=array(1, 3, 4), size=ints(1, 1, 2, 3, 2),
         torch=lambda theta, size: _torch.nn.functional.affine_grid(theta, [1, 1, 2, 3, 2], align_corners=False)),
    case("AffineGrid", "infinite", kind="special", theta=np.array([[[np.inf, 0.0, 0.0], [0.0, 1.0, 0.0]]]),
         size=ints(1, 1, 1, 2), constants=["size"], expected={"theta": [[[0.0, 0.0, 2.0], [0.0, 0.0, 2.0]]]}),
    case("Col2Im", "ordinary", input=array(1, 4, 6), image_shape=ints(3, 4), block_shape=ints(2, 2),
         strides=[1, 1], torch=lambda input, **_: _torch.nn.functional.fold(input, (3, 4), (2, 2))),
    case("Col2Im", "constant block", input=array(2, 8, 6), image_shape=ints(3, 4), block_shape=ints(2, 2),
         constants=["image_shape", "block_shape"],
         torch=lambda input: _torch.nn.functional.fold(input, (3, 4), (2, 2))),
    case("Col2Im", "pads, strides, dilations", input=array(1, 4, 9), image_shape=ints(4, 5), block_shape=ints(2, 2),
         pads=[1, 1, 1, 1], strides=[2, 2], dilations=[1, 2],
         torch=lambda input, **_: _torch.nn.functional.fold(input, (4, 5), (2, 2), (1, 2), (1, 1), (2, 2))),
    case("Col2Im", "volume", kind="edge", input=array(1, 2, 8), image_shape=ints(2, 2, 3), block_shape=ints(1, 1, 2),
         constants=["image_shape"]),
    case("Col2Im", "infinite", kind="special", input=np.array([[[np.inf, 1.0]]]), image_shape=ints(1, 2),
         block_shape=ints(1, 1), constants=["image_shape"], expected={"input": [[[1.0, 1.0]]]}),
]  # fmt: skip
