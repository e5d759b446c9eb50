"""Functions of float64 that are written out for IREE: to the last digits what numpy, scipy and PyTorch compute."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest

from onward.backends.iree.doubles import DOMAIN, LACKED, write_out_doubles
from onward.model.serde import serialize
from onward.runtime import evaluate

torch = pytest.importorskip("torch")

ERF = np.vectorize(math.erf)
NEEDED = {
    "Tanh": np.tanh,
    "Erf": ERF,
    "Sin": np.sin,
    "Cos": np.cos,
    "Tan": np.tan,
    "Atan": np.arctan,
    "Asin": np.arcsin,
    "Acos": np.arccos,
    "Gelu": lambda x: torch.nn.functional.gelu(torch.from_numpy(x)).numpy(),
    "Mish": lambda x: torch.nn.functional.mish(torch.from_numpy(x)).numpy(),
}


def model_of(operator: str, kind: int = onnx.TensorProto.DOUBLE, **attributes: str) -> onnx.ModelProto:
    values = [onnx.helper.make_tensor_value_info(name, kind, ["n"]) for name in "xy"]
    node = onnx.helper.make_node(operator, ["x"], ["y"], **attributes)
    graph = onnx.helper.make_graph([node], "g", values[:1], values[1:])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)


def points(operator: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    if operator in ("Asin", "Acos"):
        return np.concatenate([rng.uniform(-1, 1, 2000), [0.0, 1.0, -1.0, 1e-9, 2.0, np.nan]])
    spread = [rng.standard_normal(1000) * scale for scale in (1e-8, 0.1, 1, 5, 100)]
    borders = [0.0, 0.625, 0.66, 1 + math.sqrt(2), 1.0, 8.0, 30.0, 1e5]
    return np.concatenate([*spread, borders, np.negative(borders), [np.nan]])


def test_every_function_has_an_oracle():
    assert set(NEEDED) == LACKED


@pytest.mark.parametrize("operator", sorted(LACKED))
def test_a_written_out_function_keeps_the_digits(operator):
    x = points(operator)
    with np.errstate(invalid="ignore"):
        needed = NEEDED[operator](x)

    model = write_out_doubles(model_of(operator))

    onnx.checker.check_model(model, full_check=True)
    assert operator not in {n.op_type for n in model.graph.node}
    assert not model.functions
    assert DOMAIN not in {o.domain for o in model.opset_import}
    ((found,),) = evaluate(serialize(model), [{"x": x}], threads=1)
    near_zero = 1e-14 if operator in ("Gelu", "Mish") else 0.0  # their formulas subtract from 1
    np.testing.assert_allclose(found, needed, rtol=1e-15, atol=near_zero)


def test_gelu_by_tanh_keeps_the_digits():
    x = points("Gelu")
    needed = torch.nn.functional.gelu(torch.from_numpy(x), approximate="tanh").numpy()

    model = write_out_doubles(model_of("Gelu", approximate="tanh"))

    ((found,),) = evaluate(serialize(model), [{"x": x}], threads=1)
    np.testing.assert_allclose(found, needed, rtol=1e-14, atol=1e-14)


def test_float32_stays_as_it_is():
    model = model_of("Tanh", onnx.TensorProto.FLOAT)

    assert write_out_doubles(model) is model


def test_iree_computes_all_of_them():
    pytest.importorskip("iree.compiler")
    from onward.backends.iree.runner import Runner

    model, x = model_of("Tanh"), np.linspace(-0.99, 0.99, 50)
    del model.graph.node[:], model.graph.output[:]
    for operator in sorted(LACKED):
        model.graph.node.append(onnx.helper.make_node(operator, ["x"], [operator]))
        model.graph.output.append(onnx.helper.make_tensor_value_info(operator, onnx.TensorProto.DOUBLE, ["n"]))

    found = Runner(model).run({"x": x})

    for operator, value in zip(sorted(LACKED), found, strict=True):
        np.testing.assert_allclose(value, NEEDED[operator](x), rtol=2e-15, atol=1e-15, err_msg=operator)
