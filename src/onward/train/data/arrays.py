"""Arrays from what people hold: lists, tensors of any framework, nested tuples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from onward.errors import DataError, Diagnostic

T108 = "T108"


def to_array(value: Any, place: str, *, text: bool = False) -> np.ndarray:
    """Return the value as an array of numbers: itself where it is one (a memory map stays one).

    Tensors of torch and TensorFlow are accepted without importing either. `place` says in an error what the value is.
    With `text`, an array of text is accepted, too.

    Raises:
        DataError: text, None, other objects, or lists of unequal length.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    try:
        array: np.ndarray = np.asanyarray(value)
    except (ValueError, TypeError) as error:  # lists of unequal length, above all
        raise DataError(
            Diagnostic(
                T108, f"{place} is not an array: {error}", found=type(value).__name__, needed="an array of numbers"
            )
        ) from error
    if text and _is_text(array):
        return array
    if array.dtype.kind in "OUSmM":
        sample = next(iter(array.ravel().tolist()), None) if array.ndim else value
        raise DataError(
            Diagnostic(
                T108,
                f"{place} holds no numbers",
                found=f"{type(sample).__name__} {str(sample)[:40]!r}"
                + (f", dtype {array.dtype}" if array.ndim else ""),
                needed="an array of numbers",
                hint="class names become numbers with np.unique(names, return_inverse=True)[1]"
                if isinstance(sample, (str, bytes)) and array.ndim
                else "",
            )
        )
    return array


def _is_text(array: np.ndarray) -> bool:
    if array.dtype.kind == "O":
        return all(isinstance(v, str) for v in array.ravel().tolist())
    return array.dtype.kind in "UT"


def flat(item: Sequence[Any]) -> Iterator[Any]:
    """Yield the arrays of a possibly nested tuple, as ((x1, x2), y) from tf.data."""
    for part in item:
        if isinstance(part, tuple):
            yield from flat(part)
        else:
            yield part
