"""Read the checkpoints of a run: the newest complete one, verified bit by bit. `train/checkpoint.py` writes them.

`is_run` says whether a path is a directory of checkpoints. Such a directory is a model wherever a model is taken
(`model/checkpointed.py`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onward.errors import CheckpointError, Diagnostic
from onward.storage.tensor_file import Damaged, read_tensor_file

K100 = "K100"
K102 = "K102"
K103 = "K103"
K107 = "K107"

FORMAT = "onward-checkpoint"
VERSION = 1
MANIFEST = "manifest.json"
EXTRA = "onward/"
"""The prefix of tensors of a checkpoint that belong to the run and not to the state of the model."""
_REQUIRED = ("run", "step", "steps", "backend", "model")
STEP_FILE = re.compile(r"step-(\d{8,})\.safetensors")


def is_run(path: str | os.PathLike[str]) -> bool:
    """Return whether `path` is a directory with checkpoints, damaged ones included."""
    try:
        return bool(CheckpointReader(path).step_files())
    except (OSError, ValueError):  # ValueError: a zero byte in the path
        return False


class CheckpointWarning(UserWarning):
    """A checkpoint was damaged and an older one is used instead."""


class Checkpoint:
    """One checkpoint as read from disk: `tensors` by name and JSON `data`; `path` is its step file."""

    def __init__(self, path: Path, tensors: dict[str, np.ndarray], data: dict[str, Any]) -> None:
        self.path, self.tensors, self.data = path, tensors, data

    @property
    def step(self) -> int:
        """The number of training steps behind it."""
        return int(self.data["step"])

    @property
    def run_state(self) -> dict[str, Any] | None:
        """What the run stored about itself; None for a checkpoint that was saved outside of `fit`."""
        return self.data.get("run_state")

    @property
    def state(self) -> dict[str, np.ndarray]:
        """The state of the model."""
        return {name: array for name, array in self.tensors.items() if not name.startswith(EXTRA)}

    @property
    def run_arrays(self) -> dict[str, np.ndarray]:
        """The arrays that belong to the run."""
        return {name[len(EXTRA) :]: array for name, array in self.tensors.items() if name.startswith(EXTRA)}


class CheckpointReader:
    """Reads the checkpoints of one run."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory)

    def step_files(self) -> list[Path]:
        """Return the step files, newest first."""
        if not self.path.is_dir():
            return []
        found = [(int(m[1]), p) for p in self.path.iterdir() if (m := STEP_FILE.fullmatch(p.name))]
        return [p for _, p in sorted(found, reverse=True)]

    def load(self) -> Checkpoint:
        """Return the newest complete checkpoint; damaged ones are skipped with a `CheckpointWarning`.

        Raises:
            CheckpointError: there is none; the message says what is wrong with each file.
        """
        problems: list[Diagnostic] = []
        with reading(self.path):
            files = self.step_files()
            self._read_manifest()
        for path in files:
            try:
                with reading(path):
                    tensors, data = read_tensor_file(path)
            except FileNotFoundError:  # pruned by the writer in the meantime
                continue
            except Damaged as damage:
                problems.append(
                    Diagnostic(K102, f"checkpoint `{path.name}` is damaged: {damage}", place=str(self.path))
                )
                continue
            if data.get("format") != FORMAT or data.get("version") != VERSION:
                problems.append(
                    Diagnostic(
                        K102,
                        f"`{path.name}` is not a checkpoint this version reads",
                        place=str(self.path),
                        found=f"{data.get('format')} version {data.get('version')}",
                        needed=f"{FORMAT} version {VERSION}",
                    )
                )
                continue
            missing = [key for key in _REQUIRED if key not in data]
            if missing:
                problems.append(Diagnostic(K102, f"`{path.name}` lacks {', '.join(missing)}", place=str(self.path)))
                continue
            for problem in problems:
                warnings.warn(f"{problem.message}; `{path.name}` is used instead", CheckpointWarning, stacklevel=3)
            return Checkpoint(path, tensors, data)
        raise CheckpointError(
            [
                Diagnostic(
                    K100,
                    f"no usable checkpoint in `{self.path}`",
                    found=f"{len(files)} step files, {len(problems)} damaged"
                    if self.path.is_dir()
                    else "no such directory",
                    needed="at least one complete step-….safetensors",
                ),
                *problems,
            ]
        )

    def model_content(self, checkpoint: Checkpoint) -> tuple[str, bytes]:
        """Return the file name and the verified bytes of the model that the run was started with."""
        described = checkpoint.data["model"]
        path = self.path / Path(described["file"]).name
        try:
            content = path.read_bytes()
        except OSError as error:
            problem = f"cannot be read: {error.strerror or error}"
        else:
            if hashlib.sha256(content).hexdigest() == described["sha256"]:
                return path.name, content
            problem = "is damaged: the checksum does not match"
        raise CheckpointError(
            Diagnostic(
                K103,
                f"the model of the run, `{path.name}`, {problem}",
                place=str(self.path),
                hint="pass the model the run was started with: Trainer.resume(directory, model=…)",
            )
        )

    def _read_manifest(self) -> dict[str, Any] | None:
        """Return the manifest; None when it is missing or, with a warning, damaged. The step files do not need it."""
        try:
            text = (self.path / MANIFEST).read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            warnings.warn(f"`{MANIFEST}` cannot be read ({error}); the step files are used", CheckpointWarning, 3)
            return None
        try:
            manifest = json.loads(text)
            if text == manifest_text(manifest):
                return dict(manifest)
        except (ValueError, TypeError, KeyError, AttributeError):
            pass  # not JSON, or not ours: the same finding as a wrong checksum
        warnings.warn(f"`{MANIFEST}` is damaged; the step files are used", CheckpointWarning, stacklevel=3)
        return None


HINTS = {
    errno.ENOSPC: "free space on the disk, then resume",
    errno.EDQUOT: "the quota of this user is used up",
    errno.EFBIG: "the file would be larger than the system allows",
    errno.EROFS: "the file system is mounted read-only",
    errno.EACCES: "this user may not write here",
    errno.EPERM: "this user may not write here",
    errno.EIO: "the disk reports a fault: copy its files to another disk",
    errno.EEXIST: "there is a file of that name where the directory should be",
    errno.ENOTDIR: "a part of the path is a file, not a directory",
}


def manifest_text(manifest: Mapping[str, Any]) -> str:
    """Return the exact text of the manifest, its own checksum included."""
    body = {key: value for key, value in manifest.items() if key != "sha256"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    body["sha256"] = hashlib.sha256(text.encode("utf-8")).hexdigest()
    return json.dumps(body, indent=2) + "\n"


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CheckpointError(
            Diagnostic(
                K107,
                f"cannot read `{path}`: {error.strerror or error}",
                hint=HINTS.get(error.errno or 0, "").replace("write here", "read here"),
            )
        ) from error
