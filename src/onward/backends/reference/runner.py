"""Run a whole model on the numpy oracle."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from onward.backends.graph.registry import B300
from onward.backends.reference.evaluator import Evaluator
from onward.compiler.plain import lowered, without_training
from onward.errors import BackendError, Diagnostic, ModelError
from onward.graph.schema import WORKING_OPSET
from onward.upgrade.opset import default_opset

B110 = "B110"


class Runner:
    """A model ready to run; `run(feeds)` returns its outputs in order."""

    def __init__(self, model: onnx.ModelProto) -> None:
        try:
            self._evaluator = Evaluator(_todays(without_training(model)))
        except NotImplementedError as error:
            raise _absent(error) from error

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return all outputs for inputs by name."""
        given = {name: np.asarray(v) if np.isscalar(v) else v for name, v in feeds.items()}
        try:
            return list(self._evaluator.run(given).values())
        except NotImplementedError as error:
            raise _absent(error) from error
        except Exception as error:  # whatever an operator of the evaluator raises for inputs that do not fit
            text = str(error).strip().partition("\n")[0]
            raise BackendError(
                Diagnostic(B110, f"the reference evaluator failed: {type(error).__name__}: {text}")
            ) from error


def _todays(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in today's operators: onnx's evaluator gives old ones the meaning of today, or has them not."""
    if default_opset(model.opset_import) >= WORKING_OPSET:
        return model
    with contextlib.suppress(ModelError):  # what cannot be converted runs as it is
        return lowered(model, draw=False).training.proto()
    return model


def _absent(error: Exception) -> BackendError:
    text = str(error).strip().partition("\n")[0]
    return BackendError(Diagnostic(B300, f"onnx's reference evaluator does not have it: {text}"))
