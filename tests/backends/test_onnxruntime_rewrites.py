"""The rewrites of step graphs for ONNX Runtime compute what they replace, and leave all else as it is."""

from __future__ import annotations

import gc
import threading

import numpy as np
import onnx
import onnxruntime
import pytest

from onward.backends.onnxruntime.relu import MaskByHardSigmoid
from onward.backends.onnxruntime.sums import SumRowsByProducts
from onward.backends.onnxruntime.team import Team
from onward.backends.onnxruntime.transposed_convolutions import MergeThinProducts, TransposeConvolutionsAtOnce
from onward.backends.onnxruntime.unpooling import UnpoolGradients
from onward.model import serde
from onward.model.serde import to_proto
from onward.model.training_model import TrainingModel
from onward.passes.base import Pass, Unit


def compared(text: str, each: Pass, *, exact: bool = True, **feeds: np.ndarray) -> list[str]:
    """Return the operators of the graph after a pass; its results must be those before it."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]>\n{text}')
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    unit = Unit(serde.load(model), trains=True)

    each(unit)

    proto = to_proto(TrainingModel(unit.model))
    before, after = (onnxruntime.InferenceSession(m.SerializeToString()).run(None, feeds) for m in (model, proto))
    for found, wanted in zip(after, before, strict=True):
        if exact:
            np.testing.assert_array_equal(found, wanted)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    return [n.op_type for n in proto.graph.node]


def array(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


# -- sums of rows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("shape", [(7, 5), (3, 4, 5), (2, 3, 4, 5)])
def test_rows_are_summed_by_a_product(shape: tuple[int, ...], keep: int) -> None:
    axes = ", ".join(str(a) for a in range(len(shape) - 1))
    text = f"""
    net (float[N, {", ".join(map(str, shape[1:]))}] x) => (float[A] y)
    <int64[{len(shape) - 1}] axes = {{{axes}}}> {{
        y = ReduceSum <keepdims = {keep}> (x, axes)
    }}""".replace("float[A]", f"float[{', '.join(['1'] * (len(shape) - 1) * keep + ['5'])}]")

    operators = compared(text, SumRowsByProducts(), exact=False, x=array(*shape))

    assert "MatMul" in operators
    assert "ReduceSum" not in operators


@pytest.mark.parametrize(
    ("axis", "kind"), [("1", "float"), ("0", "double")], ids=["the last axis", "float64, which has other kernels"]
)
def test_other_sums_stay(axis: str, kind: str) -> None:
    text = f"""
    net ({kind}[7, 5] x) => ({kind}[A] y)
    <int64[1] axes = {{{axis}}}> {{ y = ReduceSum <keepdims = 0> (x, axes) }}"""

    assert "ReduceSum" in compared(text, SumRowsByProducts(), x=array(7, 5).astype(kind.replace("float", "float32")))


# -- max-pooling -----------------------------------------------------------------------------------------------------

POOL = """
net (float[N, 3, HIGH, 6] x, float[N, 3, 3, 3] dy) => (float[N, 3, HIGH, 6] dx)
<int64[1] flat = {-1}> {
    y, places = MaxPool <ATTRIBUTES> (x)
    shape = Shape(x)
    size = Size(x)
    total = Reshape(size, flat)
    zeros = ConstantOfShape(total)
    index = Reshape(places, flat)
    given = Reshape(dy, flat)
    spread = ScatterElements(zeros, index, given)
    dx = Reshape(spread, shape)
}"""


def test_gradients_of_windows_that_tile_are_unpooled() -> None:
    text = POOL.replace("HIGH", "6").replace("ATTRIBUTES", "kernel_shape = [2, 2], strides = [2, 2]")
    x = np.maximum(array(2, 3, 6, 6), 0)  # with many equal elements

    operators = compared(text, UnpoolGradients(), x=x, dy=array(2, 3, 3, 3))

    assert "MaxUnpool" in operators
    assert "ScatterElements" not in operators


@pytest.mark.parametrize(
    ("high", "attributes"),
    [
        (7, "kernel_shape = [2, 2], strides = [2, 2]"),
        (5, "kernel_shape = [2, 2], strides = [2, 2], pads = [0, 0, 1, 0]"),
        (6, "kernel_shape = [2, 2], strides = [2, 2], storage_order = 1"),
        (5, "kernel_shape = [1, 2], strides = [2, 2]"),
    ],
    ids=["a rest", "pads", "columns first", "gaps"],
)
def test_other_windows_are_scattered(high: int, attributes: str) -> None:
    text = POOL.replace("HIGH", str(high)).replace("ATTRIBUTES", attributes)

    operators = compared(text, UnpoolGradients(), x=array(2, 3, high, 6), dy=array(2, 3, 3, 3))

    assert "ScatterElements" in operators


# -- Relu ------------------------------------------------------------------------------------------------------------


def test_the_mask_of_a_relu_is_one_operator() -> None:
    text = """
    net (float[N] x, float[N] dy) => (float[N] dx)
    <float zero = {0}> {
        y = Relu(x)
        above = Greater(y, zero)
        mask = Cast <to = 1> (above)
        dx = Mul(dy, mask)
    }"""
    x = np.array([-1e30, -1e-38, -0.0, 0.0, 1.2e-38, 1e-30, 1.0, 3e38, np.inf], np.float32)

    assert "HardSigmoid" in compared(text, MaskByHardSigmoid(), x=x, dy=array(9))


def test_another_comparison_stays() -> None:
    text = """
    net (float[N] x) => (float[N] mask)
    <float one = {1}> {
        y = Relu(x)
        above = Greater(y, one)
        mask = Cast <to = 1> (above)
    }"""

    assert "Greater" in compared(text, MaskByHardSigmoid(), x=array(9))


# -- transposed convolutions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "size", "attributes"),
    [
        ((3, 3), (7, 6), ""),
        ((3, 3), (5, 4), "pads = [1, 1, 1, 1]"),
        ((3, 2), (11, 9), "strides = [2, 2], output_padding = [0, 1]"),
        ((3, 3), (9, 8), "dilations = [2, 2]"),
        ((1, 1), (5, 4), ""),
        ((1, 1), (9, 7), "strides = [2, 2]"),
    ],
    ids=["plain", "pads", "strides", "dilations", "1 × 1", "1 × 1 with strides"],
)
def test_small_transposed_convolutions_have_the_same_bits(
    kernel: tuple[int, int], size: tuple[int, int], attributes: str
) -> None:
    attributes = attributes and f"<{attributes}>"
    text = f"""
    net (float[N, 4, 5, 4] x, float[4, 2, {kernel[0]}, {kernel[1]}] w) => (float[N, 2, {size[0]}, {size[1]}] y) {{
        y = ConvTranspose {attributes} (x, w)
    }}"""

    operators = compared(text, TransposeConvolutionsAtOnce(), x=array(3, 4, 5, 4), w=array(4, 2, *kernel))

    assert "ConvTranspose" not in operators


@pytest.mark.parametrize("kernel", [1, 3])
def test_thin_products_are_one(kernel: int) -> None:
    text = f"""
    net (float[N, 256, 3, 2] x, float[256, 2, {kernel}, {kernel}] w) => (float[N, 2, {kernel + 2}, {kernel + 1}] y) {{
        y = ConvTranspose (x, w)
    }}"""

    operators = compared(
        text, MergeThinProducts(), exact=False, x=array(3, 256, 3, 2) / 16, w=array(256, 2, kernel, kernel)
    )

    assert "ConvTranspose" not in operators


def test_groups_a_bias_and_large_images_stay() -> None:
    text = """
    net (float[N, 4, 5, 5] x, float[4, 2, 3, 3] w, float[2] b, float[N, 4, 90, 90] z) =>
        (float[N, 4, 7, 7] grouped, float[N, 2, 7, 7] biased, float[N, 2, 92, 92] large) {
        grouped = ConvTranspose <group = 2> (x, w)
        biased = ConvTranspose (x, w, b)
        large = ConvTranspose (z, w)
    }"""

    feeds = {"x": array(3, 4, 5, 5), "w": array(4, 2, 3, 3), "b": array(2), "z": array(1, 4, 90, 90)}

    operators = compared(text, TransposeConvolutionsAtOnce(), **feeds)

    assert operators == ["ConvTranspose"] * 3
    assert compared(text, MergeThinProducts(), **feeds) == operators


# -- the team --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("helpers", [0, 1, 5])
def test_every_element_is_updated_once_in_each_run_however_many_threads_help(helpers: int) -> None:
    numba = pytest.importorskip("numba")
    from onward.backends.onnxruntime.team import count, read

    @numba.njit(nogil=True)
    def work(progress, awaited, array, step):
        while True:
            first = count(progress, 0) * 100
            if first >= array.shape[0]:
                break
            part = array[first : first + 100]
            for i in range(part.shape[0]):
                part[i] = part[i] * 3.0 + step
            count(progress, 1)
        while read(progress, 1) < awaited:
            pass

    numbers = np.zeros(10_050)
    expected = 0.0
    team = Team(helpers)
    for k in range(300):
        team.run(work, 101, (numbers, float(k)))
        expected = expected * 3.0 + k
        if not k % 30:  # a late helper with the step of an earlier run would be seen
            assert (numbers == expected).all()
            numbers[:], expected = 0.0, 0.0


def test_the_threads_of_a_team_end_with_it() -> None:
    before = set(threading.enumerate())
    team = Team(4)
    team.run(lambda progress, awaited: None, 0, ())
    started = set(threading.enumerate()) - before
    assert len(started) == 4

    del team
    gc.collect()

    for thread in started:
        thread.join(10)
    assert not any(thread.is_alive() for thread in started)
