"""Cases of autodiff/rules/resize.py."""

from __future__ import annotations

import numpy as np
import torch as _torch

from cases import array, case


def floats(*values):
    return np.array(values, dtype=np.float32)


def ints(*values):
    return np.array(values, dtype=np.int64)


def _interpolate(mode, align=None, **options):
    def compute(X, **_):
        return _torch.nn.functional.interpolate(X, mode=mode, align_corners=align, **options)

    return compute


IMAGE = array(1, 2, 3, 4)
DOUBLE, HALF, ODD = floats(1, 1, 2, 2), floats(1, 1, 0.6, 0.5), floats(1, 1, 1.7, 0.8)


# ONNX Runtime 1.31 does not crop along an axis whose size stays the same; test_resize.py compares with what it does.
UNCROPPED = {"tf_crop_and_resize", "crop outside", "crop on axes"}


def up(name, *, kind="ordinary", X=IMAGE, constants=("roi", "scales", "sizes"), **options):
    options.setdefault("wrt", ["X"])
    if name in UNCROPPED:
        options["onnxruntime"] = "ONNX Runtime does not crop along an axis whose size stays the same"
    given = [c for c in constants if c in options]
    return case("Resize", name, kind=kind, X=X, constants=given, **options)


NEAREST = [
    up(f"nearest {transform} {rounding}", scales=ODD, mode="nearest", coordinate_transformation_mode=transform,
       nearest_mode=rounding)
    for transform in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
]  # fmt: skip
SMOOTH = [
    up(f"{mode} {transform}", scales=ODD, mode=mode, coordinate_transformation_mode=transform)
    for mode in ("linear", "cubic")
    for transform in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")
]

CASES = [
    up("nearest blocks", scales=DOUBLE, mode="nearest", coordinate_transformation_mode="asymmetric",
       nearest_mode="floor", torch=_interpolate("nearest", scale_factor=2)),
    up("nearest blocks at run time", scales=DOUBLE, mode="nearest", constants=(),
       torch=_interpolate("nearest", scale_factor=2)),
    up("nearest blocks by sizes", sizes=ints(1, 2, 6, 12), mode="nearest"),
    up("nearest down", scales=HALF, mode="nearest"),
    *NEAREST,
    *SMOOTH,
    up("linear by 2", scales=DOUBLE, mode="linear",
       torch=_interpolate("bilinear", align=False, scale_factor=2, recompute_scale_factor=False)),
    up("linear align_corners by 2", sizes=ints(1, 2, 5, 7), mode="linear",
       coordinate_transformation_mode="align_corners", torch=_interpolate("bilinear", align=True, size=(5, 7))),
    up("cubic by sizes", sizes=ints(1, 2, 6, 2), mode="cubic", cubic_coeff_a=-0.75,
       torch=_interpolate("bicubic", align=False, size=(6, 2))),
    up("cubic other coefficient", scales=ODD, mode="cubic", cubic_coeff_a=-0.5),
    up("cubic exclude_outside", scales=ODD, mode="cubic", exclude_outside=1),
    up("linear antialias", scales=HALF, X=array(1, 1, 5, 6), mode="linear", antialias=1),
    up("cubic antialias", scales=HALF, X=array(1, 1, 5, 6), mode="cubic", antialias=1),
    up("linear at run time", scales=ODD, mode="linear", constants=()),
    up("sizes at run time", sizes=ints(1, 2, 4, 6), mode="linear", constants=()),
    up("axes", sizes=ints(6, 2), axes=[3, 2], mode="linear"),
    up("axes not_larger", sizes=ints(5, 6), axes=[2, 3], keep_aspect_ratio_policy="not_larger", mode="linear"),
    up("axes not_smaller", sizes=ints(5, 6), axes=[2, 3], keep_aspect_ratio_policy="not_smaller", mode="nearest"),
    up("tf_crop_and_resize", roi=floats(0, 0, 0.2, 0.1, 1, 1, 0.9, 0.8), sizes=ints(1, 2, 3, 5), mode="linear",
       coordinate_transformation_mode="tf_crop_and_resize"),
    up("crop outside", kind="edge", roi=floats(0, 0, -0.2, 0.1, 1, 1, 0.9, 1.4), sizes=ints(1, 2, 3, 5),
       mode="linear", coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=7.0),
    up("crop on axes", kind="edge", roi=floats(0.4, 0.6, 0.9, 0.8), sizes=ints(3, 3), axes=[2, 3], mode="linear",
       coordinate_transformation_mode="tf_crop_and_resize", constants=("sizes",)),
    up("an axis whose size does not change", kind="edge", scales=floats(1, 1, 1.2, 1.7), mode="linear"),
    up("cubic, an axis whose size does not change", kind="edge", scales=floats(1, 1, 1.2, 1.7), mode="cubic",
       constants=()),
    up("nearest, an axis whose size does not change", kind="edge", X=array(1, 1, 4, 3), scales=floats(1, 1, 1.2, 2),
       mode="nearest", nearest_mode="floor"),
    up("crop by scales, an axis whose size does not change", kind="edge", X=array(1, 1, 4, 3),
       roi=floats(0.1, 0.2, 0.9, 0.7), scales=floats(1.2, 1.7), axes=[2, 3], mode="linear",
       coordinate_transformation_mode="tf_crop_and_resize"),
    up("one axis", kind="edge", X=array(1, 2, 5), scales=floats(1, 1, 1.5), mode="linear",
       torch=_interpolate("linear", align=False, scale_factor=1.5, recompute_scale_factor=False)),
    up("three axes", kind="edge", X=array(1, 1, 2, 3, 2), scales=floats(1, 1, 2, 1.5, 2), mode="linear"),
    up("same size", kind="edge", scales=floats(1, 1, 1, 1), mode="linear"),
    up("to one pixel", kind="edge", sizes=ints(1, 2, 1, 1), mode="linear"),
    up("infinite", kind="special", X=np.array([[[[np.inf, 1.0]]]]), scales=floats(1, 1, 1, 2), mode="nearest",
       expected={"X": [[[[2.0, 2.0]]]]}),
    case("Upsample", "nearest", opset=9, X=array(1, 1, 2, 3), scales=DOUBLE, constants=["scales"], wrt=["X"]),
    case("Upsample", "linear", opset=9, X=array(1, 1, 2, 3), scales=DOUBLE, constants=["scales"], mode="linear",
         wrt=["X"]),
    case("Upsample", "one axis", kind="edge", opset=9, X=array(1, 1, 2, 3), scales=floats(1, 1, 1, 3),
         constants=["scales"], wrt=["X"]),
    case("Upsample", "infinite", kind="special", opset=9, X=np.array([[[[np.inf, 1.0]]]]), scales=floats(1, 1, 1, 2),
         constants=["scales"], wrt=["X"], expected={"X": [[[[2.0, 2.0]]]]}),
]  # fmt: skip
