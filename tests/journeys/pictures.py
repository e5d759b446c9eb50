"""Pictures of handwritten digits, as files in class folders."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
Digits = tuple[np.ndarray, np.ndarray]
Shell = Callable[..., "subprocess.CompletedProcess[str]"]


def write_photos(folder: Path, digits: Digits, numbers: range) -> Path:
    """Write pictures of the digits 5 to 9 as PNG files, by class."""
    from PIL import Image

    images, labels = digits
    for digit in range(5, 10):
        (folder / NAMES[digit]).mkdir(parents=True, exist_ok=True)
        chosen = images[labels == digit][numbers.start : numbers.stop]
        for number, image in zip(numbers, chosen, strict=True):
            Image.fromarray(image).save(folder / NAMES[digit] / f"{number:03}.png")
    return folder
