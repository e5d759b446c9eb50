"""Augmentations of images: flip, crop, rotate, colour, erase."""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from onward.arguments import check_number
from onward.augment.base import T170, ImageAugmentation, as_type, working_type
from onward.errors import A101, ArgumentError, DataError, Diagnostic, require_extra

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_GREY = (0.299, 0.587, 0.114)  # ITU-R BT.601, as in JPEG and in Pillow
Box = tuple[float, float, float, float]


@dataclasses.dataclass(frozen=True)
class Flip(ImageAugmentation):
    """Mirrors the image left to right with probability `horizontal`, and top to bottom with `vertical`.

    >>> Flip(1.0).apply(np.array([[[1], [2], [3]]]), np.random.default_rng(0))[:, :, 0].tolist()
    [[3, 2, 1]]
    """

    horizontal: float = 0.5
    vertical: float = 0.0
    word: ClassVar[str] = "flip"
    first: ClassVar[str] = "horizontal"
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("horizontal", self.horizontal, "Flip", low=0.0, high=1.0)
        check_number("vertical", self.vertical, "Flip", low=0.0, high=1.0)

    def apply(self, image: np.ndarray, rng: np.random.Generator, *, mask: bool = False) -> np.ndarray:
        across, down = rng.random(2)
        if across < self.horizontal:
            image = image[:, ::-1]
        return image[::-1] if down < self.vertical else image


@dataclasses.dataclass(frozen=True)
class Crop(ImageAugmentation):
    """Takes a random part with at least the share `least` of the area, and brings it to the size of the image.

    The part may be up to `ratio` times wider or higher than the image. A photo of a folder is cropped before it is
    resized to the model's size, so nothing is enlarged that need not be.
    """

    least: float = 0.8
    ratio: float = 4 / 3
    word: ClassVar[str] = "crop"
    first: ClassVar[str] = "least"
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("least", self.least, "Crop", above=0.0, high=1.0)
        check_number("ratio", self.ratio, "Crop", low=1.0)

    def box(self, rng: np.random.Generator) -> Box:
        """Return (left, top, right, bottom) as shares of width and height."""
        area, stretch, x, y = rng.random(4)
        area = self.least + (1.0 - self.least) * area
        stretch = math.exp((2.0 * stretch - 1.0) * math.log(self.ratio))
        width, height = min(1.0, math.sqrt(area * stretch)), min(1.0, math.sqrt(area / stretch))
        width, height = min(1.0, max(width, area / height)), min(1.0, max(height, area / width))  # where one was cut
        left, top = x * (1.0 - width), y * (1.0 - height)
        return left, top, left + width, top + height

    def apply(self, image: np.ndarray, rng: np.random.Generator, *, mask: bool = False) -> np.ndarray:
        height, width = image.shape[:2]
        left, top, right, bottom = self.box(rng)
        box = (left * width, top * height, min(right * width, width), min(bottom * height, height))
        return _with_pillow(image, lambda p, kind, _: p.resize((width, height), kind, box=box), mask, 0.0)


@dataclasses.dataclass(frozen=True)
class Rotate(ImageAugmentation):
    """Turns the image by a random angle of at most `degrees`, to either side.

    The corners that become free get the value `fill`, in a mask of class numbers `mask_fill`.
    """

    degrees: float = 15.0
    fill: float = 0.0
    mask_fill: int = 0
    word: ClassVar[str] = "rotate"
    first: ClassVar[str] = "degrees"
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number("degrees", self.degrees, "Rotate", low=0.0, high=180.0)
        check_number("fill", self.fill, "Rotate")
        check_number("mask_fill", self.mask_fill, "Rotate")

    def apply(self, image: np.ndarray, rng: np.random.Generator, *, mask: bool = False) -> np.ndarray:
        angle = float(rng.uniform(-self.degrees, self.degrees))
        fill = self.mask_fill if mask else self.fill
        return _with_pillow(image, lambda p, kind, f: p.rotate(angle, kind, fillcolor=f), mask, fill)


@dataclasses.dataclass(frozen=True)
class Colour(ImageAugmentation):
    """Changes brightness, contrast and saturation by random factors, each from 1 − `strength` to 1 + `strength`.

    `brightness`, `contrast` and `saturation` give one of them a strength of its own. `hue` turns the colours by at most
    this many degrees. Black must be 0. `white` is the largest value: by default that of the integer type, and 1 for
    floats.
    """

    strength: float = 0.2
    brightness: float | None = None
    contrast: float | None = None
    saturation: float | None = None
    hue: float = 0.0
    white: float | None = None
    word: ClassVar[str] = "colour"
    first: ClassVar[str] = "strength"

    def __post_init__(self) -> None:
        for name in ("strength", "brightness", "contrast", "saturation"):
            if name == "strength" or getattr(self, name) is not None:
                check_number(name, getattr(self, name), "Colour", low=0.0, high=1.0)
        check_number("hue", self.hue, "Colour", low=0.0, high=180.0)
        if self.white is not None:
            check_number("white", self.white, "Colour", above=0.0)

    def apply(self, image: np.ndarray, rng: np.random.Generator, *, mask: bool = False) -> np.ndarray:
        white = self._check(image)
        own = (self.brightness, self.contrast, self.saturation)
        strengths = np.array([self.strength if s is None else s for s in own])
        brightness, contrast, saturation = (1.0 + strengths * rng.uniform(-1.0, 1.0, 3)).tolist()
        turn = math.radians(self.hue * float(rng.uniform(-1.0, 1.0)))
        work = working_type(image.dtype)
        planes = np.ascontiguousarray(np.moveaxis(image, 2, 0), dtype=work)
        if len(planes) == 1:
            offset = (1.0 - contrast) * brightness * float(planes.mean())
            changed = planes * work.type(contrast * brightness) + work.type(offset)
        else:
            grey = sum(w * float(p.mean()) for w, p in zip(_GREY, planes, strict=True))
            offset = (1.0 - contrast) * brightness * grey
            matrix = (contrast * brightness * _mix_colours(saturation, turn)).astype(work)
            changed = np.empty_like(planes)
            for row, out in zip(matrix, changed, strict=True):
                np.multiply(planes[0], row[0], out=out)
                out += planes[1] * row[1]
                out += planes[2] * row[2]
                out += work.type(offset)
        np.clip(changed, 0.0, white, out=changed)
        return as_type(np.moveaxis(changed, 0, 2), image.dtype)

    def _check(self, image: np.ndarray) -> float:
        """Return the value of white; raise for an image whose numbers are not from black to white."""
        default = float(np.iinfo(image.dtype).max) if image.dtype.kind in "iu" else 1.0
        white = default if self.white is None else float(self.white)
        low, high = float(image.min()), float(image.max())
        if low < 0.0 or high > white:
            raise DataError(
                Diagnostic(
                    T170,
                    "`colour` needs images whose numbers go from 0 (black) to white",
                    found=f"{image.dtype} from {low:g} to {high:g}",
                    needed=f"0 to {white:g}",
                    hint="give the images as they are and let Preparation(scale=…, mean=…, std=…) scale them after the "
                    "augmentation, or name the value of white: Colour(white=255)",
                )
            )
        return white


