"""A worker process: it fills rows of batches in memory that it shares with the trainer.

The trainer starts `python -c "…; main()"` and talks to it over pipes: a message is its length and a pickle. A worker is
not a fork, because the trainer runs threads, and it does not import the trainer's script unless a function of it is
needed. It ends when its input does, so also when the trainer is killed.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
import traceback
from typing import IO, Any

import numpy as np

from onward.errors import A101, ArgumentError, Diagnostic, OnwardError

_LENGTH = struct.Struct("<Q")
_inside = False


def is_worker() -> bool:
    """Return whether this process is a worker."""
    return _inside


def send(stream: IO[bytes], message: Any) -> None:
    """Write one message."""
    content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(content)) + content)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Return the next message.

    Raises:
        EOFError: the other side has ended.
    """
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    return pickle.loads(_exactly(stream, length))


def _exactly(stream: IO[bytes], count: int) -> bytes:
    content = stream.read(count)
    if len(content) < count:
        raise EOFError
    return content


def describe(error: BaseException) -> tuple[str, Any, str]:
    """Return an error as data: its kind, its problems, and its traceback as text."""
    text = "".join(traceback.format_exception(error))
    if isinstance(error, OnwardError):
        return type(error).__name__, tuple(error.diagnostics), text
    return "", f"{type(error).__name__}: {error}", text


def views(memory: np.ndarray, layout: dict[str, tuple[int, tuple[int, ...], str]], rows: int) -> dict[str, np.ndarray]:
    """Return the arrays of a batch in shared memory: `layout` is name -> (first byte, shape of a sample, dtype)."""
    found = {}
    for name, (start, shape, dtype) in layout.items():
        kind = np.dtype(dtype)
        size = rows * int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        found[name] = memory[start : start + size].view(kind).reshape(rows, *shape)
    return found


def main() -> None:
    """Run the worker until its input ends."""
    global _inside
    _inside = True
    given = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a function prints must not come between the answers
    sys.stdout = sys.stderr
    try:
        _serve(given, answers)
    except (EOFError, BrokenPipeError):  # the trainer has ended
        os._exit(0)  # without flushing a broken pipe


def _serve(given: IO[bytes], answers: IO[bytes]) -> None:
    try:
        main_module, content, path = receive(given)
        if main_module is not None:
            _import_main(main_module)
        samples = pickle.loads(content)
        memory = np.memmap(path, dtype=np.uint8, mode="r+")
    except (EOFError, BrokenPipeError):
        raise
    except BaseException as error:  # noqa: BLE001 -- the trainer raises it
        send(answers, describe(error))
        return
    send(answers, None)
    while True:
        layout, count, first, last, rows = receive(given)
        answer = None
        try:
            arrays = {name: array[first:last] for name, array in views(memory, layout, count).items()}
            samples.fill(arrays, rows)
        except Exception as error:  # noqa: BLE001 -- the trainer raises it
            answer = describe(error)
        send(answers, answer)


def _import_main(data: dict[str, Any]) -> None:
    """Import the script of the trainer, where a function of it is needed, as `multiprocessing` does."""
    from multiprocessing import spawn

    try:
        spawn.prepare(data)
    except SystemExit as error:
        raise ArgumentError(no_guard("the script ends the process when it is imported")) from error


def no_guard(found: str) -> Diagnostic:
    """Return the problem of a script that a worker cannot import."""
    return Diagnostic(
        A101,
        "a worker process cannot import your script to get the augmentation function in it",
        found=found,
        needed="a script that only defines things when it is imported",
        hint='put what it does under `if __name__ == "__main__":`, move the function to a module of its own, '
        "or use workers=0",
    )
