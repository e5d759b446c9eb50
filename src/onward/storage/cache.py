"""What took long to find out, kept on disk for the next start on this machine.

The folder is `$ONWARD_CACHE`, or `onward` in the user's cache folder. A file begins with the sha256 of its content; one
that was damaged counts as absent, and is made again. The oldest files go when a cache has more bytes than it may.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from pathlib import Path

from onward.storage.atomic import TEMP_PREFIX, write_atomic

_DIGEST = hashlib.sha256().digest_size


@dataclasses.dataclass(frozen=True)
class Cache:
    """A folder of files by key; `most` is how many bytes it keeps."""

    name: str
    most: int

    @property
    def folder(self) -> Path:
        """Where the files are."""
        chosen = os.environ.get("ONWARD_CACHE")
        if chosen:
            return Path(chosen) / self.name
        user = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
        return (Path(user) if user else Path.home() / ".cache") / "onward" / self.name

    def read(self, key: str) -> bytes | None:
        """Return what is kept under a key; None if there is nothing, or something damaged."""
        path = self.folder / key
        try:
            content = path.read_bytes()
            data = content[_DIGEST:]
            if hashlib.sha256(data).digest() != content[:_DIGEST]:
                return None
            os.utime(path)  # the oldest go first
        except OSError:
            return None
        return data

    def write(self, key: str, data: bytes) -> None:
        """Keep something. Where the disk is full or read-only, it is made again the next time."""
        with contextlib.suppress(OSError):  # a cache that cannot be written costs time, and nothing else
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self.folder / key, [hashlib.sha256(data).digest() + data])
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        kept = 0
        files = [(p, p.stat()) for p in self.folder.iterdir() if not p.name.startswith(TEMP_PREFIX)]
        for path, about in sorted(files, key=lambda f: f[1].st_mtime, reverse=True):
            kept += about.st_size
            if kept > self.most:
                path.unlink(missing_ok=True)