def _mix_colours(saturation: float, turn: float) -> np.ndarray:
    """Return the 3 × 3 matrix that changes saturation and hue and keeps the brightness of every colour."""
    to_yiq = np.array([_GREY, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312)])
    to_yiq[1:] -= to_yiq[1:].sum(axis=1, keepdims=True) / 3.0  # grey has no colour, exactly
    c, s = saturation * math.cos(turn), saturation * math.sin(turn)
    change = np.array([[1.0, 0.0, 0.0], [0.0, c, -s], [0.0, s, c]])
    matrix: np.ndarray = np.linalg.inv(to_yiq) @ change @ to_yiq
    return matrix


@dataclasses.dataclass(frozen=True)
class Erase(ImageAugmentation):
    """With probability `probability` covers a random rectangle, as Random Erasing (Zhong et al., 2017).

    The rectangle has between `smallest` and `largest` of the area. `fill` is a number, or "mean" for the mean colour of
    the image.
    """

    probability: float = 0.25
    smallest: float = 0.02
    largest: float = 0.33
    fill: float | str = "mean"
    word: ClassVar[str] = "erase"
    first: ClassVar[str] = "probability"

    def __post_init__(self) -> None:
        check_number("probability", self.probability, "Erase", low=0.0, high=1.0)
        check_number("smallest", self.smallest, "Erase", above=0.0, high=1.0)
        check_number("largest", self.largest, "Erase", low=self.smallest, high=1.0)
        if isinstance(self.fill, str) and self.fill != "mean":
            raise ArgumentError(Diagnostic(A101, f"`fill` of `Erase` is {self.fill!r}", needed='a number, or "mean"'))
        if not isinstance(self.fill, str):
            check_number("fill", self.fill, "Erase")

    def apply(self, image: np.ndarray, rng: np.random.Generator, *, mask: bool = False) -> np.ndarray:
        chance, area, stretch, x, y = rng.random(5)
        if chance >= self.probability:
            return image
        area = self.smallest + (self.largest - self.smallest) * area
        stretch = math.exp((2.0 * stretch - 1.0) * math.log(3.3))
        height, width = image.shape[:2]
        rows = min(height, max(1, round(height * math.sqrt(area / stretch))))
        columns = min(width, max(1, round(width * math.sqrt(area * stretch))))
        top, left = int(y * (height - rows + 1)), int(x * (width - columns + 1))
        fill = _mean_colour(image) if self.fill == "mean" else np.asarray(self.fill)
        erased = image.copy()
        erased[top : top + rows, left : left + columns] = as_type(fill, image.dtype)
        return erased


def _mean_colour(image: np.ndarray) -> np.ndarray:
    """Return the mean of each channel; by rows first, which is twenty times as fast as `mean(axis=(0, 1))`."""
    columns = image.reshape(len(image), -1).mean(axis=0, dtype=np.float64)
    mean: np.ndarray = columns.reshape(image.shape[1:]).mean(axis=0)
    return mean


def _with_pillow(image: np.ndarray, change: Callable[[Any, Any, Any], Any], mask: bool, fill: float) -> np.ndarray:
    """Return the image changed by Pillow: whole for bytes of 1, 3 or 4 channels, else channel by channel.

    `change` gets a picture, the kind of interpolation (none for a mask) and the fill for free places.
    """
    try:
        pillow: Any = importlib.import_module("PIL.Image")
    except ImportError as error:
        raise require_extra("PIL", "images", "cropping and rotating images") from error
    kind = pillow.Resampling.NEAREST if mask else pillow.Resampling.BILINEAR
    channels = image.shape[2]
    if image.dtype == np.uint8 and channels in _MODES:
        pixels = np.ascontiguousarray(image if channels > 1 else image[:, :, 0])
        level = int(as_type(np.asarray(fill), image.dtype))
        changed = np.asarray(change(pillow.fromarray(pixels), kind, level if channels == 1 else (level,) * channels))
        return changed.reshape(image.shape)
    plane_type = np.int32 if mask else np.float32  # Pillow's modes I and F
    planes = [np.ascontiguousarray(image[:, :, c], dtype=plane_type) for c in range(channels)]
    level_of = int if mask else float
    made = [np.asarray(change(pillow.fromarray(p), kind, level_of(fill))) for p in planes]
    return as_type(np.stack(made, axis=2), image.dtype)
