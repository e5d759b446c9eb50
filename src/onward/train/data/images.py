"""A folder with one subfolder of images per class; the label is the place of the subfolder in sorted order."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from onward.compiler.program import TensorSpec
from onward.reading.pictures import (
    MODES,
    MOST_NAMED,
    PictureReader,
    check_pictures,
    open_picture,
    pillow,
    usable_pictures,
)
from onward.train.data.class_numbers import number_classes
from onward.train.data.source import ArrayColumn, Column, ColumnSource, DataSource

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"}


def images_under(folder: Path) -> list[Path]:
    """Return every image of a folder at any depth, sorted, without what systems and editors hide in it.

    Finder leaves `._1.jpg` and `__MACOSX` in archives, and Jupyter copies images into `.ipynb_checkpoints`.
    """
    found = (p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    return sorted(p for p in found if not any(_is_hidden(part) for part in p.relative_to(folder).parts))


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def find_images(folder: Path) -> dict[str, list[Path]]:
    """Return class name -> its images, classes and images sorted by name; empty when there are none.

    A folder without images is no class; a warning names it if there are others.
    """
    folders = sorted(p for p in folder.iterdir() if p.is_dir() and not _is_hidden(p.name))
    found = {sub.name: images_under(sub) for sub in folders}
    without = [name for name, images in found.items() if not images]
    if 0 < len(without) < len(found):
        names = ", ".join(f"`{name}`" for name in without)
        warnings.warn(
            f"{names} in `{folder}`: no images, and so no class ({', '.join(sorted(SUFFIXES))})", stacklevel=2
        )
    return {name: images for name, images in found.items() if images}


def without_damaged(folder: Path, images: Sequence[Path]) -> list[Path]:
    """Return the images that can be decoded; a warning counts and names the others.

    Every image is decoded for this, so that the samples of a run are settled before its first step.

    Raises:
        DataError: none of them can be decoded.
    """
    usable, problems = usable_pictures([str(path) for path in images])
    if problems:
        left_out = [str(path) for path in sorted({*map(str, images)} - {*usable})]
        names = ", ".join(f"`{name}`" for name in left_out[:MOST_NAMED])
        more = f" and {len(left_out) - MOST_NAMED} more" if len(left_out) > MOST_NAMED else ""
        warnings.warn(
            f"left out {len(left_out)} of {len(images)} images in `{folder}` that cannot be decoded: {names}{more}",
            stacklevel=2,
        )
    return [Path(path) for path in usable]


def open_images(
    folder: Path,
    classes: Mapping[str, Sequence[Path]],
    inputs: Sequence[TensorSpec],
    known: Sequence[str] = (),
    *,
    skip_damaged: bool = False,
) -> ColumnSource:
    """Return the images (decoded when needed, uint8) and their labels.

    The first input of the model decides: (N, C, H, W) or (N, H, W, C), grey for C = 1 and colour for C = 3; an image
    of another size is resized to H × W (bilinear). `known` are the classes of the training data. With `skip_damaged`,
    images that cannot be decoded are left out, and with them a class that has no others.

    Raises:
        MissingExtra: Pillow is not installed.
        DataError: the model does not fix the size and the images differ.
    """
    pillow()
    if skip_damaged:
        usable = set(without_damaged(folder, [path for images in classes.values() for path in images]))
        whole = {name: [path for path in images if path in usable] for name, images in classes.items()}
        classes = {name: images for name, images in whole.items() if images}
    paths = [path for images in classes.values() for path in images]
    numbers = number_classes(list(classes), known, str(folder))
    labels = np.repeat(np.array([numbers[n] for n in classes], np.int64), [len(v) for v in classes.values()])
    column = ImageColumn(paths, inputs[0].shape if inputs else (None, 3, None, None))
    columns: dict[str, Column] = {"images": column, "labels": ArrayColumn(labels)}
    source = ColumnSource(columns, positional=True, classes=list(numbers), place=str(folder))
    source.nameless = True
    return source


def _likely(dim: int | str | None) -> int:
    """Return how likely a dimension counts channels: 1 and 3 are more likely than 4."""
    return {1: 2, 3: 2, 4: 1}.get(dim, 0) if isinstance(dim, int) else 0


def channels_of(shape: Sequence[int]) -> str:
    """Return the order of the axes of an image of three axes.

    >>> channels_of((3, 32, 32)), channels_of((32, 32, 3))
    ('CHW', 'HWC')
    """
    return "HWC" if _likely(shape[2]) > _likely(shape[0]) else "CHW"


class ImageColumn:
    """Images that are decoded when their batch is made, by `reader`."""

    dtype = np.dtype(np.uint8)

    def __init__(self, paths: Sequence[Path], model: Sequence[int | str | None]) -> None:
        channels_last = len(model) == 4 and _likely(model[3]) > _likely(model[1])
        rank = len(model)
        dims = list(model[1:]) if rank == 4 else [1, *model[1:]] if rank == 3 else [3, None, None]
        channels, height, width = [dims[2], dims[0], dims[1]] if channels_last else dims
        self.layout = "HW" if rank == 3 else "HWC" if channels_last else "CHW"
        known = channels if isinstance(channels, int) else None
        fixed = isinstance(height, int) and isinstance(width, int)
        if not (isinstance(height, int) and isinstance(width, int)):
            first, _ = open_picture(str(paths[0]))
            height = height if isinstance(height, int) else first.height
            width = width if isinstance(width, int) else first.width
            if rank == 2 and isinstance(model[1], int):
                known = next((c for c in (1, 3) if first.width * first.height * c == model[1]), 1)
        channels = known if known in MODES else 3
        self.reader = PictureReader([str(p) for p in paths], channels, height, width, may_resize=fixed)

    @property
    def shape(self) -> tuple[int, ...]:
        sizes = {"C": self.reader.channels, "H": self.reader.height, "W": self.reader.width}
        return (len(self.reader.paths), *(sizes[axis] for axis in self.layout))

    def take(self, indices: np.ndarray | slice) -> np.ndarray:
        """Return the images at `indices`, decoded now."""
        numbers = range(len(self.reader.paths))[indices] if isinstance(indices, slice) else indices
        taken = np.empty((len(numbers), *self.shape[1:]), np.uint8)
        for out, number in zip(taken, numbers, strict=True):
            picture = self.reader.read(int(number))
            out[:] = {"HW": picture[:, :, 0], "CHW": np.moveaxis(picture, 2, 0)}.get(self.layout, picture)
        return taken


def check_images(*sources: DataSource | None) -> None:
    """Raise if an image of the sources cannot be decoded, as far as a short look at each file tells.

    Raises:
        DataError: names the images, all at once.
    """
    columns = [c for s in sources if isinstance(s, ColumnSource) for c in s.columns.values()]
    check_pictures([path for c in columns if isinstance(c, ImageColumn) for path in c.reader.paths])
