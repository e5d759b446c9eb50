"""Cases of autodiff/rules/roi.py."""

from __future__ import annotations

import numpy as np

from cases import array, case, distinct

IMAGE = array(2, 1, 4, 4)
# Corners such that no sample falls on a pixel, where the interpolation has a kink.
REGIONS = np.array([[0.313, 0.427, 2.671, 3.139], [1.237, 0.149, 3.359, 1.713], [0.643, 1.171, 2.233, 2.957]])
OUTSIDE = np.array([[-2.717, -0.631, 2.153, 6.337], [2.341, 2.257, 5.419, 3.323]])
BATCH = np.array([1, 0, 1], np.int64)


def align(name, *, kind="ordinary", X=IMAGE, rois=REGIONS, **options):
    options.setdefault("output_height", 2)
    options.setdefault("output_width", 2)
    # ONNX Runtime 1.31 has kernels below opset 22 only.
    options.update(batch_indices=BATCH[: len(rois)], opset=21, step=1e-5, atol=1e-7)
    return case("RoiAlign", name, kind=kind, X=X, rois=rois, **options)


CASES = [
    align("ordinary", sampling_ratio=2),
    align("adaptive samples"),
    align("output_half_pixel", sampling_ratio=2, coordinate_transformation_mode="output_half_pixel"),
    align("spatial_scale", rois=REGIONS * 2, sampling_ratio=1, spatial_scale=0.5, output_height=1, output_width=3),
    align("outside", kind="edge", rois=OUTSIDE, sampling_ratio=2),
    align("outside, adaptive", kind="edge", rois=OUTSIDE, output_height=1),
    align("smaller than a pixel", kind="edge", rois=REGIONS * 0.2 + 1.1, sampling_ratio=1,
          coordinate_transformation_mode="output_half_pixel"),
    align("max", X=distinct(2, 2, 3, 3) + 3, rois=REGIONS[:2], mode="max", sampling_ratio=2, wrt=["X"]),
    align("max, adaptive", X=distinct(2, 2, 3, 3) + 3, mode="max", wrt=["X"]),
    align("max, outside", kind="edge", X=distinct(2, 1, 4, 4) + 3, rois=OUTSIDE, mode="max", sampling_ratio=2,
          wrt=["X"]),
    align("infinite", kind="special", X=np.array([[[[np.inf, 1.0]]], [[[1.0, 1.0]]]]),
          rois=np.array([[0.5, 0.5, 1.5, 1.5]]), sampling_ratio=1, output_height=1, output_width=1, wrt=["X"],
          expected={"X": [[[[0.0, 0.0]]], [[[0.5, 0.5]]]]}),
    case("MaxRoiPool", "ordinary", opset=21, X=distinct(2, 2, 3, 4), wrt=["X"], pooled_shape=[2, 2],
         rois=np.array([[0.0, 0, 0, 2, 2], [1, 1, 0, 3, 2], [0, 1, 1, 1, 1]])),
    case("MaxRoiPool", "spatial_scale", opset=21, X=distinct(1, 1, 4, 4), wrt=["X"], pooled_shape=[1, 2],
         spatial_scale=0.5, rois=np.array([[0.0, 1, 2, 6, 7], [0, 3, 0, 5, 2]])),
    case("MaxRoiPool", "outside", kind="edge", opset=21, X=distinct(1, 1, 3, 3), wrt=["X"], pooled_shape=[2, 2],
         rois=np.array([[0.0, 1, 1, 6, 6], [0, 5, 5, 9, 9]])),
    case("MaxRoiPool", "infinite", kind="special", opset=21, X=np.array([[[[np.inf, 1.0]]]]), wrt=["X"],
         pooled_shape=[1, 1], rois=np.array([[0.0, 0, 0, 1, 0]]), expected={"X": [[[[1.0, 0.0]]]]}),
]  # fmt: skip
