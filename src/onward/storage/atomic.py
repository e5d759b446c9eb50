"""Atomic file writes: a reader finds the old content or the whole new one, whatever happens.

Writes go to a temporary file in the same folder, which is synced and then renamed over the target; the folder is synced
last. `boundary` is called before each operation that changes the disk. It does nothing; the crash tests replace it to
kill the process, or to fail, at every single operation.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BufferedWriter
from pathlib import Path

Boundary = Callable[[str, Path], None]

TEMP_PREFIX = ".onward-tmp-"
CHUNK = 1 << 20


def _no_fault(operation: str, path: Path) -> None:
    """Let the operation happen."""


boundary: Boundary = _no_fault


def write_atomic(path: str | Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Replace the content of `path`, or leave it as it was. The permissions of an existing file are kept.

    On any failure the temporary file is removed and the error goes on to the caller.

    Raises:
        OSError: the file cannot be written, or it is not a regular file.
    """
    path = target_of(path)
    temporary = path.with_name(f"{TEMP_PREFIX}{path.name[:100]}-{os.urandom(6).hex()}")
    try:
        with create(temporary) as file:
            with contextlib.suppress(FileNotFoundError):
                os.chmod(temporary, stat.S_IMODE(path.stat().st_mode))
            for chunk in _cut(chunks):
                boundary("write", temporary)
                file.write(chunk)
                file.flush()
            sync(file, temporary)
        boundary("rename", path)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the error that matters is the one being raised
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_directory(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write several files into `folder`, or none of them; a folder that this made is removed again on failure.

    A name may have folders in it, which are made. The files are first written to a folder inside `folder`, where a full
    disk is noticed, and then moved in the given order.

    Raises:
        OSError: a file cannot be written.
    """
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    staging = folder / f"{TEMP_PREFIX}{os.urandom(6).hex()}"
    try:
        staging.mkdir()
        for name, content in files.items():
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomic(staging / name, [content])
        for name in files:
            boundary("rename", folder / name)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(staging / name, folder / name)
        shutil.rmtree(staging)
    except BaseException:
        shutil.rmtree(folder if made else staging, ignore_errors=True)  # the error that matters is being raised
        raise
    for inner in sorted({(folder / name).parent for name in files} | {folder}, reverse=True):
        sync_directory(inner)


def target_of(path: str | Path) -> Path:
    """Return the file that a write to `path` replaces. If `path` is a symbolic link, it is the file behind it.

    Raises:
        OSError: there is a directory, a device or the like in its place.
    """
    target = Path(os.path.realpath(path))
    if os.path.isdir(target):
        raise IsADirectoryError(errno.EISDIR, "it is a directory", str(path))
    if os.path.exists(target) and not os.path.isfile(target):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return target


def create(path: Path) -> BufferedWriter:
    """Return a new file to write to; `path` must not exist yet."""
    boundary("open", path)
    return open(path, "xb")


def sync(file: BufferedWriter, path: Path) -> None:
    """Make what was written to `file` survive a power loss."""
    file.flush()
    boundary("fsync", path)
    os.fsync(file.fileno())


def _cut(chunks: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    for chunk in chunks:
        view = memoryview(chunk)
        for first in range(0, len(view), CHUNK):
            yield view[first : first + CHUNK]


def sync_directory(directory: Path) -> None:
    """Make new names in `directory` survive a power loss; on Windows a directory cannot be synced."""
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
    """Remove the temporary files of writers that were killed; the caller holds the lock of the directory."""
    stale = sorted(directory.glob(TEMP_PREFIX + "*"))
    for path in stale:
        remove(path)
    return stale


class LockHeld(OSError):
    """Another process, or another trainer in this process, holds the lock."""


class DirectoryLock:
    """Allow one writer per directory: an exclusive lock on a file in it, which ends with the process."""

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
        with contextlib.suppress(OSError):  # a full disk: the process id only serves a message, the lock holds
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode("ascii"))

    def release(self) -> None:
        """Release the lock. The file stays, because removing it would let two writers in."""
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
