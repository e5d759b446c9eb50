"""Losses, one per file, written once as ONNX operators.

`make_trainable(loss=...)` takes one of these, its name (`"cross_entropy"`), or a loss of your own.
"""

from __future__ import annotations

from onward.errors import unknown_name
from onward.losses.base import LabelSpec, Loss
from onward.losses.cross_entropy import CrossEntropy
from onward.losses.l1 import L1
from onward.losses.mse import MSE
from onward.losses.weighted import Weighted

NAMES: dict[str, type[Loss]] = {
    "cross_entropy": CrossEntropy,
    "l1": L1,
    "mse": MSE,
}


def by_name(name: str) -> Loss:
    """Return the loss of that name with its default settings.

    >>> by_name("mse")
    MSE(reduction='mean')
    """
    if name not in NAMES:
        raise unknown_name("loss", name, NAMES)
    return NAMES[name]()


__all__ = ["L1", "MSE", "NAMES", "CrossEntropy", "LabelSpec", "Loss", "Weighted", "by_name"]
