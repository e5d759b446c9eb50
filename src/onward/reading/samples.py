"""Read and augment the samples of a batch, one by one: the same code in this process and in a worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onward.arguments import a_or_an
from onward.augment.base import Augmentation, Function, ImageAugmentation, SoundAugmentation, draws
from onward.augment.images import Colour, Crop, Flip
from onward.errors import DataError, Diagnostic, OnwardError
from onward.reading.pictures import PictureReader

T171 = "T171"


@dataclasses.dataclass(frozen=True)
class Field:
    """One array of a sample.

    `role` says how augmentations treat it: "image", "mask" (moves with the images), "sound" or "other". `layout` is the
    order of the axes of images and masks: "CHW", "HWC" or "HW".
    """

    column: str
    known_as: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    role: str = "other"
    layout: str = ""
    reader: PictureReader | None = None

    def to_picture(self, array: np.ndarray) -> np.ndarray:
        """Return a view as (height, width, channels)."""
        if self.layout == "HW":
            return array[:, :, None]
        return np.moveaxis(array, 0, 2) if self.layout == "CHW" else array

    def from_picture(self, picture: np.ndarray) -> np.ndarray:
        """Return a view in the layout of the data."""
        if self.layout == "HW":
            return picture[:, :, 0]
        return np.moveaxis(picture, 2, 0) if self.layout == "CHW" else picture


@dataclasses.dataclass(frozen=True)
class Rows:
    """The samples of some rows of a batch: numbers in the data, how often each came before, and numbers of files."""

    seed: int
    epoch: int
    indices: np.ndarray
    occurrences: np.ndarray
    files: Mapping[str, np.ndarray]

    def part(self, first: int, last: int) -> Rows:
        """Return some of the rows."""
        files = {name: numbers[first:last] for name, numbers in self.files.items()}
        return dataclasses.replace(
            self, indices=self.indices[first:last], occurrences=self.occurrences[first:last], files=files
        )


class Samples:
    """Reads and augments samples: `fill` completes the rows of a batch."""

    def __init__(self, fields: Sequence[Field], augmentations: Sequence[Augmentation]) -> None:
        self.fields = tuple(fields)
        self.augmentations = crop_first(augmentations)
        first = self.augmentations[0] if self.augmentations else None
        self._cropped = 0 if isinstance(first, Crop) and any(f.reader for f in fields) else -1

    def fill(self, arrays: Mapping[str, np.ndarray], rows: Rows) -> None:
        """Complete the rows of the arrays in place. Columns that no reader reads are there already.

        Raises:
            DataError: a file cannot be read, or an augmentation failed; the message names the sample.
        """
        for row, (index, occurrence) in enumerate(zip(rows.indices.tolist(), rows.occurrences.tolist(), strict=True)):
            files = {name: int(numbers[row]) for name, numbers in rows.files.items()}
            made = self._make(arrays, row, files, (rows.seed, rows.epoch, index, occurrence))
            for field in self.fields:
                value = made[field.column]
                if value is not None:
                    arrays[field.column][row] = value

    def _make(
        self, arrays: Mapping[str, np.ndarray], row: int, files: Mapping[str, int], key: tuple[int, int, int, int]
    ) -> dict[str, np.ndarray | None]:
        """Return the fields of one sample in the layout of the data; None for those that stay as they are."""
        pictures: dict[str, np.ndarray] = {}
        changed = set(files)
        for field in self.fields:
            if field.reader is not None:
                crop = self.augmentations[self._cropped] if self._cropped >= 0 else None
                box = crop.box(draws(*key, self._cropped)) if isinstance(crop, Crop) else None
                pictures[field.column] = field.reader.read(files[field.column], box)
            else:
                value = arrays[field.column][row]
                pictures[field.column] = field.to_picture(value) if field.layout else value
        for number, augmentation in enumerate(self.augmentations):
            try:
                changed |= self._apply(augmentation, number, pictures, key)
            except OnwardError as error:
                place = f"sample {key[2]} of the training data"
                problems = [dataclasses.replace(d, place=d.place or place) for d in error.diagnostics]
                raise DataError(problems) from error
        return {
            f.column: (f.from_picture(pictures[f.column]) if f.layout else pictures[f.column])
            if f.column in changed
            else None
            for f in self.fields
        }

    def _apply(
        self, augmentation: Augmentation, number: int, pictures: dict[str, np.ndarray], key: tuple[int, int, int, int]
    ) -> set[str]:
        """Apply one augmentation to the sample and return the columns that it may have changed."""
        if isinstance(augmentation, Function):
            pictures.update(self._call(augmentation, pictures, draws(*key, number), key[2]))
            return set(pictures)
        touched = set()
        for field in self.fields:
            old = pictures[field.column]
            if isinstance(augmentation, ImageAugmentation):
                already = number == self._cropped and field.reader is not None
                if already or field.role not in (("image", "mask") if augmentation.moves else ("image",)):
                    continue
                classes = field.role == "mask" and field.dtype.kind in "iub"
                pictures[field.column] = augmentation.apply(old, draws(*key, number), mask=classes)
            elif isinstance(augmentation, SoundAugmentation) and field.role == "sound":
                pictures[field.column] = augmentation.apply(old, draws(*key, number))
            else:
                continue
            if pictures[field.column] is not old:
                touched.add(field.column)
        return touched

    def _call(
        self, function: Function, pictures: Mapping[str, np.ndarray], rng: np.random.Generator, index: int
    ) -> dict[str, np.ndarray]:
        """Return the fields after a function of the user; raise if it fails or returns something that does not fit."""
        sample = {
            f.known_as: np.array(f.from_picture(pictures[f.column]) if f.layout else pictures[f.column])
            for f in self.fields
        }
        place = f"sample {index} of the training data"
        try:
            result = function.function(sample, rng)
        except OnwardError:
            raise
        except Exception as error:  # code of the user may raise anything; the cause is kept
            message = f"the augmentation {function} failed: {type(error).__name__}: {error}"
            raise DataError(Diagnostic(T171, message, place=place)) from error
        if not isinstance(result, Mapping):
            raise DataError(
                Diagnostic(
                    T171,
                    f"the augmentation {function} returned {a_or_an(result)}",
                    place=place,
                    needed="the sample: a dict with " + ", ".join(f"`{f.known_as}`" for f in self.fields),
                    hint="end the function with `return sample`" if result is None else "",
                )
            )
        problems = []
        made = {}
        for field in self.fields:
            value = np.asarray(result.get(field.known_as))
            same_kind = value.dtype != object and np.can_cast(value.dtype, field.dtype, "same_kind")
            if value.shape != field.shape or not same_kind:
                problems.append(_misfit(function, field, result, value, place))
                continue
            made[field.column] = field.to_picture(value) if field.layout else value
        if problems:
            raise DataError(problems)
        return made


def _misfit(function: Function, field: Field, result: Mapping[str, Any], value: np.ndarray, place: str) -> Diagnostic:
    needed = f"{field.dtype} {field.shape}"
    if field.known_as not in result:
        return Diagnostic(
            T171,
            f"the augmentation {function} returned a sample without `{field.known_as}`",
            place=place,
            found=", ".join(f"`{n}`" for n in result) or "an empty dict",
            needed=needed,
        )
    other_type = value.shape == field.shape and value.dtype != object
    return Diagnostic(
        T171,
        f"the augmentation {function} changed the {'element type' if other_type else 'shape'} of `{field.known_as}`",
        place=place,
        found=f"{value.dtype} {value.shape}",
        needed=needed,
        hint=f"convert it back: .astype('{field.dtype}')" if other_type else "",
    )


def crop_first(augmentations: Sequence[Augmentation]) -> tuple[Augmentation, ...]:
    """Return the augmentations with a crop in front of the flips and colours that came before it.

    The images that result have the same distribution, and a crop that comes first is done while a file is read.
    """
    for number, augmentation in enumerate(augmentations):
        if isinstance(augmentation, Crop):
            return (augmentation, *augmentations[:number], *augmentations[number + 1 :])
        if not isinstance(augmentation, (Flip, Colour, SoundAugmentation)):
            break
    return tuple(augmentations)
