"""The names of the classes, where a file keeps them: beside the preparation of the data, in the metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from onward.model.training_model import TrainingModel

PREPARATION = "onward.preparation"
"""The metadata entry that says how the training data was scaled and its classes numbered."""

_ULTRALYTICS = "names"  # the names as a Python dict: {0: 'cat', 1: 'dog'}


def class_names(model: TrainingModel) -> tuple[str, ...]:
    """Return the names of the classes, the first for class 0; empty when the file does not say."""
    names = _stored(model).get("classes", ())
    right = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return tuple(names) if right else ()


def set_class_names(model: TrainingModel, names: Sequence[str]) -> None:
    """Store the names of the classes in `model`; without names, forget those that it has.

    What else the file says of the preparation of its data (scale, mean, columns) stays. Where Ultralytics keeps the
    names, they are replaced too.
    """
    stored = _stored(model)
    if stored or names:
        stored["classes"] = list(names)
        model.ir.metadata_props[PREPARATION] = json.dumps(stored)
    if _ULTRALYTICS in model.ir.metadata_props:  # those of the old head would be wrong in silence
        del model.ir.metadata_props[_ULTRALYTICS]
        if names:
            model.ir.metadata_props[_ULTRALYTICS] = str(dict(enumerate(names)))


def _stored(model: TrainingModel) -> dict[str, Any]:
    try:
        found = json.loads(model.ir.metadata_props.get(PREPARATION, "{}"))
    except ValueError:  # written by hand or by another version
        return {}
    return found if isinstance(found, dict) else {}


__all__ = ["PREPARATION", "class_names", "set_class_names"]
