"""ONNX's own node tests of ai.onnx.ml, and the cases of our decompositions, on every backend that runs programs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.backend.test.case.node import collect_testcases

import onward
from onward.backends.base import open_session
from upgrade.ml_cases import CASES, Case, model_of

BACKENDS = ("reference", "onnxruntime", "torch")


def node_tests() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    return {c.name: c for c in found if any(o.domain == "ai.onnx.ml" for o in c.model.opset_import)}


NODE_TESTS = node_tests()


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray], backend: str) -> list[np.ndarray]:
    """Return the outputs of a model that went through the compiler."""
    found = open_session(onward.compile(model), backend).infer(feeds)
    return [np.asarray(found[o.name]) for o in model.graph.output]


def same(actual: np.ndarray, wanted: np.ndarray, atol: float = 2e-6) -> bool:
    if wanted.dtype.kind in "OUS":
        return actual.tolist() == wanted.tolist()
    close = bool(np.allclose(actual, wanted, rtol=2e-5, atol=atol, equal_nan=True))
    return actual.shape == wanted.shape and actual.dtype == wanted.dtype and close


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_node_test_of_onnx_passes(backend: str) -> None:
    assert len(NODE_TESTS) >= 8
    failed = []
    for name, case in NODE_TESTS.items():
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        if all(o.domain for o in model.opset_import):  # they import ai.onnx.ml alone
            model.opset_import.append(onnx.helper.make_opsetid("", 18))
        for inputs, expected in case.data_sets:
            feeds = {v.name: np.asarray(x) for v, x in zip(model.graph.input, inputs, strict=True)}
            outputs = run(model, feeds, backend)
            if not all(same(a, np.asarray(e)) for a, e in zip(outputs, expected, strict=True)):
                failed.append(name)

    assert failed == []


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("op_type", sorted({c.op_type for c in CASES.values()}))
def test_every_operator_gives_the_numbers_of_onnxruntime(op_type: str, backend: str) -> None:
    cases: dict[str, Case] = {n: c for n, c in CASES.items() if c.op_type == op_type and "PROBIT" not in n}
    for name, case in list(cases.items())[:2]:
        model, feeds = model_of(case)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        expected = session.run(None, feeds)

        outputs = run(model, feeds, backend)

        assert all(same(a, e) for a, e in zip(outputs, expected, strict=True)), name
