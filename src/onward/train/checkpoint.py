"""Checkpoints on disk: after a crash at any moment, the newest complete one can be read.

::

    run/
      step-00000400.safetensors   the state and everything else a run needs, with checksums
      step-00000500.safetensors
      model.onnx                  the model (or program.safetensors), so that resuming needs nothing else
      manifest.json               what is there, for people and tools; written last
      .lock                       held by the one writer

Each file is written to a temporary file, which is synced and renamed; then the directory is synced. The order is model,
step file, manifest. Only then are older step files removed. A reader takes the newest step file whose checksums are
right. Nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import platform
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import onward
from onward.errors import CheckpointError, Diagnostic
from onward.storage import atomic as fsio
from onward.storage.checkpoints import (
    EXTRA,
    FORMAT,
    HINTS,
    MANIFEST,
    STEP_FILE,
    VERSION,
    Checkpoint,
    CheckpointReader,
    CheckpointWarning,
    manifest_text,
)
from onward.storage.tensor_file import can_store, tensor_file_chunks
from onward.train.stored_model import StoredModel

BEST = "best"
"""The directory, inside that of a run, with the checkpoint of its best epoch."""

K101 = "K101"
K104 = "K104"
K105 = "K105"
K106 = "K106"


class CheckpointDirectory(CheckpointReader):
    """Reads and writes the checkpoints of one run."""

    def __init__(self, directory: str | Path, keep: int = 3) -> None:
        super().__init__(directory)
        self.keep = max(keep, 1)
        self._lock = fsio.DirectoryLock(self.path)
        self._stored = ""  # the digest of the model known to be in the directory

    def load_model(self, checkpoint: Checkpoint) -> StoredModel:
        """Return the model the run was started with, verified."""
        return StoredModel.from_bytes(*self.model_content(checkpoint))

    # ------------------------------------------------------------------ writing

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the directory for this writer, and remove what killed writers left behind; may be nested."""
        if self._lock.held:
            yield
            return
        with self._reporting("the directory cannot be made ready"):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            try:
                fsio.remove_stale(self.path)
            except BaseException:
                self._lock.release()
                raise
        try:
            yield
        finally:
            self._lock.release()

    def check_owner(self, run: str) -> None:
        """Raise if the directory holds checkpoints of another run than `run`."""
        files = self.step_files()
        if not files:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckpointWarning)
            manifest = self._read_manifest()
            if manifest is not None:
                owner, step = manifest.get("run"), manifest.get("latest")
            else:
                try:
                    found = self.load()
                except CheckpointError:
                    return  # nothing usable to protect
                owner, step = found.data["run"], found.step
        if owner != run:
            raise CheckpointError(
                Diagnostic(
                    K105,
                    f"`{self.path}` already holds a run, at step {step}",
                    hint="resume it with Trainer.resume(...), or choose another directory",
                )
            )

    def save(self, step: int, tensors: Mapping[str, np.ndarray], data: Mapping[str, Any], model: StoredModel) -> Path:
        """Write one checkpoint and return its path. After the return it survives a power loss.

        Raises:
            CheckpointError: it could not be written; the earlier ones are untouched and no temporary file is left.
        """
        unstorable = [f"`{n}` ({a.dtype})" for n, a in tensors.items() if not can_store(np.asarray(a))]
        if unstorable:
            raise CheckpointError(
                Diagnostic(K101, "safetensors has no element type for " + ", ".join(unstorable), place=str(self.path))
            )
        path = self.path / f"step-{step:08d}.safetensors"
        with self.writing(), self._reporting("the checkpoint could not be written"):
            self.check_owner(str(data["run"]))
            stored = self._store_model(model)
            content = {**data, "format": FORMAT, "version": VERSION, "step": step, "model": stored}
            digest = _Digest(tensor_file_chunks(tensors, content))
            fsio.write_atomic(path, digest)
            self._write_manifest(path, digest, content)
            self._prune(step)
        return path

    def _store_model(self, model: StoredModel) -> dict[str, str]:
        path = self.path / model.file_name
        stored = {"file": model.file_name, "sha256": model.sha256}
        if self._stored != model.sha256 or not path.exists():
            if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != model.sha256:
                fsio.write_atomic(path, [model.content])
            self._stored = model.sha256
        return stored

    def _write_manifest(self, path: Path, digest: _Digest, content: Mapping[str, Any]) -> None:
        step = int(content["step"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckpointWarning)
            before = self._read_manifest() or {"checkpoints": []}
        entry = {"step": step, "file": path.name, "bytes": digest.size, "sha256": digest.hexdigest()}
        listed = [entry, *(c for c in before["checkpoints"] if c["step"] < step)][: self.keep]
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "run": content["run"],
            "latest": step,
            "checkpoints": listed,
            "model": content["model"],
            "backend": content.get("backend", {}),
            "written": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "onward": onward.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
        }
        fsio.write_atomic(self.path / MANIFEST, [manifest_text(manifest).encode("utf-8")])

    def _prune(self, step: int) -> None:
        """Keep the newest `keep` step files up to `step`. Later ones are damaged, or their steps are done again."""
        removed = False
        kept = 0
        for path in self.step_files():
            match = STEP_FILE.fullmatch(path.name)
            assert match is not None
            if int(match[1]) <= step and kept < self.keep:
                kept += 1
            else:
                fsio.remove(path)
                removed = True
        if removed:
            fsio.sync_directory(self.path)

    @contextlib.contextmanager
    def _reporting(self, what: str) -> Iterator[None]:
        try:
            yield
        except fsio.LockHeld as error:
            raise CheckpointError(
                Diagnostic(
                    K104, f"`{self.path}` is in use by {error.strerror}", hint="one trainer per directory at a time"
                )
            ) from error
        except OSError as error:
            raise CheckpointError(
                Diagnostic(
                    K101,
                    f"{what}: {error.strerror or error}",
                    place=str(error.filename or self.path),
                    needed="earlier checkpoints are untouched",
                    hint=HINTS.get(error.errno or 0, ""),
                )
            ) from error


def json_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that JSON can hold; others must be given again when resuming."""
    kept = {}
    for name, value in options.items():
        try:
            kept[name] = json.loads(json.dumps(value))
        except TypeError:
            continue
    return kept


def check_backend(stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise if anything that the exact results depend on has changed since the checkpoint; list all of it."""
    problems = []
    if stored["name"] != now["name"]:
        problems.append(("backend", stored["name"], now["name"]))
    keys = dict.fromkeys([*stored["describe"], *now["describe"]])
    problems += [
        (key, stored["describe"].get(key), now["describe"].get(key))
        for key in keys
        if stored["describe"].get(key) != now["describe"].get(key)
    ]
    if problems:
        raise CheckpointError(
            [
                Diagnostic(
                    K106,
                    f"{key} has changed since the checkpoint was written",
                    found=str(found),
                    needed=str(needed),
                    hint="the results may differ: use the same, or accept it with allow_changes=True",
                )
                for key, needed, found in problems
            ]
        )


class _Digest:
    """Yields chunks and computes their sha256 and size."""

    def __init__(self, chunks: Iterable[bytes | memoryview]) -> None:
        self._chunks = chunks
        self._sha256 = hashlib.sha256()
        self.size = 0

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for chunk in self._chunks:
            self._sha256.update(chunk)
            self.size += len(chunk)
            yield chunk

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()


__all__ = [
    "BEST",
    "EXTRA",
    "K105",
    "Checkpoint",
    "CheckpointDirectory",
    "CheckpointWarning",
    "check_backend",
    "json_options",
]
