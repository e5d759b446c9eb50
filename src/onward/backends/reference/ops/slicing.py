"""Corrected Pad."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun


class Pad(OpRun):
    """Pad with negative pads, which crop; onnx 1.23 passes them to numpy, which refuses them."""

    op_domain = ""

    def _run(
        self,
        data: np.ndarray,
        pads: np.ndarray,
        constant_value: np.ndarray | None = None,
        axes: np.ndarray | None = None,
        mode: str = "constant",
    ) -> tuple[np.ndarray]:
        chosen = range(data.ndim) if axes is None else [int(a) % data.ndim for a in axes]
        widths = [(0, 0)] * data.ndim
        cuts = [slice(None)] * data.ndim
        for i, axis in enumerate(chosen):
            begin, end = int(pads[i]), int(pads[len(chosen) + i])
            widths[axis] = (max(begin, 0), max(end, 0))
            cuts[axis] = slice(max(-begin, 0), data.shape[axis] - max(-end, 0))
        cut = data[tuple(cuts)]
        if mode == "constant":
            fill = 0 if constant_value is None else np.asarray(constant_value).reshape(-1)[0]
            return (np.pad(cut, widths, constant_values=fill).astype(data.dtype),)
        return (np.pad(cut, widths, mode=mode).astype(data.dtype),)  # type: ignore[call-overload]  # mode is a name


OPERATORS: list[type[OpRun]] = [Pad]
