"""Find the cases of the suite and read them, from a folder or from the archive inside the wheel."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

from onward_conformance.compare import deviations

VERSION = "1.0.0"
KINDS = ("gradient", "optimizer", "training", "forward", "invalid")
_HERE = pathlib.Path(__file__).resolve().parent


class SuiteError(Exception):
    """The data of the suite is missing, half written or damaged."""


class _Folder:
    """The files of a suite below a folder, by relative name."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root

    def read(self, name: str) -> bytes:
        try:
            return (self.root / name).read_bytes()
        except OSError as error:
            raise SuiteError(
                f"{self.root / name}: cannot be read ({error.strerror}); generate the data again"
            ) from error

    def __str__(self) -> str:
        return str(self.root)


class _Archive:
    """The files of a suite in a zip archive, by relative name."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        try:
            self.zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise SuiteError(f"{path}: cannot be read ({error}); build or install the suite again") from error

    def read(self, name: str) -> bytes:
        try:
            return self.zip.read(name)
        except (KeyError, OSError, zipfile.BadZipFile) as error:
            raise SuiteError(f"{self.path}: cannot read {name} ({error})") from error

    def __str__(self) -> str:
        return str(self.path)


_Source = _Folder | _Archive


@dataclasses.dataclass(frozen=True)
class Case:
    """One test: a model and what a backend must compute with it (or, for kind "invalid", a model to refuse).

    name       e.g. "gradient/Mul/broadcast-unknown"
    kind       "gradient", "optimizer", "training", "forward" or "invalid"
    operator   the operator under test; for "training" the scenario, for "invalid" the rule's short name
    domain     the operator's domain
    dtypes     the floating-point (or other) element types that the case is about
    shapes     "static", "rank" (every dimension unknown) or "unknown" (not even the rank)
    opset      the version of ai.onnx that the model imports
    oracle     what computed the expected values
    rtol, atol |result - expected| <= atol + rtol * |expected|
    sets       the number of data sets; for "training" the number of steps
    rule       what an invalid model breaks
    features   e.g. "zs", "second-order", "initialization"
    """

    name: str
    kind: str
    operator: str
    domain: str
    dtypes: tuple[str, ...]
    shapes: str
    opset: int
    oracle: str
    rtol: float
    atol: float
    sets: int
    rule: str
    features: tuple[str, ...]
    inputs: int
    outputs: int
    states: int
    source: Any = dataclasses.field(repr=False, compare=False)

    def model(self) -> onnx.ModelProto:
        """Return the model."""
        return _parse(onnx.ModelProto, self, "model.onnx")

    def twin(self) -> onnx.ModelProto:
        """Return the valid model that an invalid one was made from by breaking its rule (kind "invalid")."""
        return _parse(onnx.ModelProto, self, "valid.onnx")

    def data_sets(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return (inputs, expected outputs) of every data set: arrays by name, in the order of the graph."""
        if not self.sets:
            return []
        kinds = _kinds(self.model())
        return [
            (self._values(f"test_data_set_{k}/input", self.inputs, kinds),
             self._values(f"test_data_set_{k}/output", self.outputs, kinds))
            for k in range(self.sets)
        ]  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Return the expected state after the last step: the initializers that the bindings change."""
        return self._values("state", self.states, {})

    def compare(self, set_index: int, outputs: Sequence[Any] | Mapping[str, Any]) -> list[str]:
        """Return how `outputs` (in order, or by name) deviate from the expected ones; nothing if they conform."""
        expected = self._values(f"test_data_set_{set_index}/output", self.outputs, _kinds(self.model()))
        return deviations(expected, outputs, self.rtol, self.atol)

    def compare_state(self, state: Mapping[str, Any]) -> list[str]:
        """Return how `state` deviates from the expected final state; other names in it are ignored."""
        return deviations(self.state(), state, self.rtol, self.atol)

    def _values(self, prefix: str, count: int, kinds: Mapping[str, str]) -> dict[str, Any]:
        found = {}
        for index in range(count):
            name, value = _read_value(self, f"{prefix}_{index}.pb", kinds)
            found[name] = value
        return found


def cases(
    folder: str | pathlib.Path | None = None,
    kind: str | None = None,
    operator: str | None = None,
    only: str | None = None,
) -> list[Case]:
    """Return the cases, in the order of the manifest.

    `folder` is a generated suite (a folder or a zip archive); by default the one in the wheel, or in a checkout
    `conformance/data`. `only` is a part of the name.

    Raises:
        SuiteError: there is no suite, or its manifest is damaged or of another version.
    """
    source = _source(folder)
    try:
        manifest = json.loads(source.read("manifest.json"))
        version, entries = manifest["version"], manifest["cases"]
        found = [_case(entry, source) for entry in entries]
    except (ValueError, KeyError, TypeError) as error:
        raise SuiteError(f"{source}: manifest.json is damaged ({error!r}); generate the data again") from error
    if version.split(".")[0] != VERSION.split(".")[0]:
        raise SuiteError(f"{source}: the data has version {version}, this package reads version {VERSION}")
    return [
        c for c in found
        if (kind is None or c.kind == kind)
        and (operator is None or c.operator == operator)
        and (only is None or only in c.name)
    ]  # fmt: skip


def _case(entry: Mapping[str, Any], source: _Source) -> Case:
    known = {f.name for f in dataclasses.fields(Case)} - {"source"}
    values = {"rule": "", "features": (), "states": 0, "inputs": 0, "outputs": 0, **entry}
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in known}
    return Case(**values, source=source)


def _source(folder: str | pathlib.Path | None) -> _Source:
    if folder is not None:
        path = pathlib.Path(folder)
        if not path.exists():
            raise SuiteError(f"{path}: there is no such folder or archive")
        return _archive(path) if path.is_file() else _Folder(path)
    packed, checkout = _HERE / "data.zip", _HERE.parents[1] / "data"
    if (checkout / "manifest.json").exists():
        return _Folder(checkout)
    if packed.exists():
        return _archive(packed)
    raise SuiteError("the suite has no data: run `make conformance-data` in a checkout, or install the wheel")


@functools.lru_cache(maxsize=4)
def _archive(path: pathlib.Path) -> _Archive:
    return _Archive(path)


def _parse(message: Any, case: Case, file: str) -> Any:
    data = case.source.read(f"{case.name}/{file}")
    try:
        return message.FromString(data)
    except Exception as error:
        raise SuiteError(f"{case.source}: {case.name}/{file} is damaged ({error}); generate the data again") from error


def _kinds(model: onnx.ModelProto) -> dict[str, str]:
    """Return for the inputs and outputs that are no tensors whether they are "sequence_type" or "optional_type"."""
    graphs = [model.graph, *(info.algorithm for info in model.training_info)]
    infos = [info for graph in graphs for info in [*graph.input, *graph.output]]
    return {i.name: i.type.WhichOneof("value") or "tensor_type" for i in infos}


def _read_value(case: Case, file: str, kinds: Mapping[str, str]) -> tuple[str, Any]:
    """Return the name and the value in a file: an array, a list of arrays, or None for an empty optional."""
    data = case.source.read(f"{case.name}/{file}")
    try:
        # All three messages keep their name in a field of their own, so the kind decides which one to read.
        for kind, message in (("sequence_type", onnx.SequenceProto), ("optional_type", onnx.OptionalProto)):
            if kind in kinds.values():
                value = message.FromString(data)
                if kinds.get(value.name) == kind:
                    convert = onnx.numpy_helper.to_list if kind == "sequence_type" else onnx.numpy_helper.to_optional
                    return value.name, convert(value)
        tensor = onnx.TensorProto.FromString(data)
        return tensor.name, np.asarray(onnx.numpy_helper.to_array(tensor))
    except Exception as error:
        raise SuiteError(f"{case.source}: {case.name}/{file} is damaged ({error}); generate the data again") from error
