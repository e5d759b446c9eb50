"""CTC by its name alone: the graph says which axis is time, and which value holds the logits."""

from __future__ import annotations

import dataclasses

from onward.graph.closing import closing
from onward.graph.shapes import dims
from onward.losses import CTC
from onward.model.training_model import FLOAT_TYPES, TrainingModel


def ctc_of(work: TrainingModel, output: str | None, **settings: object) -> tuple[CTC, str | None]:
    """Return CTC with the settings that nobody gave, and the value that it reads: what a Softmax at the end reads.

    Scores that are logarithms of probabilities already may be taken for logits: their LogSoftmax is the same again.
    """
    values = work.values()
    scores = [v.name for v in work.graph.outputs if v.dtype in FLOAT_TYPES and len(dims(v) or ()) == 3]
    name = output if output is not None else scores[0] if len(scores) == 1 else None
    if name is None or name not in values:  # the loss says what is wrong
        return CTC(**settings), output  # type: ignore[arg-type]  # `by_name` has checked them
    chosen: dict[str, object] = {"logits": True, "time_axis": time_axis(work, name), **settings}
    found = closing(values[name])
    reads = found.before.name if found is not None and found.kind == "Softmax" and chosen["logits"] else name
    return CTC(**chosen), reads  # type: ignore[arg-type]


def with_graph(loss: CTC, work: TrainingModel, output: str, logits: str) -> CTC:
    """Return the loss of a new head whose settings nobody has chosen."""
    found = closing(work.values()[output])
    logarithms = found is not None and found.kind == "LogSoftmax"
    return dataclasses.replace(loss, logits=not logarithms, time_axis=time_axis(work, logits))


def time_axis(work: TrainingModel, name: str) -> int:
    """Return the axis of time of scores [T, N, C] or [N, T, C]: not that of the batch, by name and size."""
    sizes = dims(work.values()[name]) or ()
    batch = next((d[0] for v in work.graph.inputs if (d := dims(v)) and len(d) > 1), None)
    return 0 if len(sizes) == 3 and batch is not None and sizes[1] == batch and sizes[0] != batch else 1
