"""Where the data of large constants goes: into the text, to its end as resources, or into a safetensors file."""

from __future__ import annotations

import re

import numpy as np

from onward.mlir.numbers import is_splat, storage
from onward.mlir.syntax import Dense, Dialect, Resource, Scalar
from onward.storage.tensor_file import can_store

INLINE, RESOURCE, EXTERNAL = "inline", "resource", "external"
PLACES = (INLINE, RESOURCE, EXTERNAL)
_PACKED = frozenset({"i1", "i2", "i4", "ui2", "ui4", "f4E2M1FN", "f6E2M3FN", "f6E3M2FN"})
LARGE = 1024
"""Bytes from which a constant leaves the line of its operation, where that is wanted."""


class Weights:
    """The constants of a module that are not in its lines, by key."""

    def __init__(self, place: str, large: int = LARGE) -> None:
        self.place, self.large = place, large
        self.resources: dict[str, bytes | memoryview] = {}
        self.external: dict[str, np.ndarray] = {}
        self._taken: set[str] = set()

    def put(self, dense: Dense, name: str) -> Dense | Resource:
        """Return the constant, or a reference to where its data is now."""
        if self.place == INLINE or dense.texts is not None or len(dense.data) < self.large:
            return dense
        if isinstance(dense.type.element, Dialect) or not isinstance(dense.type.element, Scalar):
            return dense
        element = dense.type.element.name
        kind = storage(element)
        if kind is None or element in _PACKED:
            return dense  # tools do not agree on how these are packed
        if is_splat(dense.data, kind.itemsize):
            return dense  # one element in the text
        if self.place == RESOURCE:
            key = self._key(name)
            self.resources[key] = dense.data
            return Resource(key, dense.type)
        array = np.frombuffer(dense.data, kind).reshape([d or 0 for d in dense.type.shape or ()])
        if not can_store(array):
            return dense
        key = self._key(name)
        self.external[key] = array
        return Resource(key, dense.type)

    def _key(self, name: str) -> str:
        """Return a key that no other constant has; IREE's reader takes only plain names."""
        base = re.sub(r"[^A-Za-z0-9_.]", "_", name) or "constant"
        base = base if base[0].isalpha() or base[0] == "_" else f"_{base}"
        key, count = base, 0
        while key in self._taken:
            count += 1
            key = f"{base}_{count}"
        self._taken.add(key)
        return key
