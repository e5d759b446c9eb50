"""The library of native kernels: compiled by this machine's C compiler, tried in a process of its own, and cached.

Nothing is installed or downloaded. Without a C compiler, or where the library does not work, the plain graph runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx_ir as ir

from onward.backends.onnxruntime.native.factors import fit_tiles, need_turning
from onward.errors import BackendError, Diagnostic
from onward.runtime import cores, runtime_version, this_processor
from onward.storage.cache import Cache

B202 = "B202"
DOMAIN = "ai.onward.native"
PARTS = {
    "images": frozenset({"BatchNormalization", "Conv", "ConvTranspose", "MaxPool"}),
    "products": frozenset({"Gemm", "MatMul"}),
    "recurrences": frozenset({"GRU", "LSTM"}),
    "rows": frozenset({"LayerNormalization", "Relu", "Softmax", "SoftmaxCrossEntropyLoss"}),
}
"""The parts of the library: the operators of a step that each may replace, with their gradients."""
WHOLE = frozenset(PARTS)
CACHE = Cache("native", 64 << 20)
_ONLY_IN = {
    "images": (
        "convolution.c",
        "depthwise.c",
        "image_operators.c",
        "kernel_gradient.c",
        "normalization.c",
        "pooling.c",
    ),
    "products": ("product_operators.c", "products.c", "turn.c"),
    "recurrences": ("recurrent.c", "recurrent_operators.c"),
}
"""The files that only these parts need. Rows are in every library: they are behind layers of all kinds."""
_SECONDS = 120  # that the compiler, and the trial of its library, may take
_TRY_AGAIN = 24 * 3600  # seconds after which kernels that did not work are compiled again
_PASSES = ("No space left", "Killed", "annot allocate", "out of memory")  # what ends without a new compiler
_HERE = Path(__file__).parent
_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-pthread", "-ffp-contract=fast")
# The file itself, not the module: the packages around it take three times as long to import as what it needs.
_START = (
    "import runpy, sys; sys.path[:1] = filter(None, sys.path[:1]); main = runpy.run_path(sys.argv[1])['main']; "
    "path = sys.stdin.readline().rstrip('\\n'); main(path, sys.argv[2:]) if path else None"
)


def compiler() -> list[str] | None:
    """Return the command of this machine's C compiler: what `CC` says, or `cc`; None if there is none."""
    program, *options = os.environ.get("CC", "").split() or ["cc"]
    found = shutil.which(program)
    return None if found is None else [found, *options]


def parts_for(steps: Iterable[ir.Graph]) -> frozenset[str]:
    """Return the parts of the library that these steps may use: what others need is not compiled for them."""
    return frozenset({"rows", *_parts_used(list(steps))})


def _parts_used(steps: Sequence[ir.Graph]) -> set[str]:
    there = {node.op_type for graph in steps for node in graph}
    used = {part for part, subjects in PARTS.items() if not subjects.isdisjoint(there)}
    wanted = fit_tiles if _processor_has_tiles() else need_turning
    if not any(wanted(node) for graph in steps for node in graph if node.op_type in PARTS["products"]):
        used.discard("products")
    return used


