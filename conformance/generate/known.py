"""Operators that neither PyTorch nor onnx's ReferenceEvaluator has in float64, written out in PyTorch.

Each function takes the attributes of a table entry and returns a function of its inputs. ONNX Runtime must confirm its
forward values before its gradients are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def deform_conv(attributes: Mapping[str, Any]) -> Callable[..., torch.Tensor]:
    """DeformConv with two spatial axes: bilinear samples at shifted positions, 0 outside the image."""
    sh, sw = attributes.get("strides", [1, 1])
    dh, dw = attributes.get("dilations", [1, 1])
    top, left = attributes.get("pads", [0, 0, 0, 0])[:2]
    groups, shifts = attributes.get("group", 1), attributes.get("offset_group", 1)

    def sample(image: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        height, width = image.shape[-2:]
        y0, x0 = y.detach().floor(), x.detach().floor()
        total = torch.zeros(image.shape[0], *y.shape, dtype=image.dtype)
        for iy, ix in ((y0, x0), (y0, x0 + 1), (y0 + 1, x0), (y0 + 1, x0 + 1)):
            inside = (iy >= 0) & (iy < height) & (ix >= 0) & (ix < width)
            weight = (1 - (y - iy).abs()) * (1 - (x - ix).abs()) * inside
            pixel = image[:, iy.clamp(0, height - 1).long(), ix.clamp(0, width - 1).long()]
            total = total + pixel * weight
        return total

    def call(
        X: torch.Tensor, W: torch.Tensor, offset: torch.Tensor, B: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        N, C = X.shape[:2]
        M, _, kh, kw = W.shape
        oh, ow = offset.shape[2:]
        moves = offset.reshape(N, shifts, kh, kw, 2, oh, ow)
        scale = None if mask is None else mask.reshape(N, shifts, kh, kw, oh, ow)
        rows = torch.arange(oh, dtype=X.dtype).reshape(-1, 1) * sh - top
        columns = torch.arange(ow, dtype=X.dtype).reshape(1, -1) * sw - left
        parts = []
        for n in range(N):
            taps = []
            for i in range(kh):
                for j in range(kw):
                    found = []
                    for s in range(shifts):
                        y = rows + i * dh + moves[n, s, i, j, 0]
                        x = columns + j * dw + moves[n, s, i, j, 1]
                        value = sample(X[n, s * C // shifts : (s + 1) * C // shifts], y, x)
                        found.append(value if scale is None else value * scale[n, s, i, j])
                    taps.append(torch.cat(found))
            columns_of = torch.stack(taps, 1)  # C, taps, oh, ow
            out = [
                torch.einsum(
                    "mck,ckhw->mhw",
                    W[g * M // groups : (g + 1) * M // groups].flatten(2),
                    columns_of[g * C // groups : (g + 1) * C // groups],
                )
                for g in range(groups)
            ]
            parts.append(torch.cat(out))
        Y = torch.stack(parts)
        return Y if B is None else Y + B.reshape(1, -1, 1, 1)

    return call


def global_lp_pool(attributes: Mapping[str, Any]) -> Callable[..., torch.Tensor]:
    """GlobalLpPool: the p-norm of each channel."""
    p = attributes.get("p", 2)

    def call(X: torch.Tensor) -> torch.Tensor:
        axes = tuple(range(2, X.dim()))
        return (X.abs() ** p).sum(axes, keepdim=True) ** (1 / p)

    return call


def scatter(attributes: Mapping[str, Any]) -> Callable[..., torch.Tensor]:
    """Scatter, which ScatterElements has replaced."""

    def call(data: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
        return data.scatter(attributes.get("axis", 0), indices, updates)

    return call


def max_roi_pool(attributes: Mapping[str, Any]) -> Callable[..., torch.Tensor]:
    """MaxRoiPool: the region in whole pixels, in bins that may overlap; an empty bin is 0."""
    height, width = attributes["pooled_shape"]
    scale = attributes.get("spatial_scale", 1.0)

    def call(X: torch.Tensor, rois: torch.Tensor) -> torch.Tensor:
        import math

        H, W = X.shape[2:]
        out = []
        for roi in rois.detach().tolist():
            x1, y1, x2, y2 = (math.floor(v * scale + 0.5) for v in roi[1:])
            bh, bw = max(y2 - y1 + 1, 1) / height, max(x2 - x1 + 1, 1) / width
            cells = []
            for i in range(height):
                for j in range(width):
                    a, b = (min(max(v, 0), H) for v in (math.floor(i * bh) + y1, math.ceil((i + 1) * bh) + y1))
                    c, d = (min(max(v, 0), W) for v in (math.floor(j * bw) + x1, math.ceil((j + 1) * bw) + x1))
                    part = X[int(roi[0]), :, a:b, c:d].flatten(1)
                    cells.append(part.amax(1) if part.shape[1] else torch.zeros(X.shape[1], dtype=X.dtype))
            out.append(torch.stack(cells, 1).reshape(X.shape[1], height, width))
        return torch.stack(out)

    return call


KNOWN = {"DeformConv": deform_conv, "GlobalLpPool": global_lp_pool, "Scatter": scatter, "MaxRoiPool": max_roi_pool}


def function_of(case: Any) -> Callable[..., Any] | None:
    """Return the PyTorch function of a table entry: its own, or one of this file."""
    if case.torch is not None:
        return case.torch  # type: ignore[no-any-return]
    if case.op not in KNOWN or case.name == "1-D":
        return None
    return KNOWN[case.op](case.arguments)
