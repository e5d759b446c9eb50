"""How many processes train together, and which of them this is; torchrun says so in the environment."""

from __future__ import annotations

import os


def world_size() -> int:
    """Return how many processes torchrun started; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def rank() -> int:
    """Return the number of this process, from 0; process 0 writes files and prints."""
    return int(os.environ.get("RANK", "0")) if world_size() > 1 else 0
