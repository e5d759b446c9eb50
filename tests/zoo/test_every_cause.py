"""The twelve causes that kept files of strangers from training, and the small models by hand that stand for each."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

import onward
from autodiff.text_models import parse
from onward.errors import ArgumentError
from zoo.test_causes import F32, assert_gradient, session

TESTS = Path(__file__).parents[1]

# number: (what failed, tests that fail if it fails again)
CAUSES = {
    1: (
        "weights in large Constant nodes below opset 18",
        ["upgrade/test_upgrade.py::test_weights_in_large_constants_are_kept"],
    ),
    2: (
        "nested If whose branches return other ranks",
        [
            "zoo/test_causes.py::test_branches_of_different_ranks_and_a_condition_that_only_one_branch_has",
            "zoo/test_causes.py::test_a_recurrent_layer_whose_inputs_have_no_shape",
        ],
    ),
    3: (
        "shape arithmetic and Gather between the Transposes of a backward pass",
        [
            "zoo/test_every_cause.py::test_attention_whose_query_key_and_value_are_gathered_out_of_one_product",
            "passes/test_pads.py::test_the_gradient_of_a_slice_between_transposes_runs_on_onnxruntime",
        ],
    ),
    4: (
        "front ends of STFT and DFT",
        ["author/test_front_ends.py::test_the_gradient_is_the_slope_of_onnxruntimes_own_forward"],
    ),
    5: (
        "stated shapes that are out of date, and vectors that onnx takes for shapes",
        [
            "zoo/test_causes.py::test_shapes_in_the_file_that_are_out_of_date",
            "zoo/test_causes.py::test_an_output_shape_in_the_file_that_is_out_of_date",
            "zoo/test_causes.py::test_vectors_that_onnx_takes_for_shapes",
            "zoo/test_causes.py::test_a_model_that_no_runtime_loads_is_refused_with_the_words_of_the_runtime",
        ],
    ),
    6: (
        "nodes out of order, as a converter to float16 leaves them",
        [
            "zoo/test_causes.py::test_nodes_that_are_not_in_execution_order",
            "zoo/test_causes.py::test_losses_of_several_types_add_up_in_the_wider_one",
        ],
    ),
    7: (
        "quantised files",
        [
            "author/test_quantized_models.py::test_by_default_the_float_weights_of_a_quantized_model_train",
            "author/test_quantized_models.py::test_the_gradient_of_a_dequantized_layer_agrees_with_finite_differences",
            "author/test_quantized_models.py::test_trained_weights_are_quantized_with_new_scales",
        ],
    ),
    8: (
        "outputs with another leading dimension than the input",
        ["zoo/test_causes.py::test_an_output_with_another_leading_dimension_than_the_input"],
    ),
    9: (
        "the torch interpreter: sequences, Resize, Pad, BatchNormalization, Max of sizes",
        [
            "autodiff/test_sequence_maps.py::test_a_map_whose_input_has_no_type_never_ends_the_process",
            "autodiff/test_sequence_maps.py::test_the_torch_backend_runs_a_map_without_types",
            "backends/test_against_onnxruntime.py::test_resize_by_fractional_scales",
            "backends/test_against_onnxruntime.py::test_negative_pads_crop_before_others_pad",
            "backends/test_against_onnxruntime.py"
            "::test_autograd_goes_through_the_statistics_of_a_batch_normalisation_in_inference_mode",
            "backends/test_against_onnxruntime.py::test_arithmetic_of_sizes",
        ],
    ),
    10: (
        "cubic GridSample outside of the image",
        ["backends/test_against_onnxruntime.py::test_a_cubic_grid_sample_far_outside"],
    ),
    11: (
        "random operators on the torch backend; parameters whose gradient is zero everywhere",
        [
            "backends/test_torch_random.py::test_draws_have_the_mean_and_deviation_that_the_node_states",
            "backends/test_torch_random.py::test_multinomial_draws_each_class_as_often_as_its_logit_says",
            "author/test_blocked_ways.py::test_an_operator_that_is_flat_on_every_way_is_refused",
            "author/test_which_weights.py::test_a_warning_names_the_weights_that_no_gradient_reaches",
        ],
    ),
    12: (
        "modules, losses and optimizers of PyTorch that were refused",
        [
            "frontends/test_written_out.py::test_adaptive_pools_of_every_size",
            "frontends/test_written_out.py::test_gaussian_nll_loss",
            "frontends/test_written_out.py::test_ctc_loss",
            "frontends/test_written_out.py::test_a_projected_lstm",
            "optimizers/test_against_torch.py::test_muon_rounds_as_torch_does",
            "optimizers/test_against_torch.py::test_adafactor_factors_the_last_two_dimensions_and_no_vector",
        ],
    ),
}


@pytest.mark.parametrize("number", CAUSES)
def test_every_cause_has_its_tests(number: int) -> None:
    _, tests = CAUSES[number]

    assert tests
    for test in tests:
        file, _, name = test.partition("::")
        module = ast.parse((TESTS / file).read_text())
        assert name in [node.name for node in module.body if isinstance(node, ast.FunctionDef)], test


def test_there_are_twelve_causes() -> None:
    assert sorted(CAUSES) == list(range(1, 13))


# PP-OCRv6's recogniser and Moonshine's encoders: one product gives query, key and value of all heads. The gradient of
# the Gather that takes one of them is a Pad, and it stands between the Transposes of the backward pass.
ATTENTION = """net (float[N, T, 4] x, float[4, 12] W) => (float[N, T, 4] y) {
    zero = Constant<value_int=0>()
    one = Constant<value_int=1>()
    two = Constant<value_int=2>()
    first = Constant<value_ints=[0]>()
    sizes = Shape(x)
    n = Gather(sizes, zero)
    t = Gather(sizes, one)
    batch = Unsqueeze(n, first)
    steps = Unsqueeze(t, first)
    split = Constant<value_ints=[3, 2, 2]>()
    flat = Constant<value_ints=[4]>()
    wide = Concat<axis=0>(batch, steps, split)
    narrow = Concat<axis=0>(batch, steps, flat)
    h = MatMul(x, W)
    r = Reshape(h, wide)
    all = Transpose<perm=[2, 0, 3, 1, 4]>(r)
    q = Gather<axis=0>(all, zero)
    k = Gather<axis=0>(all, one)
    v = Gather<axis=0>(all, two)
    turned = Transpose<perm=[0, 1, 3, 2]>(k)
    scores = MatMul(q, turned)
    shares = Softmax<axis=-1>(scores)
    mixed = MatMul(shares, v)
    back = Transpose<perm=[0, 2, 1, 3]>(mixed)
    m = Reshape(back, narrow)
    y = Sin(m)
}"""


@pytest.mark.parametrize("wrt", ["x", "W"])
def test_attention_whose_query_key_and_value_are_gathered_out_of_one_product(wrt: str) -> None:
    draw = np.random.default_rng(0)

    assert_gradient(
        parse(ATTENTION),
        wrt,
        x=draw.normal(size=(2, 3, 4)).astype(F32),
        W=draw.normal(size=(4, 12)).astype(F32) / 2,
    )


def test_an_output_of_another_length_than_the_labels_says_so() -> None:
    """slanet-plus: a decoder that stops elsewhere than the labels. What ONNX Runtime says is about its own nodes."""
    model = parse("""net (float[N, 4] x, float[4] w, float[K] keep) => (float[M, 4] y) {
        h = Mul(x, w)
        which = Cast<to=9>(keep)
        y = Compress<axis=0>(h, which)
    }""")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(4, F32), "w"))
    del model.graph.input[1]
    trainer = onward.Trainer(onward.make_trainable(model, loss="mse", optimizer="sgd"))
    batch = {"x": np.ones((3, 4), F32), "keep": np.array([1, 1, 0], F32)}

    trainer.step({**batch, "labels": np.zeros((2, 4), F32)})
    with pytest.raises(onward.OnwardError, match=r"(?s)B201.*hint: .*another number of frames, boxes or time steps"):
        trainer.step({**batch, "labels": np.zeros((3, 4), F32)})


# The Povey window of onnx-asr 0.5 and 0.6: a window that begins with 0, to the power of 0.85.
@pytest.mark.parametrize("root", ["Pow(window, power)", "Sqrt(window)"])
def test_a_weight_whose_root_is_taken_at_zero_is_left_out_and_said_so(root: str) -> None:
    model = parse(f"""net (float[N, 3] x) => (float[N, 2] y)
    <float[3] window = {{0, 0.5, 1}}, float power = {{0.85}}, float[3, 2] W = {{1, 2, 3, 4, 5, 6}}> {{
        w = {root}
        h = Mul(x, w)
        y = MatMul(h, W)
    }}""")

    trainable = onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.1))

    assert list(trainable.parameters) == ["W"]
    with pytest.raises(ArgumentError, match="0 in places, where the slope of (Pow|Sqrt) is infinite"):
        onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.1), train="window")


def test_an_empty_initializer_is_not_a_weight() -> None:
    model = parse("""net (float[N, 3] x) => (float[N, 2] y)
    <float[3, 2] W = {1, 2, 3, 4, 5, 6}, float[0, 2] none = {}> {
        h = MatMul(x, W)
        y = Concat<axis = 0>(h, none)
    }""")

    assert list(onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.1)).parameters) == ["W"]


# Every export with dynamic_axes for the input only (OpenCV's unsqueeze_and_conv_dynamic_axes): the output states the
# sizes of the example.
@pytest.mark.parametrize(
    ("sizes", "stated", "kernel"),
    [((2, 1, 6, 7), "N, 2, 9, 9", "2, 1, 1, 1"), ((2, 1, 7), "N, 2, 9", "2, 1, 1")],
)
def test_an_output_that_states_the_sizes_of_an_example(sizes: tuple[int, ...], stated: str, kernel: str) -> None:
    free = ", ".join(["H", "W"][: len(sizes) - 2])
    model = parse(f"""net (float[N, 1, {free}] x) => (float[{stated}] y) <float[{kernel}] W = {{1, 2}}> {{
        h = Conv(x, W)
        y = Relu(h)
    }}""")
    trainable = onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.1))
    (target,) = trainable.targets
    batch = {"x": np.ones(sizes, F32), target: np.zeros((2, 2, *sizes[2:]), F32)}

    history = onward.Trainer(trainable).fit([batch, batch], epochs=2, progress=False)

    assert history["loss"][1] < history["loss"][0]


# OpenCV's resize_opset11_torch1.6_dynamic_axes: nothing tells the number of samples behind a Resize.
def test_an_output_that_states_the_number_of_samples_of_an_example() -> None:
    model = parse("""net (float[N, 1, H, W] x) => (float[1, 2, 4, 4] y)
    <float[4] scales = {1, 1, 2, 2}, float[2, 1, 1, 1] W = {1, 2}> {
        large = Resize(x, , scales)
        y = Conv(large, W)
    }""")
    trainable = onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.1))
    data = {"x": np.ones((6, 1, 2, 2), F32), "labels": np.zeros((6, 2, 4, 4), F32)}

    history = onward.Trainer(trainable).fit(data, epochs=2, batch_size=3, progress=False)

    assert history["loss"][1] < history["loss"][0]


# ONNX Runtime's LoRA adapters: inputs with a default, whose rank is open.
def test_weights_that_are_inputs_of_open_size_with_a_default_are_trained() -> None:
    model = parse("""net (float[N, 3] x, float[3, R] a, float[R, 2] b, float[3, Q] none) => (float[N, 2] y)
    <float[3, 1] a = {1, 2, 3}, float[1, 2] b = {1, 2}, float[3, 0] none = {}> {
        both = Concat<axis = 1>(a, none)
        h = MatMul(x, both)
        y = MatMul(h, b)
    }""")
    trainable = onward.make_trainable(model, loss="mse", optimizer=onward.Adam(0.1))
    batch = {"x": np.eye(3, dtype=F32), "labels": np.zeros((3, 2), F32)}

    history = onward.Trainer(trainable).fit([batch, batch], epochs=2, progress=False)

    assert list(trainable.parameters) == ["a", "b"]
    assert history["loss"][1] < history["loss"][0]


# PyTorch's autocast before opset 17 (ONNX Runtime's skip_layer_norm_format1_with_cast): ONNX Runtime's fusion makes a
# LayerNormalization of several types of it from opset 17 on, and refuses it.
def test_a_normalization_in_float32_of_float16_loads_after_the_upgrade() -> None:
    model = parse(
        """net (float16[N, 3] x) => (float[N, 2] y)
    <float two = {2}, float eps = {0.001}, float[3] g = {1, 2, 3}, float[3] b = {1, 1, 1},
     float[3, 2] W = {1, 2, 3, 4, 5, 6}> {
        c = Cast<to = 1>(x)
        m = ReduceMean<axes = [-1]>(c)
        s = Sub(c, m)
        p = Pow(s, two)
        v = ReduceMean<axes = [-1]>(p)
        e = Add(v, eps)
        d = Sqrt(e)
        n = Div(s, d)
        w = Mul(n, g)
        h = Add(w, b)
        y = MatMul(h, W)
    }""",
        opset=12,
    )
    x = np.array([[1, 2, 4], [0, 3, 1]], np.float16)

    trainable = onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.01))

    tuned = session(onward.to_inference(trainable))
    np.testing.assert_allclose(tuned.run(None, {"x": x})[0], session(model).run(None, {"x": x})[0], rtol=1e-6)
    batch = {"x": x, "labels": np.zeros((2, 2), F32)}
    history = onward.Trainer(trainable).fit([batch], epochs=2, progress=False)
    assert history["loss"][1] < history["loss"][0]


# if_then_else_multi_output_shapes_inlined_test of MIGraphX: an output that is stated to be a single number and is not.
# Its mean would be the mean of one number in the backward pass.
def test_a_stated_single_number_that_nothing_confirms_is_refused_before_the_first_step() -> None:
    model = parse("""net (float[2, 3] x, bool keep) => (float y) <float[3] w = {1, 2, 3}> {
        y = If(keep) <
            then_branch = then () => (float[2, 3] a) { a = Mul(x, w) },
            else_branch = else () => (float[6] b) { h = Mul(x, w)  s = Constant<value_ints = [6]>()  b = Reshape(h, s) }
        >
    }""")

    with pytest.raises(ArgumentError, match="number of dimensions of output `y` is not known"):
        onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.1))


# plcmos_v2 of speechmos: a score that is Squeezed of all its axes, so it is a single number for a batch of one only.
def test_a_single_number_for_a_batch_of_one_trains_with_such_batches_and_no_others() -> None:
    text = "net (float[N, 3] x) => (float y) <float[3, 1] w = {1, 2, 3}> { h = MatMul(x, w)  y = Squeeze(h) }"
    model = onward.make_trainable(parse(text, opset=11), loss="mse", optimizer=onward.SGD(0.1))
    trainer = onward.Trainer(model)
    x = np.array([[1, 0, 2]], F32)

    assert trainer.step({"x": x, "labels": np.array(5, F32)})["loss"] == pytest.approx((7 - 5) ** 2)
    moved = trainer.state["w"]
    np.testing.assert_allclose(moved, np.array([[1], [2], [3]]) - 0.1 * 2 * (7 - 5) * x.T, rtol=1e-6)
    with pytest.raises(onward.OnwardError):
        trainer.step({"x": np.ones((2, 3), F32), "labels": np.zeros(2, F32)})
