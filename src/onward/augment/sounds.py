"""Augmentations of sounds: gain, noise, shift. The last axis is the time."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from onward.arguments import check_number
from onward.augment.base import SoundAugmentation, as_type, working_type


@dataclasses.dataclass(frozen=True)
class Gain(SoundAugmentation):
    """Makes the sound louder or softer by a random number of decibels, at most `decibels` in either direction.

    Integers (int16) are cut at the largest number they hold, as a recorder does; floats are not cut.
    """

    decibels: float = 6.0
    word: ClassVar[str] = "gain"
    first: ClassVar[str] = "decibels"

    def __post_init__(self) -> None:
        check_number("decibels", self.decibels, "Gain", low=0.0)

    def apply(self, sound: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        work = working_type(sound.dtype)
        factor = 10.0 ** (float(rng.uniform(-self.decibels, self.decibels)) / 20.0)
        return as_type(sound.astype(work) * work.type(factor), sound.dtype)


@dataclasses.dataclass(frozen=True)
class Noise(SoundAugmentation):
    """Adds white noise. The signal is louder than it by a random number of decibels, from `least` to `most`.

    Silence stays silent.
    """

    least: float = 10.0
    most: float = 40.0
    word: ClassVar[str] = "noise"
    first: ClassVar[str] = "least"

    def __post_init__(self) -> None:
        check_number("least", self.least, "Noise")
        check_number("most", self.most, "Noise", low=self.least)

    def apply(self, sound: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        work = working_type(sound.dtype)
        signal = sound.astype(work)
        level = float(np.sqrt(np.mean(np.square(signal, dtype=np.float64))))
        level *= 10.0 ** (-float(rng.uniform(self.least, self.most)) / 20.0)
        return as_type(signal + rng.standard_normal(sound.shape, dtype=work) * work.type(level), sound.dtype)


@dataclasses.dataclass(frozen=True)
class Shift(SoundAugmentation):
    """Moves the sound earlier or later by at most `share` of its length; zeros fill the gap.

    >>> Shift(0.5).apply(np.arange(1, 7), np.random.default_rng(5)).tolist()
    [0, 0, 1, 2, 3, 4]
    """

    share: float = 0.1
    word: ClassVar[str] = "shift"
    first: ClassVar[str] = "share"

    def __post_init__(self) -> None:
        check_number("share", self.share, "Shift", low=0.0, high=1.0)

    def apply(self, sound: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        length = sound.shape[-1]
        steps = round(float(rng.uniform(-self.share, self.share)) * length)
        if steps == 0:
            return sound
        moved = np.zeros_like(sound)
        if steps > 0:
            moved[..., steps:] = sound[..., :-steps]
        else:
            moved[..., :steps] = sound[..., -steps:]
        return moved
