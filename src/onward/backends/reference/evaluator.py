"""Evaluate a plain ONNX model in numpy, exactly as the standard says, in any floating-point type."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from onward.backends.reference.ops import OPERATORS


class Evaluator:
    """Runs one model; `run(feeds)` returns the outputs by name."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._evaluator = ReferenceEvaluator(model, new_ops=OPERATORS)
        self.output_names = [o.name for o in model.graph.output]

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output of the model for `feeds`."""
        with np.errstate(all="ignore"):  # infinities and NaN are results like any other in ONNX, not warnings
            results = self._evaluator.run(None, dict(feeds))
        return dict(zip(self.output_names, results, strict=True))
