"""Compare gradients with finite differences, in float64, on the reference backend.

The loss is a fixed random combination of all floating-point outputs, so that errors cannot cancel in a sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from onward.backends.reference import Evaluator
from onward.compiler.derivatives import gradient
from onward.model.training_model import FLOAT_TYPES
from onward.testing.models import OneNodeModel

_LOSS = "testing/loss"


def gradients(
    model: OneNodeModel, wrt: Sequence[str], *, weights: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Return d(sum of all outputs)/d(x) for each x in `wrt`, computed by the lowered graph on the reference backend."""
    with_loss = _with_loss(model, weights or {})
    lowered = gradient(with_loss, of=_LOSS, wrt=list(wrt))
    results = Evaluator(lowered).run(model.feeds)
    return {name: results[f"grad/{name}"] for name in wrt}


def assert_gradients(
    model: OneNodeModel,
    wrt: Sequence[str] | None = None,
    *,
    rtol: float = 1e-6,
    atol: float = 1e-8,
    step: float = 1e-3,
    seed: int = 0,
) -> None:
    """Assert that the gradients with respect to `wrt` agree with finite differences.

    `wrt` defaults to all floating-point inputs, which must be float64. The AssertionError names the input and the worst
    element.
    """
    names = list(wrt) if wrt is not None else [n for n, a in model.feeds.items() if a.dtype.kind == "f"]
    for name in names:
        assert model.feeds[name].dtype == np.float64, f"input {name} is {model.feeds[name].dtype}, not float64"
    weights = _random_weights(model, seed)
    actual = gradients(model, names, weights=weights)
    forward = Evaluator(_with_loss(model, weights))
    for name in names:
        expected = _finite_differences(forward, model.feeds, name, step)
        assert actual[name].shape == expected.shape, f"grad/{name} has shape {actual[name].shape}, not {expected.shape}"
        np.testing.assert_allclose(
            actual[name],
            expected,
            rtol=rtol,
            atol=atol,
            err_msg=f"gradient with respect to {name} of {model.node.op_type}",
        )


def _random_weights(model: OneNodeModel, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    outputs = Evaluator(model.proto).run(model.feeds)
    return {
        name: rng.uniform(0.5, 1.5, np.shape(outputs[name])) * rng.choice([-1.0, 1.0], np.shape(outputs[name]))
        for name in model.outputs
        if np.asarray(outputs[name]).dtype.kind == "f"
    }


def _with_loss(model: OneNodeModel, weights: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Return the model with the output `testing/loss`: the weighted sum of its floating-point outputs."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    graph = proto.graph
    inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    # If inference finds no type (GroupNormalization has none), use that of the first floating-point input.
    first = next((a.dtype for a in model.feeds.values() if a.dtype.kind == "f"), np.dtype(np.float32))
    default = onnx.helper.np_dtype_to_tensor_dtype(first)
    types = {o.name: o.type.tensor_type.elem_type or default for o in inferred.graph.output}
    floating = [n for n in model.outputs if types[n] in {t.value for t in FLOAT_TYPES}]
    terms = []
    for name in floating:
        source = name
        if name in weights:
            weight = np.asarray(weights[name]).astype(onnx.helper.tensor_dtype_to_np_dtype(types[name]))
            graph.initializer.append(onnx.numpy_helper.from_array(weight, f"testing/weight/{name}"))
            graph.node.append(
                onnx.helper.make_node("Mul", [name, f"testing/weight/{name}"], [f"testing/weighted/{name}"])
            )
            source = f"testing/weighted/{name}"
        graph.node.append(onnx.helper.make_node("ReduceSum", [source], [f"testing/sum/{name}"], keepdims=0))
        terms.append(f"testing/sum/{name}")
    graph.node.append(onnx.helper.make_node("Sum", terms, [_LOSS]))
    # A graph output must have a known rank: a value without one only feeds the loss.
    found = [o for o in inferred.graph.output if o.type.tensor_type.HasField("shape")]
    del graph.output[:]
    graph.output.extend(found)
    graph.output.append(onnx.helper.make_tensor_value_info(_LOSS, types[floating[0]], []))
    return proto


def _finite_differences(forward: Evaluator, feeds: Mapping[str, np.ndarray], name: str, step: float) -> np.ndarray:
    """Return the derivative of the loss with respect to each element of `name`: central differences of fourth order."""
    point = np.array(feeds[name], dtype=np.float64)
    out = np.zeros_like(point)

    def loss(position: tuple[int, ...], offset: float) -> float:
        moved = point.copy()
        moved[position] += offset
        return float(forward.run({**feeds, name: moved})[_LOSS])

    for position in np.ndindex(point.shape):
        near = loss(position, step) - loss(position, -step)
        far = loss(position, 2 * step) - loss(position, -2 * step)
        out[position] = (8 * near - far) / (12 * step)
    return out
