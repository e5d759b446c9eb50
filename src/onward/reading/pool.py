"""The worker processes of a run, and the memory they share with it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import numpy as np

from onward import errors
from onward.augment.base import Function
from onward.errors import A101, ArgumentError, DataError, Diagnostic, OnwardError
from onward.reading.samples import Rows, Samples
from onward.reading.worker import is_worker, no_guard, receive, send

T172 = "T172"

_START = "import sys; sys.path[:] = {path!r}; from onward.reading.worker import main; main()"
_SHARED = Path("/dev/shm")  # memory as files, on Linux
Layout = dict[str, tuple[int, tuple[int, ...], str]]
Shapes = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]


class RemoteTraceback(Exception):
    """The traceback of a worker process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def local_functions(samples: Samples) -> list[Function]:
    """Return the augmentation functions that were defined in the script or notebook that runs."""
    functions = [a for a in samples.augmentations if isinstance(a, Function)]
    return [f for f in functions if getattr(f.function, "__module__", type(f.function).__module__) == "__main__"]


class WorkerPool:
    """Worker processes that fill rows of batches in shared memory of `size` bytes. Close it, also after an error.

    Raises:
        ArgumentError: an augmentation cannot be sent to another process, or the script cannot be imported there.
        DataError: the memory or the processes cannot be had.
    """

    def __init__(self, count: int, samples: Samples, size: int) -> None:
        if is_worker():
            raise ArgumentError(no_guard("the script starts to train when it is imported"))
        main_module, content = _package(samples)
        self._workers: list[_Worker] = []
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._threads = concurrent.futures.ThreadPoolExecutor(count, thread_name_prefix="onward-worker")
        path = self._path = _shared_file(size)
        try:
            self.memory: np.ndarray = np.memmap(path, dtype=np.uint8, mode="r+")
            for _ in range(count):
                self._workers.append(_Worker())
            for worker in self._workers:
                worker.send((main_module, content, str(path)))
            for worker in self._workers:
                worker.answer()
                self._idle.put(worker)
        except BaseException:
            self.close()
            raise
        finally:
            with contextlib.suppress(OSError):  # Windows keeps it while it is open; `close` tries again
                path.unlink()

    def submit(self, layout: Layout, count: int, first: int, last: int, rows: Rows) -> concurrent.futures.Future[None]:
        """Let a worker fill the rows `first` to `last` of a batch with `count` rows."""
        return self._threads.submit(self._run, (layout, count, first, last, rows))

    def _run(self, task: Any) -> None:
        worker = self._idle.get()
        try:
            worker.send(task)
            worker.answer()
        finally:
            self._idle.put(worker)  # a dead one, too: the next task must fail and not wait for ever

    def close(self) -> None:
        """End the processes and free the memory."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.hang_up()
        for worker in self._workers:
            worker.end()
        self._threads.shutdown(wait=True)
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        self.memory = np.empty(0, np.uint8)
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    @property
    def process_ids(self) -> list[int]:
        """The numbers of the processes."""
        return [w.process.pid for w in self._workers]


class _Worker:
    """One worker process and the pipes to it."""

    def __init__(self) -> None:
        # In a session of its own, so that Ctrl-C in the terminal reaches the trainer only.
        windows = {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
        options: dict[str, Any] = windows if os.name == "nt" else {"start_new_session": True}
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START.format(path=sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                **options,
            )
        except OSError as error:
            raise DataError(
                Diagnostic(T172, f"a worker process cannot be started: {error.strerror or error}", hint="use workers=0")
            ) from error

    def send(self, message: Any) -> None:
        assert self.process.stdin is not None
        try:
            send(self.process.stdin, message)
        except (OSError, ValueError) as error:  # ValueError: `hang_up` has closed it
            raise self._ended() from error

    def answer(self) -> None:
        """Wait until the worker has done what it was told; raise the error that it reports."""
        assert self.process.stdout is not None
        try:
            answer = receive(self.process.stdout)
        except (EOFError, OSError, ValueError) as error:
            raise self._ended() from error
        if answer is None:
            return
        kind, problems, text = answer
        if not kind:
            problems = [Diagnostic(T172, f"a worker process failed: {problems}", hint="workers=0 shows where")]
        error_type: type[OnwardError] = getattr(errors, kind or "DataError")
        raise error_type(problems) from RemoteTraceback(text)

    def _ended(self) -> DataError:
        try:
            code: int | None = self.process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            code = None
        how = "it no longer answers" if code is None else f"exit code {code}"
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                how = f"signal {signal.Signals(-code).name}"
        return DataError(
            Diagnostic(
                T172,
                "a worker process that reads the data has ended",
                found=how,
                hint="the memory may have run out: use fewer workers, or workers=0 to see an error of the data",
            )
        )

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()

    def end(self) -> None:
        try:
            self.process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()


def _package(samples: Samples) -> tuple[dict[str, Any] | None, bytes]:
    """Return what a worker needs: how to import the script, if it must, and the pickled samples."""
    problems = []
    for function in (a for a in samples.augmentations if isinstance(a, Function)):
        try:
            pickle.dumps(function)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            problems.append(
                Diagnostic(
                    A101,
                    f"the augmentation {function} cannot be sent to worker processes",
                    found=str(error),
                    needed="a function at the top level of a module",
                    hint="define it with `def` outside of other functions, or use workers=0",
                )
            )
    if problems:
        raise ArgumentError(problems)
    main_module: dict[str, Any] | None = None
    local = local_functions(samples)
    if local:
        main_module = spawn.get_preparation_data("onward-worker")
        if not {"init_main_from_path", "init_main_from_name"} & set(main_module):
            raise ArgumentError(
                [
                    Diagnostic(
                        A101,
                        f"the augmentation {f} cannot be sent to worker processes",
                        found="it was defined in a notebook or at a prompt, which another process cannot import",
                        needed="a function of a module",
                        hint="move it to a .py file and import it, or use workers=0",
                    )
                    for f in local
                ]
            )
        main_module = {k: v for k, v in main_module.items() if k not in ("authkey", "log_to_stderr")}
    return main_module, pickle.dumps(samples, protocol=pickle.HIGHEST_PROTOCOL)


def _shared_file(size: int) -> Path:
    """Return a new file of zeros that lies in memory where the system offers that.

    The zeros are written: a file with holes would end the process with a bus error where the space runs out.
    """
    places: list[Path | None] = [_SHARED] if os.access(_SHARED, os.W_OK) else []
    failure: OSError | None = None
    for place in (*places, None):
        handle, name = tempfile.mkstemp(prefix="onward-", dir=place)
        try:
            with os.fdopen(handle, "wb") as file:
                block = bytes(1 << 20)
                for start in range(0, size, len(block)):
                    file.write(block[: size - start])
            return Path(name)
        except OSError as error:
            failure = error
            os.unlink(name)
    raise DataError(
        Diagnostic(
            T172,
            f"there is no room for the memory that the workers share: {failure}",
            needed=f"{size:,} bytes",
            hint="use a smaller batch_size or prefetch, or workers=0",
        )
    ) from failure


def batch_layout(shapes: Shapes, rows: int, start: int) -> tuple[Layout, int]:
    """Return where the arrays of a batch lie that begins at byte `start`, and where it ends.

    >>> batch_layout({"x": ((3,), np.dtype("float32"))}, rows=2, start=64)
    ({'x': (64, (3,), '<f4')}, 128)
    """
    layout: Layout = {}
    for name, (shape, dtype) in shapes.items():
        layout[name] = (start, shape, dtype.str)
        size = rows * int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        start += -(-size // 64) * 64
    return layout, start
