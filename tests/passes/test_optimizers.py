"""ONNX's optimizer operators, decomposed, give what the standard's formulas give, also for T > 0 and two tensors."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from onward.backends.reference import Evaluator
from onward.errors import ModelError
from onward.graph.schema import TRAINING_DOMAIN
from onward.model.training_model import TrainingModel
from onward.passes.base import NO_GRADIENTS, Unit
from onward.passes.optimizers import LowerOptimizers


def update(op_type: str, kinds: int, T: int, *, dtype: type = np.float64, **attributes: object) -> tuple:
    """Return (inputs by kind, outputs of the decomposed node) for two tensors."""
    rng = np.random.default_rng(0)
    shapes = [(3,), (2, 2)]
    tensors = [[np.abs(rng.standard_normal(s)).astype(dtype) for s in shapes] for _ in range(kinds)]
    names = [f"k{k}_{i}" for k in range(kinds) for i in range(2)]
    outputs = [f"o{i}" for i in range((kinds - 1) * 2)]
    node = helper.make_node(op_type, ["R", "T", *names], outputs, domain=TRAINING_DOMAIN, **attributes)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    feeds = {"R": np.array(0.1, dtype), "T": np.array(T, np.int64)}
    feeds.update(zip(names, [t for group in tensors for t in group], strict=True))
    inputs = [
        helper.make_tensor_value_info(n, onnx.TensorProto.INT64 if n == "T" else kind, a.shape)
        for n, a in feeds.items()
    ]
    infos = [helper.make_tensor_value_info(o, kind, shapes[i % 2]) for i, o in enumerate(outputs)]
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(TRAINING_DOMAIN, 1)]
    model = ir.serde.deserialize_model(
        helper.make_model(helper.make_graph([node], "g", inputs, infos), opset_imports=imports)
    )
    LowerOptimizers()(Unit(TrainingModel(model), facts={NO_GRADIENTS}))
    assert all(n.domain == "" for n in model.graph)
    results = Evaluator(ir.serde.serialize_model(model)).run(feeds)
    return tensors, [[results[f"o{k * 2 + i}"] for i in range(2)] for k in range(kinds - 1)]


@pytest.mark.parametrize("T", [0, 1, 7])
def test_adagrad(T: int) -> None:
    (X, G, H), (new_x, new_h) = update("Adagrad", 3, T, decay_factor=0.1, epsilon=0.01, norm_coefficient=0.5)
    decay, eps, nc = (float(np.float32(v)) for v in (0.1, 0.01, 0.5))

    for x, g, h, x2, h2 in zip(X, G, H, new_x, new_h, strict=True):
        g = nc * x + g
        expected_h = h + g * g
        np.testing.assert_allclose(h2, expected_h, rtol=1e-14)
        np.testing.assert_allclose(x2, x - 0.1 / (1 + T * decay) * g / (np.sqrt(expected_h) + eps), rtol=1e-14)


@pytest.mark.parametrize("T", [0, 1, 7])
def test_adam(T: int) -> None:
    values = {"alpha": 0.8, "beta": 0.95, "epsilon": 0.01, "norm_coefficient": 0.3, "norm_coefficient_post": 0.2}
    (X, G, V, H), (new_x, new_v, new_h) = update("Adam", 4, T, **values)
    a, b, eps, nc, post = (float(np.float32(v)) for v in values.values())

    for x, g, v, h, x2, v2, h2 in zip(X, G, V, H, new_x, new_v, new_h, strict=True):
        g = nc * x + g
        expected_v = a * v + (1 - a) * g
        expected_h = b * h + (1 - b) * g * g
        rate = 0.1 * np.sqrt(1 - b**T) / (1 - a**T) if T > 0 else 0.1
        np.testing.assert_allclose(v2, expected_v, rtol=1e-14)
        np.testing.assert_allclose(h2, expected_h, rtol=1e-14)
        np.testing.assert_allclose(x2, (1 - post) * (x - rate * expected_v / (np.sqrt(expected_h) + eps)), rtol=1e-13)


@pytest.mark.parametrize("mode", ["standard", "nesterov"])
@pytest.mark.parametrize("T", [0, 3])
def test_momentum(T: int, mode: str) -> None:
    values = {"alpha": 0.9, "beta": 0.7, "norm_coefficient": 0.1}
    (X, G, V), (new_x, new_v) = update("Momentum", 3, T, mode=mode, **values)
    a, b, nc = (float(np.float32(v)) for v in values.values())

    for x, g, v, x2, v2 in zip(X, G, V, new_x, new_v, strict=True):
        g = nc * x + g
        expected_v = a * v + (b if T > 0 else 1) * g
        step = g + a * expected_v if mode == "nesterov" else expected_v
        np.testing.assert_allclose(v2, expected_v, rtol=1e-14)
        np.testing.assert_allclose(x2, x - 0.1 * step, rtol=1e-14)


def test_a_missing_tensor_is_named() -> None:
    node = ir.node("Adam", [ir.val(n, ir.DataType.FLOAT, ()) for n in "RTXG"], domain=TRAINING_DOMAIN, name="opt")
    graph = ir.Graph([v for v in node.inputs if v], node.outputs, nodes=[node], opset_imports={"": 18})

    with pytest.raises(ModelError, match=r"`Adam` has 2 tensors[\s\S]*multiple of 4"):
        LowerOptimizers()(Unit(TrainingModel(ir.Model(graph, ir_version=8)), facts={NO_GRADIENTS}))
