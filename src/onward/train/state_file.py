"""The state of a trainer as one file, which JavaScript (`@onward/train`) writes and reads too.

It is a safetensors file with checksums (`storage/tensor_file.py`) whose data has the number of `steps`. A step file of
a run and the `state.safetensors` of a program can be read as well.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from onward.compiler.program import Program
from onward.errors import CheckpointError, Diagnostic
from onward.storage.atomic import write_atomic
from onward.storage.checkpoints import EXTRA, HINTS, K102, K107
from onward.storage.tensor_file import Damaged, read_tensor_file, tensor_file_chunks
from onward.train.checkpoint import K101

K108 = "K108"


def write_state(path: Path, state: dict[str, np.ndarray], steps: int) -> None:
    """Write the state to `path`: the whole file, or nothing.

    Raises:
        CheckpointError: it cannot be written.
    """
    try:
        write_atomic(path, tensor_file_chunks(state, {"steps": steps}))
    except OSError as error:
        hint = HINTS.get(error.errno or 0, "")
        raise CheckpointError(
            Diagnostic(K101, f"the state cannot be written to `{path}`: {error.strerror or error}", hint=hint)
        ) from error


def read_state(path: Path, program: Program) -> tuple[dict[str, np.ndarray], int]:
    """Return the state in `path`, which must be that of `program`, and the number of steps behind it.

    Raises:
        CheckpointError: the file cannot be read, is damaged, or is of another model; every difference is listed.
    """
    try:
        tensors, data = read_tensor_file(path)
    except OSError as error:
        raise CheckpointError(Diagnostic(K107, f"cannot read `{path}`: {error.strerror or error}")) from error
    except Damaged as damage:
        raise CheckpointError(Diagnostic(K102, f"the state in `{path}` is damaged: {damage}")) from damage
    state = {name: array for name, array in tensors.items() if not name.startswith(EXTRA)}
    found, needed = ({n: f"{a.dtype}{list(a.shape)}" for n, a in s.items()} for s in (state, program.state))
    problems = [
        Diagnostic(
            K108,
            f"the state is of another model: `{name}`",
            place=str(path),
            found=found.get(name, "missing"),
            needed=needed.get(name, "no such state"),
        )
        for name in dict.fromkeys([*needed, *found])
        if found.get(name) != needed.get(name)
    ]
    if problems:
        raise CheckpointError(problems)
    return state, int(data.get("steps", 0))
