"""Every backend speaks ONNX's interface: its nine training tests, a sample of all others, skips with reasons."""

from __future__ import annotations

import importlib.util
import unittest
import warnings
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

from onward import samples
from onward.backends import jax, onnxruntime, reference, tensorflow, torch
from onward.backends.onnx_backend import NotSupported
from onward.errors import ArgumentError, CheckFailed, OnwardError
from onward.scoreboard import worker
from onward.scoreboard.tests import onnx_tests

BACKENDS = {"reference": reference, "onnxruntime": onnxruntime, "torch": torch, "jax": jax}
if importlib.util.find_spec("tensorflow"):  # `make test-frameworks` has it
    BACKENDS["tensorflow"] = tensorflow
NINE = (
    "node/test_adagrad", "node/test_adagrad_multiple", "node/test_adam", "node/test_adam_multiple",
    "node/test_momentum", "node/test_momentum_multiple", "node/test_nesterov_momentum", "simple/test_gradient_of_add",
    "simple/test_gradient_of_add_and_mul",
)  # fmt: skip


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Any:
    return BACKENDS[request.param]


@cache
def _nine(folder: Any) -> list[Any]:
    found = {t.id: t for part in ("_ada", "momentum", "gradient_of") for t in onnx_tests(folder, part)}
    return [found[name] for name in NINE]


@pytest.fixture(scope="session")
def nine(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return _nine(tmp_path_factory.mktemp("nine"))


def test_onnx_training_tests_are_nine_of_nine(backend: Any, nine: list[Any]) -> None:
    assert {t.name: worker.run(backend, t.request) for t in nine} == {t.name: ("passed", "") for t in nine}


def test_onnx_own_runner_runs_a_backend_and_counts_a_skip_as_a_skip() -> None:
    from onnx.backend.test import BackendTest

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = BackendTest(torch, __name__)
        runner.include("test_(adam|nesterov_momentum|gradient_of_add|cast_no_such)_cpu$")
        cases = runner.test_cases
    chosen = unittest.TestSuite(
        case(name)
        for case in cases.values()
        for name in unittest.defaultTestLoader.getTestCaseNames(case)
        if name in ("test_adam_cpu", "test_nesterov_momentum_cpu", "test_gradient_of_add_cpu")
    )
    result = unittest.TestResult()

    chosen.run(result)

    assert (result.testsRun, result.failures, result.errors, result.skipped) == (3, [], [], [])


def _unknown() -> onnx.ModelProto:
    return parser.parse_model(
        """<ir_version: 10, opset_import: ["": 18, "my.own": 1]>
           g (float[2] x) => (float[2] y) { y = my.own.Secret(x) }"""
    )


def test_an_unknown_operator_is_a_skip_with_its_name(backend: Any) -> None:
    with pytest.raises(NotSupported, match="Secret"):
        backend.run_model(_unknown(), [np.zeros(2, np.float32)])
    assert issubclass(NotSupported, unittest.SkipTest)
    assert not backend.is_compatible(_unknown())


def test_a_wrong_model_is_an_error_and_no_skip(backend: Any) -> None:
    wrong = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 18]> g (float[2] x) => (float[2] y) { y = Add(x, nowhere) }"""
    )

    with pytest.raises(CheckFailed):
        backend.prepare(wrong)
    with pytest.raises(OnwardError):
        backend.check_model(wrong)


def test_inputs_that_do_not_fit_are_an_error_and_no_skip(backend: Any) -> None:
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 18]> g (float[N, 3] x, float[M, 2] w) => (float[N, 2] y)
           { y = MatMul(x, w) }"""
    )

    with pytest.raises(OnwardError) as caught:
        backend.run_model(model, [np.zeros((2, 3), np.float32), np.zeros((4, 2), np.float32)])
    assert caught.value.code in ("B110", "B201", "B301")
    with pytest.raises(ArgumentError, match="too many inputs"):
        backend.run_model(model, [np.zeros((2, 3), np.float32)] * 3)


