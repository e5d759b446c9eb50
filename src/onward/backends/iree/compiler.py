"""IREE's compiler in a process of its own: it may crash, run for hours or take all memory, and the trainer lives."""

from __future__ import annotations

import dataclasses
import errno
import functools
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import onnx

from onward.backends.iree import child
from onward.backends.iree.doubles import write_out_doubles
from onward.backends.iree.products import write_out_convolutions
from onward.backends.iree.sums import write_out_sums
from onward.backends.iree.targets import Target
from onward.errors import BackendError, Diagnostic
from onward.model.serde import serialize
from onward.runtime import this_processor
from onward.storage.cache import Cache

B500 = "B500"
B502 = "B502"
B503 = "B503"

FUNCTION = "run"
"""The name of the function in every module."""
CACHE = Cache("iree", 2 << 30)
"""Binaries, so that a graph is compiled once on a machine and not at every start."""

_START = "import sys, runpy; sys.path[:1] = filter(None, sys.path[:1]); sys.argv[:1] = []; runpy.run_path(sys.argv[0], run_name='__main__')"  # noqa: E501
_OPERATOR = re.compile(r'"onnx\.([A-Z]\w*)"')
_ILLEGAL = "failed to legalize operation 'torch.operator'"
_NO_FUNCTION = re.compile(r"undefined symbol: (\w+)|failed to legalize operation 'math\.(\w+)'")
_NO_WHOLE_BYTES = re.compile(r"'(tensor<[^']*>)' does not have integral number of total bytes")
_NO_MEMORY = re.compile(r"(?i)out of memory|bad_alloc|MemoryError|memory allocation|cannot allocate|failed to map")
_NO_ROOM = "No space left on device"
_LITTLE_ROOM = 1 << 20
_SHOWN = 400


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a compilation may take."""

    seconds: float = 900.0
    gigabytes: float = 8.0


@dataclasses.dataclass(frozen=True)
class Binary:
    """A compiled graph."""

    code: bytes
    """The module: bytecode and machine code; of a library, C."""
    scratch: int
    """The bytes of intermediate values, beside inputs and outputs."""
    seconds: float = 0.0
    parts: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    """Of a library: `.o` and `.h`."""


@functools.cache
def version() -> str:
    """Return the version of IREE's compiler."""
    import iree.compiler.version

    return str(iree.compiler.version.VERSION)


def compile_cached(model: onnx.ModelProto, name: str, place: str, target: Target, limits: Limits) -> Binary:
    """Return the binary of a model with known sizes: the one on disk for the same graph, flags, version and processor.

    Raises:
        BackendError: as `compile_model`.
    """
    model = _written_out(model, target)
    text = "\0".join((name, *target.flags, version(), this_processor() if target.here else target.name))
    key = hashlib.sha256(text.encode() + b"\0" + serialize(model)).hexdigest()
    found = None if target.library else CACHE.read(key)
    if found is not None:
        size = int.from_bytes(found[:8], "little")
        return Binary(found[8:], size)
    made = compile_model(model, name, place, target, limits)
    if not target.library:
        CACHE.write(key, made.scratch.to_bytes(8, "little") + made.code)
    return made


def compile_model(model: onnx.ModelProto, name: str, place: str, target: Target, limits: Limits) -> Binary:
    """Return the binary of a model with known sizes, as the module `name`; messages call the model `place`.

    Raises:
        BackendError: the compiler refuses it, crashes, or needs more time or memory than the limits.
    """
    from iree.compiler.tools.binaries import find_tool

    named = onnx.ModelProto()
    named.CopyFrom(_written_out(model, target))
    named.graph.name = FUNCTION
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="onward-iree-") as folder:
        files = {part: str(Path(folder) / f"{name}{part}") for part in (".onnx", ".mlir", ".json", ".o", ".h", ".vmfb")}
        try:
            Path(files[".onnx"]).write_bytes(serialize(named))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise BackendError(_no_room(Path(folder).parent, place)) from error
        flags = [
            *target.flags,
            "--iree-scheduling-dump-statistics-format=json",
            f"--iree-scheduling-dump-statistics-file={files['.json']}",
            *([f"--iree-llvmcpu-static-library-output-path={files['.o']}"] if target.library else []),
        ]
        limit = str(int(limits.gigabytes * 2**30))
        compiler = [find_tool("iree-compile"), files[".mlir"], *flags, "-o", files[".vmfb"]]
        start = [sys.executable, "-c", _START, str(child.__file__), files[".onnx"], name, limit, files[".mlir"]]
        _run([*start, *compiler], place, limits, Path(files[".mlir"]))
        made = [part for part in (".o", ".h") if Path(files[part]).exists()]  # none where there is nothing to compute
        parts = {part: Path(files[part]).read_bytes() for part in made}
        told = json.loads(Path(files[".json"]).read_text())
        scratch = int(told["stream-aggregate"]["execution"]["transient-memory-size"])
        code = Path(files[".vmfb"]).read_bytes()
    return Binary(code, scratch, time.perf_counter() - started, parts)


