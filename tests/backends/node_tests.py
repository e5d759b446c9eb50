"""ONNX's own node tests, run through the interpreter of a framework."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from onward.backends.graph.interpreter import Interpreter
from onward.errors import BackendError


class Backend(NamedTuple):
    """What runs the tests: an interpreter, and how to make, read and recognise its tensors."""

    interpreter: type[Interpreter]
    to_numpy: Callable[[Any], np.ndarray]
    tensor: type


def torch_backend() -> Backend:
    import torch

    from onward.backends.torch import interpreter, tensors

    return Backend(interpreter.Interpreter, tensors.to_numpy, torch.Tensor)


def jax_backend() -> Backend:
    import jax

    from onward.backends.jax import interpreter, tensors

    return Backend(interpreter.Interpreter, tensors.to_numpy, jax.Array)


def tensorflow_backend(*, traced: bool = False) -> Backend:
    """Return TensorFlow, eagerly or inside a `tf.function`."""
    import tensorflow as tf

    from onward.backends.tensorflow import interpreter, tensors

    class Traced(interpreter.Interpreter):
        def run(self, feeds: Any) -> dict[str, Any]:
            if not tf.executing_eagerly():  # the body of a loop
                return super().run(feeds)
            found = tf.function(super().run, autograph=False)(feeds)
            return {name: found[name] for name in self.output_names}

    return Backend(Traced if traced else interpreter.Interpreter, tensors.to_numpy, tf.Tensor)


def cases() -> Iterator[Any]:
    """Yield every node test of the installed onnx, without the training operators, which a backend never sees."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    for case in sorted(found, key=lambda c: c.name):
        domains = {o.domain for o in case.model.opset_import}
        if not domains & {"ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training"}:
            yield case


def operators() -> dict[str, str]:
    """Return the operator that each node test is for: the only node of its model.

    A test of the function body of an operator (`…_expanded`) belongs to the operator of the test with the body's node.
    """
    every = list(cases())
    nodes = {case.name: [n.op_type for n in case.model.graph.node] for case in every}
    assert len(nodes) == len(every)  # each is counted once
    found: dict[str, str] = {}
    for name in nodes:
        (found[name],) = nodes[re.sub(r"_expanded(_ver\d+)?$", "", name)]
    return found


def outcome(case: Any, backend: Backend) -> str:
    """Return "passed", "no handler", or why the test fails."""
    model = case.model
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    for inputs, expected in case.data_sets:
        try:
            graph = ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(model)).graph
            interpreter = backend.interpreter(graph, opset)
            to_tensor = interpreter.framework.to_tensor
            feeds = {v.name: _given(x, to_tensor) for v, x in zip(model.graph.input, inputs, strict=False)}
            results = list(interpreter.run(feeds).values())
        except BackendError as error:
            return "no handler" if error.code == "B300" else "no such element type"
        except Exception as error:  # noqa: BLE001 - whatever an operator raises is the finding
            return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        for actual, wanted in zip(results, expected, strict=True):
            problem = difference(actual, wanted, case.rtol, case.atol, backend)
            if problem:
                return problem
    return "passed"


def check_gap(gap: dict[str, Any], outcomes: dict[str, str]) -> None:
    """Fail where a test of a known gap passes now; of random numbers (`chance`), where all of them pass."""
    matching = {name: found for name, found in outcomes.items() if re.fullmatch(gap["tests"], name)}
    assert matching, "no such test any more: remove the line"

    passing = [name for name, found in matching.items() if found == "passed"]

    if gap.get("chance"):  # ten draws of yes or no are right by chance now and then
        assert len(passing) < len(matching), "they pass now: remove the line"
    else:
        assert passing == [], "they pass now: make the line narrower"


def _given(value: Any, to_tensor: Callable[[np.ndarray], Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return [_given(v, to_tensor) for v in value]
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    if value is None or (isinstance(value, np.ndarray) and value.dtype.kind in "OUS"):
        return value
    return to_tensor(np.asarray(value))


def difference(actual: Any, wanted: Any, rtol: float, atol: float, backend: Backend) -> str | None:
    """Return how a result differs from what the test wants, or None."""
    if isinstance(wanted, (list, tuple)):
        if len(actual) != len(wanted):
            return f"{len(actual)} elements, not {len(wanted)}"
        found = (difference(a, w, rtol, atol, backend) for a, w in zip(actual, wanted, strict=True))
        return next((d for d in found if d), None)
    if isinstance(wanted, onnx.TensorProto):
        wanted = onnx.numpy_helper.to_array(wanted)
    if wanted is None:
        return None if actual is None else "something, not nothing"
    wanted = np.asarray(wanted)
    found = backend.to_numpy(actual) if isinstance(actual, backend.tensor) else np.asarray(actual)
    if found.shape != wanted.shape:
        return f"shape {found.shape}, not {wanted.shape}"
    if found.dtype != wanted.dtype:
        return f"type {found.dtype}, not {wanted.dtype}"
    if wanted.dtype.kind in "OUS":
        return None if (found == wanted).all() else "other strings"
    if wanted.dtype.kind == "c":
        return None if np.allclose(found, wanted, rtol=rtol, atol=atol) else "other numbers"
    with np.errstate(invalid="ignore"):
        a, w = found.astype(np.float64), wanted.astype(np.float64)
    atol = max(atol, 2e-6)
    if wanted.dtype.name == "bfloat16":
        rtol, atol = max(rtol, 1e-2), max(atol, 1e-2)
    if wanted.dtype.name == "float16":
        rtol, atol = max(rtol, 2e-3), max(atol, 2e-3)
    if not np.allclose(a, w, rtol=rtol, atol=atol, equal_nan=True):
        return f"numbers off by {np.nanmax(np.abs(a - w)):.3g}"
    return None