@functools.cache
def _processor_has_tiles() -> bool:
    """Return whether this processor has a unit for tiles of bfloat16 (AMX), as Linux says."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\nflags")[2].partition("\n")[0].split()
    except OSError:
        return False
    return {"amx_tile", "amx_bf16", "avx512bw"} <= set(flags)


@functools.cache
def has_tiles(parts: frozenset[str]) -> bool:
    """Return whether the library with these parts multiplies matrices on tiles, in this process.

    The processor may have tiles that the operating system, or whoever started this process, does not let it use.
    """
    path = load(parts) if "products" in parts else None
    return path is not None and bool(ctypes.CDLL(path).onward_tiles())


@functools.cache
def load(parts: frozenset[str] = WHOLE) -> str | None:
    """Return the file of the library with these parts, for this process; None where there is none.

    Compiling takes a second or two, once for each machine, version of ONNX Runtime and choice of parts. That kernels
    do not work is remembered for a day.
    """
    if sys.platform == "win32" or compiler() is None:
        return None
    try:
        key = _key(parts)
        data = CACHE.read(key)
        return _kept(_fresh(parts, key) if data is None else data)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # RuntimeError: of a home that nobody has, too
        _reasons[parts] = str(error)
        text = f"the native kernels do not work here, so the plain graph runs: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return None


def pays(steps: Iterable[ir.Graph], *, asked: bool | None, on_cpu: bool) -> bool:
    """Return whether native kernels compute a part of these steps: not if `asked` is False.

    Raises:
        BackendError: they are asked for, and there are none here.
    """
    steps = list(steps)
    if asked is False or not _parts_used(steps):
        return False
    parts = parts_for(steps)
    if on_cpu and load(parts) is not None:
        return True
    if not asked:
        return False
    if on_cpu and compiler() is not None and _forget_failure(parts) and load(parts) is not None:
        return True
    out = "or leave `native` out: the plain graph trains too"
    raise BackendError(
        Diagnostic(
            B202,
            "native=True, but there are no native kernels here",
            found=_reasons.get(parts, "") if on_cpu else "other providers than the CPU",
            needed="a C compiler (`cc`, or the one that the environment variable CC names) on Linux or macOS, "
            "and no provider but the CPU",
            hint=f"install one (Debian: `apt-get install gcc`), {out}" if compiler() is None else f"mend that, {out}",
        )
    )


_reasons: dict[frozenset[str], str] = {}
"""Why the library with these parts did not work in this process."""


def _forget_failure(parts: frozenset[str]) -> bool:
    """Forget that an earlier start failed, as it may be mended; return whether one had."""
    name = f"{_key(parts)}.failed"
    if sys.platform == "win32" or CACHE.read(name) is None:
        return False
    CACHE.write(name, json.dumps({"at": 0, "reason": ""}).encode())
    load.cache_clear()
    return True


class _NotUsable(RuntimeError):
    """The library could not be made, or gives wrong results."""


@functools.cache
def version(parts: frozenset[str] = WHOLE) -> str:
    """Return a name for the kernels: with the same name they give the same bits on the same machine.

    It is of the library and not of its sources: another compiler may sum in another order.
    """
    path = load(parts)
    if path is None:
        return "none"
    name = f"native {hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]}"
    return f"{name} on tiles" if has_tiles(parts) else name


def _key(parts: frozenset[str]) -> str:
    cc = compiler()
    assert cc is not None
    sources = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(_HERE.glob("*.[ch]"))]
    known = [*sources, runtime_version(), this_processor(), *cc, _call([*cc, "--version"]).stdout, *_FLAGS]
    return hashlib.sha256("\n".join([*known, platform.platform(), *sorted(parts)]).encode()).hexdigest()


def _fresh(parts: frozenset[str], key: str) -> bytes:
    """Compile the library, try it out, and put it into the cache; keep there as well why it does not work."""
    failure = CACHE.read(f"{key}.failed")
    if failure is not None and 0 <= time.time() - (before := json.loads(failure))["at"] < _TRY_AGAIN:
        raise _NotUsable(
            f"{before['reason']} (an earlier start found this; it is tried again after a day, with native=True, or "
            f"once `{CACHE.folder / key}.failed` is gone)"
        )
    try:
        with tempfile.TemporaryDirectory(prefix="onward-") as folder, _trial(parts) as trial:
            path = Path(folder, "onward_kernels.so")
            data = _compile(path, parts)
            _try_out(path, trial)
    except (_NotUsable, subprocess.TimeoutExpired) as error:
        if not any(word in str(error) for word in _PASSES):
            CACHE.write(f"{key}.failed", json.dumps({"at": time.time(), "reason": str(error)}).encode())
        raise
    CACHE.write(key, data)
    return data


def _compile(path: Path, parts: frozenset[str] = WHOLE) -> bytes:
    """Compile the kernels into `path`, several files at a time, and return its bytes."""
    cc = compiler()
    assert cc is not None
    left_out = {file for part in WHOLE - parts for file in _ONLY_IN.get(part, ())}
    flags = [*_FLAGS, *(f"-DWITHOUT_{part.upper()}" for part in sorted(_ONLY_IN.keys() - parts))]
    sources = [source for source in sorted(_HERE.glob("*.c")) if source.name not in left_out]
    said = ""
    for machine in (["-march=native", "-mprefer-vector-width=512"], ["-march=native"], ["-mcpu=native"], []):
        objects = [str(path.with_name(f"{source.stem}.o")) for source in sources]
        commands = [[*cc, *flags, *machine, "-c", str(s), "-o", o] for s, o in zip(sources, objects, strict=True)]
        with ThreadPoolExecutor(cores()) as pool:
            done = list(pool.map(_call, commands))
        if not any(d.returncode for d in done):
            done = [_call([*cc, "-shared", "-pthread", *objects, "-o", str(path), "-lm"])]
        failed = next((d for d in done if d.returncode), None)
        if failed is None:
            return path.read_bytes()
        said = failed.stderr.strip()[-500:]
        if not any(word in failed.stderr for option in machine for word in option.lstrip("-").split("=")):
            break  # it is not about an option that this compiler does not have: without it, the kernels would be slower
    raise _NotUsable(f"`{' '.join(cc)}` could not compile them: {said}")


Trial = subprocess.Popen[str]


@contextlib.contextmanager
def _trial(parts: frozenset[str] = WHOLE) -> Iterator[Trial]:
    """Start the process that will try the library out: it imports what it needs while the library is compiled."""
    command = [sys.executable, "-c", _START, str(Path(__file__).with_name("trial.py")), *sorted(parts)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace") as process:
        try:
            yield process
        finally:
            process.kill()


def _try_out(path: Path, trial: Trial) -> None:
    """Run each kernel in a process of its own, beside ONNX Runtime's operators: a crash must not be one of ours."""
    _, said = trial.communicate(f"{path}\n", timeout=_SECONDS)
    if trial.returncode != 0:
        killed = " (Killed)" if trial.returncode == -signal.SIGKILL else ""
        raise _NotUsable(f"the trial ended with code {trial.returncode}{killed}: {said.strip()[-500:]}")


def _call(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)


_kept_until_the_end: list[tuple[tempfile.TemporaryDirectory[str], ctypes.CDLL]] = []


def _kept(data: bytes) -> str:
    """Return a new file with the library: every session opens it again, so it stays until the process ends.

    It is open from now on, so that a session that ends does not take it from the others.
    """
    folder = tempfile.TemporaryDirectory(prefix="onward-")
    path = Path(folder.name, "onward_kernels.so")
    path.write_bytes(data)
    _kept_until_the_end.append((folder, ctypes.CDLL(str(path))))
    return str(path)
