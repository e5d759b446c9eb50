"""A folder with one subfolder of images per class; the label is the place of the subfolder in sorted order."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onward.compiler.program import TensorSpec
from onward.errors import DataError, Diagnostic, require_extra
from onward.train.data.matching import number_classes
from onward.train.data.source import ArrayColumn, Column, ColumnSource

T150 = "T150"

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm"}
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def find_images(folder: Path) -> dict[str, list[Path]]:
    """Return class name -> its images, classes and images sorted by name; empty when there are none."""
    classes = {}
    for sub in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
        images = sorted(p for p in sub.rglob("*") if p.suffix.lower() in _SUFFIXES and p.is_file())
        if images:
            classes[sub.name] = images
    return classes


def open_images(
    folder: Path, classes: Mapping[str, Sequence[Path]], inputs: Sequence[TensorSpec], known: Sequence[str] = ()
) -> ColumnSource:
    """Return the images (decoded when needed, uint8) and their labels.

    The first input of the model decides: (N, C, H, W) or (N, H, W, C), grey for C = 1 and colour for C = 3; an image
    of another size is resized to H × W (bilinear). `known` are the classes of the training data.

    Raises:
        MissingExtra: Pillow is not installed.
        DataError: the model does not fix the size and the images differ.
    """
    try:
        image_module = importlib.import_module("PIL.Image")
    except ImportError as error:
        raise require_extra("PIL", "images", "reading images") from error
    paths = [path for images in classes.values() for path in images]
    numbers = number_classes(list(classes), known, str(folder))
    labels = np.repeat(np.array([numbers[n] for n in classes], np.int64), [len(v) for v in classes.values()])
    column = ImageColumn(paths, inputs[0].shape if inputs else (None, 3, None, None), image_module)
    columns: dict[str, Column] = {"images": column, "labels": ArrayColumn(labels)}
    return ColumnSource(columns, positional=True, classes=list(numbers), place=str(folder))


def _likely(dim: int | str | None) -> int:
    """Return how likely a dimension counts channels: 1 and 3 are more likely than 4."""
    return {1: 2, 3: 2, 4: 1}.get(dim, 0) if isinstance(dim, int) else 0


class ImageColumn:
    """Images that are decoded when their batch is made."""

    dtype = np.dtype(np.uint8)

    def __init__(self, paths: Sequence[Path], model: Sequence[int | str | None], image_module: Any) -> None:
        self._paths = paths
        self._image = image_module
        self._channels_last = len(model) == 4 and _likely(model[3]) > _likely(model[1])
        rank = len(model)
        dims = list(model[1:]) if rank == 4 else [1, *model[1:]] if rank == 3 else [3, None, None]
        channels, height, width = [dims[2], dims[0], dims[1]] if self._channels_last else dims
        self._flat = rank == 2
        self._grey_plane = rank == 3
        first = self._open(0)
        known = channels if isinstance(channels, int) else None
        if self._flat and isinstance(model[1], int):
            known = next((c for c in (1, 3) if first.width * first.height * c == model[1]), 1)
        self._channels = known if known in _MODES else 3
        self._height = height if isinstance(height, int) else first.height
        self._width = width if isinstance(width, int) else first.width
        self._may_resize = isinstance(height, int) and isinstance(width, int)

    @property
    def shape(self) -> tuple[int, ...]:
        plane = (self._height, self._width)
        if self._grey_plane:
            return (len(self._paths), *plane)
        if self._channels_last:
            return (len(self._paths), *plane, self._channels)
        return (len(self._paths), self._channels, *plane)

    def _open(self, index: int) -> Any:
        """Return the decoded image; a decompression bomb is refused."""
        path = self._paths[index]
        with warnings.catch_warnings():
            warnings.simplefilter("error", self._image.DecompressionBombWarning)
            try:
                with self._image.open(path) as image:
                    image.load()
                    return image
            except (OSError, ValueError, SyntaxError, self._image.DecompressionBombWarning) as error:
                raise DataError(Diagnostic(T150, f"the image `{path}` cannot be decoded: {error}")) from error
            except self._image.DecompressionBombError as error:
                raise DataError(Diagnostic(T150, f"the image `{path}` is too large: {error}")) from error

    def _decode(self, index: int) -> np.ndarray:
        image = self._open(index).convert(_MODES[self._channels])
        if image.size != (self._width, self._height):
            if not self._may_resize:
                raise DataError(
                    Diagnostic(
                        T150,
                        f"the image `{self._paths[index]}` has another size than the first",
                        found=f"{image.width} × {image.height}",
                        needed=f"{self._width} × {self._height}; the model does not fix a size to resize to",
                    )
                )
            image = image.resize((self._width, self._height), self._image.Resampling.BILINEAR)
        pixels = np.asarray(image, dtype=np.uint8)
        if self._grey_plane:
            return pixels
        if pixels.ndim == 2:
            pixels = pixels[:, :, None]
        return pixels if self._channels_last else np.moveaxis(pixels, 2, 0)

    def take(self, indices: np.ndarray | slice) -> np.ndarray:
        """Return the images at `indices`, decoded now."""
        numbers = range(len(self._paths))[indices] if isinstance(indices, slice) else indices
        return np.stack([self._decode(int(i)) for i in numbers])
