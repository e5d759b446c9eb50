"""What an augmentation is, and where its random numbers come from."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from onward.arguments import shown
from onward.errors import A101, ArgumentError, Diagnostic

Sample = dict[str, np.ndarray]
T170 = "T170"

_STREAM = 1 << 63  # the order of an epoch uses the counter from 0 up, with the same key


def draws(seed: int, epoch: int, index: int, occurrence: int = 0, number: int = 0) -> np.random.Generator:
    """Return the random numbers for one sample of one epoch: those of augmentation `number`.

    They depend on these arguments and on nothing else: not on the batch, nor on the process that reads the sample.
    `occurrence` counts how often the sample has come before in this epoch, for samplers that repeat some.

    >>> draws(0, 1, 7).random() == draws(0, 1, 7).random()
    True
    >>> draws(0, 1, 7).random() == draws(0, 1, 8).random()
    False
    """
    mask = 0xFFFFFFFFFFFFFFFF
    key = np.array([seed & mask, epoch & mask], dtype=np.uint64)
    counter = np.array([0, number, index & mask, _STREAM + occurrence], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


class Augmentation:
    """Base of the augmentations: each is a frozen dataclass, so that a checkpoint can say what a run used."""

    word: ClassVar[str] = ""
    """Its name in text: `flip` in `--augment flip`."""
    first: ClassVar[str] = ""
    """The field that a number after the name sets: `crop=0.8`."""


class ImageAugmentation(Augmentation):
    """Changes an image, given as (height, width, channels)."""

    moves: ClassVar[bool] = False
    """True when pixels change their place, so that a mask must change in the same way."""

    def apply(self, image: np.ndarray, rng: np.random.Generator, *, mask: bool = False) -> np.ndarray:
        """Return the changed image, of the same shape and type; a `mask` holds class numbers, which do not blend."""
        raise NotImplementedError


class SoundAugmentation(Augmentation):
    """Changes a sound, whose last axis is the time."""

    def apply(self, sound: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the changed sound, of the same shape and type."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Function(Augmentation):
    """A Python function of (sample, rng) that returns the changed sample: a dict of arrays by the model's names."""

    function: Callable[[Sample, np.random.Generator], Sample]

    def __post_init__(self) -> None:
        """Raise if the function cannot be called with a sample and a random generator."""
        try:
            inspect.signature(self.function).bind({}, None)
        except TypeError as error:
            raise ArgumentError(
                Diagnostic(
                    A101,
                    f"the augmentation {self} cannot be called with (sample, rng): {error}",
                    needed="a function of a sample (a dict of arrays) and a numpy random Generator",
                    hint="take every random number from rng, so that a resumed run gives the same samples",
                )
            ) from error
        except ValueError:
            return  # some built-in functions have no signature

    def __str__(self) -> str:
        return f"`{getattr(self.function, '__qualname__', shown(self.function))}`"


def as_type(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the numbers in `dtype`; for integers rounded, and cut at the smallest and the largest one.

    >>> as_type(np.array([-3.0, 7.6, 300.0]), np.dtype(np.uint8)).tolist()
    [0, 8, 255]
    """
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        values = np.clip(np.rint(values), limits.min, limits.max)
    return np.asarray(values, dtype=dtype)


def working_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the float type to compute in."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)
