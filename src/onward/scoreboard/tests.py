"""The tests of a board: ONNX's own, written to a folder so that workers with any onnx read them, and Onward's suite."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, TypeProto, numpy_helper

SUITES = ("onnx", "conformance", "all")
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")


@dataclasses.dataclass(frozen=True)
class BoardTest:
    """One test: what a worker needs to run it, and what the board groups it by."""

    suite: str  # "node", "simple", …; for Onward's suite "gradient", "optimizer", …
    name: str
    operators: tuple[str, ...]  # those of other domains with the domain: "ai.onnx.ml.Scaler"
    dtypes: tuple[str, ...]
    request: dict[str, Any] = dataclasses.field(hash=False, compare=False)

    @property
    def id(self) -> str:
        return f"{self.suite}/{self.name}"


def onnx_tests(folder: Path, only: str = "") -> list[BoardTest]:
    """Return ONNX's own tests whose id contains `only`; writes their models and data to `folder`."""
    head, separator, _ = only.partition("/")
    kinds = [k for k in KINDS if not separator or k.endswith(head)]  # reading the node tests takes seconds
    found = [test for kind in kinds for test in _of_kind(kind, folder, only)]
    operators = {test.name: test.operators for test in found if test.suite == "node"}
    return [dataclasses.replace(t, operators=_expanded(t, operators)) for t in found]


def sampled(tests: Sequence[BoardTest], one_of: int) -> list[BoardTest]:
    """Return one test of `one_of`, chosen by the names, so that every run and every backend has the same ones."""
    return [t for t in tests if zlib.crc32(t.id.encode()) % one_of == 0]


def conformance_tests(folder: Path | None = None, only: str = "") -> list[BoardTest]:
    """Return the cases of Onward's suite whose id contains `only`; `folder` is the suite's own by default.

    Raises:
        BoardError: the suite is not installed, has no data, or is damaged; the message says where.
    """
    suite_folder()
    suite = importlib.import_module("onward_conformance")
    chosen = None if folder is None else str(folder.resolve())
    try:
        cases = suite.cases(chosen)
    except suite.SuiteError as error:
        raise BoardError(str(error)) from error
    found = []
    for case in cases:
        # The operator of a training scenario or of an invalid file is a name of its own, not of an operator.
        plain = case.kind in ("gradient", "optimizer", "forward")
        label = case.operator if case.domain in ("", "ai.onnx") else f"{case.domain}.{case.operator}"
        request = {"kind": "conformance", "folder": chosen, "name": case.name}
        name = case.name.removeprefix(f"{case.kind}/")
        test = BoardTest(case.kind, name, (label,) if plain else (), tuple(case.dtypes), request)
        if only in test.id:
            found.append(test)
    return found


class BoardError(Exception):
    """A suite cannot be used; the message says where and why."""


def suite_folder() -> str:
    """Return the folder from which `onward_conformance` is imported: installed, or in the checkout that we are in.

    Raises:
        BoardError: there is none.
    """
    spec = importlib.util.find_spec("onward_conformance")
    if spec is None or spec.origin is None:
        for place in (Path.cwd(), *Path.cwd().parents):
            source = place / "conformance" / "src"
            if (source / "onward_conformance" / "__init__.py").exists():
                sys.path.append(str(source))
                return str(source)
        raise BoardError("onward_conformance is not installed: `pip install onward-conformance`")
    return str(Path(spec.origin).parent.parent)


def _of_kind(kind: str, folder: Path, only: str) -> Iterator[BoardTest]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind=kind)
    seen: set[str] = set()
    for case in sorted(cases, key=lambda c: c.name):
        if only not in f"{kind}/{case.name}" or case.name in seen:
            continue
        seen.add(case.name)
        if case.model is not None:
            place = folder / kind / case.name
            _write(place, case.model, case.data_sets or ())
            model = case.model
        elif case.model_dir is not None:
            place = Path(case.model_dir)
            model = onnx.load(str(place / "model.onnx"))
        else:
            place = folder / kind / case.name
            model = _write_light(place, Path(onnx.__file__).parent.parent / str(case.url))
        request = {
            "kind": "onnx", "folder": str(place), "rtol": case.rtol, "atol": case.atol, "asks": kind != "node",
        }  # fmt: skip
        yield BoardTest(kind, case.name, _operators(model), _dtypes(model), request)


def _expanded(test: BoardTest, operators: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the operators of a test; a function body counts for the operator that it defines."""
    head, separator, _ = test.name.partition("_expanded")
    return operators.get(head, test.operators) if separator and test.suite == "node" else test.operators


def _operators(model: onnx.ModelProto) -> tuple[str, ...]:
    names = {n.op_type if n.domain in ("", "ai.onnx") else f"{n.domain}.{n.op_type}" for n in model.graph.node}
    return tuple(sorted(names - {"Constant"} or names))


def _dtypes(model: onnx.ModelProto) -> tuple[str, ...]:
    return tuple(sorted({_element(v.type) for v in [*model.graph.input, *model.graph.output]} - {""}))


def _element(kind: TypeProto) -> str:
    """Return the element type of a tensor, a sequence or an optional."""
    form = kind.WhichOneof("value")
    if form in ("sequence_type", "optional_type"):
        return _element(getattr(kind, form).elem_type)
    if form != "tensor_type" or not kind.tensor_type.elem_type:
        return ""
    name: str = TensorProto.DataType.Name(kind.tensor_type.elem_type).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def _write(place: Path, model: onnx.ModelProto, data_sets: Iterable[tuple[Any, Any]]) -> None:
    """Write a test in ONNX's format."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "model.onnx").write_bytes(model.SerializeToString())
    for index, (inputs, outputs) in enumerate(data_sets):
        data = place / f"test_data_set_{index}"
        data.mkdir(exist_ok=True)
        for kind, values, declared in (("input", inputs, model.graph.input), ("output", outputs, model.graph.output)):
            for number, (value, info) in enumerate(zip(values, declared, strict=False)):
                (data / f"{kind}_{number}.pb").write_bytes(_bytes(value, info))


def _bytes(value: Any, info: onnx.ValueInfoProto) -> bytes:
    form = info.type.WhichOneof("value")
    if form == "sequence_type":
        return bytes(numpy_helper.from_list(value, info.name).SerializeToString())
    if form == "optional_type":
        return bytes(numpy_helper.from_optional(value, info.name).SerializeToString())
    if isinstance(value, TensorProto):
        return bytes(value.SerializeToString())
    return bytes(numpy_helper.from_array(np.asarray(value), info.name).SerializeToString())


def _write_light(place: Path, path: Path) -> onnx.ModelProto:
    """Write the test of a network of the onnx package: its inputs count from 0 to 1, as onnx's runner makes them."""
    model = onnx.load(str(path))
    stored = {t.name for t in model.graph.initializer}
    inputs = []
    for value in (v for v in model.graph.input if v.name not in stored):
        shape = [d.dim_value if d.HasField("dim_value") else 1 for d in value.type.tensor_type.shape.dim]
        size = int(np.prod(shape))
        inputs.append((np.arange(size).reshape(shape) / size).astype(np.float32))
    outputs = [
        TensorProto.FromString(path.with_name(f"{path.stem}_output_{i}.pb").read_bytes())
        for i in range(len(model.graph.output))
    ]
    _write(place, model, [(inputs, outputs)])
    return model
