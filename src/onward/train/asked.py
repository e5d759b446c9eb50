"""Which output and which target each metric reads. This is settled before the first step, or refused."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.backends.base import Outputs
from onward.compiler.program import Program, TensorSpec
from onward.errors import A101, ArgumentError, DataError, Diagnostic, OnwardError
from onward.graph import shapes
from onward.graph.closing import closing
from onward.model.readings import Reading
from onward.model.task import Task
from onward.model.training_model import FLOAT_TYPES
from onward.train.metrics import METRICS, CharacterErrorRate, ConfusionMatrix, Metric, get_metrics, label


@dataclasses.dataclass(eq=False)
class Asked:
    """A metric that was asked for, the output of the model and the target that it compares.

    `in_step` are the outputs of training steps that give this output in training mode; each entry has its own. An
    `optional` metric, as that of a report, never ends a run: a failure is a warning, and the metric is left out.
    """

    metric: Metric
    output: str
    target: str
    in_step: tuple[str, ...] = ()
    optional: bool = False
    failed: bool = False

    @property
    def label(self) -> str:
        """The name of the column in the logs."""
        return label(self.metric)

    @property
    def is_matrix(self) -> bool:
        """Whether its result is a matrix of counts and not a number."""
        return type(self.metric) is ConfusionMatrix

    def compute(self) -> Any:
        """Return the number, or the matrix as lists."""
        return self.metric.matrix.tolist() if type(self.metric) is ConfusionMatrix else self.metric.compute()

    def update(self, outputs: Outputs, feeds: Mapping[str, np.ndarray], *, training: bool = False) -> None:
        """Add one batch, unless the outputs or the feeds lack what it reads: another training entry ran."""
        output = next((name for name in self.in_step if name in outputs), "") if training else self.output
        if self.failed or (training and self.optional) or output not in outputs or self.target not in feeds:
            return
        try:
            self.metric.update(np.asarray(outputs[output]), np.asarray(feeds[self.target]))
        except OnwardError as error:
            if not self.optional:
                raise
            self.failed = True
            warnings.warn(f"there is no `{self.label}` in the report: {error.diagnostics[0].message}", stacklevel=2)


def ask(
    program: Program,
    metrics: Sequence[str | Metric],
    *,
    targets: Sequence[TensorSpec] | None = None,
    for_steps: bool = False,
) -> list[Asked]:
    """Return the metrics with what they read: the output that the loss reads, or that derives from it.

    `targets` are those of the data, by default those of the program. With `for_steps`, a training step must give each
    output: there is no other data that the metric could be computed from.

    Raises:
        ArgumentError: a metric cannot be computed; lists every problem of every metric.
    """
    asked = [metrics] if isinstance(metrics, (str, Metric)) or callable(metrics) else metrics
    made = get_metrics(asked)
    for metric in made:
        metric.reset()  # its own `__init__` may not have done it
    specs = program.targets if targets is None else targets
    placed: list[Asked] = []
    problems: list[Diagnostic] = []
    for metric, given in zip(made, asked, strict=True):
        found = _place(program, metric, specs, problems)
        if found is None:
            continue
        if isinstance(given, str):
            metric.from_logits = gives_logits(program, found.output)
            _follow_loss(metric, program)
        problems += _trial(program, found, specs)
        if for_steps and not found.in_step:
            problems.append(_not_in_step(program, found))
        placed.append(found)
    if problems:
        raise ArgumentError(problems)
    return placed


def _follow_loss(metric: Metric, program: Program) -> None:
    """Give the character error rate the blank and the axis of time that the loss of the model has."""
    task = Task.of_metadata(program.infer_graph.model.metadata_props)
    if isinstance(metric, CharacterErrorRate) and task is not None and task.kind == "ctc":
        metric.blank, metric.time_axis = task.blank, task.axis


def _place(program: Program, metric: Metric, targets: Sequence[TensorSpec], problems: list[Diagnostic]) -> Asked | None:
    """Return the metric with its output and target; add to `problems` if one of them is missing."""
    output = _output(program, metric, problems)
    target = None if output is None else _target(program, metric, output, targets, problems)
    if output is None or target is None:
        return None
    steps = [entry.step for entry in program.entries.values()]
    stand_ins = [new for step in steps for new, old in step.stands_for.items() if old == output]
    given = [output] if any(output in step.outputs for step in steps) else []
    return Asked(metric, output, target, (*stand_ins, *given))


def _readings(program: Program) -> Iterator[Reading]:
    for entry in program.entries.values():
        yield from entry.readings


def _output(program: Program, metric: Metric, problems: list[Diagnostic]) -> str | None:
    outputs = {v.name or "": v for v in program.infer_graph.model.graph.outputs}
    name = metric.output
    if name is None:
        read = next(_readings(program), None)
        name = default_output(program)
        if not name:
            why = "" if read is None else f"the loss reads `{read.value}`, and no output of the model derives from it"
            problems.append(
                Diagnostic(
                    A101,
                    f"metric `{metric.name}` has no output to read",
                    found=why or "no output with floating-point numbers: " + ", ".join(outputs),
                    needed=f"the output that it reads, as {metric.name}:OUTPUT, one of: " + ", ".join(outputs),
                )
            )
            return None
    elif name not in outputs:
        problems.append(
            Diagnostic(
                A101,
                f"metric `{metric.name}` is for output `{name}`",
                needed="one of the outputs: " + ", ".join(outputs),
            )
        )
        return None
    if not isinstance(outputs[name].type, ir.TensorType) or outputs[name].dtype == ir.DataType.STRING:
        problems.append(
            Diagnostic(
                A101,
                f"metric `{metric.name}` cannot read output `{name}`",
                found="strings" if outputs[name].dtype == ir.DataType.STRING else str(outputs[name].type).lower(),
                needed="a tensor of numbers: " + (", ".join(_numeric(program)) or "the model has no such output"),
            )
        )
        return None
    return name


def _numeric(program: Program) -> list[str]:
    graph = program.infer_graph.model.graph
    return [v.name or "" for v in graph.outputs if v.dtype is not None and v.dtype != ir.DataType.STRING]


def default_output(program: Program) -> str:
    """Return the output that metrics read: the one that the loss reads, or that derives from it; empty without one.

    An inference model may say in its metadata what the loss of its training read. One that does not gives its first
    floating-point output, else its first output of numbers.
    """
    read = next(_readings(program), None)
    if read is not None:
        return read.output
    graph = program.infer_graph.model.graph
    task = Task.of_metadata(program.infer_graph.model.metadata_props)
    if task is not None and task.output in [v.name for v in graph.outputs]:
        return task.output
    floats = [v.name or "" for v in graph.outputs if v.dtype in FLOAT_TYPES]
    return next(iter([*floats, *_numeric(program)]), "")


def class_count(program: Program) -> int:
    """Return how many classes the output that metrics read tells apart: its second axis; 0 where nothing says it."""
    name = default_output(program)
    output = next((v for v in program.infer_graph.model.graph.outputs if v.name == name), None)
    sizes = (None if output is None else shapes.dims(output)) or ()
    return sizes[1] if len(sizes) > 1 and isinstance(sizes[1], int) and sizes[1] > 1 else 0


def _target(
    program: Program, metric: Metric, output: str, targets: Sequence[TensorSpec], problems: list[Diagnostic]
) -> str | None:
    names = [t.name for t in targets]
    compared = [r.target for r in _readings(program) if r.output == output and r.target in names]
    if metric.target is None and (compared or len(names) == 1 or (names and not any(_readings(program)))):
        return (compared or names)[0]
    if metric.target in names:
        return metric.target
    found = f"target `{metric.target}`" if metric.target else f"targets: {', '.join(names) or 'none'}"
    if metric.target or not names:
        needed = f"one of the targets: {', '.join(names)}" if names else "data with a target beside the inputs"
    else:
        needed = "a Metric object whose `target` names one of them: the loss does not read this output"
    message = f"metric `{metric.name}` of output `{output}` has no target to compare with"
    problems.append(Diagnostic(A101, message, found=found, needed=needed))
    return None


def gives_logits(program: Program, output: str) -> bool:
    """Return False when the output comes out of a Softmax or Sigmoid, so that its numbers are probabilities."""
    found = closing(next(v for v in program.infer_graph.model.graph.outputs if v.name == output))
    return found is None or not found.gives_probabilities


def _not_in_step(program: Program, asked: Asked) -> Diagnostic:
    steps = [entry.step for entry in program.entries.values()]
    others = sorted({old for step in steps for old in step.stands_for.values()})
    return Diagnostic(
        A101,
        f"metric `{asked.metric.name}` reads output `{asked.output}`, which a training step does not compute",
        needed="validation data (validation_data=)"
        + (f", or a metric of {', '.join(f'`{n}`' for n in others)}" if others else ""),
        hint=f"name the output that it reads: {asked.metric.name}:{others[0]}" if others else "",
    )


def _trial(program: Program, asked: Asked, targets: Sequence[TensorSpec]) -> list[Diagnostic]:
    """Return why a metric of Onward's own cannot compare the declared shapes; nothing where they are not known."""
    if type(asked.metric) not in METRICS.values():
        return []
    output = next(v for v in program.infer_graph.model.graph.outputs if v.name == asked.output)
    target = next(t for t in targets if t.name == asked.target)
    dims = shapes.dims(output)
    size, target_size = _sizes(dims), _sizes(target.shape)
    if dims is None or size is None or target_size is None or output.dtype is None:
        return []
    try:
        kind = np.dtype(target.dtype)
    except TypeError:  # an element type that numpy does not name, such as bfloat16
        return []
    if kind.kind not in "fiub":  # names of classes, which become numbers
        return []
    try:
        copy.deepcopy(asked.metric).update(np.zeros(size, output.dtype.numpy()), np.zeros(target_size, kind))
    except DataError as error:
        found = f"output `{asked.output}` {_shown(dims)}, target `{asked.target}` {_shown(target.shape)} {kind}"
        return [dataclasses.replace(d, found=found) for d in error.diagnostics]
    return []


def _sizes(shape: Sequence[int | str | None] | None) -> tuple[int, ...] | None:
    """Return the shape for a batch of two; None where another size than that of the batch is not known."""
    if not shape or not all(isinstance(d, int) and d > 0 for d in shape[1:]):
        return None
    return (2, *(int(d) for d in shape[1:] if isinstance(d, int)))


def _shown(shape: Sequence[int | str | None]) -> str:
    return "(" + ", ".join("?" if d is None else str(d) for d in shape) + ")"
