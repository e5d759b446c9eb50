"""Binaries on disk, so that a graph is compiled once on a machine and not at every start.

The folder is `$ONWARD_CACHE`, or `onward` in the user's cache folder. A file begins with the sha256 of its content; one
that was damaged is compiled again. The oldest files go when there are more than `_MOST` bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from onward.storage.atomic import TEMP_PREFIX, write_atomic

_MOST = 2 << 30
_DIGEST = hashlib.sha256().digest_size


def folder() -> Path:
    """Return where binaries are kept."""
    chosen = os.environ.get("ONWARD_CACHE")
    if chosen:
        return Path(chosen) / "iree"
    user = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(user) if user else Path.home() / ".cache") / "onward" / "iree"


def read(key: str) -> bytes | None:
    """Return the binary of a key; None if there is none, or a damaged one."""
    path = folder() / key
    try:
        content = path.read_bytes()
        data = content[_DIGEST:]
        if hashlib.sha256(data).digest() != content[:_DIGEST]:
            return None
        os.utime(path)  # the oldest go first
    except OSError:
        return None
    return data


def write(key: str, data: bytes) -> None:
    """Keep a binary. Where the disk is full or read-only, it is compiled again the next time."""
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, and nothing else
        folder().mkdir(parents=True, exist_ok=True)
        write_atomic(folder() / key, [hashlib.sha256(data).digest() + data])
        _forget_oldest()


def _forget_oldest() -> None:
    kept = 0
    files = [(p, p.stat()) for p in folder().iterdir() if not p.name.startswith(TEMP_PREFIX)]
    for path, about in sorted(files, key=lambda f: f[1].st_mtime, reverse=True):
        kept += about.st_size
        if kept > _MOST:
            path.unlink(missing_ok=True)
