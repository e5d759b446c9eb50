"""Augmentation of training data: random changes of images, sounds and their targets.

>>> from onward import augment
>>> augment.from_text("flip,crop=0.8,rotate=15")
(Flip(horizontal=0.5, vertical=0.0), Crop(least=0.8, ratio=1.33...), Rotate(degrees=15.0, fill=0.0, mask_fill=0))

`fit(augment=[...])` takes these objects, their names, and Python functions of (sample, rng).
"""

from __future__ import annotations

from onward.augment.base import Augmentation
from onward.augment.images import Colour, Crop, Erase, Flip, Rotate
from onward.augment.mixing import Cutmix, Mixup
from onward.augment.sounds import Gain, Noise, Shift
from onward.augment.text import from_text

__all__ = [
    "Augmentation",
    "Colour",
    "Crop",
    "Cutmix",
    "Erase",
    "Flip",
    "Gain",
    "Mixup",
    "Noise",
    "Rotate",
    "Shift",
    "from_text",
]
