"""Run tests in worker processes that may crash, hang, leak or print rubbish: each is one failure, the rest goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onward.scoreboard.tests import BoardTest

WORKER = Path(__file__).with_name("worker.py")
STARTUP = 180.0  # seconds that a backend has to be imported
GIVE_UP = 25  # crashes and hangs in a row, without one answer between them
GROWTH = 1 << 30  # bytes that a worker may keep over its tests; then a new one takes its place
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one test went: "passed", "failed" or "skipped", why, and in how many seconds."""

    status: str
    message: str = ""
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A backend on the board: its name there, the module or file, and the Python that runs it."""

    name: str
    backend: str
    python: str = sys.executable


class Lost(Exception):
    """A worker has to be replaced; the message is that of the failure."""


class Broken(Exception):
    """A backend cannot be used at all."""


class Worker:
    """One worker process. `ask` runs a test in it; it is not thread safe."""

    def __init__(self, contestant: Contestant, folders: Sequence[str], memory: int) -> None:
        self._memory = memory
        self.said = b""  # the end of what the backend wrote to stderr
        self._process = subprocess.Popen(
            [contestant.python, str(WORKER), contestant.backend, *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(contestant),
            start_new_session=True,
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._threads = [threading.Thread(target=f, daemon=True) for f in (self._read_answers, self._read_rubbish)]
        for thread in self._threads:
            thread.start()
        self.versions: dict[str, str] = {}
        self.base = 0

    def start(self, timeout: float = STARTUP) -> None:
        """Wait until the backend is imported.

        Raises:
            Broken: it cannot be imported, or not in time.
        """
        try:
            ready = self._answer(timeout)
        except Lost as error:
            raise Broken(f"while it was imported: {error}") from error
        if "broken" in ready:
            raise Broken(str(ready["broken"]))
        self.versions = dict(ready.get("versions", {}))
        self.base = self.resident()

    def ask(self, request: dict[str, Any], timeout: float) -> Outcome:
        """Return how a test goes.

        Raises:
            Lost: the worker crashed, gave no answer in time, took too much memory, or answered with rubbish.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Lost(self._ending()) from error
        answer = self._answer(timeout)
        if answer.get("id") != request["id"] or answer.get("status") not in ("passed", "failed", "skipped"):
            raise Lost(f"the answer of the worker is not one: {str(answer)[:200]}")
        return Outcome(answer["status"], str(answer["message"]), float(answer["seconds"]))

    def resident(self) -> int:
        """Return the bytes of memory that the worker has now, or 0 where the system does not say."""
        try:
            pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        except (OSError, IndexError):
            return 0
        return int(pages) * _PAGE

    def stop(self) -> None:
        """End the process and all that it started."""
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for thread in self._threads:
            thread.join(timeout=5)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def _answer(self, timeout: float) -> dict[str, Any]:
        end = time.monotonic() + timeout
        while True:
            try:
                line = self._lines.get(timeout=0.1)
                break
            except queue.Empty:
                if self.resident() > self._memory:
                    raise Lost(f"used more than {self._memory / 2**30:.3g} GB of memory") from None
                if time.monotonic() > end:
                    raise Lost(f"no answer within {timeout:.3g} s") from None
        if not line:
            raise Lost(self._ending())
        try:
            found = json.loads(line)
        except ValueError as error:
            raise Lost(f"the answer of the worker is not one: {line[:200]!r}") from error
        if not isinstance(found, dict):
            raise Lost(f"the answer of the worker is not one: {line[:200]!r}")
        return found

    def _ending(self) -> str:
        """Return how the process ended, with the end of what it said."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._threads[1].join(timeout=1)
        code = self._process.returncode
        how = "the process closed its output" if code is None else f"the process ended with exit code {code}"
        if code is not None and code < 0:
            how = f"the process was ended by {signal.Signals(-code).name}"
        lines = [line for line in self.said.decode("utf-8", "replace").splitlines() if line.strip()]
        fatal = next((i for i, line in enumerate(lines) if "Fatal Python error" in line), max(0, len(lines) - 3))
        return f"{how}: {' | '.join(line.strip() for line in lines[fatal : fatal + 6])}" if lines else how

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put(b"")

    def _read_rubbish(self) -> None:
        assert self._process.stderr is not None
        with contextlib.suppress(ValueError, OSError):
            while chunk := os.read(self._process.stderr.fileno(), 65536):
                self.said = (self.said + chunk)[-8192:]


def _environment(contestant: Contestant) -> dict[str, str]:
    """Return the environment of a worker: one thread each, and our own path for our own Python."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment.setdefault(name, "1")
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    environment.pop("PYTHONPATH", None)
    if contestant.python == sys.executable:
        environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    return environment


@dataclasses.dataclass
class Run:
    """All results of one backend."""

    contestant: Contestant
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    outcomes: dict[str, Outcome] = dataclasses.field(default_factory=dict)  # by the id of the test
    broken: str = ""  # why the backend cannot be used at all
    restarts: int = 0


def run_tests(
    contestant: Contestant,
    tests: Sequence[BoardTest],
    *,
    jobs: int = 1,
    timeout: float = 60.0,
    memory: int = 6 << 30,
    folders: Sequence[str] = (),
    progress: Callable[[BoardTest, Outcome], None] | None = None,
) -> Run:
    """Return how all tests go on one backend, in `jobs` processes.

    A crash, a hang, a leak and rubbish are each one failure; a new worker goes on. A backend that cannot be imported,
    or that ends 25 workers in a row, is `broken`, and the tests that are left have no outcome.
    """
    run = Run(contestant)
    waiting: queue.SimpleQueue[tuple[int, BoardTest]] = queue.SimpleQueue()
    for item in enumerate(tests):
        waiting.put(item)
    lock = threading.Lock()
    lost_in_a_row = 0
    workers: set[Worker] = set()
    ended = threading.Event()

    def open_worker() -> Worker:
        worker = Worker(contestant, folders, memory)
        with lock:
            workers.add(worker)
        worker.start()
        return worker

    def close(worker: Worker) -> None:
        with lock:
            workers.discard(worker)
        worker.stop()

    def note(test: BoardTest, outcome: Outcome, lost: bool) -> None:
        nonlocal lost_in_a_row
        with lock:
            run.outcomes[test.id] = outcome
            lost_in_a_row = lost_in_a_row + 1 if lost else 0
            run.restarts += lost
            if lost_in_a_row >= GIVE_UP:
                run.broken = f"{GIVE_UP} tests in a row ended the process, the last with: {outcome.message}"
                ended.set()
            if progress is not None:
                progress(test, outcome)

    def serve() -> None:
        worker: Worker | None = None
        try:
            while not ended.is_set():
                try:
                    index, test = waiting.get_nowait()
                except queue.Empty:
                    return
                if worker is None:
                    worker = open_worker()
                    run.versions = worker.versions
                started = time.monotonic()
                try:
                    outcome = worker.ask({**test.request, "id": index}, timeout)
                except Lost as error:
                    note(test, Outcome("failed", str(error), time.monotonic() - started), lost=True)
                    close(worker)
                    worker = None
                    continue
                note(test, outcome, lost=False)
                if worker.resident() > worker.base + GROWTH:
                    close(worker)
                    worker = None
        except Broken as error:
            with lock:
                run.broken = run.broken or str(error)
            ended.set()
        finally:
            if worker is not None:
                close(worker)

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(max(1, min(jobs, len(tests))))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(timeout=0.2)
    finally:  # also at Ctrl-C
        ended.set()
        for worker in list(workers):
            worker.stop()
    return run
