"""From inference to training: `make_trainable`."""

from __future__ import annotations

from onward.author.make import make_trainable

__all__ = ["make_trainable"]
