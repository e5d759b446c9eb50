"""Train with a compiled program on whatever onnxruntime is here: no Onward, only numpy.

    python run_program.py PROGRAM BATCHES [THREADS]

Prints one loss per line. BATCHES is a safetensors file with the arrays `<step>/<input>`. The environments of
`nox -s old_runtimes` have nothing but onnxruntime and its numpy, and run this file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


def read_safetensors(path: Path) -> dict[str, Any]:
    """Return the arrays of a safetensors file: a length, a JSON header, the bytes."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    types = {"F64": "f8", "F32": "f4", "F16": "f2", "I64": "i8", "I32": "i4", "I8": "i1", "U8": "u1", "BOOL": "?"}
    arrays = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            start, end = (8 + size + offset for offset in entry["data_offsets"])
            arrays[name] = np.frombuffer(data[start:end], types[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def main(program: Path, batches: Path, threads: int = 1) -> None:
    manifest = json.loads((program / "manifest.json").read_text())
    state = read_safetensors(program / manifest["state"]["file"])
    for name, setting in manifest["settings"].items():
        state[name] = np.array(setting["default"], setting["dtype"])
    given: dict[int, dict[str, Any]] = {}
    for key, array in read_safetensors(batches).items():
        step, _, name = key.partition("/")
        given.setdefault(int(step), {})[name] = array
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    # Up to 1.18 the planned memory lets buffers overlap that are still read: wrong numbers from the second step on.
    major, minor = map(int, onnxruntime.__version__.split(".")[:2])
    options.enable_mem_pattern = (major, minor) >= (1, 19)
    sessions = {
        role: onnxruntime.InferenceSession(str(program / graph["file"]), options, providers=["CPUExecutionProvider"])
        for role, graph in manifest["graphs"].items()
    }  # every graph must load, not only the step
    for step in sorted(given):
        feeds = {i.name: {**state, **given[step]}[i.name] for i in sessions["step"].get_inputs()}
        outputs = manifest["graphs"]["step"]["outputs"]
        results = sessions["step"].run([o["name"] for o in outputs], feeds)
        for output, result in zip(outputs, results):  # noqa: B905  # runs on old Pythons too
            if output["role"] == "state":
                state[output["replaces"]] = result
            elif output["role"] == "loss":
                print(repr(float(result)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
