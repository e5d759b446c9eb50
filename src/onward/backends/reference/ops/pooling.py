"""The pools in numpy, for any rank and with every attribute, in the type of the input."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from onward.backends.reference.narrow import BFLOAT16, widened
from onward.backends.reference.ops.convolution import pad, same_pads, taps


class _Pool(OpRun):
    """The windows of a pool, one array per tap of the kernel."""

    def _windows(
        self, X: np.ndarray, fill: float, auto_pad: str | None, ceil_mode: Any, dilations: Any, kernel: Any, pads: Any,
        strides: Any,
    ) -> tuple[list[np.ndarray], list[np.ndarray], list[int], list[int]]:  # fmt: skip
        """Return the values under each tap, whether they are inside X, the begin pads and the end pads."""
        rank = X.ndim - 2
        strides, dilations = strides or [1] * rank, dilations or [1] * rank
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            pads = same_pads(auto_pad, X.shape[2:], reach, strides)
            counts = [-(-n // s) for n, s in zip(X.shape[2:], strides, strict=True)]
        else:
            pads = list(pads or [0] * 2 * rank) if auto_pad != "VALID" else [0] * 2 * rank
            counts = []
            for axis, (n, r, s) in enumerate(zip(X.shape[2:], reach, strides, strict=True)):
                room = n + pads[axis] + pads[axis + rank] - r
                count = (-(-room // s) if ceil_mode else room // s) + 1
                if ceil_mode and (count - 1) * s >= n + pads[axis]:
                    count -= 1  # a window that starts in the pads at the end is ignored
                counts.append(count)
        full = [
            max((c - 1) * s + r - n - b, 0)
            for c, s, r, n, b in zip(counts, strides, reach, X.shape[2:], pads[:rank], strict=True)
        ]
        padded, inside = pad(X, pads[:rank] + full, fill), pad(np.ones(X.shape, bool), pads[:rank] + full, 0)
        places = taps(kernel, strides, dilations, counts)
        return [padded[w] for _, w in places], [inside[w] for _, w in places], pads[:rank], pads[rank:]


@widened(BFLOAT16)
class MaxPool(_Pool):
    """Upstream loops in Python over every element, and its general path counts Indices per channel."""

    def _run(
        self, X: np.ndarray, auto_pad: Any = None, ceil_mode: Any = None, dilations: Any = None,
        kernel_shape: Any = None, pads: Any = None, storage_order: Any = None, strides: Any = None,
    ) -> tuple[np.ndarray, ...]:  # fmt: skip
        lowest = -np.inf if X.dtype.kind == "f" else np.iinfo(X.dtype).min
        numbers = np.arange(X.size).reshape(X.shape)
        if storage_order:
            backwards = (0, 1, *range(X.ndim - 1, 1, -1))
            numbers = np.arange(X.size).reshape([X.shape[a] for a in backwards]).transpose(backwards)
        options = (auto_pad, ceil_mode, dilations, kernel_shape, pads, strides)
        found, inside, _, _ = self._windows(X, lowest, *options)
        places, _, _, _ = self._windows(numbers, -1, *options)
        values, valid = np.stack(found), np.stack(inside)
        best = values.argmax(axis=0)
        best = np.where(values.max(axis=0) == lowest, valid.argmax(axis=0), best)[None]
        Y = np.take_along_axis(values, best, 0)[0]
        if len(self.onnx_node.output) == 1:
            return (Y.astype(X.dtype),)
        return Y.astype(X.dtype), np.take_along_axis(np.stack(places), best, 0)[0]


@widened(BFLOAT16)
class AveragePool(_Pool):
    """Upstream confuses the order of pads, ignores dilations in old versions and lacks SAME pads for 1-D and 3-D."""

    def _run(
        self, X: np.ndarray, auto_pad: Any = None, ceil_mode: Any = None, count_include_pad: Any = None,
        dilations: Any = None, kernel_shape: Any = None, pads: Any = None, strides: Any = None,
    ) -> tuple[np.ndarray]:  # fmt: skip
        options = (ceil_mode, dilations, kernel_shape)
        found, inside, begins, ends = self._windows(X, 0, auto_pad, *options, pads, strides)
        counts = np.sum(inside, axis=0)
        if count_include_pad:
            # Pads count; positions that ceil_mode adds beyond them do not.
            counted = pad(np.ones(X.shape), [*begins, *ends], 1)
            beyond, _, _, _ = self._windows(counted, 0, "NOTSET", *options, None, strides)
            counts = np.sum(beyond, axis=0)[tuple(slice(0, n) for n in counts.shape)]
        return ((np.sum(found, axis=0) / counts).astype(X.dtype),)


@widened(BFLOAT16)
class LpPool(_Pool):
    """Upstream multiplies the average by the kernel's size, which is wrong at pads, and ignores dilations."""

    def _run(
        self, X: np.ndarray, auto_pad: Any = None, ceil_mode: Any = None, dilations: Any = None,
        kernel_shape: Any = None, p: Any = None, pads: Any = None, strides: Any = None,
    ) -> tuple[np.ndarray]:  # fmt: skip
        powers = np.abs(X) ** (p or 2)
        found, _, _, _ = self._windows(powers, 0, auto_pad, ceil_mode, dilations, kernel_shape, pads, strides)
        return ((np.sum(found, axis=0) ** (1 / (p or 2))).astype(X.dtype),)


class GlobalMaxPool(OpRun):
    """Upstream reduces the wrong axes unless there are two spatial ones."""

    def _run(self, X: np.ndarray) -> tuple[np.ndarray]:
        return (X.max(axis=tuple(range(2, X.ndim)), keepdims=True),)


class GlobalLpPool(OpRun):
    """Upstream has no such operator."""

    def _run(self, X: np.ndarray, p: Any = None) -> tuple[np.ndarray]:
        total = np.sum(np.abs(X) ** (p or 2), axis=tuple(range(2, X.ndim)), keepdims=True)
        return ((total ** (1 / (p or 2))).astype(X.dtype),)


OPERATORS = [MaxPool, AveragePool, LpPool, GlobalMaxPool, GlobalLpPool]
