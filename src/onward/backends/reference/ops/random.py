"""Corrected random operators. A seed gives the same numbers as upstream; without a seed, every run differs."""

from __future__ import annotations

import numpy as np
import onnx
from onnx.reference.op_run import OpRun


class Dropout(OpRun):
    """Upstream fails where training_mode is given without a ratio, and gives NaN for ratio 1 (0 / 0)."""

    def _run(
        self,
        data: np.ndarray,
        ratio: np.ndarray | None = None,
        training_mode: np.ndarray | None = None,
        seed: int | None = None,
    ) -> tuple[np.ndarray, ...]:
        probability = 0.5 if ratio is None else float(ratio)
        mask = np.ones(data.shape, bool)
        output = data
        if training_mode is not None and bool(training_mode) and probability > 0:
            mask = np.random.RandomState(seed).uniform(0, 1, data.shape) >= probability
            output = (data * mask / (1 - probability) if probability < 1 else np.zeros_like(data)).astype(data.dtype)
        return (output, mask) if len(self.onnx_node.output) > 1 else (output,)


class Bernoulli(OpRun):
    """Upstream fails on a scalar."""

    def _run(self, x: np.ndarray, dtype: int | None = None, seed: float | None = None) -> tuple[np.ndarray]:
        generator = np.random.RandomState(None if seed is None else int(seed))
        kind = x.dtype if dtype is None else onnx.helper.tensor_dtype_to_np_dtype(dtype)
        return (np.asarray(generator.binomial(1, p=x, size=x.shape)).astype(kind),)


OPERATORS: list[type[OpRun]] = [Dropout, Bernoulli]
