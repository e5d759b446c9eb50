"""The arguments `classes`, `cut` and `head` of `make_trainable`: a new head, and what the loss reads of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from onward.author.objective import as_loss
from onward.author.scale import A115
from onward.author.sequence_loss import with_graph
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.closing import closing
from onward.graph.shapes import dims
from onward.losses import CTC, Loss, Scale
from onward.model.training_model import TrainingModel
from onward.surgery.class_list import Classes
from onward.surgery.notes import NewHead
from onward.surgery.replace import change_head
from onward.surgery.splice import HeadSource


@dataclasses.dataclass(frozen=True)
class HeadArguments:
    """What the caller of `make_trainable` says about a new head."""

    classes: Classes | None = None
    cut: str | None = None
    head: HeadSource | None = None

    @property
    def given(self) -> bool:
        """Whether there is a new head at all."""
        return self.classes is not None or self.cut is not None or self.head is not None

    def apply(
        self, work: TrainingModel, loss: Any, output: str | Sequence[str] | None, seed: int
    ) -> tuple[Loss, str | Sequence[str] | None]:
        """Give `work` the new head; return the loss with the axis of the classes, and the value that it reads.

        Raises:
            ArgumentError: no head is found, or the loss does not fit it.
        """
        if isinstance(loss, Mapping) or not (output is None or isinstance(output, str)):
            raise ArgumentError(
                Diagnostic(
                    A101,
                    "a new head is for one output and one loss",
                    place="classes=",
                    hint="replace the head first: model = onward.surgery.replace_head(net, classes=…, output=…)",
                )
            )
        chosen = as_loss(loss)
        scale = chosen.expects()
        made = change_head(
            work,
            self.classes,
            output=output,
            cut=self.cut,
            head=self.head,
            activation=_activation(work, output, scale),
            blank=chosen.blank if isinstance(chosen, CTC) and self.classes is not None else None,
            seed=seed,
        )
        if isinstance(loss, str):  # nobody has chosen its settings
            chosen = _by_graph(chosen, work, made)
        _check(chosen, work, made)
        logits = chosen.expects() in (Scale.SOFTMAX_LOGITS, Scale.SIGMOID_LOGITS)
        return chosen, made.logits if logits else made.output


def _activation(work: TrainingModel, output: str | None, scale: Scale | None) -> str:
    """Return what must close the network so that it gives the probabilities that the loss trains."""
    names = [output] if output is not None else work.outputs
    values = work.values()
    kinds = {found.kind for name in names if name in values and (found := closing(values[name])) is not None}
    if kinds & {"Sigmoid", "HardSigmoid"} and scale is Scale.SOFTMAX_LOGITS:
        return "softmax"
    if kinds & {"Softmax"} and scale in (Scale.SIGMOID_LOGITS, Scale.PROBABILITIES):
        return "sigmoid"
    return "keep"


def _by_graph(loss: Loss, work: TrainingModel, made: NewHead) -> Loss:
    """Return the loss with the settings that the graph decides: the axis of the classes, or that of time."""
    sizes = dims(work.values()[made.logits])
    if _class_axis(loss) is not None and made.axis is not None and sizes is not None:
        axis = 1 if made.axis == 1 else made.axis - len(sizes)
        return dataclasses.replace(loss, axis=axis)  # type: ignore[type-var]  # losses with an axis are dataclasses
    if isinstance(loss, CTC):
        return with_graph(loss, work, made.output, made.logits)
    return loss


def _class_axis(loss: Loss) -> int | None:
    """Return the axis on which the loss looks for the classes; None if it does not look for them on one axis."""
    one_of_several = loss.expects() in (Scale.SOFTMAX_LOGITS, Scale.LOG_PROBABILITIES)
    axis = getattr(loss, "axis", None) if one_of_several else None
    return axis if isinstance(axis, int) else None


def _check(loss: Loss, work: TrainingModel, made: NewHead) -> None:
    """Raise if the loss cannot train the new head."""
    problems = []
    axis = _class_axis(loss)
    rank = len(dims(work.values()[made.logits]) or ())
    if axis is not None and made.axis is not None and rank and axis % rank != made.axis:
        problems.append(
            Diagnostic(
                A115,
                f"`{type(loss).__name__}` reads axis {axis}; the classes are on axis {made.axis} of `{made.logits}`",
                place="loss=",
                needed=f"axis={made.axis - rank}",
            )
        )
    if made.classes == 1 and loss.expects() is Scale.SOFTMAX_LOGITS and not isinstance(loss, CTC):
        problems.append(
            Diagnostic(
                A115,
                f"`{type(loss).__name__}` has nothing to choose: the new head has one class",
                place="classes=",
                needed='two classes or more, or loss="bce_with_logits" for one that is there or not',
            )
        )
    if problems:
        raise ArgumentError(problems)


__all__ = ["HeadArguments"]
