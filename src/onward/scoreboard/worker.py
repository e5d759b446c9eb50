"""Run tests against one backend, in a process of its own: `python worker.py MODULE_OR_FILE [FOLDER ...]`.

It needs nothing but onnx and numpy (and onward_conformance for Onward's suite, from one of the folders), so that it
runs in the environment of any backend. Requests and answers are lines of JSON on what stdin and stdout are at the
start. What the backend itself prints goes elsewhere.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
import time
import traceback
import unittest
from pathlib import Path
from typing import Any

LONGEST = 1500  # characters of a message


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    faulthandler.enable()
    backend, *folders = sys.argv[1:]
    sys.path[:1] = folders  # the first is the folder of this file, whose modules are not the backend's

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    try:
        module = load(backend)
        if not module.supports_device("CPU"):
            raise RuntimeError("the backend says that it does not support the CPU")
        ready = {"ready": True, "versions": versions(backend, module)}
    except BaseException as error:  # noqa: BLE001  # also sys.exit() of a module
        answer({"broken": message(error)})
        return
    answer(ready)
    for line in requests:
        request = json.loads(line)
        started = time.perf_counter()
        status, text = run(module, request)
        answer({"id": request["id"], "status": status, "message": text, "seconds": time.perf_counter() - started})


def load(backend: str) -> Any:
    """Import a backend: a dotted name, or the path of a Python file."""
    if not backend.endswith(".py"):
        return importlib.import_module(backend)
    path = Path(backend).resolve()
    spec = importlib.util.spec_from_file_location(f"scoreboard_{re.sub(r'[^0-9A-Za-z]', '_', path.stem)}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.append(str(path.parent))  # last: an adapter may have the name of the package that it adapts
    spec.loader.exec_module(module)
    return module


def versions(backend: str, module: Any) -> dict[str, str]:
    """Return the versions of Python, onnx, numpy and what the backend is made of."""
    names = getattr(module, "PACKAGES", None)
    if names is None:
        names = [n for part in backend.split(".") for n in (part, f"{part}-cpu")] if not backend.endswith(".py") else []
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ["onnx", "numpy", *names]:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def message(error: BaseException) -> str:
    """Return what an error says, with its kind and the place in which it was raised."""
    text = str(error).strip() or "no message"
    if len(text) > LONGEST:
        text = text[: LONGEST // 2] + " … " + text[-LONGEST // 2 :]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" (at {Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{place}"


def run(module: Any, request: dict[str, Any]) -> tuple[str, str]:
    """Return the status of one test, "passed", "failed" or "skipped", and a message."""
    try:
        if request["kind"] == "conformance":
            return run_conformance(module, request)
        return run_onnx(module, request)
    except unittest.SkipTest as error:
        return "skipped", str(error).strip()[:LONGEST] or "the backend skips it"
    except BaseException as error:  # noqa: BLE001  # whatever a backend raises is its failure, sys.exit() included
        return "failed", message(error)


_CASES: dict[str, dict[str, Any]] = {}


def run_conformance(module: Any, request: dict[str, Any]) -> tuple[str, str]:
    """Run one case of Onward's suite."""
    import onward_conformance

    folder = request["folder"]
    if folder not in _CASES:
        _CASES[folder] = {case.name: case for case in onward_conformance.cases(folder)}
    result = onward_conformance.run(_CASES[folder][request["name"]], module)
    return result.status, result.message[:LONGEST]


def run_onnx(module: Any, request: dict[str, Any]) -> tuple[str, str]:
    """Run one test of ONNX, which is in a folder: model.onnx and test_data_set_N."""
    import onnx

    folder = Path(request["folder"])
    model = onnx.load(str(folder / "model.onnx"))
    compatible = getattr(module, "is_compatible", None)
    if request["asks"] and callable(compatible) and not compatible(model):
        module.prepare(model, "CPU")  # a backend that skips by an exception says why
        return "skipped", "the backend says that it is not compatible with the model"
    prepared = module.prepare(model, "CPU")
    if prepared is None:
        return "failed", "prepare() returned None"
    for data in sorted(folder.glob("test_data_set_*")):
        inputs = read(data, "input", model.graph.input)
        expected = read(data, "output", model.graph.output)
        outputs = prepared.run(inputs)
        if not isinstance(outputs, (list, tuple)):
            return "failed", f"run() returned {type(outputs).__name__}, not a tuple of outputs"
        problem = difference(list(expected), list(outputs), request["rtol"], request["atol"])
        if problem:
            return "failed", problem[:LONGEST]
    return "passed", ""


def read(folder: Path, kind: str, values: Any) -> list[Any]:
    """Return the inputs or outputs of a data set."""
    import onnx
    from onnx import numpy_helper

    found: list[Any] = []
    for index in range(len(list(folder.glob(f"{kind}_*.pb")))):
        data = (folder / f"{kind}_{index}.pb").read_bytes()
        form = values[index].type.WhichOneof("value")
        if form == "sequence_type":
            found.append(numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
        elif form == "optional_type":
            found.append(numpy_helper.to_optional(onnx.OptionalProto.FromString(data)))
        else:
            found.append(numpy_helper.to_array(onnx.TensorProto.FromString(data)))
    return found


def difference(expected: Any, found: Any, rtol: float, atol: float, place: str = "output") -> str:
    """Return how a result differs from what ONNX's test wants, or "": by the rules of ONNX's own runner."""
    import numpy as np

    if isinstance(expected, (list, tuple)):
        if not isinstance(found, (list, tuple)):
            return f"{place} is {type(found).__name__}, not a sequence"
        if len(found) != len(expected):
            return f"{place} has {len(found)} elements, not {len(expected)}"
        pairs = enumerate(zip(expected, found))  # noqa: B905  # of equal length
        return next((d for i, (e, f) in pairs if (d := difference(e, f, rtol, atol, f"{place}[{i}]"))), "")
    if expected is None or found is None:
        return "" if expected is found else f"{place} is {_short(found)}, not {_short(expected)}"
    expected, found = np.asarray(expected), np.asarray(found)
    if found.shape != expected.shape:
        return f"{place} has shape {list(found.shape)}, not {list(expected.shape)}"
    if expected.dtype.kind in "OUS":
        return "" if found.tolist() == expected.tolist() else f"{place} has other strings"
    if found.dtype != expected.dtype:
        return f"{place} has type {found.dtype}, not {expected.dtype}"
    if expected.dtype.name == "bfloat16":
        rtol = max(rtol, 2**-6)
    if expected.dtype.isbuiltin != 1:
        expected, found = expected.astype(np.float32), found.astype(np.float32)
    if expected.dtype.kind == "b":
        wrong = expected != found
    else:
        wrong = ~np.isclose(found, expected, rtol=rtol, atol=atol, equal_nan=True)
    if not wrong.any():
        return ""
    where = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{place}{list(where)} is {found[where]}, not {expected[where]}: {wrong.sum()} of {wrong.size} elements differ"
    )


def _short(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


if __name__ == "__main__":
    main()
