"""Write cases as files, in ONNX's own test-case format, so that two runs give equal bytes."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

VERSION = "1.0.0"


def slug(text: str) -> str:
    """Return `text` as a part of a file name."""
    return re.sub(
        r"[^a-z0-9]+", "-", text.lower().replace("-", " minus ") if text.startswith("-") else text.lower()
    ).strip("-")


class Suite:
    """A folder that cases are written to, and the entries of its manifest."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.entries: list[dict[str, Any]] = []
        self.names: set[str] = set()

    def add(
        self,
        name: str,
        model: onnx.ModelProto,
        sets: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]],
        *,
        kind: str,
        operator: str,
        dtypes: Sequence[str],
        oracle: str,
        shapes: str = "static",
        domain: str = "",
        rtol: float = 0.0,
        atol: float = 0.0,
        rule: str = "",
        features: Sequence[str] = (),
        state: Mapping[str, Any] | None = None,
        twin: onnx.ModelProto | None = None,
    ) -> None:
        """Write one case; `sets` are pairs of inputs and expected outputs by name, in the order of the graph."""
        if name in self.names:
            raise ValueError(f"two cases are called {name}")
        self.names.add(name)
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        stamp(model, name)
        (folder / "model.onnx").write_bytes(model.SerializeToString(deterministic=True))
        if twin is not None:
            stamp(twin, f"{name} (the valid twin)")
            (folder / "valid.onnx").write_bytes(twin.SerializeToString(deterministic=True))
        for index, (inputs, outputs) in enumerate(sets):
            part = folder / f"test_data_set_{index}"
            part.mkdir(exist_ok=True)
            write_values(part, "input", inputs)
            write_values(part, "output", outputs)
        write_values(folder, "state", state or {})
        opset = next((i.version for i in model.opset_import if i.domain in ("", "ai.onnx")), 0)
        self.entries.append(
            {
                "name": name, "kind": kind, "operator": operator, "domain": domain, "dtypes": list(dtypes),
                "shapes": shapes, "opset": opset, "oracle": oracle, "rtol": float(rtol), "atol": float(atol),
                "sets": len(sets), "rule": rule, "features": sorted(features),
                "inputs": len(sets[0][0]) if sets else 0, "outputs": len(sets[0][1]) if sets else 0,
                "states": len(state or {}),
            }
        )  # fmt: skip


def stamp(model: onnx.ModelProto, name: str) -> None:
    """Say in the file what it is."""
    model.producer_name = "onward-conformance"
    model.producer_version = VERSION
    model.doc_string = name


def write_values(folder: pathlib.Path, prefix: str, values: Mapping[str, Any]) -> None:
    """Write values as <prefix>_<index>.pb."""
    for index, (name, value) in enumerate(values.items()):
        (folder / f"{prefix}_{index}.pb").write_bytes(to_proto(value, name).SerializeToString(deterministic=True))


def to_proto(value: Any, name: str) -> Any:
    """Return an array as a TensorProto, a list as a SequenceProto; what already is a message keeps its value."""
    if isinstance(value, (onnx.TensorProto, onnx.SequenceProto, onnx.OptionalProto)):
        copy = type(value)()
        copy.CopyFrom(value)
        copy.name = name
        return copy
    if isinstance(value, list):
        return onnx.numpy_helper.from_list(value, name)
    return onnx.numpy_helper.from_array(np.asarray(value), name)


def write_manifest(folder: pathlib.Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Write manifest.json, last of all: a suite without it is half written."""
    ordered = sorted(entries, key=lambda entry: entry["name"])
    lines = ",\n".join(json.dumps(entry, sort_keys=True) for entry in ordered)
    (folder / "manifest.json").write_text(f'{{"version": "{VERSION}", "cases": [\n{lines}\n]}}\n', encoding="utf-8")
