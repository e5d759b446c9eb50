"""Capture a model in a child process with Keras on JAX: for models that live on another backend.

The `.keras` file, the example and the result go through pipes. No file is written, so none is left behind when a
process is killed.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np

from onward.errors import ArgumentError, Diagnostic
from onward.model import serde
from onward.model.training_model import TrainingModel
from onward.reading.worker import receive, send

A244 = "A244"

_START = "import sys; sys.path[:] = {path!r}; from onward.frontends.keras.child import main; main()"


def capture_elsewhere(
    data: bytes, place: str, example: tuple[Any, Any], options: dict[str, Any]
) -> tuple[TrainingModel, list[str]]:
    """Return the training model of a `.keras` file and warnings, as a child process finds them."""
    request = {"data": data, "place": place, "example": tuple(map(_plain, example)), **options}
    request["sample_weight"] = _plain(options["sample_weight"])
    message = io.BytesIO()
    send(message, request)
    done = subprocess.run(
        [sys.executable, "-c", _START.format(path=sys.path)],
        input=message.getvalue(),
        capture_output=True,
        env={**os.environ, "KERAS_BACKEND": "jax"},
        check=False,
    )
    try:
        kind, *answer = receive(io.BytesIO(done.stdout))
    except (EOFError, ValueError):
        raise _failed(done, place) from None
    if kind == "refused":
        raise ArgumentError(answer[0])
    model, notes = answer
    return serde.load(model), notes


def _plain(tree: Any) -> Any:
    """Return a tree of arrays of any framework as arrays of NumPy."""
    if isinstance(tree, dict):
        return {k: _plain(v) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return [_plain(v) for v in tree]
    if tree is None or isinstance(tree, bool | np.ndarray):
        return tree
    if hasattr(tree, "detach"):
        tree = tree.detach().cpu()
    return np.asarray(tree)


def _failed(done: subprocess.CompletedProcess[bytes], place: str) -> ArgumentError:
    said = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    how = f"exit code {done.returncode}"
    if done.returncode < 0:
        how = f"signal {signal.Signals(-done.returncode).name}"
    return ArgumentError(
        Diagnostic(
            A244,
            "the process that captures the model with Keras on JAX has failed",
            place=place,
            found=f"{how}; it said: {said[-1][:500]}" if said else how,
            hint="the memory may have run out, if it was killed; else try the same in Python with KERAS_BACKEND=jax: "
            "keras.models.load_model(file)",
        )
    )
