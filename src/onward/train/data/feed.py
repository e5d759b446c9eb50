"""How one input or target of a model is made from one column: shape, element type, scaling, one-hot rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onward.compiler.program import TensorSpec
from onward.errors import DataError, Diagnostic
from onward.train.data.preparation import Preparation

T111 = "T111"
T112 = "T112"
T113 = "T113"

_IN_CACHE = 1 << 17  # so many numbers stay in the processor's cache between one operation and the next


@dataclasses.dataclass(frozen=True)
class Feed:
    """How one input or target of the model is made from one column."""

    spec: TensorSpec
    column: str
    is_target: bool
    preparation: Preparation
    dtype: np.dtype[Any]
    classes: int = 0  # width of the one-hot encoding; 0 for none

    def make(self, array: np.ndarray) -> np.ndarray:
        """Return the array the model takes."""
        if self.classes:
            array = _one_hot(array, self.classes, self.spec.name, self.dtype)
        plan = plan_shape(array.shape, self.spec.shape)
        if plan is None:
            raise DataError(shape_problem(self.spec, self.column, array.shape))
        array = array.reshape(plan)
        if not self.is_target and self.dtype.kind not in "iub" and self.preparation.normalises:
            return self._normalise(array)
        return _cast(array, self.dtype, self.spec.name, self.column)

    def _normalise(self, array: np.ndarray) -> np.ndarray:
        p = self.preparation
        work = np.dtype(np.float64 if self.dtype == np.float64 else np.float32)
        out = np.empty(array.shape, work)
        scale = np.asarray(p.scale, dtype=work)
        mean, std = (self._per_channel(np.asarray(v, dtype=work), out) for v in (p.mean, p.std))
        count = len(array) if array.ndim else 0
        block = max(1, _IN_CACHE * count // max(array.size, 1))  # of samples
        parts = [slice(first, first + block) for first in range(0, count, block)] if array.ndim else [...]
        for part in parts:
            made = out[part]
            np.multiply(array[part], scale, out=made, dtype=work, casting="unsafe")
            np.subtract(made, mean, out=made)
            np.divide(made, std, out=made)
        return np.asarray(out, dtype=self.dtype)

    def _per_channel(self, values: np.ndarray, like: np.ndarray) -> np.ndarray:
        if values.ndim == 0:
            return values
        if like.ndim < 2 or values.shape != (like.shape[1],):
            raise DataError(
                Diagnostic(
                    T111,
                    f"mean or std has {values.size} numbers for input `{self.spec.name}`",
                    found=f"input of shape {like.shape}",
                    needed="one number, or one per channel (axis 1)",
                )
            )
        return values.reshape((-1,) + (1,) * (like.ndim - 2))


def type_hint(have: np.dtype[Any], want: np.dtype[Any], column: str) -> str:
    """Return how the elements of a column can be converted."""
    if _is_float(have) and want.kind in "iu":
        return f"class numbers are whole numbers: {column}.astype('int64'), once nothing in it is NaN or a fraction"
    return f"convert the column to {want} first"


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of a `TensorSpec`; the small float types come from ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        small: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return small


def may_cast(have: np.dtype[Any], want: np.dtype[Any]) -> bool:
    """Return whether elements are converted without being asked for."""
    if have == want:
        return True
    if want.kind == "O":  # text
        return have.kind in "UT"
    if _is_float(want):
        return _is_float(have) or have.kind in "iub"
    if want.kind in "iu":
        return have.kind in "iub"
    return want.kind == have.kind


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))


def _cast(array: np.ndarray, dtype: np.dtype[Any], name: str, column: str) -> np.ndarray:
    if array.dtype == dtype:
        return np.asarray(array, order="C")
    if not may_cast(array.dtype, dtype):
        raise DataError(
            Diagnostic(
                T112,
                f"a batch of column `{column}` has the wrong element type for `{name}`",
                found=str(array.dtype),
                needed=str(dtype),
                hint=type_hint(array.dtype, dtype, column),
            )
        )
    out = array.astype(dtype)
    if dtype.kind in "iu" and not np.can_cast(array.dtype, dtype) and not np.array_equal(out, array):
        bad = array[out != array].ravel()[0]
        raise DataError(
            Diagnostic(
                T113,
                f"column `{column}` holds {bad}, which `{name}` ({dtype}) cannot hold",
                needed=f"numbers from {np.iinfo(dtype).min} to {np.iinfo(dtype).max}",
            )
        )
    return np.asarray(out, order="C")


def _one_hot(array: np.ndarray, classes: int, name: str, dtype: np.dtype[Any]) -> np.ndarray:
    if array.ndim > 1 and array.shape[-1] == 1:
        array = array[..., 0]
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= classes:
        raise DataError(
            Diagnostic(
                T113,
                f"a label for `{name}` is out of range",
                found=f"labels from {low} to {high}",
                needed=f"0 to {classes - 1}",
            )
        )
    return np.asarray(array[..., None] == np.arange(classes), dtype=dtype)


def _fits(shape: Sequence[Any], model: Sequence[int | str | None]) -> bool:
    return len(shape) == len(model) and all(
        not isinstance(want, int) or have is None or have == want for have, want in zip(shape, model, strict=True)
    )


def plan_shape(shape: Sequence[Any], model: Sequence[int | str | None]) -> tuple[int, ...] | None:
    """Return the shape to reshape to (the batch as given, or -1 when unknown), or None when the column does not fit."""
    shape = tuple(shape)
    as_target = tuple(-1 if d is None else d for d in shape)
    rest = model[1:]  # the first dimension of a batch is checked by the batch size
    if not model or not shape:
        return as_target if _fits(shape, model) else None
    if _fits(shape[1:], rest):
        return as_target
    for axis in range(1, len(model)):  # one axis of size 1 more
        if model[axis] == 1 and _fits((*shape[1:axis], 1, *shape[axis:]), rest):
            return (*as_target[:axis], 1, *as_target[axis:])
    for axis in range(1, len(shape)):  # one axis of size 1 less
        if shape[axis] == 1 and _fits((*shape[1:axis], *shape[axis + 1 :]), rest):
            return (*as_target[:axis], *as_target[axis + 1 :])
    if len(model) == 2 and len(shape) > 2 and None not in shape[1:] and model[1] == math.prod(shape[1:]):
        return (as_target[0], math.prod(shape[1:]))
    return None


def fits_shape(shape: Sequence[Any], model: Sequence[int | str | None]) -> bool:
    """Return whether a column of this shape can be fed to an input or target of the model."""
    return plan_shape(shape, model) is not None


def shape_problem(spec: TensorSpec, column: str, shape: Sequence[Any], dtype: str = "", hint: str = "") -> Diagnostic:
    """Return the problem of a column whose shape does not fit, with both sides."""
    return Diagnostic(
        T111,
        f"column `{column}` does not have the shape of `{spec.name}`",
        found=f"data: {show_spec(TensorSpec(column, dtype, tuple(shape)))}",
        needed=f"model: {show_spec(spec)}",
        hint=hint,
    )


def show_spec(spec: TensorSpec) -> str:
    """Return `name float32 (N, 1, 28, 28)`."""
    dims = ["N" if i == 0 and d is None else "?" if d is None else str(d) for i, d in enumerate(spec.shape)]
    return f"`{spec.name}` {spec.dtype} ({', '.join(dims)}{',' if len(dims) == 1 else ''})".replace("  ", " ")
