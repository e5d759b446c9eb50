"""Conv and ConvTranspose in numpy, one multiplication per tap of the kernel, in the type of the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from onward.backends.reference.narrow import BFLOAT16, widened


def same_pads(auto_pad: str, sizes: Sequence[int], reach: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return the begin and end pads that give ceil(size / stride) windows."""
    totals = [max(0, (-(-n // s) - 1) * s + r - n) for n, r, s in zip(sizes, reach, strides, strict=True)]
    less, more = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return less + more if auto_pad == "SAME_UPPER" else more + less


def pad(X: np.ndarray, pads: Sequence[int], value: float = 0) -> np.ndarray:
    """Return X padded on its spatial axes; `pads` are begins, then ends."""
    rank = len(pads) // 2
    return np.pad(X, [(0, 0), (0, 0), *((pads[i], pads[i + rank]) for i in range(rank))], constant_values=value)


def taps(
    kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], counts: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Return for each tap its position in the kernel and its slice of the padded data."""
    found = []
    for tap in product(*(range(k) for k in kernel)):
        where = [
            slice(t * d, t * d + (c - 1) * s + 1 if c else 0, s)
            for t, d, s, c in zip(tap, dilations, strides, counts, strict=True)
        ]
        found.append((tap, (slice(None), slice(None), *where)))
    return found


def _with_bias(result: np.ndarray, B: np.ndarray | None, dtype: np.dtype) -> np.ndarray:
    """Return `result` [N, C, ...] plus a bias for each channel, in `dtype`."""
    if B is not None:
        result = result + B.reshape(-1, *[1] * (result.ndim - 2))
    return np.ascontiguousarray(result).astype(dtype)


@widened(BFLOAT16)
class Conv(OpRun):
    """Upstream builds index arrays of the size of the columns; this is the same sum without them, for any rank."""

    def _run(
        self,
        X: np.ndarray,
        W: np.ndarray,
        B: np.ndarray | None = None,
        auto_pad: str | None = None,
        dilations: Any = None,
        group: int | None = None,
        kernel_shape: Any = None,
        pads: Any = None,
        strides: Any = None,
    ) -> tuple[np.ndarray]:
        rank = X.ndim - 2
        strides, dilations, group = strides or [1] * rank, dilations or [1] * rank, group or 1
        reach = [(k - 1) * d + 1 for k, d in zip(W.shape[2:], dilations, strict=True)]
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            pads = same_pads(auto_pad, X.shape[2:], reach, strides)
        elif auto_pad == "VALID" or pads is None:
            pads = [0] * 2 * rank
        padded = pad(X, pads)
        counts = [(n - r) // s + 1 for n, r, s in zip(padded.shape[2:], reach, strides, strict=True)]
        N, O = X.shape[0], W.shape[0]
        out = np.zeros((group, O // group, N, *counts), np.result_type(X, W))
        kernels = W.reshape(group, O // group, *W.shape[1:])
        for tap, where in taps(W.shape[2:], strides, dilations, counts):
            piece = padded[where].reshape(N, group, W.shape[1], *counts)
            out += np.einsum("goi,ngi...->gon...", kernels[(slice(None),) * 3 + tap], piece)
        result = np.moveaxis(out.reshape(O, N, *counts), 0, 1)
        return (_with_bias(result, B, X.dtype),)


@widened(BFLOAT16)
class ConvTranspose(OpRun):
    """Upstream slices the groups of W by output channels, gives every group all biases and writes one channel each."""

    def _run(
        self,
        X: np.ndarray,
        W: np.ndarray,
        B: np.ndarray | None = None,
        auto_pad: str | None = None,
        dilations: Any = None,
        group: int | None = None,
        kernel_shape: Any = None,
        output_padding: Any = None,
        output_shape: Any = None,
        pads: Any = None,
        strides: Any = None,
    ) -> tuple[np.ndarray]:
        rank = X.ndim - 2
        strides, dilations, group = strides or [1] * rank, dilations or [1] * rank, group or 1
        extra = output_padding or [0] * rank
        reach = [(k - 1) * d + 1 for k, d in zip(W.shape[2:], dilations, strict=True)]
        whole = [(n - 1) * s + r for n, s, r in zip(X.shape[2:], strides, reach, strict=True)]
        same = auto_pad in ("SAME_UPPER", "SAME_LOWER")
        if output_shape or same:
            full = [w + e for w, e in zip(whole, extra, strict=True)]
            same_sizes = [min(n * s, f) for n, s, f in zip(X.shape[2:], strides, full, strict=True)]
            sizes = list(output_shape or same_sizes)[-rank:]
            totals = [max(0, f - n) for f, n in zip(full, sizes, strict=True)]
            begins = [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in totals]
        else:
            pads = list(pads or [0] * 2 * rank) if auto_pad != "VALID" else [0] * 2 * rank
            begins = pads[:rank]
            sizes = [w + e - b - f for w, e, b, f in zip(whole, extra, begins, pads[rank:], strict=True)]
        N, C = X.shape[:2]
        room = [max(w, b + n) for w, b, n in zip(whole, begins, sizes, strict=True)]
        out = np.zeros((N, group * W.shape[1], *room), np.result_type(X, W))
        data = X.reshape(N, group, C // group, *X.shape[2:])
        kernels = W.reshape(group, C // group, *W.shape[1:])
        for tap, where in taps(W.shape[2:], strides, dilations, X.shape[2:]):
            piece = np.einsum("gio,ngi...->ngo...", kernels[(slice(None),) * 3 + tap], data)
            out[where] += piece.reshape(N, group * W.shape[1], *X.shape[2:])
        cut = tuple(slice(b, b + n) for b, n in zip(begins, sizes, strict=True))
        result = out[(slice(None), slice(None), *cut)]
        return (_with_bias(result, B, X.dtype),)


@widened(BFLOAT16)
class DeformConv(OpRun):
    """Upstream supports two spatial axes only and divides by zero where one of them has size 1."""

    def _run(
        self,
        X: np.ndarray,
        W: np.ndarray,
        offset: np.ndarray,
        B: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        dilations: Any = None,
        group: int | None = None,
        kernel_shape: Any = None,
        offset_group: int | None = None,
        pads: Any = None,
        strides: Any = None,
    ) -> tuple[np.ndarray]:
        rank, group, shifts = X.ndim - 2, group or 1, offset_group or 1
        strides, dilations = strides or [1] * rank, dilations or [1] * rank
        pads, kernel, image = pads or [0] * 2 * rank, W.shape[2:], offset.shape[2:]
        N, C = X.shape[:2]
        moved = offset.reshape(N, shifts, *kernel, rank, *image)
        factors = np.ones((N, shifts, *kernel, *image)) if mask is None else mask.reshape(N, shifts, *kernel, *image)
        columns = np.zeros((N, C, *kernel, *image), X.dtype)
        for n, c, tap, place in product(range(N), range(C), np.ndindex(*kernel), np.ndindex(*image)):
            shift = c // (C // shifts)
            at = [
                p * s - b + t * d + moved[(n, shift, *tap, axis, *place)]
                for axis, (p, s, b, t, d) in enumerate(zip(place, strides, pads[:rank], tap, dilations, strict=True))
            ]
            total = 0.0
            for corner in product((0, 1), repeat=rank):
                index = [int(np.floor(a)) + side for a, side in zip(at, corner, strict=True)]
                if all(0 <= i < size for i, size in zip(index, X.shape[2:], strict=True)):
                    weight = np.prod([1 - abs(a - i) for a, i in zip(at, index, strict=True)])
                    total += weight * X[(n, c, *index)]
            columns[(n, c, *tap, *place)] = total * factors[(n, shift, *tap, *place)]
        rows = columns.reshape(N, group, -1, int(np.prod(image)))
        result = np.einsum("gor,ngrl->ngol", W.reshape(group, W.shape[0] // group, -1), rows)
        return (_with_bias(result.reshape(N, W.shape[0], *image), B, X.dtype),)


OPERATORS = [Conv, ConvTranspose, DeformConv]
