"""Train on TensorFlow: the program's plain graphs, traced into `tf.function`s."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from onward.arguments import check_name, whole
from onward.backends import state as states
from onward.backends.base import Session
from onward.backends.tensorflow.autograd import GRADIENTS, Step
from onward.backends.tensorflow.interpreter import FAILURES, Interpreter, failure
from onward.backends.tensorflow.tensors import to_numpy, to_tensor
from onward.compiler.program import PlainGraph, Program
from onward.errors import A101, ArgumentError, Diagnostic, OnwardError


class TensorFlowSession(Session):
    """A program running on TensorFlow.

    Args:
        program: what to run.
        compile: trace each graph into a `tf.function`, once for each shape of a batch; otherwise run it operator by
            operator.
        threads: threads inside an operator. TensorFlow takes it only before its first operator.
        gradients: `"tape"` for TensorFlow's own backward pass, `"graph"` for the one that is written out in the
            program, `"auto"` for TensorFlow's wherever an entry differentiates one value with respect to its
            parameters.
    """

    def __init__(
        self, program: Program, *, compile: bool = True, threads: int | None = None, gradients: str = "auto"
    ) -> None:
        super().__init__(program)
        check_name("gradients=", gradients, GRADIENTS)
        if threads is not None:
            _set_threads(whole("threads", threads, 1))
        self.compile = compile
        self._steps = {entry.name: Step(entry, gradients) for entry in program.entries.values()}
        self._graphs: dict[PlainGraph, Interpreter] = {}
        self._functions: dict[Any, Callable[..., Any]] = {}
        self._state = {n: to_tensor(v) for n, v in program.state.items()}

    def step(self, feeds: Mapping[str, np.ndarray], *, entry: str | None = None) -> dict[str, np.ndarray]:
        outputs: dict[str, np.ndarray] = {}
        for chosen in states.chosen_entries(self.program, entry):
            step = self._steps[chosen.name]
            found, state = self._run(step, step, step.input_names, feeds, f"step {chosen.name}")
            outputs.update({n: to_numpy(v) for n, v in found.items()})
            self._state.update(state)
        return outputs

    def run_graph(self, graph: PlainGraph, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if graph not in self._graphs:
            self._graphs[graph] = Interpreter(graph.copy_model().graph, graph.opset)
        results = self._run(graph, self._graphs[graph].run, graph.input_names, feeds, graph.name)
        return {n: to_numpy(results[n]) for n in graph.output_names}

    def get_state(self) -> dict[str, np.ndarray]:
        return {name: to_numpy(value) for name, value in self._state.items()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        self._state.update({n: to_tensor(v) for n, v in states.checked(self.program, state).items()})

    def describe(self) -> dict[str, Any]:
        return {
            "backend": "tensorflow",
            "tensorflow": tf.__version__,
            "threads": tf.config.threading.get_intra_op_parallelism_threads(),
            "compile": self.compile,
            "gradients": {name: step.kind for name, step in self._steps.items()},
        }

    def _run(
        self,
        key: Any,
        run: Callable[..., Any],
        wanted: Collection[str],
        feeds: Mapping[str, Any],
        what: str,
    ) -> Any:
        """Return what `run` gives for the current state, settings and what is fed."""
        if key not in self._functions:
            self._functions[key] = tf.function(run, autograph=False) if self.compile else run
        given = {**self.program.settings, **feeds}
        states.require_feeds(wanted, {**self._state, **given}, self.program)
        values = {n: v for n, v in self._state.items() if n in wanted}
        values.update({n: to_tensor(v) for n, v in given.items() if n in wanted})
        try:
            return self._functions[key](values)
        except OnwardError:
            raise
        except FAILURES as error:
            raise failure(f"the {what} graph", error) from error


def _set_threads(count: int) -> None:
    """Set the number of threads inside an operator.

    Raises:
        ArgumentError: TensorFlow runs already with another number.
    """
    if tf.config.threading.get_intra_op_parallelism_threads() == count:
        return
    try:
        tf.config.threading.set_intra_op_parallelism_threads(count)
    except RuntimeError as error:
        raise ArgumentError(
            Diagnostic(
                A101,
                "TensorFlow takes the number of threads only before its first operator",
                place="threads",
                found=f"{tf.config.threading.get_intra_op_parallelism_threads()} (0: all cores)",
                needed=f"{count}",
                hint="open this backend first, or call tf.config.threading.set_intra_op_parallelism_threads yourself",
            )
        ) from error
