"""Operators of the torch and the reference backend give the numbers of ONNX Runtime, the runtime that trains."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import onward
from models import stock_session
from onward.backends.reference import Evaluator
from onward.backends.resampling import Interpolation

Backend = Callable[[onnx.ModelProto, np.ndarray], np.ndarray]


def with_torch(model: onnx.ModelProto, X: np.ndarray) -> np.ndarray:
    module, _ = onward.to_torch(model, mode="inference")
    return np.asarray(module(torch.from_numpy(X)))


def with_reference(model: onnx.ModelProto, X: np.ndarray) -> np.ndarray:
    return Evaluator(model).run({"X": X})["Y"]


both = pytest.mark.parametrize("backend", [with_torch, with_reference], ids=["torch", "reference"])


def one_node(op_type: str, X: np.ndarray, *inputs: np.ndarray | None, **attributes: Any) -> onnx.ModelProto:
    """Return a model of one node `op_type(X, *inputs)`, whose other inputs are constants."""
    names = [f"input{i}" if v is not None else "" for i, v in enumerate(inputs)]
    constants = [numpy_helper.from_array(v, n) for n, v in zip(names, inputs, strict=True) if v is not None]
    graph = helper.make_graph(
        [helper.make_node(op_type, ["X", *names], ["Y"], **attributes)],
        "net",
        [helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, [None] * X.ndim)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def assert_like_onnxruntime(backend: Backend, model: onnx.ModelProto, X: np.ndarray) -> None:
    (expected,) = stock_session(model).run(None, {"X": X})

    actual = backend(model, X)

    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


# Each gives a size that was rounded down: 6.5, 6.8, 2.4 and 3.5 pixels.
SCALES = [(5, 1.3), (4, 1.7), (4, 0.6), (7, 0.5)]
COORDINATES = [
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
]  # fmt: skip
KINDS: list[dict[str, Any]] = [
    {"mode": "nearest", "nearest_mode": "floor"},
    {"mode": "nearest", "nearest_mode": "ceil"},
    {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
    {"mode": "linear"},
    {"mode": "linear", "antialias": 1},
    {"mode": "cubic"},
    {"mode": "cubic", "exclude_outside": 1},
]


@both
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: " ".join(str(v) for v in k.values()))
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_resize_by_fractional_scales(backend: Backend, coordinates: str, kind: dict[str, Any]) -> None:
    box = np.array([0, 0, 0.1, 0.2, 1, 1, 0.9, 0.7], np.float32) if coordinates == "tf_crop_and_resize" else None
    for (height, scale), (width, other) in itertools.permutations(SCALES, 2):
        X, scales = random(1, 2, height, width), np.array([1, 1, scale, other], np.float32)
        model = one_node("Resize", X, box, scales, coordinate_transformation_mode=coordinates, **kind)

        assert_like_onnxruntime(backend, model, X)


@both
def test_a_single_new_pixel_of_pytorch_half_pixel_is_the_first(backend: Backend) -> None:
    X = random(1, 1, 5, 5)
    attributes = {"coordinate_transformation_mode": "pytorch_half_pixel", "mode": "cubic"}

    assert_like_onnxruntime(backend, one_node("Resize", X, None, None, np.array([1, 1, 1, 3]), **attributes), X)


@both
def test_a_size_is_rounded_down_with_32_bits(backend: Backend) -> None:
    """With 64 bits, the 0.7 of the file times 10 is below 7."""
    X = random(1, 1, 10, 10)

    assert_like_onnxruntime(backend, one_node("Resize", X, None, np.array([1, 1, 0.7, 0.7], np.float32)), X)


def test_the_corners_of_an_image_are_aligned_after_its_size_was_rounded_down() -> None:
    matrix = Interpolation("linear", "align_corners").matrix(size=3, new=5, scale=1.7)

    assert matrix.tolist() == [[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0], [0, 0.5, 0.5], [0, 0, 1]]


@both
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_negative_pads_crop_before_others_pad(backend: Backend, mode: str) -> None:
    X = random(2, 5)
    for before, after in itertools.product((-2, -1, 0, 1, 2), repeat=2):
        model = one_node("Pad", X, np.array([0, before, 0, after]), mode=mode)

        assert_like_onnxruntime(backend, model, X)


@both
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_a_cubic_grid_sample_far_outside(backend: Backend, padding: str, align: int) -> None:
    X, grid = random(1, 1, 3, 4), np.random.default_rng(1).uniform(-2.5, 2.5, (1, 5, 5, 2)).astype(np.float32)

    assert_like_onnxruntime(
        backend, one_node("GridSample", X, grid, mode="bicubic", padding_mode=padding, align_corners=align), X
    )


STATISTICS = """<ir_version: 10, opset_import: ["" : 18]>
net (float[4,3,2] X, float[3] s, float[3] b) => (float[4,3,2] Y) {
    axes = Constant<value_ints=[0, 2]>()
    mean = ReduceMean<keepdims=0>(X, axes)
    square = Mul(X, X)
    var = ReduceMean<keepdims=0>(square, axes)
    Y = BatchNormalization(X, s, b, mean, var)
}"""


def test_autograd_goes_through_the_statistics_of_a_batch_normalisation_in_inference_mode() -> None:
    module, _ = onward.to_torch(onnx.parser.parse_model(STATISTICS), mode="inference")
    X = torch.from_numpy(random(4, 3, 2)).requires_grad_()
    s, b, W = torch.tensor([1.0, 2.0, 0.5]), torch.tensor([0.0, 1.0, -1.0]), torch.from_numpy(random(4, 3, 2)).exp()

    Y = module(X, s, b)
    (actual,) = torch.autograd.grad((Y * W).sum(), X)

    mean, square = X.mean((0, 2), keepdim=True), (X * X).mean((0, 2), keepdim=True)
    Z = (X - mean) / torch.sqrt(square + 1e-5) * s.reshape(1, 3, 1) + b.reshape(1, 3, 1)
    (expected,) = torch.autograd.grad((Z * W).sum(), X)
    torch.testing.assert_close(Y, Z)
    torch.testing.assert_close(actual, expected)


SIZES = """<ir_version: 10, opset_import: ["" : 18]>
net (float[N,M] X) => (int64[7] Y) {
    shape = Shape(X)
    rank = Shape<start=1>(shape)
    zero = Constant<value_int=0>()
    one = Constant<value_int=1>()
    four = Constant<value_int=4>()
    two = Constant<value_ints=[2]>()
    last = Constant<value_ints=[-1]>()
    keep = Constant<value_ints=[0]>()
    a = Gather(shape, zero)
    b = Gather(shape, one)
    most = Max(a, b, four)
    least = Min(shape, four, b)
    lone = Max(two)
    minus = Sub(two, shape)
    half = Div(minus, two)
    same = Reshape(half, keep)
    row = Reshape(most, last)
    Y = Concat<axis=0>(row, least, lone, same, rank, two)
}"""


def test_arithmetic_of_sizes() -> None:
    """Sizes are Python numbers in the torch backend: maxima of three, divisions towards zero, shapes of shapes."""
    model = onnx.parser.parse_model(SIZES)
    X = np.zeros((5, 3), np.float32)
    (expected,) = stock_session(model).run(None, {"X": X})

    assert with_torch(model, X).tolist() == expected.tolist() == [5, 3, 3, 2, -1, 0, 2]
