"""Files that are old or new and never half: write to a temporary file, fsync, rename, fsync the directory.

`boundary` is called before each operation that changes the disk. It does nothing; the crash tests replace it to kill
the process or to fail at every single point.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

Boundary = Callable[[str, Path], None]

TEMP_PREFIX = ".onward-tmp-"
CHUNK = 1 << 20


def _no_fault(operation: str, path: Path) -> None:
    """Let the operation happen."""


boundary: Boundary = _no_fault


def write_atomic(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write `path` so that it holds the old content or the whole new one, whatever happens.

    On any failure the temporary file is removed and the error goes on to the caller.
    """
    temporary = path.with_name(f"{TEMP_PREFIX}{path.name}-{os.getpid()}")
    try:
        boundary("open", temporary)
        with open(temporary, "wb", buffering=0) as file:
            for chunk in _cut(chunks):
                boundary("write", temporary)
                written = 0
                while written < len(chunk):
                    written += file.write(chunk[written:])
            boundary("fsync", temporary)
            os.fsync(file.fileno())
        boundary("rename", path)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the error that matters is the one being raised
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def _cut(chunks: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    for chunk in chunks:
        view = memoryview(chunk)
        for first in range(0, len(view), CHUNK):
            yield view[first : first + CHUNK]


def sync_directory(directory: Path) -> None:
    """Make renames in `directory` last through a power loss; on Windows a directory cannot be synced."""
    if sys.platform == "win32":
        return
    boundary("fsync_dir", directory)
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Remove a file that may already be gone."""
    boundary("remove", path)
    path.unlink(missing_ok=True)


def remove_stale(directory: Path) -> list[Path]:
    """Remove what earlier, killed writers left behind; the caller holds the lock of the directory."""
    stale = sorted(directory.glob(TEMP_PREFIX + "*"))
    for path in stale:
        remove(path)
    return stale


class LockHeld(OSError):
    """Another process (or another trainer of this one) holds the lock."""


class DirectoryLock:
    """One writer per directory: an exclusive lock on a file in it, freed by the system when the process dies."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / ".lock"
        self._handle: int | None = None

    def __enter__(self) -> DirectoryLock:
        self.acquire()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    @property
    def held(self) -> bool:
        """True while this object holds the lock."""
        return self._handle is not None

    def acquire(self) -> None:
        """Take the lock or raise `LockHeld` at once."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(handle)
        except OSError as error:
            owner = os.pread(handle, 32, 0).decode("ascii", "replace").strip() if hasattr(os, "pread") else ""
            os.close(handle)
            raise LockHeld(error.errno, f"process {owner}" if owner else "another process") from error
        self._handle = handle
        with contextlib.suppress(OSError):  # a full disk: the number is a courtesy to the next one, the lock holds
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode("ascii"))

    def release(self) -> None:
        """Give the lock back; the file stays, since removing it would let two writers in."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _lock(handle: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
