"""What was done to the head of a network, as a note in the metadata of the file."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from onward.model.training_model import TrainingModel

_KEY = "onward.head"


@dataclasses.dataclass(frozen=True)
class NewHead:
    """What a head became: the names that a loss and a reader need."""

    output: str
    """The output of the network that holds the classes."""
    logits: str
    """What the closing Softmax or Sigmoid reads; the output itself where there is none."""
    axis: int | None
    """The axis of the classes in `logits`; None where it is not known."""
    weights: tuple[str, ...]
    """The names of the fresh weights."""
    classes: int | None
    """How many classes it has; None where it is not known."""
    text: str
    """What was done, as a sentence."""


def write_note(model: TrainingModel, made: NewHead) -> None:
    """Store what a head became in the metadata of the model."""
    model.ir.metadata_props[_KEY] = json.dumps(dataclasses.asdict(made))


def read_note(model: TrainingModel) -> dict[str, Any]:
    """Return the fields of the `NewHead` that the file keeps; empty where it has the head that it came with."""
    try:
        found = json.loads(model.ir.metadata_props.get(_KEY, "{}"))
    except ValueError:  # written by hand
        return {}
    return found if isinstance(found, dict) else {}


__all__ = ["NewHead", "read_note", "write_note"]
