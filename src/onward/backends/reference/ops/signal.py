"""Corrected STFT."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_stft import STFT as _STFT


class STFT(_STFT):
    """STFT of a real signal without the last dimension, which ONNX Runtime takes and onnx 1.23 does not."""

    op_domain = ""

    def _run(
        self,
        x: np.ndarray,
        frame_step: np.ndarray,
        window: np.ndarray | None = None,
        frame_length: np.ndarray | None = None,
        onesided: int = 1,
    ) -> tuple[np.ndarray]:
        parts = x if x.ndim == 3 else x[..., np.newaxis]
        inputs = (parts, frame_step, window, frame_length)
        found: tuple[np.ndarray] = super()._run(*inputs, onesided)  # type: ignore[no-untyped-call]  # of onnx
        return found


OPERATORS: list[type[OpRun]] = [STFT]
