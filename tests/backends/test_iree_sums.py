"""Sums in several stages: the same numbers, and long ones are as exact as those of other runtimes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from onward.backends.iree.sums import write_out_sums
from onward.model.serde import serialize
from onward.runtime import evaluate

CASES = {
    "everything": ("float[2,3,40,40] x", "y = ReduceMean <keepdims = 0> (x)"),
    "rows": ("float[3,5000] x", "y = ReduceSum <keepdims = 0> (x, last)"),
    "columns kept": ("float[5000,3] x", "y = ReduceMean (x, first)"),
    "two of three": ("float[60,4,60] x", "y = ReduceSum <keepdims = 0> (x, ends)"),
    "a vector of doubles": ("double[10000] x", "y = ReduceMean <keepdims = 0> (x)"),
    "half": ("float16[64,64] x", "y = ReduceMean <keepdims = 0> (x)"),
}
AXES = "int64[1] last = {-1}, int64[1] first = {0}, int64[2] ends = {2, 0}"
STAY = {
    "short": ("float[4,3,1024] x", "y = ReduceSum (x, last)"),
    "a prime": ("float[10007] x", "y = ReduceSum (x)"),
    "nothing to add": ("float[10000] x", "y = ReduceSum <noop_with_empty_axes = 1> (x)"),
    "axes that are not known": ("float[100,100] x, int64[1] a", "y = ReduceSum (x, a)"),
    "whole numbers": ("int64[10000] x", "y = ReduceSum (x)"),
    "the largest": ("float[10000] x", "y = ReduceMax (x)"),
}


def _model(case: tuple[str, str], opset: int = 18) -> onnx.ModelProto:
    inputs, nodes = case
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> net ({inputs}) => (y) <{AXES}> {{ {nodes} }}'
    return onnx.shape_inference.infer_shapes(parser.parse_model(text))


def _feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    kind = model.graph.input[0].type.tensor_type
    value = np.random.default_rng(0).standard_normal([d.dim_value for d in kind.shape.dim])
    return {"x": value.astype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))}


@pytest.mark.parametrize("name", CASES)
def test_the_sum_is_the_same(name: str) -> None:
    model = _model(CASES[name])
    feeds = _feeds(model)

    written = write_out_sums(model)

    assert sum(n.op_type in ("ReduceSum", "ReduceMean") for n in written.graph.node) > 1
    onnx.checker.check_model(written, full_check=True)
    ((needed,),) = evaluate(serialize(model), [feeds], threads=1)
    ((found,),) = evaluate(serialize(written), [feeds], threads=1)
    assert found.shape == needed.shape
    size = float(np.abs(feeds["x"]).astype(np.float64).sum() / (needed.size if "Mean" not in CASES[name][1] else 4096))
    np.testing.assert_allclose(found, needed, rtol=0, atol=4 * float(np.finfo(needed.dtype).eps) * size)


@pytest.mark.parametrize("opset", [11, 13])
def test_axes_as_attributes_are_read_and_written(opset: int) -> None:
    model = _model(("float[60,4,60] x", "y = ReduceMean <axes = [0, -1], keepdims = 0> (x)"), opset)
    feeds = _feeds(model)

    written = write_out_sums(model)

    onnx.checker.check_model(written, full_check=True)
    assert sum(n.op_type == "ReduceMean" for n in written.graph.node) == 2
    ((found,),) = evaluate(serialize(written), [feeds], threads=1)
    np.testing.assert_allclose(found, feeds["x"].mean((0, 2)), rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", STAY)
def test_others_stay_as_they_are(name: str) -> None:
    model = _model(STAY[name])

    assert write_out_sums(model) is model


def test_a_mean_of_more_numbers_than_float16_can_count_is_right() -> None:
    """It was NaN on IREE: infinity divided by infinity."""
    model = _model(("float16[300,300] x", "y = ReduceMean <keepdims = 0> (x)"))
    feeds = {"x": np.full((300, 300), 2, np.float16)}

    ((found,),) = evaluate(serialize(write_out_sums(model)), [feeds], threads=1)

    assert found == 2.0


def test_a_long_mean_on_iree_is_exact() -> None:
    pytest.importorskip("iree.compiler")
    from onward.backends.iree.runner import Runner

    model = _model(("float[3,256,256] x", "y = ReduceMean <keepdims = 0> (x)"))
    x = np.random.default_rng(0).random((3, 256, 256), np.float32)

    (found,) = Runner(model).run({"x": x})

    assert found == pytest.approx(x.astype(np.float64).mean(), rel=2e-6)  # added one after the other: 4e-5
