"""Replace functions of PyTorch during an export, by others that its exporter can write."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def replaced(owner: Any, functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace attributes of `owner`, such as `torch.nn.functional`, by `functions`."""
    originals = {name: getattr(owner, name) for name in functions}
    for name, function in functions.items():
        setattr(owner, name, function)
    try:
        yield
    finally:
        for name, function in originals.items():
            setattr(owner, name, function)
