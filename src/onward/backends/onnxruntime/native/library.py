"""The library of native kernels: compiled by this machine's C compiler, tried in a process of its own, and cached.

Nothing is installed or downloaded. Without a C compiler, or where the library does not work, the plain graph runs.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx_ir as ir

from onward.errors import BackendError, Diagnostic
from onward.runtime import cores, runtime_version, this_processor
from onward.storage.cache import Cache

B202 = "B202"
DOMAIN = "ai.onward.native"
SUBJECTS = frozenset(
    {
        "BatchNormalization",
        "Conv",
        "ConvTranspose",
        "GRU",
        "LSTM",
        "LayerNormalization",
        "MaxPool",
        "Relu",
        "Softmax",
        "SoftmaxCrossEntropyLoss",
    }
)
"""The operators of a step that native kernels may replace, with their gradients."""
CACHE = Cache("native", 64 << 20)
_SECONDS = 120  # that the compiler, and the trial of its library, may take
_HERE = Path(__file__).parent
_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-pthread", "-ffp-contract=fast")
# The file itself, not the module: the packages around it take three times as long to import as what it needs.
_START = (
    "import runpy, sys; sys.path[:1] = filter(None, sys.path[:1]); runpy.run_path(sys.argv[1])['main'](sys.argv[2])"
)


def compiler() -> list[str] | None:
    """Return the command of this machine's C compiler: what `CC` says, or `cc`; None if there is none."""
    program, *options = os.environ.get("CC", "").split() or ["cc"]
    found = shutil.which(program)
    return None if found is None else [found, *options]


@functools.cache
def load() -> str | None:
    """Return the file of the library, for this process; None where there is none.

    Compiling takes some seconds, once for each machine and version of ONNX Runtime.
    """
    if sys.platform == "win32" or compiler() is None:
        return None
    try:
        data = CACHE.read(_key())
        return _kept(_fresh() if data is None else data)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # RuntimeError: of a home that nobody has, too
        text = f"the native kernels do not work here, so the plain graph runs: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return None


def pays(steps: Iterable[ir.Graph], *, asked: bool | None, on_cpu: bool) -> bool:
    """Return whether native kernels compute a part of these steps: not if `asked` is False.

    Raises:
        BackendError: they are asked for, and there are none here.
    """
    if asked is False or not any(node.op_type in SUBJECTS for graph in steps for node in graph):
        return False
    if on_cpu and load() is not None:
        return True
    if asked:
        raise BackendError(
            Diagnostic(
                B202,
                "native=True, but there are no native kernels here",
                needed="a C compiler (`cc`, or the one that the environment variable CC names) on Linux or macOS, "
                "and no provider but the CPU",
                hint="install one (Debian: `apt-get install gcc`), or leave `native` out: the plain graph trains too",
            )
        )
    return False


class _NotUsable(RuntimeError):
    """The library could not be made, or gives wrong results."""


@functools.cache
def version() -> str:
    """Return a name for the kernels: with the same name they give the same bits on the same machine.

    It is of the library and not of its sources: another compiler may sum in another order.
    """
    path = load()
    return "none" if path is None else f"native {hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]}"


def _key() -> str:
    cc = compiler()
    assert cc is not None
    sources = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(_HERE.glob("*.[ch]"))]
    parts = [*sources, runtime_version(), this_processor(), *cc, _call([*cc, "--version"]).stdout, *_FLAGS]
    return hashlib.sha256("\n".join([*parts, platform.platform()]).encode()).hexdigest()


def _fresh() -> bytes:
    """Compile the library, try it out, and put it into the cache."""
    with tempfile.TemporaryDirectory(prefix="onward-") as folder:
        path = Path(folder, "onward_kernels.so")
        data = _compile(path)
        _try_out(path)
    CACHE.write(_key(), data)
    return data


def _compile(path: Path) -> bytes:
    """Compile the kernels into `path`, several files at a time, and return its bytes."""
    cc = compiler()
    assert cc is not None
    sources = sorted(_HERE.glob("*.c"))
    said = ""
    for machine in (["-march=native", "-mprefer-vector-width=512"], ["-march=native"], ["-mcpu=native"], []):
        objects = [str(path.with_name(f"{source.stem}.o")) for source in sources]
        commands = [[*cc, *_FLAGS, *machine, "-c", str(s), "-o", o] for s, o in zip(sources, objects, strict=True)]
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


def _try_out(path: Path) -> None:
    """Run each kernel in a process of its own, beside ONNX Runtime's operators: a crash must not be one of ours."""
    done = _call([sys.executable, "-c", _START, str(Path(__file__).with_name("trial.py")), str(path)])
    if done.returncode != 0:
        raise _NotUsable(f"the trial ended with code {done.returncode}: {done.stderr.strip()[-500:]}")


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
