"""onnxruntime-web, which runs the graphs in the browser: fetched by npm, or taken from a folder of node_modules."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from onward.errors import BackendError, Diagnostic

B400 = "B400"

VERSION = "1.30.0"
MODULE, WASM = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
_SECONDS = 300


@dataclasses.dataclass(frozen=True)
class Runtime:
    """The files of onnxruntime-web that a site needs."""

    version: str
    module: bytes
    wasm: bytes

    def files(self) -> dict[str, bytes]:
        """Return name -> content, with the license of ONNX Runtime."""
        return {f"ort/{MODULE}": self.module, f"ort/{WASM}": self.wasm, "ort/LICENSE.txt": _license(self.version)}


def fetch_runtime(version: str = VERSION) -> Runtime:
    """Return onnxruntime-web from npm; what npm has in its cache is not downloaded again.

    Raises:
        BackendError: npm is not installed, or cannot get it.
    """
    npm = shutil.which("npm")
    other = "pass the folder of an installed package: --runtime node_modules/onnxruntime-web"
    if npm is None:
        why, hint = (
            "npm is needed to get onnxruntime-web, and it is not installed",
            f"install Node.js with npm, or {other}",
        )
        raise BackendError(Diagnostic(B400, why, hint=hint))
    name = f"onnxruntime-web@{version}"
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", name, "--ignore-scripts", "--prefer-offline", "--silent", "--pack-destination", folder]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS)
            said = done.stderr.strip() or done.stdout.strip()
        except subprocess.TimeoutExpired:
            done, said = None, f"no answer within {_SECONDS} s"
        packed = next(Path(folder).glob("*.tgz"), None)
        if done is None or done.returncode or packed is None:
            raise BackendError(
                Diagnostic(
                    B400,
                    f"npm could not get {name}",
                    found=said[-300:] or "no file",
                    hint=f"is the machine online? Otherwise {other}",
                )
            )
        with tarfile.open(packed) as archive:
            found = {}
            for wanted in ("package.json", f"dist/{MODULE}", f"dist/{WASM}"):
                file = archive.extractfile(f"package/{wanted}") if f"package/{wanted}" in archive.getnames() else None
                found[wanted] = b"" if file is None else file.read()
    return _runtime(name, found)


def read_runtime(folder: Path) -> Runtime:
    """Return the onnxruntime-web in a folder, such as node_modules/onnxruntime-web.

    Raises:
        BackendError: it is not there, or not whole.
    """
    found = {}
    for wanted in ("package.json", f"dist/{MODULE}", f"dist/{WASM}"):
        path = folder / wanted
        found[wanted] = path.read_bytes() if path.is_file() else b""
    return _runtime(f"`{folder}`", found)


def _runtime(place: str, found: dict[str, bytes]) -> Runtime:
    missing = [name for name, content in found.items() if not content]
    try:
        about = json.loads(found["package.json"] or b"{}")
    except ValueError:
        about = {}
    if missing or about.get("name") != "onnxruntime-web":
        raise BackendError(
            Diagnostic(
                B400,
                f"{place} is not the npm package onnxruntime-web",
                found=f"no {', '.join(missing)}" if missing else f"the package `{about.get('name')}`",
                needed=f"onnxruntime-web {VERSION}, or another version with {MODULE}",
            )
        )
    return Runtime(str(about["version"]), found[f"dist/{MODULE}"], found[f"dist/{WASM}"])


def _license(version: str) -> bytes:
    """Return the license of ONNX Runtime and the notices of what it contains, as its Python package has them."""
    package = importlib.metadata.distribution("onnxruntime")
    texts = [f"onnxruntime-web {version}, built from ONNX Runtime: https://github.com/microsoft/onnxruntime\n".encode()]
    for name in ("LICENSE", "ThirdPartyNotices.txt"):
        path = Path(str(package.locate_file(f"onnxruntime/{name}")))
        texts.append(path.read_bytes() if path.is_file() else b"MIT License. Copyright (c) Microsoft Corporation.\n")
    return b"\n".join(texts)
