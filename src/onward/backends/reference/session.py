"""Train on the numpy oracle: slow, exact, and what every other backend is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from onward.backends import state as states
from onward.backends.base import Session
from onward.backends.reference.evaluator import Evaluator
from onward.compiler.program import PlainGraph, Program


class ReferenceSession(Session):
    """A program running on onnx's reference evaluator."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._state = {name: np.array(value) for name, value in program.state.items()}
        self._evaluators: dict[PlainGraph, Evaluator] = {}

    def step(self, feeds: Mapping[str, np.ndarray], *, entry: str | None = None) -> dict[str, np.ndarray]:
        outputs: dict[str, np.ndarray] = {}
        for graph in (e.step for e in states.chosen_entries(self.program, entry)):
            results = self.run_graph(graph, feeds)
            outputs.update({o: results[o] for o in graph.outputs})
            self._state.update({state: results[output] for output, state in graph.replaces.items()})
        return outputs

    def get_state(self) -> dict[str, np.ndarray]:
        return {name: value.copy() for name, value in self._state.items()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        self._state.update(states.checked(self.program, state))

    def describe(self) -> dict[str, Any]:
        return {"backend": "reference", "onnx": onnx.__version__, "numpy": np.__version__}

    def run_graph(self, graph: PlainGraph, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if graph not in self._evaluators:
            self._evaluators[graph] = Evaluator(graph.proto())
        values = {**self.program.settings, **self._state, **feeds}
        wanted = graph.input_names
        states.require_feeds(wanted, values, self.program)
        return self._evaluators[graph].run({k: np.asarray(v) for k, v in values.items() if k in wanted})