def test_a_gradient_inside_a_model_runs(backend: Any) -> None:
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 18, "ai.onnx.preview.training": 1]>
           g (float[N] x) => (float[N] y, float[N] dx) {
             y = Mul(x, x)
             dx = ai.onnx.preview.training.Gradient <xs: strings = ["x"], y: string = "y"> (x)
           }"""
    )
    x = np.array([1, -2, 3], np.float32)

    y, dx = backend.run_model(model, [x])

    np.testing.assert_array_equal(y, x * x)
    np.testing.assert_array_equal(dx, 2 * x)


def test_a_node_runs_alone_at_the_version_that_is_asked_for(backend: Any) -> None:
    x = np.arange(6, dtype=np.float32).reshape(1, 6)

    (squeezed,) = backend.run_node(helper.make_node("Squeeze", ["x"], ["y"], axes=[0]), [x], opset_version=11)
    (joined,) = backend.run_node(helper.make_node("Clip", ["x", "", "high"], ["y"]), [x, None, np.float32(3)])

    np.testing.assert_array_equal(squeezed, x[0])
    np.testing.assert_array_equal(joined, np.minimum(x, 3))


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
@pytest.mark.parametrize("axes", [[], [np.zeros(0, np.int64)]])
def test_a_reduction_over_no_axis_is_that_of_single_elements(backend: Any, axes: list[Any], dtype: Any) -> None:
    x = np.array([[-3, 2], [5, -4]], dtype)
    wanted = {"ReduceL2": abs(x), "ReduceSumSquare": x * x, "ReduceL1": abs(x), "ReduceSum": x, "ReduceMean": x}
    if dtype == np.float32:
        with np.errstate(invalid="ignore"):
            wanted |= {"ReduceLogSum": np.log(x), "ReduceLogSumExp": x, "ReduceProd": x, "ReduceMax": x, "ReduceMin": x}

    for name, expected in wanted.items():
        node = helper.make_node(name, ["x", "axes"][: 1 + len(axes)], ["y"], noop_with_empty_axes=1, keepdims=0)
        (found,) = backend.run_node(node, [x, *axes], outputs_info=[(dtype, x.shape)], opset_version=18)

        assert found.dtype == dtype, name
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=name)


def test_text_and_small_integers_run_although_the_framework_has_no_such_type(backend: Any) -> None:
    words = np.array(["ab", "c"], dtype=object)
    node = helper.make_node("StringConcat", ["x", "y"], ["z"])

    (joined,) = backend.run_node(node, [words, words], opset_version=20)
    cast = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT4)
    (small,) = backend.run_node(cast, [np.array([1.0, -8.0, 7.0])], opset_version=21)

    assert joined.tolist() == ["abab", "cc"]
    assert small.astype(int).tolist() == [1, -8, 7]


def test_a_training_dropout_drops(backend: Any) -> None:
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 18]> g (float[N] x, float r, bool t) => (float[N] y)
           { y = Dropout(x, r, t) }"""
    )

    (y,) = backend.run_model(model, [np.ones(1000, np.float32), np.float32(0.25), np.bool_(True)])

    assert 180 < (y == 0).sum() < 320
    np.testing.assert_allclose(y[y != 0], 1 / 0.75, rtol=1e-6)


def _losses(backend: Any) -> tuple[list[float], dict[str, np.ndarray]]:
    model = samples.build("linear").proto()
    training = backend.prepare_training(model)
    rng = np.random.default_rng(0)
    batch = {
        value.name: rng.standard_normal([d.dim_value or 8 for d in value.type.tensor_type.shape.dim]).astype(np.float32)
        for value in [*model.graph.input, *model.training_info[0].algorithm.input]
        if value.name not in training.state()
    }
    return [float(training.step(batch)["loss"]) for _ in range(3)], training.state()


def test_a_model_trains_through_the_interface_as_on_the_reference(backend: Any) -> None:
    losses, state = _losses(backend)
    expected, wanted = _losses(reference)

    assert len(set(losses)) == 3
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert all(np.allclose(state[name], value, rtol=1e-4, atol=1e-6) for name, value in wanted.items())


