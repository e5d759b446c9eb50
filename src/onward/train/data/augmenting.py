"""Bind augmentations to the inputs and targets of a model, before the first step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from onward.augment.base import T170, Augmentation, Function, ImageAugmentation, SoundAugmentation
from onward.augment.images import Colour
from onward.augment.mixing import Cutmix, Mixing
from onward.compiler.program import TensorSpec
from onward.errors import DataError, Diagnostic
from onward.reading.pictures import PictureReader
from onward.reading.samples import Field, Samples
from onward.train.data.feed import Feed, numpy_dtype
from onward.train.data.images import ImageColumn, channels_of
from onward.train.data.matching import Matching
from onward.train.data.mixing import Mixer
from onward.train.data.preparation import Preparation
from onward.train.data.source import Column, ColumnSource, DataSource, SubsetColumn

_TAKES_PROBABILITIES = (
    "make the model with losses.CrossEntropy(targets='probability'); in Python, augment.{name}(labels='draw') takes "
    "the label of one of the two samples instead"
)


@dataclasses.dataclass(frozen=True)
class Augmenting:
    """What happens to each sample, and then to each batch."""

    samples: Samples
    mixer: Mixer | None = None

    @property
    def is_plain(self) -> bool:
        """True when the data stays as it is."""
        return not self.samples.augmentations and self.mixer is None


def files_of(column: Column, indices: np.ndarray) -> tuple[ImageColumn, np.ndarray] | None:
    """Return the image files behind a column and the numbers of those at `indices`; None where there are none."""
    found: Any = column
    while isinstance(found, SubsetColumn):
        found, indices = found.base, found.indices[indices]
    return (found, indices) if isinstance(found, ImageColumn) else None


def with_probabilities(
    source: DataSource, targets: Sequence[TensorSpec], preparation: Preparation, augmentations: Sequence[Augmentation]
) -> Preparation:
    """Return the preparation with one-hot encoding where targets are to be mixed and the data holds class numbers."""
    if preparation.one_hot or not any(isinstance(a, Mixing) and a.labels == "mix" for a in augmentations):
        return preparation
    columns = {c.name: c for c in source.specs()}
    positions = dict(zip((t.name for t in targets), list(columns.values())[-len(targets) :], strict=False))
    for target in targets:
        name = preparation.columns.get(target.name, target.name)
        column = columns.get(name if isinstance(name, str) else name[0]) or (
            positions.get(target.name) if source.positional else None
        )
        width = target.shape[-1] if target.shape else None
        if column is None or numpy_dtype(column.dtype).kind not in "iu" or numpy_dtype(target.dtype).kind in "iub":
            return preparation
        if not isinstance(width, int) or width < 2 or len(target.shape) < 2:
            return preparation
        rank = len(column.shape) - (len(column.shape) > 1 and column.shape[-1] == 1)
        if rank != len(target.shape) - 1:
            return preparation
    return dataclasses.replace(preparation, one_hot=True) if targets else preparation


def bind(augmentations: Sequence[Augmentation], source: DataSource, matching: Matching) -> Augmenting:
    """Return how the augmentations change the samples of the source.

    Raises:
        DataError: augmentations that do not fit the inputs or the targets; all at once.
    """
    specs = {s.name: s for s in source.specs()}
    problems: list[Diagnostic] = []
    singles = [a for a in augmentations if not isinstance(a, Mixing)]
    mixings = [a for a in augmentations if isinstance(a, Mixing)]
    wants_sound = any(isinstance(a, SoundAugmentation) for a in singles)
    functions = any(isinstance(a, Function) for a in singles)
    fields: list[Field] = []
    size: tuple[int, int] | None = None
    for feed in matching.feeds:
        if feed.column not in specs or feed.column in (f.column for f in fields):
            continue
        column = source.columns.get(feed.column) if isinstance(source, ColumnSource) else None
        field = _field(feed, specs[feed.column], column, wants_sound, size)
        if field.role == "image":
            height, width = field.shape[field.layout.index("H")], field.shape[field.layout.index("W")]
            size = size or (height, width)
        fields.append(field)
    targets = {f.column for f in matching.feeds if f.is_target}
    for augmentation in singles:
        problems += _misfits(augmentation, fields, targets, source)
    if functions:
        problems += [
            Diagnostic(
                T170,
                f"a function cannot augment `{f.known_as}`",
                found=f"{f.dtype} {f.shape}",
                needed="numbers, in samples of one shape",
            )
            for f in fields
            if f.dtype.kind not in "fiub" or any(d is None for d in f.shape)
        ]
    for mixing in mixings:
        problems += _mixing_misfits(mixing, fields, matching.feeds)
    if problems:
        raise DataError(problems)
    touched = [
        f for f in fields if functions or f.reader is not None or any(_touches(a, f) for a in singles)
    ]  # the rest need not go to a worker
    mixer = Mixer(mixings, {f.column: f for f in fields}, matching, len(singles)) if mixings else None
    return Augmenting(Samples(touched, singles), mixer)


def _field(
    feed: Feed, spec: TensorSpec, column: Column | None, wants_sound: bool, size: tuple[int, int] | None
) -> Field:
    shape: tuple[Any, ...] = tuple(spec.shape[1:])
    field = Field(feed.column, feed.spec.name, shape, numpy_dtype(spec.dtype))
    files = None if column is None else files_of(column, np.empty(0, np.int64))
    reader: PictureReader | None = None if files is None else files[0].reader
    if files is not None:
        return dataclasses.replace(field, role="image", layout=files[0].layout, reader=reader)
    if any(d is None for d in shape) or field.dtype.kind not in "fiub":
        return field
    layout = "HW" if len(shape) == 2 else channels_of(shape) if len(shape) == 3 else ""
    if feed.is_target:
        plane = tuple(shape[layout.index(axis)] for axis in "HW") if layout else ()
        return dataclasses.replace(field, role="mask", layout=layout) if layout and plane == size else field
    if wants_sound and 1 <= len(shape) <= 2:
        return dataclasses.replace(field, role="sound")
    return dataclasses.replace(field, role="image", layout=layout) if layout else field


def _touches(augmentation: Augmentation, field: Field) -> bool:
    if isinstance(augmentation, ImageAugmentation):
        return field.role == "image" or (field.role == "mask" and augmentation.moves)
    return isinstance(augmentation, SoundAugmentation) and field.role == "sound"


def _misfits(
    augmentation: Augmentation, fields: Sequence[Field], targets: set[str], source: DataSource
) -> list[Diagnostic]:
    """Return why the augmentation does not fit this data."""
    inputs = [f for f in fields if f.column not in targets]
    found = "inputs: " + ", ".join(f"`{f.known_as}` {f.dtype} {_shown(f.shape)}" for f in inputs)
    if isinstance(augmentation, SoundAugmentation) and not any(f.role == "sound" for f in inputs):
        needed = "an input of sounds: (N, samples) or (N, channels, samples)"
        return [Diagnostic(T170, f"`{augmentation.word}` needs sounds", found=found, needed=needed)]
    if not isinstance(augmentation, ImageAugmentation):
        return []
    images = [f for f in inputs if f.role == "image"]
    if not images:
        return [
            Diagnostic(
                T170,
                f"`{augmentation.word}` needs images",
                found=found,
                needed="an input of images: (N, H, W), (N, C, H, W) or (N, H, W, C)",
                hint="give flat rows as images, x.reshape(-1, height, width); a model of (N, K) takes them, too",
            )
        ]
    problems = []
    if isinstance(augmentation, Colour):
        for image in images:
            channels = 1 if image.layout == "HW" else image.shape[image.layout.index("C")]
            if channels not in (1, 3):
                problems.append(
                    Diagnostic(
                        T170,
                        f"`colour` cannot change `{image.known_as}`",
                        found=f"{channels} channels",
                        needed="1 (grey) or 3 (red, green, blue)",
                    )
                )
    if augmentation.moves:
        still = [f for f in fields if f.column in targets and f.role != "mask" and not _keeps(f, source)]
        problems += [
            Diagnostic(
                T170,
                f"`{augmentation.word}` moves the pixels, and the target `{f.known_as}` may hold places in the image",
                found=f"{f.dtype} {_shown(f.shape)} per sample",
                needed="class numbers, one number, rows of 0 and 1 or of probabilities, or masks of the images' size",
                hint="change image and target together in a function of (sample, rng), and give it as augment=",
            )
            for f in still
        ]
    return problems


def _keeps(field: Field, source: DataSource) -> bool:
    """Return whether a target stays right when the pixels move: classes do, coordinates do not."""
    if len(field.shape) == 0 or field.shape == (1,):
        return True
    if len(field.shape) > 1 or not isinstance(source, ColumnSource):
        return field.dtype.kind in "iub" and len(field.shape) == 1
    first = source.columns[field.column].take(slice(0, 64))
    if not np.issubdtype(first.dtype, np.number) and first.dtype != np.bool_:
        return False
    numbers = first.astype(np.float64)
    rows_of_shares = bool((numbers >= 0).all() and np.allclose(numbers.sum(axis=1), 1.0, atol=1e-3))
    return rows_of_shares or bool(np.isin(numbers, (0.0, 1.0)).all())


def _mixing_misfits(mixing: Mixing, fields: Sequence[Field], feeds: Sequence[Feed]) -> list[Diagnostic]:
    """Return why samples of this data cannot be mixed."""
    problems = []
    roles = {f.column: f.role for f in fields}
    for feed in feeds:
        kind = feed.dtype.kind
        whole_numbers = kind in "iub" or kind in "OUS"
        if not feed.is_target and whole_numbers:
            problems.append(
                Diagnostic(
                    T170,
                    f"`{mixing.word}` cannot mix the input `{feed.spec.name}`",
                    found=f"the model takes {feed.spec.dtype}",
                    needed="inputs of floats",
                )
            )
        if feed.is_target and whole_numbers and mixing.labels == "mix":
            problems.append(
                Diagnostic(
                    T170,
                    f"`{mixing.word}` mixes targets, and `{feed.spec.name}` holds class numbers",
                    found=f"the loss takes {feed.spec.dtype}",
                    needed="a loss that takes a probability for each class",
                    hint=_TAKES_PROBABILITIES.format(name=type(mixing).__name__),
                )
            )
        if feed.is_target and isinstance(mixing, Cutmix) and roles[feed.column] == "mask":
            problems.append(
                Diagnostic(
                    T170,
                    f"`cutmix` mixes one target per image, and `{feed.spec.name}` has one per pixel",
                    needed="a target for the whole image",
                    hint="use mixup with float masks, or a function of (sample, rng)",
                )
            )
    images = [f for f in fields if f.role == "image"]
    if isinstance(mixing, Cutmix) and not images:
        shown = ", ".join(f"`{f.known_as}` {_shown(f.shape)}" for f in fields)
        problems.append(Diagnostic(T170, "`cutmix` needs images", found=shown, hint="mixup works with any floats"))
    return problems


def _shown(shape: Sequence[Any]) -> str:
    return "(" + ", ".join(["N", *("?" if d is None else str(d) for d in shape)]) + ")"
