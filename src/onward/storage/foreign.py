"""Refuse to write into a directory with files of somebody else."""

from __future__ import annotations

from pathlib import Path

from onward.errors import Diagnostic, ModelError
from onward.storage.atomic import TEMP_PREFIX

_SHOWN = 8


def refuse_files(directory: Path, code: str, kind: str) -> None:
    """Raise if a directory without a `kind` of ours, such as a program, holds files, which would be overwritten."""
    found = sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith(TEMP_PREFIX))
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise ModelError(
            Diagnostic(
                code,
                f"`{directory}` contains files that are not a {kind}",
                found=", ".join(found[:_SHOWN]) + more,
                needed=f"a new or empty directory, or one with a {kind} to replace",
            )
        )