def test_an_entry_that_does_not_exist_is_an_error(backend: Any) -> None:
    model = samples.build("linear").proto()

    backend.prepare_training(model).initialize()

    with pytest.raises(ArgumentError, match=r"training_info\[7\]"):
        backend.prepare_training(model, entry=7)


def test_another_device_is_not_supported(backend: Any) -> None:
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA:0")
    with pytest.raises(NotSupported, match="CUDA"):
        backend.prepare(_unknown(), "CUDA:0")


def test_an_affine_grid_of_a_batch_of_one(backend: Any) -> None:
    """The standard's body squeezes the batch away; so did the gradient of AffineGrid, which reads a grid of one."""
    node = onnx.helper.make_node("AffineGrid", ["theta", "size"], ["grid"], align_corners=1)
    identity = np.array([[[1, 0, 0], [0, 1, 0]]], np.float32)

    (grid,) = backend.run_node(node, [identity, np.array([1, 1, 2, 2])])

    np.testing.assert_array_equal(grid, [[[[-1, -1], [1, -1]], [[-1, 1], [1, 1]]]])


def test_an_empty_range(backend: Any) -> None:
    node = onnx.helper.make_node("Range", ["start", "limit", "delta"], ["y"])

    (y,) = backend.run_node(node, [np.array(v, np.float32) for v in (3, 1, 1)], opset_version=11)

    assert y.shape == (0,)


def test_a_product_of_integers_is_of_integers(backend: Any) -> None:
    node = onnx.helper.make_node("Gemm", ["a", "b"], ["y"], alpha=0.5)
    factors = [np.array([[2, 4]], np.int32), np.array([[3], [5]], np.int32)]

    (y,) = backend.run_node(node, factors, opset_version=13)

    assert y.dtype == np.int32
    assert y.tolist() == [[13]]


def test_the_statistics_of_a_layer_normalization_have_the_type_of_the_stash(backend: Any) -> None:
    node = onnx.helper.make_node("LayerNormalization", ["x", "scale"], ["y", "mean", "inverse"])
    x = np.random.default_rng(0).standard_normal((3, 4))
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + np.float32(1e-5))

    y, mean, inverse = backend.run_node(node, [x, np.ones(4)])

    assert (y.dtype, mean.dtype, inverse.dtype) == (np.float64, np.float32, np.float32)
    np.testing.assert_allclose(y, expected, rtol=1e-12)
    np.testing.assert_allclose(mean, x.mean(1, keepdims=True), rtol=1e-6)


def test_a_group_normalization_of_half_precision_is_computed_in_float32(backend: Any) -> None:
    node = onnx.helper.make_node("GroupNormalization", ["x", "scale", "bias"], ["y"], num_groups=1)
    x = (np.random.default_rng(0).standard_normal((2, 2, 64, 64)) * 0.5 + 10).astype(np.float16)
    wide = x.astype(np.float64)
    centred = wide - wide.mean((1, 2, 3), keepdims=True)
    expected = centred / np.sqrt((centred * centred).mean((1, 2, 3), keepdims=True) + 1e-5)

    (y,) = backend.run_node(
        node, [x, np.ones(2, np.float16), np.zeros(2, np.float16)], outputs_info=[(x.dtype, x.shape)]
    )

    assert y.dtype == np.float16
    np.testing.assert_allclose(y, expected, atol=3e-3)


# The others have no kernel, and onnx's evaluator truncates each share.
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name in ("jax", "tensorflow")], indirect=True)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_an_image_of_integers_is_read_between_its_pixels(backend: Any, mode: str) -> None:
    node = onnx.helper.make_node("GridSample", ["x", "grid"], ["y"], mode=mode, align_corners=1)
    x = np.array([[[[0, 10], [20, 30]]]], np.int32)
    grid = np.array([[[[-1, -1], [0.6, -1], [0.6, 0.6]]]], np.float32)

    (y,) = backend.run_node(node, [x, grid], opset_version=20)

    assert y.dtype == np.int32
    assert y.ravel().tolist() == ([0, 10, 30] if mode == "nearest" else [0, 8, 24])
