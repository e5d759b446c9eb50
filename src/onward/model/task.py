"""What the outputs of a model mean, as its loss says: scores of classes, labels that may all be true, or a sequence.

`make_trainable` writes the loss into the training entry; an inference model keeps what follows from it in the metadata
entry `onward.task`, so that predictions can name classes and probabilities.
"""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Mapping

from onward.model.readings import readings
from onward.model.roles import entry_roles
from onward.model.training_model import TrainingModel

TASK = "onward.task"
"""The metadata entry of an inference model that says what its output means."""

# The losses that read scores. Every other loss reads plain numbers.
_KINDS = {
    "CrossEntropy": "classes", "NLL": "classes", "Focal": "classes", "Distillation": "classes",
    "BCEWithLogits": "labels", "BCE": "labels", "BinaryFocal": "labels", "CTC": "ctc",
}  # fmt: skip
KINDS = ("classes", "labels", "tokens", "ctc", "values")


@dataclasses.dataclass(frozen=True)
class Task:
    """What an output means.

    `kind` is "classes" (one of them is right), "labels" (each may be right), "ctc" (classes over time, with a blank),
    or "values" (plain numbers). `axis` is the axis of the classes, for "ctc" that of the time. `output` is the output
    that the loss read, or that derives from what it read, where the model has several; empty where it has one.
    """

    kind: str
    axis: int = 1
    blank: int = 0
    output: str = ""

    def text(self) -> str:
        """Return the task as the metadata entry stores it."""
        return json.dumps({k: v for k, v in dataclasses.asdict(self).items() if v != ""}, sort_keys=True)

    @classmethod
    def of_loss(cls, described: str) -> Task | None:
        """Return the task behind a loss, as its description in the file says; None if that says nothing.

        >>> Task.of_loss("CrossEntropy(reduction='mean', axis=-1)")
        Task(kind='classes', axis=-1, blank=0, output='')
        >>> Task.of_loss("MSE(reduction='mean')")
        Task(kind='values', axis=1, blank=0, output='')
        """
        try:
            call = ast.parse(described, mode="eval").body
        except (SyntaxError, ValueError):  # the text of another program
            return None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return None  # a weighted sum of losses, or a function
        settings = {k.arg: _whole(k.value) for k in call.keywords}
        kind = _KINDS.get(call.func.id, "values")
        if call.func.id == "Distillation" and "activation='sigmoid'" in described:
            kind = "labels"
        axis = settings.get("time_axis", 0) if kind == "ctc" else settings.get("axis", 1)
        return cls(kind, axis, settings.get("blank", 0))

    @classmethod
    def of_metadata(cls, metadata: Mapping[str, str]) -> Task | None:
        """Return the task in the metadata of an inference model; None if there is none."""
        try:
            found = json.loads(metadata.get(TASK, "null"))
            return cls(str(found["kind"]), int(found["axis"]), int(found["blank"]), str(found.get("output", "")))
        except (ValueError, TypeError, KeyError, AttributeError):  # absent, or written by hand
            return None


def _whole(node: ast.expr) -> int:
    """Return a whole number of a description; 0 for anything else."""
    sign = -1 if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else 1
    constant = node.operand if isinstance(node, ast.UnaryOp) else node
    value = constant.value if isinstance(constant, ast.Constant) else None
    return sign * value if isinstance(value, int) else 0


def task_of(model: TrainingModel) -> Task | None:
    """Return what the first training entry, or the metadata of an inference model, says about the output.

    >>> from onward.samples import build
    >>> task_of(build("digits"))
    Task(kind='classes', axis=1, blank=0, output='')
    """
    for entry in model.entries:
        if entry.algorithm is not None:
            task = Task.of_loss(entry.algorithm.metadata_props.get("onward.loss", ""))
            if task is None or len(model.graph.outputs) < 2:
                return task
            read = next(iter(readings(model, entry, entry_roles(model, entry))), None)
            return dataclasses.replace(task, output="" if read is None else read.output)
    return Task.of_metadata(model.ir.metadata_props)
