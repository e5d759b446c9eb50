"""Ask ONNX Runtime: whether it loads and runs a file, what a model gives, and how long a run takes.

A file may take a process down, so that the first question has a process of its own. That process calls `main` with FILE
and perhaps `run`, and prints JSON. It imports nothing from the folder in which the user stands, as `python -m` would:
files of strangers may lie there.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

# What free dimensions are tried with, after the first axis, which is 1: many networks halve their input several times.
SIZES = (1, 2, 8, 16, 32, 48, 64, 96, 128, 224, 256, 320, 512, 640, 1024, 16000)
_START = "import sys; sys.path[:1] = filter(None, sys.path[:1]); from onward.runtime import main; main()"
_MOST = 2**24  # numbers in one made-up input


@dataclasses.dataclass(frozen=True)
class Runtime:
    """What ONNX Runtime said of a file."""

    version: str
    loads: bool
    runs: bool
    reason: str = ""
    inputs: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    """The shapes of the made-up inputs with which it ran."""


def ask(path: str, *, run: bool = True, seconds: float = 120) -> Runtime:
    """Return what ONNX Runtime says of the file: whether it loads, and with `run`, whether it runs with some input."""
    command = [sys.executable, "-c", _START, path, *(["run"] if run else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return Runtime("", False, False, f"no answer within {seconds:.0f} seconds")
    if done.returncode != 0 or not done.stdout.strip():
        return Runtime("", False, False, f"its process ended with code {done.returncode}: {done.stderr.strip()[-300:]}")
    return Runtime(**json.loads(done.stdout.strip().splitlines()[-1]))


@functools.cache
def integer_products_saturate() -> bool:
    """Return whether ONNX Runtime adds products of uint8 and int8 in 16 bits on this processor, so that they overflow.

    It does so on x86 without VNNI instructions, silently: the same file gives other numbers there. Weights that fit
    into 7 bits are safe, and so are weights of uint8.
    """
    import onnxruntime
    from onnx import numpy_helper, parser

    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (uint8[1, 64] x) => (int32[1, 16] y) { y = MatMulInteger(x, w) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(np.full((64, 16), 127, np.int8), "w"))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": np.full((1, 64), 255, np.uint8)})
    return bool((np.asarray(y) != 255 * 127 * 64).any())


def _try(path: str, run: bool) -> Runtime:
    import onnxruntime

    version = onnxruntime.__version__
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001  # its exceptions have no common base
        return Runtime(version, False, False, str(error).strip())
    if not run:
        return Runtime(version, True, False)
    inputs = session.get_inputs()
    if any(_numpy_type(spec) is None for spec in inputs):
        return Runtime(version, True, False, "it takes inputs that are not tensors")
    batch = {spec.shape[0] for spec in inputs if len(spec.shape) > 1}
    reason, tried = "", set[str]()
    for size in SIZES:
        shapes = {spec.name: _shape(spec, batch, size) for spec in inputs}
        if str(shapes) in tried or (tried and max(map(math.prod, shapes.values())) > _MOST):
            continue
        tried.add(str(shapes))
        try:
            feeds = {spec.name: _made_up(spec, shapes[spec.name]) for spec in inputs}
            session.run(None, feeds)
        except Exception as error:  # noqa: BLE001  # as above
            reason = reason or str(error).strip()
        else:
            return Runtime(version, True, True, inputs=shapes)
    return Runtime(version, True, False, reason)


_TYPES = {
    "float": "float32", "double": "float64", "float16": "float16", "bool": "bool", "string": "object",
    "int8": "int8", "uint8": "uint8", "int16": "int16", "uint16": "uint16", "int32": "int32", "uint32": "uint32",
    "int64": "int64", "uint64": "uint64",
}  # fmt: skip


def _numpy_type(spec: Any) -> str | None:
    """Return the numpy type of an input, or None if it is not a tensor that numpy has."""
    return _TYPES.get(spec.type.removeprefix("tensor(").removesuffix(")")) if spec.type.startswith("tensor(") else None


def _shape(spec: Any, batch: set[Any], size: int) -> list[int]:
    """Return a shape for one input: batches of 1, and `size` for the other free dimensions."""
    return [d if isinstance(d, int) and d >= 0 else 1 if d in batch else size for d in spec.shape]


def _made_up(spec: Any, shape: list[int]) -> np.ndarray:
    """Return made-up numbers for one input."""
    kind = _numpy_type(spec)
    if kind == "object":
        return np.full(shape, "a", dtype=object)
    if np.dtype(kind).kind == "f":
        return np.asarray(np.random.default_rng(0).random(shape), dtype=kind)
    return np.ones(shape, dtype=kind)


def evaluate(
    model: bytes, feeds: Iterable[Mapping[str, np.ndarray]], *, threads: int = 0
) -> Iterator[list[np.ndarray]]:
    """Yield the outputs of a model that loads, for each of the feeds, in this process.

    With another number of `threads` the last digits may differ; 0 takes one for each core.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    for feed in feeds:
        yield session.run(None, dict(feed))


