"""What `make test` takes a sample of, because the whole takes minutes: `make test-whole` sets ONWARD_WHOLE=1.

So do `make test-frameworks`, `make test-core` and `make js`, each for its part.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")
WHOLE = bool(os.environ.get("ONWARD_WHOLE"))


def sample(names: Iterable[T], few: Iterable[T]) -> list[T]:
    """Return all names, or in `make test` the few of them."""
    every, chosen = list(names), list(few)
    assert set(chosen) <= set(every)
    return every if WHOLE else chosen