def _written_out(model: onnx.ModelProto, target: Target) -> onnx.ModelProto:
    """Return a model as it is compiled: what IREE lacks, or compiles to slow or inexact code, in other operators."""
    return write_out_doubles(write_out_sums(write_out_convolutions(model) if target.is_processor else model))


def _run(command: list[str], place: str, limits: Limits, source: Path) -> None:
    """Run the child; raise what it says, in our words. `source` is the text that it compiles."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=limits.seconds)
    except subprocess.TimeoutExpired as error:
        raise BackendError(
            Diagnostic(
                B502,
                f"IREE's compiler did not finish within {limits.seconds:g} seconds",
                place=place,
                hint="raise the limit `seconds`, or take a smaller model; another backend needs no compiler",
            )
        ) from error
    finally:
        if process.poll() is None:
            _end(process)
    if process.returncode:
        full = _full_folder(said, source.parent)
        if full is not None:
            raise BackendError(_no_room(full, place))
        operator = _blamed(said, source)
        where = f"{place}, at the operator `{operator}`" if operator else place
        raise BackendError(_problem(process.returncode, said, where, limits, operator))


def _full_folder(said: str, folder: Path) -> Path | None:
    """Return the folder of temporary files that has no room left; the compiler's linker does not say so itself."""
    for each in (folder, Path(os.environ.get("TMPDIR") or folder)):
        if each.exists() and shutil.disk_usage(each).free < _LITTLE_ROOM:
            return each if each != folder else folder.parent
    return folder.parent if _NO_ROOM in said else None


def _no_room(folder: Path, place: str) -> Diagnostic:
    return Diagnostic(
        B500,
        f"the disk is full: IREE's compiler writes temporary files in {folder}",
        place=place,
        hint="free some space there, or name another folder in the environment variable TMPDIR",
    )


def _blamed(said: str, source: Path) -> str:
    """Return the operator in the line of `source` that the compiler blames first; empty if there is none."""
    place = re.search(re.escape(source.name) + r":(\d+):\d+: error:", said)
    if place is None or not source.exists():
        return ""
    lines = source.read_text(encoding="utf-8", errors="replace").splitlines()
    number = int(place[1]) - 1
    found = _OPERATOR.search(lines[number]) if number < len(lines) else None
    return found[1] if found else ""


def _end(process: subprocess.Popen[str]) -> None:
    """End the child and what it started."""
    if sys.platform == "win32":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)  # its session is its own
    process.communicate()


def _problem(code: int, said: str, place: str, limits: Limits, operator: str = "") -> Diagnostic:
    errors = [line.partition("error:")[2].strip() for line in said.splitlines() if "error:" in line]
    if _NO_MEMORY.search(said):
        return Diagnostic(
            B502,
            f"IREE's compiler needs more than {limits.gigabytes:g} GB of memory",
            place=place,
            hint="raise the limit `gigabytes`, or take a smaller model; another backend needs no compiler",
        )
    if _ILLEGAL in said:
        names = sorted(
            {m for line in said.splitlines() if _ILLEGAL in line or "note:" in line for m in _OPERATOR.findall(line)}
        )
        return unsupported(names or ["?"], place)
    narrow = _NO_WHOLE_BYTES.search(said)
    if narrow:
        return Diagnostic(
            B503,
            f"IREE {version()} has no tensors that end within a byte: `{narrow[1]}`",
            place=place,
            hint=f"take an even number of elements, or {_OTHERWISE}",
        )
    function = _NO_FUNCTION.search(said)
    if function:
        return Diagnostic(
            B503,
            f"IREE {version()} has no `{function[1] or function[2]}` for the element type, probably float64, in which "
            "the graph computes it",
            place=place,
            hint=f"compute it in float32, or {_OTHERWISE}",
        )
    if "failed to legalize operation" in said and operator:
        return unsupported([operator], place)
    if code == child.IMPORT_FAILED:
        return Diagnostic(
            B500, f"IREE's importer refuses the graph: {said.strip()[-_SHOWN:]}", place=place, hint=_OTHERWISE
        )
    if code < 0 or code >= 128 or "PLEASE submit a bug report" in said:
        return Diagnostic(
            B500,
            f"IREE's compiler crashed ({_signal(code)})",
            place=place,
            found=(errors or [line for line in said.strip().splitlines()[:3] if line] or ["no message"])[0][:_SHOWN],
            hint=f"{_OTHERWISE}; it had {limits.gigabytes:g} GB of memory (the limit `gigabytes`)",
        )
    first = errors[0] if errors else said.strip()[-_SHOWN:] or f"exit code {code}"
    return Diagnostic(B500, f"IREE cannot compile the graph: {first[:_SHOWN]}", place=place, hint=_OTHERWISE)


_OTHERWISE = "use another backend for this model: onnxruntime, torch or jax"


def unsupported(operators: list[str], place: str) -> Diagnostic:
    """Return the problem that IREE does not compile some operators."""
    return Diagnostic(
        B503,
        f"IREE {version()} does not compile {', '.join(f'`{o}`' for o in operators)} as the graph uses it",
        place=place,
        hint=_OTHERWISE,
    )


def _signal(code: int) -> str:
    number = -code if code < 0 else code - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"exit code {code}"
