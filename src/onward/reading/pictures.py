"""Decode image files to arrays of one size."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from onward.errors import DataError, Diagnostic, require_extra

T150 = "T150"

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# A JPEG is decoded at a half, a quarter or an eighth of its size while that leaves this many times the pixels needed in
# each direction; Pillow's `thumbnail` uses the same number.
_GAP = 2.0
_ORIENTATION = 0x0112  # the EXIF entry
_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}  # the last bytes of a file that was not cut off
_THREADS = 8  # for files on slow disks
MOST_NAMED = 20
_SKIP = 'Preparation(damaged="skip") leaves out the images that cannot be decoded'


def pillow() -> Any:
    """Return the module PIL.Image.

    Raises:
        MissingExtra: Pillow is not installed.
    """
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise require_extra("PIL", "images", "reading images") from error


@dataclasses.dataclass(frozen=True)
class PictureReader:
    """Decodes image files: grey, colour or colour with transparency, resized to one size.

    Without `may_resize`, an image of another size is refused.
    """

    paths: Sequence[str]
    channels: int
    height: int
    width: int
    may_resize: bool

    def read(self, index: int, box: tuple[float, float, float, float] | None = None) -> np.ndarray:
        """Return the image as bytes (height, width, channels), or its part `box`: shares of width and height."""
        mode = MODES[self.channels]
        left, top, right, bottom = box or (0.0, 0.0, 1.0, 1.0)
        wanted = (self.width / (right - left), self.height / (bottom - top))
        image, (w, h) = open_picture(self.paths[index], mode, wanted if self.may_resize else None)
        if image.mode != mode:
            image = image.convert(mode)
        size = (self.width, self.height)
        if not self.may_resize and image.size != size:
            raise DataError(
                Diagnostic(
                    T150,
                    f"the image `{self.paths[index]}` has another size than the first",
                    found=f"{image.width} × {image.height}",
                    needed=f"{self.width} × {self.height}; the model does not fix a size to resize to",
                )
            )
        if box is not None or image.size != size:
            part = (left * w, top * h, min(right * w, w), min(bottom * h, h))
            image = image.resize(size, pillow().Resampling.BILINEAR, box=part, reducing_gap=3.0)
        return np.asarray(image).reshape(self.height, self.width, self.channels)


def open_picture(
    path: str, mode: str = "", wanted: tuple[float, float] | None = None
) -> tuple[Any, tuple[float, float]]:
    """Return the decoded image, not much larger than `wanted` (width, height) where the format allows, and its size.

    It stands upright, as EXIF says. An eighth of 1,708 rows is 213.5 rows in an image of 214: the size that is returned
    is the exact one.

    Raises:
        DataError: it cannot be decoded, or is so large that it would fill the memory.
    """
    with _bombs_are_errors():
        return _decode(path, mode, wanted)


def _decode(path: str, mode: str, wanted: tuple[float, float] | None) -> tuple[Any, tuple[float, float]]:
    with _named_errors(path), pillow().open(path) as image:
        orientation = image.getexif().get(_ORIENTATION, 1)  # phones store photos sideways and say so
        sideways = orientation in range(5, 9)
        reduced = None
        if wanted is not None:
            width, height = (wanted[1], wanted[0]) if sideways else wanted
            reduced = image.draft(mode, (int(width * _GAP), int(height * _GAP)))
        image.load()
        width, height = image.size if reduced is None else reduced[1][2:]
        if orientation in range(2, 9):
            image = importlib.import_module("PIL.ImageOps").exif_transpose(image)
        return image, (height, width) if sideways else (width, height)


@contextlib.contextmanager
def _bombs_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", pillow().DecompressionBombWarning)
        yield


@contextlib.contextmanager
def _named_errors(path: str) -> Iterator[None]:
    """Turn what Pillow raises into an error that names the image."""
    image_module = pillow()
    try:
        yield
    except (OSError, ValueError, SyntaxError, image_module.DecompressionBombWarning) as error:
        raise DataError(Diagnostic(T150, f"the image `{path}` cannot be decoded: {error}", hint=_SKIP)) from error
    except image_module.DecompressionBombError as error:
        raise DataError(Diagnostic(T150, f"the image `{path}` is too large: {error}", hint=_SKIP)) from error


def check_pictures(paths: Sequence[str]) -> None:
    """Raise if an image cannot be decoded, as far as its first and last bytes tell: a run must not find out at its end.

    Only a file without the end that its format has is decoded, because it may have been cut off.

    Raises:
        DataError: names the images, all at once.
    """
    problems = [problem for found in _in_threads(_short_look, paths) for problem in found]
    if problems:
        raise _all_at_once(problems)


def usable_pictures(paths: Sequence[str]) -> tuple[list[str], list[Diagnostic]]:
    """Decode every image, at an eighth of its size where the format allows; return those that can be, and the problems.

    Raises:
        DataError: none of them can be decoded.
    """
    problems = dict(zip(paths, _in_threads(_full_look, paths), strict=True))
    usable = [path for path in paths if not problems[path]]
    damaged = [problem for found in problems.values() for problem in found]
    if damaged and not usable:
        raise _all_at_once(damaged, hint="")
    return usable, damaged


def _all_at_once(problems: Sequence[Diagnostic], hint: str = _SKIP) -> DataError:
    """Return the error that names the images, of very many the first, and gives the hint once."""
    named = [dataclasses.replace(problem, hint="") for problem in problems[:MOST_NAMED]]
    if len(problems) > MOST_NAMED:
        named.append(Diagnostic(T150, f"{len(problems) - MOST_NAMED} more images cannot be used"))
    return DataError([*named[:-1], dataclasses.replace(named[-1], hint=hint)])


def _in_threads(look: Callable[[str], list[Diagnostic]], paths: Sequence[str]) -> list[list[Diagnostic]]:
    """Return what `look` finds wrong with each image."""
    if not paths:
        return []
    from concurrent.futures import ThreadPoolExecutor  # a worker does without it, and starts faster

    def look_at(part: Sequence[str]) -> list[list[Diagnostic]]:
        return [look(path) for path in part]

    pillow().init()  # not in each thread
    parts = [paths[first : first + 64] for first in range(0, len(paths), 64)]
    with _bombs_are_errors(), ThreadPoolExecutor(_THREADS) as pool:
        return [found for part in pool.map(look_at, parts) for found in part]


def _short_look(path: str) -> list[Diagnostic]:
    """Return why the image cannot be decoded, if its first and last bytes tell."""
    try:
        if _may_be_cut_off(path):
            _decode(path, "", None)
    except DataError as error:
        return list(error.diagnostics)
    return []


def _full_look(path: str) -> list[Diagnostic]:
    """Return why the image cannot be decoded; a file that has not changed since is not decoded again."""
    try:
        found = os.stat(path)
    except OSError as error:
        return [Diagnostic(T150, f"the image `{path}` cannot be decoded: {error}", hint=_SKIP)]
    return _decoding_problems(path, found.st_size, found.st_mtime_ns)


@functools.lru_cache(maxsize=1 << 17)
def _decoding_problems(path: str, _size: int, _changed: int) -> list[Diagnostic]:
    try:
        _decode(path, "L", (1.0, 1.0))
    except DataError as error:
        return list(error.diagnostics)
    return []


def _may_be_cut_off(path: str) -> bool:
    with _named_errors(path):
        with pillow().open(path) as image:
            end = _ENDS.get(image.format)
        if end is None:
            return False
        with open(path, "rb") as file:
            file.seek(-min(64, file.seek(0, os.SEEK_END)), os.SEEK_END)
            return end not in file.read()
