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
    """Give all values the sizes of the batch, for a runtime that needs them."""
    sizes = {}
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, feeds[value.name].shape, strict=True):
            sizes[dim.dim_param] = size
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes and dim.HasField("dim_param"):
                dim.dim_value = sizes[dim.dim_param]


class Run:
    """The steps of a program on one runtime, from the stored state."""

    def __init__(self, adapter: Any, folder: Path, batch: dict[str, np.ndarray]) -> None:
        self.manifest = json.loads((folder / "manifest.json").read_text())
        self.state = read_tensors(folder / "state.safetensors")
        settings = self.manifest["settings"]
        self.state |= {n: np.array(s["default"], s["dtype"]).reshape(s["shape"]) for n, s in settings.items()}
        graphs = self.manifest["graphs"]
        self.steps = {
            entry: graphs["step"] if "step" in graphs else graphs[f"step:{entry}"] for entry in self.manifest["entries"]
        }
        self.prepared = {}
        for entry, step in self.steps.items():
            model = onnx.load(str(folder / step["file"]))
            if getattr(adapter, "FIXED_SIZES", False):
                fix_sizes(model, {**self.state, **batch})
            self.prepared[entry] = adapter.prepare(model, "CPU", memory_pattern=False)

    def step(self, entry: str, batch: dict[str, np.ndarray]) -> float:
        """Run one step, replace the state and return the loss."""
        known = {**self.state, **batch}
        results = self.prepared[entry].run([known[i["name"]] for i in self.steps[entry]["inputs"]])
        loss = np.nan
        for output, value in zip(self.steps[entry]["outputs"], results, strict=True):
            if output["role"] == "state":
                old = self.state[output["replaces"]]
                self.state[output["replaces"]] = np.asarray(value).astype(old.dtype).reshape(old.shape)
            if output["role"] == "loss":
                loss = float(np.asarray(value).reshape(()))
        return loss


def self_test(adapter: Any, folder: Path) -> list[str]:
    """Return what deviates in the self-test of the program: `loss`, and names of states."""
    batch = read_tensors(folder / "self_test.safetensors")
    run = Run(adapter, folder, batch)
    old, deviating = dict(run.state), []
    for entry, expected in run.manifest["self_test"]["entries"].items():
        run.state = dict(old)
        loss = run.step(entry, batch)
        if not abs(loss - expected["loss"]) <= expected["loss_tolerance"]:
            deviating.append("loss")
        for name, needed in expected["state"].items():
            x = (run.state[name].astype(np.float64) - old[name].astype(np.float64)).reshape(-1)
            sums = x @ np.cos(np.arange(x.size)), np.abs(x).sum()
            if not all(abs(f - n) <= needed["tolerance"] for f, n in zip(sums, needed["checksum"], strict=True)):
                deviating.append(name)
    return deviating


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
        run = Run(adapter, folder, batches[0])
        said["losses"] = [run.step(entry, batch) for batch in batches for entry in run.steps]
        said["self_test"] = self_test(adapter, folder)
    except BaseException as error:  # noqa: BLE001  # a runtime may raise anything; that is the result
        said["error"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
    print(json.dumps(said))


if __name__ == "__main__":
    main()