class Timed:
    """A model in ONNX Runtime with its inputs in place, to be run again and again.

    `sizes` fixes free dimensions by name, as a training step does for its usual batch. The threads do not go on
    spinning after a run, so that several of these can be timed in turn.
    """

    def __init__(
        self, model: bytes, feeds: Mapping[str, np.ndarray], *, threads: int, sizes: Mapping[str, int]
    ) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.enable_mem_pattern = False
        options.add_session_config_entry("session.force_spinning_stop", "1")
        for name, size in sizes.items():
            options.add_free_dimension_override_by_name(name, size)
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(a)) for n, a in feeds.items()}
        self._binding = self._session.io_binding()
        for value in self._session.get_inputs():
            self._binding.bind_ortvalue_input(value.name, self._values[value.name])
        for value in self._session.get_outputs():
            self._binding.bind_output(value.name)

    def run(self) -> tuple[float, float]:
        """Run the model once; return the seconds that it took, and those that the cores worked on it."""
        began, worked = time.perf_counter(), time.process_time()
        self._session.run_with_iobinding(self._binding)
        return time.perf_counter() - began, time.process_time() - worked

    def outputs(self) -> dict[str, np.ndarray]:
        """Return the outputs of the last run by name."""
        names = [value.name for value in self._session.get_outputs()]
        return {n: v.numpy() for n, v in zip(names, self._binding.get_outputs(), strict=True)}


class BusyWatch:
    """Watches how much of the processor others use from now on."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = time.perf_counter(), _busy_seconds(), time.process_time()

    def others(self) -> float:
        """Return the share of all cores that other processes have used; 0 where that is not known."""
        now, elapsed = _busy_seconds(), time.perf_counter() - self._began
        if now is None or self._busy is None or not elapsed:
            return 0.0
        own = time.process_time() - self._own
        return max(0.0, (now - self._busy - own) / elapsed / (os.cpu_count() or 1))


def _busy_seconds() -> float | None:
    """Return for how many seconds the cores were busy, or taken by another machine; None where that is unknown."""
    try:
        told = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    except (OSError, IndexError):
        return None
    user, nice, system, _, _, interrupts, soft, stolen = map(int, told)
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")


def runtime_version() -> str:
    """Return the version of ONNX Runtime."""
    import onnxruntime

    return str(onnxruntime.__version__)


def cores() -> int:
    """Return how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def this_processor() -> str:
    """Return a name for the processor of this machine: what is compiled or measured for it holds for the same name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    features = told.get("flags") or told.get("Features") or platform.processor()
    digest = hashlib.sha256(features.encode()).hexdigest()[:12]
    return f"{platform.machine()} {told.get('model name') or platform.processor() or 'unknown'} {digest}"


def main() -> None:
    """Print what ONNX Runtime says of the file that the command line names."""
    print(json.dumps(dataclasses.asdict(_try(sys.argv[1], sys.argv[2:] == ["run"]))))
