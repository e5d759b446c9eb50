"""Run a case on any module or class with ONNX's backend interface."""

from __future__ import annotations

import dataclasses
import time
import unittest
from typing import Any

from onward_conformance.cases import Case, SuiteError

# onnx.backend.test.runner.BackendIsNotSupposedToImplementIt is one of them.
_SKIPS = unittest.SkipTest
_ACCIDENTS = (AttributeError, LookupError, TypeError, AssertionError, NotImplementedError, RecursionError, MemoryError)


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a case: status "passed", "failed" or "skipped", why, and how long it took."""

    status: str
    message: str = ""
    seconds: float = 0.0


def run(case: Case, backend: Any, device: str = "CPU") -> Result:
    """Run `case` on `backend`, a module or class with `prepare(model, device)`; see SPEC.md for the other kinds.

    What the backend says it does not support is skipped with its reason and never counts as passed. Any other exception
    of the backend is a failure. A damaged suite raises SuiteError.
    """
    started = time.perf_counter()
    try:
        status, message = _KINDS[case.kind](case, backend, device)
    except SuiteError:
        raise
    except _SKIPS as skip:
        status, message = "skipped", str(skip) or "not supported"
    except Exception as error:  # noqa: BLE001 (any failure of a backend is one failed case)
        status, message = "failed", f"{type(error).__name__}: {error}"
    return Result(status, message, time.perf_counter() - started)


def _judge(problems: list[str]) -> tuple[str, str]:
    return ("failed", "; ".join(problems)) if problems else ("passed", "")


def _run_model(case: Case, backend: Any, device: str) -> tuple[str, str]:
    prepare = getattr(backend, "prepare", None)
    if prepare is None:
        return "skipped", "the backend has no prepare(model, device)"
    supports = getattr(backend, "supports_device", None)
    if supports is not None and not supports(device):
        return "skipped", f"the backend does not support device {device}"
    model = case.model()
    try:
        prepared = prepare(model, device)
    except _SKIPS:
        raise
    except Exception:  # of any type; raised again unless the backend says that it lacks the model
        compatible = getattr(backend, "is_compatible", None)
        if compatible is not None and not compatible(model, device):
            return "skipped", "the backend says that it is not compatible with the model"
        raise
    problems = []
    for index, (inputs, _) in enumerate(case.data_sets()):
        outputs = prepared.run(list(inputs.values()))
        problems += [f"set {index}: {p}" if case.sets > 1 else p for p in case.compare(index, outputs)]
    return _judge(problems)


def _run_training(case: Case, backend: Any, device: str) -> tuple[str, str]:
    prepare = getattr(backend, "prepare_training", None)
    if prepare is None:
        return "skipped", "the backend has no prepare_training(model, device, entry)"
    prepared = prepare(case.model(), device=device, entry=None if "all-entries" in case.features else 0)
    problems = []
    if "initialization" in case.features:
        prepared.initialize()
    for index, (inputs, _) in enumerate(case.data_sets()):
        outputs = prepared.step(inputs)
        problems += [f"step {index}: {p}" for p in case.compare(index, outputs)]
    problems += [f"final state: {p}" for p in case.compare_state(prepared.state())]
    return _judge(problems)


def _run_check(case: Case, backend: Any, device: str) -> tuple[str, str]:
    check = getattr(backend, "check_model", None)
    if check is None:
        return "skipped", "the backend has no check_model(model)"
    try:
        check(case.twin())
    except _SKIPS:
        raise
    except Exception as error:  # noqa: BLE001 (a checker may refuse with any exception)
        return "failed", f"refuses the valid twin of the file: {type(error).__name__}: {error}"
    try:
        check(case.model())
    except (_SKIPS, SuiteError):
        raise
    except _ACCIDENTS as error:
        return "failed", f"breaks instead of refusing: {type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 (a checker may refuse with any exception)
        return "passed", ""
    return "failed", f"accepts a file that breaks the rule: {case.rule}"


_KINDS = {
    "gradient": _run_model,
    "optimizer": _run_model,
    "forward": _run_model,
    "training": _run_training,
    "invalid": _run_check,
}
