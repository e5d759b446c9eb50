"""Train a compiled program on the runtime of an adapter: `python _train.py ADAPTER.py PROGRAM BATCHES.safetensors`.

It runs in the environment of the peer, which has numpy, onnx and the runtime, and prints JSON: the losses, or why it
failed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx

TYPES = {"F32": "f4", "F64": "f8", "F16": "f2", "I64": "i8", "I32": "i4", "U8": "u1", "I8": "i1", "BOOL": "?"}


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(data[start + t["data_offsets"][0] : start + t["data_offsets"][1]], TYPES[t["dtype"]])
        .reshape(t["shape"])
        .copy()
        for name, t in header.items()
    }


def fix_sizes(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    """Give the inputs the sizes of the batch, for a runtime that needs them."""
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, feeds[value.name].shape, strict=True):
            dim.dim_value = size


def losses(adapter: Any, folder: Path, batches: list[dict[str, np.ndarray]]) -> list[float]:
    manifest = json.loads((folder / "manifest.json").read_text())
    state = read_tensors(folder / "state.safetensors")
    state |= {n: np.array(s["default"], s["dtype"]).reshape(s["shape"]) for n, s in manifest["settings"].items()}
    steps = [g for role, g in manifest["graphs"].items() if role.partition(":")[0] == "step"]
    prepared, found = [], []
    for step in steps:
        model = onnx.load(str(folder / step["file"]))
        if getattr(adapter, "FIXED_SIZES", False):
            fix_sizes(model, {**state, **batches[0]})
        prepared.append(adapter.prepare(model, "CPU", memory_pattern=False))
    for batch in batches:
        for step, ready in zip(steps, prepared, strict=True):
            known = {**state, **batch}
            results = ready.run([known[i["name"]] for i in step["inputs"]])
            for output, value in zip(step["outputs"], results, strict=True):
                if output["role"] == "state":
                    old = state[output["replaces"]]
                    state[output["replaces"]] = np.asarray(value).astype(old.dtype).reshape(old.shape)
                if output["role"] == "loss":
                    found.append(float(np.asarray(value).reshape(())))
    return found


def main() -> None:
    path, folder, data = map(Path, sys.argv[1:])
    sys.path[0] = ""  # an adapter is named like the package that it imports
    sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location("adapter", path)
    assert spec is not None
    assert spec.loader is not None
    adapter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(adapter)
    batches: list[dict[str, np.ndarray]] = []
    for name, array in sorted(read_tensors(data).items(), key=lambda item: int(item[0].partition("/")[0])):
        number, _, name_in_batch = name.partition("/")
        while len(batches) <= int(number):
            batches.append({})
        batches[int(number)][name_in_batch] = array
    said: dict[str, Any] = {"versions": {p: importlib.metadata.version(p) for p in adapter.PACKAGES}}
    try:
        said["losses"] = losses(adapter, folder, batches)
    except BaseException as error:  # noqa: BLE001  # a runtime may raise anything; that is the result
        said["error"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    print(json.dumps(said))


if __name__ == "__main__":
    main()
