"""Compare a captured model with the framework that it comes from, graph by graph, before it is returned.

A frontend computes what its framework gives: outputs, loss, gradients, new state, the optimizer's update. `Comparison`
runs the graphs of the model on the same arrays, each loaded once for all batches, and raises where numbers differ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onward.backends.onnxruntime.session import Runnable, loaded
from onward.compiler.compile import Compiler
from onward.compiler.program import PlainGraph
from onward.compiler.recipes import EVALUATE, INFER, TRIAL, UPDATE
from onward.errors import ArgumentError, BackendError, Diagnostic
from onward.model.training_model import TrainingModel

_RELATIVE = {"float16": 3e-2, "float32": 1e-3, "float64": 1e-8}


@dataclasses.dataclass(frozen=True)
class Framework:
    """What the messages say: the framework's name, the code of the error, and the hints."""

    name: str
    code: str
    differs: str
    """The hint where numbers differ."""
    fails: str
    """The hint where ONNX Runtime refuses a graph."""


class Comparison:
    """The graphs of a captured model, and the state with which they run.

    Args:
        model: what the user gets.
        trial: the same model as the framework can compute it: with fixed numbers in place of random ones.
        evaluates: whether the evaluation has a loss of its own, which is compared too.
        updates: whether the optimizer's update was traced, and is compared too.
    """

    def __init__(
        self,
        framework: Framework,
        model: TrainingModel,
        trial: TrainingModel,
        *,
        evaluates: bool = False,
        updates: bool = False,
    ) -> None:
        self.framework = framework
        arrays = {**model.initializers(), **trial.initializers()}
        self.state = {n: v.const_value.numpy() for n, v in arrays.items() if v.const_value is not None}
        (entry,) = trial.entries
        compiler = Compiler(model)
        trying = compiler if trial is model else Compiler(trial)
        self.roles = trying.roles(entry)
        self._infer = compiler.build(INFER, None)
        self._evaluate = compiler.build(EVALUATE, model.entries[0]) if evaluates else None
        self._update = compiler.build(UPDATE, model.entries[0]) if updates else None
        self._updated = compiler.roles(model.entries[0]).gradients if updates else {}
        self._trial = trying.build(TRIAL, entry)
        self._loaded: dict[str, Runnable] = {}

    def inference(self, data: Mapping[str, np.ndarray], outputs: Sequence[Any], where: str) -> None:
        """Compare the outputs of inference."""
        found = self.run(self._infer, data)
        self._same({n: found[n] for n in self._infer.output_names}, outputs, "inference", where)

    def evaluation(self, data: Mapping[str, np.ndarray], loss: Any, where: str) -> None:
        """Compare the loss of an evaluation."""
        assert self._evaluate is not None
        found = self.run(self._evaluate, data)[self.roles.loss]
        self._same({self.roles.loss: found}, [loss], "the loss of an evaluation", where)

    def training(
        self,
        data: Mapping[str, np.ndarray],
        loss: Any,
        gradients: Mapping[str, Any],
        state: Mapping[str, Any],
        where: str,
    ) -> None:
        """Compare loss, gradients and the state that a forward pass changes, the latter two by name."""
        found = self.run(self._trial, data)
        self._same({self.roles.loss: found[self.roles.loss]}, [loss], "the loss", where)
        ours = {p: found[g] for g, p in self.roles.gradients.items()}
        self._same(ours, [gradients[p] for p in ours], "the gradient", where, together=True)
        new = {name: found[output] for output, name in self._trial.replaces.items() if name in state}
        self._same(new, [state[n] for n in new], "the new state", where)

    @property
    def draws_in_update(self) -> bool:
        """Whether the update draws random numbers, so that it cannot be compared."""
        return self._update is not None and any(n.startswith("random/") for n in self._update.input_names)

    def update(self, gradients: Mapping[str, Any], after: Mapping[str, Any], where: str) -> bool:
        """Compare parameters and optimizer state after an update with these gradients, if it reads nothing else.

        Returns whether it was compared: an update may read the batch, through the loss.
        """
        assert self._update is not None
        feeds = {g: np.asarray(gradients[p]) for g, p in self._updated.items()}
        if any(n not in feeds and n not in self.state for n in self._update.input_names):
            return False
        found = self.run(self._update, feeds)
        ours = {state: found[output] for output, state in self._update.replaces.items() if state in after}
        self._same(ours, [after[n] for n in ours], "the optimizer's update", where)
        return True

    def run(self, graph: PlainGraph, data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a graph, computed by ONNX Runtime or, where it has no kernel, in numpy."""
        feeds = {n: data[n] if n in data else self.state[n] for n in graph.input_names}
        try:
            if graph.name not in self._loaded:
                self._loaded[graph.name] = loaded(graph)
            return self._loaded[graph.name](feeds)
        except BackendError as error:
            if "NOT_IMPLEMENTED" in str(error):  # no kernel of this type, such as a Conv in float64
                from onward.backends.reference.evaluator import Evaluator  # most captures need none of it

                return Evaluator(graph.proto()).run(feeds)
            raise ArgumentError(
                Diagnostic(
                    self.framework.code,
                    f"ONNX Runtime cannot run the captured graph: {error.diagnostics[0].message}",
                    place=f"the {graph.name} graph",
                    found=error.diagnostics[0].found,
                    hint=self.framework.fails,
                )
            ) from error

    def _same(
        self, ours: Mapping[str, np.ndarray], theirs: Sequence[Any], what: str, where: str, *, together: bool = False
    ) -> None:
        wrong = differences(ours, theirs, together=together)
        if wrong:
            raise ArgumentError(
                Diagnostic(
                    self.framework.code,
                    f"{what} of the captured graph differs from {self.framework.name}",
                    place=where,
                    found=", ".join(wrong[:5]) + (", …" if len(wrong) > 5 else ""),
                    needed=f"the numbers of {self.framework.name}",
                    hint=self.framework.differs,
                )
            )


def differences(ours: Mapping[str, np.ndarray], theirs: Sequence[Any], *, together: bool = False) -> list[str]:
    """Return every name whose numbers differ, and by how much.

    Errors are measured against the largest number of the array; with `together`, at least against a hundredth of the
    largest of all arrays.

    >>> differences({"a": np.array([1.0, 2.0]), "b": np.array([3.0])}, [np.array([1.0, 2.2]), np.array([3.0])])
    ['`a` by 9.1e-02']
    """
    arrays = [np.asarray(t) for t in theirs]
    scale = max((_size(a) for a in arrays if a.dtype.kind == "f"), default=0.0)
    wrong = []
    for (name, mine), wanted in zip(ours.items(), arrays, strict=True):
        if mine.shape != wanted.shape:
            wrong.append(f"`{name}` has shape {list(mine.shape)} instead of {list(wanted.shape)}")
            continue
        if wanted.dtype.kind != "f":
            if not np.array_equal(mine, wanted):
                wrong.append(f"`{name}`")
            continue
        floor = 1e-12 if wanted.dtype == np.float64 else 1e-6
        own = max(_size(wanted), scale * 1e-2 if together else 0.0, floor)
        with np.errstate(invalid="ignore"):
            error = np.abs(mine.astype(np.float64) - wanted.astype(np.float64))
        same = (mine == wanted) | (np.isnan(mine) & np.isnan(wanted))
        if not np.all(same | (error <= _RELATIVE.get(wanted.dtype.name, 1e-2) * own)):
            wrong.append(f"`{name}` by {float(np.nanmax(np.where(same, 0.0, error))) / own:.1e}")
    return wrong


def downhill(parameter: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Return a parameter nearby, a small step along its gradient: what follows where no update was traced."""
    moved: np.ndarray = parameter - 0.01 * gradient / (1.0 + np.abs(gradient).max(initial=0.0))
    return moved.astype(parameter.dtype)


def _size(array: np.ndarray) -> float:
    finite = array[np.isfinite(array)]
    return float(np.abs(finite).max(initial=0.0))
