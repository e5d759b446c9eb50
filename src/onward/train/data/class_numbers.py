"""The numbers of classes that the data names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onward.errors import DataError, Diagnostic

T115 = "T115"


def number_classes(names: Sequence[str], known: Sequence[str], place: str) -> dict[str, int]:
    """Return class name -> number: as in `known` (the model), or sorted when that is empty.

    Raises:
        DataError: a class that the model does not know.
    """
    if not known:
        return {name: i for i, name in enumerate(sorted(names))}
    new = [n for n in names if n not in known]
    if new:
        raise DataError(
            Diagnostic(
                T115,
                "classes that the model does not know: " + ", ".join(f"`{n}`" for n in new),
                place=place,
                needed="some of: " + ", ".join(f"`{n}`" for n in known),
            )
        )
    return {name: i for i, name in enumerate(known)}


def renumber_classes(labels: np.ndarray, names: Sequence[str], known: Sequence[str], place: str) -> np.ndarray:
    """Return class numbers of data that names its classes `names`, as the numbers that `known` gives these names.

    Negative numbers, for samples without a class, stay as they are.

    >>> renumber_classes(np.array([0, 1, -1]), ["dog", "cat"], ["cat", "dog"], "").tolist()
    [1, 0, -1]

    Raises:
        DataError: a class that the training data did not have.
    """
    if not known or list(names) == list(known[: len(names)]):
        return labels
    present = [int(n) for n in np.unique(labels) if 0 <= n < len(names)]
    numbers = number_classes([names[n] for n in present], known, place)
    made = labels.copy()
    for number in present:
        made[labels == number] = numbers[names[number]]
    return made
