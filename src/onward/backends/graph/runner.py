"""Run a whole model with the operators of a framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import onnx

from onward.backends.graph import interpreter as core
from onward.backends.graph.foreign import WithForeign
from onward.compiler.plain import lowered
from onward.errors import BackendError, OnwardError
from onward.model.roles import RANDOM_STEP


class Runner:
    """A model ready to run; `run(feeds)` returns its outputs in order.

    Random nodes draw from the portable stream of a training run: each run is one step of it. A backend derives from
    this class and names its interpreter.
    """

    interpreter: ClassVar[type[WithForeign]]

    def __init__(self, model: onnx.ModelProto) -> None:
        unit = lowered(model)
        stored = {v.name or "": v.const_value for v in unit.graph.inputs if v.const_value is not None}
        self._defaults = {name: np.asarray(tensor.numpy()) for name, tensor in stored.items()}
        self._random = {v.name or "": np.array(0, np.int64) for v in unit.state}
        self._interpreter = self.interpreter(unit.graph, unit.opset)

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return all outputs for inputs by name."""
        framework = self.interpreter.framework
        given: dict[str, Any] = {**self._defaults, **self._random, **feeds}
        try:
            results = self._interpreter.run({name: self._given(value) for name, value in given.items()})
        except OnwardError:
            raise
        except framework.failures as error:
            raise core.failure(framework, "the model", error) from error
        if self._random:
            self._random[RANDOM_STEP] = self._random[RANDOM_STEP] + 1
        return [self._read(results[name]) for name in self._interpreter.output_names]

    def _given(self, value: Any) -> Any:
        """Return an input as the framework holds it; what it has no type for stays an array of numpy."""
        if isinstance(value, (list, tuple)):
            return [self._given(v) for v in value]
        if value is None or np.asarray(value).dtype.kind in "OUS":
            return value
        try:
            return self.interpreter.framework.to_tensor(np.asarray(value))
        except BackendError:
            return np.asarray(value)

    def _read(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._read(v) for v in value]
        return value if value is None or isinstance(value, np.ndarray) else self.interpreter.to_numpy(value)
