"""Augmentations of two samples: mixup and cutmix. The target is mixed in the same proportion."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from onward.arguments import check_name, check_number
from onward.augment.base import Augmentation

LABELS = ("mix", "draw")


@dataclasses.dataclass(frozen=True)
class Mixing(Augmentation):
    """Base of mixup and cutmix.

    The share of a sample is drawn from the distribution Beta(`alpha`, `alpha`); the rest comes from another sample.
    `labels="mix"` mixes the targets in the same proportion, so the loss must take probabilities:
    `losses.CrossEntropy(targets="probability")`. `labels="draw"` takes the target of one of the two, with the shares as
    probabilities: any loss takes it, and its mean over many steps is the same.
    """

    alpha: float = 0.2
    labels: str = "mix"
    first: ClassVar[str] = "alpha"

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_number("alpha", self.alpha, name, above=0.0)
        check_name("kind of labels", self.labels, LABELS, place=f"augmentation `{name}`")


@dataclasses.dataclass(frozen=True)
class Mixup(Mixing):
    """Blends each sample with another one, as mixup (Zhang et al., 2017). For any input of floats."""

    word: ClassVar[str] = "mixup"


@dataclasses.dataclass(frozen=True)
class Cutmix(Mixing):
    """Replaces a rectangle of each image by that of another image, as CutMix (Yun et al., 2019)."""

    alpha: float = 1.0
    word: ClassVar[str] = "cutmix"

    def box(self, share: float, height: int, width: int, centre: tuple[float, float]) -> tuple[int, int, int, int]:
        """Return (top, bottom, left, right) of the rectangle that is replaced; it is cut at the edge of the image.

        `centre` holds its place as shares of height and width.
        """
        side = math.sqrt(1.0 - share)
        rows, columns = round(height * side), round(width * side)
        top, left = int(centre[0] * height) - rows // 2, int(centre[1] * width) - columns // 2
        return max(top, 0), min(top + rows, height), max(left, 0), min(left + columns, width)
