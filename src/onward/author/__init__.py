"""From inference to training: `make_trainable`."""

from __future__ import annotations

from onward.author.make import make_trainable
from onward.author.untie import TiedWeightsWarning

__all__ = ["TiedWeightsWarning", "make_trainable"]
