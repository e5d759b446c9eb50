"""Which weights are trained: those in constants, in branches and in functions, and what only looks like one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from author.small import f32, operators
from onward import optimizers, samples
from onward.author import make_trainable
from onward.author.flat_weights import FlatWeightsWarning
from onward.check import check
from onward.errors import ArgumentError


def test_a_model_whose_every_weight_is_a_constant_trains(build, steps) -> None:
    proto = build(
        """
        m (float[N, 2] x) => (float[N, 1] y) {
            W = Constant <value = float[2, 1] {1.0, 1.0}> ()
            b = Constant <value = float[1] {0.0}> ()
            half = Constant <value = float {0.5}> ()
            one = Constant <value = float[1, 1] {1.0}> ()
            p = MatMul(x, W)
            q = Mul(p, half)
            y = Gemm(q, one, b)
        }
        """
    )
    model = make_trainable(proto, loss="mse", optimizer=optimizers.SGD(0.1))
    x = f32(16, 2)
    batch = {"x": x, "labels": x @ np.array([[1.0], [-2.0]], np.float32)}

    running = steps(model)
    found = [running.step(batch)["loss"] for _ in range(100)]

    assert list(model.parameters) == ["W", "b", "one"]
    assert found[-1] < 0.05 * found[0]


def test_a_constant_that_is_named_is_lifted_though_it_is_one_number(build) -> None:
    text = "m (float[N] x) => (float[N] y) { s = Constant <value = float {2.0}> () y = Mul(x, s) }"

    model = make_trainable(build(text), loss="mse", optimizer="sgd", train="s")

    assert list(model.parameters) == ["s"]


def test_weights_inside_a_branch_are_lifted(build) -> None:
    proto = build(
        """
        m (float[N, 2] x, bool c) => (float[N, 2] y) {
            y = If (c) <
                then_branch = a () => (float[N, 2] ty) {
                    W = Constant <value = float[2] {1.0, 2.0}> ()
                    ty = Mul(x, W)
                },
                else_branch = b () => (float[N, 2] ey) {
                    W = Constant <value = float[2] {3.0, 4.0}> ()
                    ey = Mul(x, W)
                }
            >
        }
        """
    )

    model = make_trainable(proto, loss="mse", optimizer="sgd")

    values = {n: v.const_value.numpy().tolist() for n, v in model.parameters.items()}
    assert values == {"W": [1.0, 2.0], "W_2": [3.0, 4.0]}
    assert check(model.proto()).ok


def test_tied_weights_stay_tied(build) -> None:
    text = "m (float[N, 3] x) => (float[N, 3] y) { h = MatMul(x, W) a = Tanh(h) t = Transpose(W) y = MatMul(a, t) }"

    model = make_trainable(build(text, W=f32(3, 3)), loss="mse", optimizer="sgd")

    assert list(model.parameters) == ["W"]
    assert operators(model).count("SGD") == 1


NORMALISED = """
m (float[N, 3] x) => (float[N, 2] y) {
    h = MatMul(x, W)
    c = Clip(h, low, high)
    v = Add(c, epsilon)
    s = Shape(unused)
    y = Mul(v, scale)
}
"""


def test_constants_are_never_trained(build) -> None:
    scalar = np.array(0.5, np.float32)
    proto = build(NORMALISED, W=f32(3, 2), low=scalar, high=scalar + 1, epsilon=scalar, unused=f32(4), scale=f32(2))

    model = make_trainable(proto, loss="mse", optimizer="sgd")

    assert list(model.parameters) == ["W", "scale"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("low", "it is a limit of Clip"),
        ("unused", "the loss does not depend on it"),
    ],
)
def test_naming_a_constant_says_why_it_cannot_be_trained(build, name: str, reason: str) -> None:
    scalar = np.array(0.5, np.float32)
    proto = build(NORMALISED, W=f32(3, 2), low=scalar, high=scalar + 1, epsilon=scalar, unused=f32(4), scale=f32(2))

    with pytest.raises(ArgumentError) as caught:
        make_trainable(proto, loss="mse", optimizer="sgd", train=name)

    assert str(caught.value) == (
        f"error[A111]: nothing that `{name}` chooses can be trained\n  at train=\n  found: `{name}`: {reason}"
    )


def test_a_scale_of_one_element_is_no_weight_but_a_bias_of_one_element_is(build) -> None:
    proto = build(
        """
net (float[N, 3] x) => (float[N, 1] y) {
    q = Mul(x, scale)
    h = MatMul(q, W)
    y = Add(h, bias)
}""",
        W=f32(3, 1),
        scale=np.float32([0.6]),  # as PyTorch's exporter writes the scale of an attention
        bias=np.float32([0.0]),
    )

    model = make_trainable(proto, loss="mse", optimizer=optimizers.SGD(0.1))

    assert list(model.parameters) == ["W", "bias"]


def test_a_lone_number_is_trained_when_it_is_named(build) -> None:
    scalar = np.array(0.5, np.float32)
    proto = build(NORMALISED, W=f32(3, 2), low=scalar, high=scalar + 1, epsilon=scalar, unused=f32(4), scale=f32(2))

    model = make_trainable(proto, loss="mse", optimizer="sgd", train=["W", "eps*"])

    assert list(model.parameters) == ["W", "epsilon"]


def test_a_glob_that_fits_nothing_lists_near_names() -> None:
    with pytest.raises(ArgumentError) as caught:
        make_trainable(samples.digits_network(), optimizer="sgd", train=["fc1.weigth", "conv*"], freeze="conf1.bias")

    assert str(caught.value) == (
        "error[A110]: `fc1.weigth` matches no weight of the model\n"
        "  at train=\n"
        "  needed: a glob that matches one of: `fc1.weight`, `fc2.weight`, `conv1.weight`, `conv2.weight`, `fc1.bias`, "
        "`conv1.bias`, `conv2.bias`, `fc2.bias`\n\n"
        "hint: did you mean `fc1.weight`?\n\n"
        "error[A110]: `conf1.bias` matches no weight of the model\n"
        "  at freeze=\n"
        "  needed: a glob that matches one of: `conv1.bias`, `conv2.bias`, `fc1.bias`, `fc2.bias`, `conv1.weight`, "
        "`conv2.weight`, `fc1.weight`, `fc2.weight`\n\n"
        "hint: did you mean `conv1.bias`?"
    )


def test_a_quantised_model_has_nothing_to_train(build) -> None:
    text = "m (float[N, 3] x) => (float[N, 2] y) { W = DequantizeLinear(Q, s) y = MatMul(x, W) }"

    with pytest.raises(ArgumentError) as caught:
        make_trainable(build(text, Q=np.ones((3, 2), np.int8), s=np.array(0.1, np.float32)), loss="mse")

    assert "`Q`: it is int8, not floating point; `s`: it is a quantisation scale" in str(caught.value)


def test_weights_hidden_in_a_function_are_found() -> None:
    proto = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 18, "local" : 1]>
        m (float[N, 2] x) => (float[N, 2] y) { h = local.Dense(x) y = local.Twice(h) }
        <domain: "local", opset_import: ["" : 18]>
        Dense (x) => (y) { W = Constant <value = float[2, 2] {1.0, 2.0, 3.0, 4.0}> () y = MatMul(x, W) }
        <domain: "local", opset_import: ["" : 18]>
        Twice (x) => (y) { y = Add(x, x) }
        """
    )

    model = make_trainable(proto, loss="mse", optimizer="sgd")

    assert len(model.parameters) == 1
    assert {f.name for f in model.ir.functions.values()} == {"Twice", "SGD"}
    assert check(model.proto(), pedantic=True).findings == ()


def test_weights_of_a_raw_tensor_survive(mlp) -> None:
    model = make_trainable(mlp, loss="mse", optimizer="sgd")

    for before in mlp.graph.initializer:
        np.testing.assert_array_equal(model.parameters[before.name].const_value.numpy(), numpy_helper.to_array(before))


@pytest.mark.parametrize("extreme", [-np.inf, -10000.0, np.finfo(np.float32).min])
def test_an_attention_mask_is_not_a_weight(build, extreme: float) -> None:
    mask = np.triu(np.full((3, 3), extreme, np.float32), 1)
    text = "m (float[N, 3, 3] x) => (float[N, 3, 3] y) { h = MatMul(x, W) y = Add(h, mask) }"

    model = make_trainable(build(text, W=f32(3, 3), mask=np.nan_to_num(mask, nan=0.0, neginf=-np.inf)), loss="mse")

    assert list(model.parameters) == ["W"]


def test_an_initial_state_is_trained_only_by_name(build) -> None:
    text = """m (float[5, N, 3] x) => (float[5, 1, N, 2] y) {
        y, last = GRU <hidden_size = 2> (x, W, R, "", "", h) }"""
    given = {"W": f32(1, 6, 3), "R": f32(1, 6, 2), "h": f32(1, 1, 2)}

    usual = make_trainable(build(text, **given), loss="mse", optimizer="sgd")
    named = make_trainable(build(text, **given), loss="mse", optimizer="sgd", train=["*", "h"])

    assert list(usual.parameters) == ["W", "R"]
    assert list(named.parameters) == ["W", "R", "h"]


def test_what_pytorch_exported_as_a_buffer_is_not_trained(mlp) -> None:
    key = "pkg.torch.export.graph_signature.InputSpec.kind"
    mlp.graph.value_info.append(helper.make_tensor_value_info("W1", TensorProto.FLOAT, [3, 4]))
    mlp.graph.value_info[-1].metadata_props.add(key=key, value="BUFFER")

    model = make_trainable(mlp, loss="mse", optimizer="sgd")

    assert list(model.parameters) == ["W2"]


FLAT = "m (float[N, 3] x) => (float[N, 2] y) { h = MatMul(x, V) r = Round(h) s = MatMul(x, W) y = Add(r, s) }"


def test_a_warning_names_the_weights_that_no_gradient_reaches(build) -> None:
    with pytest.warns(FlatWeightsWarning) as caught:
        model = make_trainable(build(FLAT, V=f32(3, 2), W=f32(3, 2)), loss="mse")

    assert list(model.parameters) == ["W"]
    (said,) = caught
    assert said.message.diagnostic.code == "A122"
    assert "1 weight will not be trained: no gradient reaches it" in str(said.message)
    assert "`V`: every path to the loss ends at Round" in str(said.message)


def test_weights_that_are_frozen_or_do_not_concern_the_loss_are_not_warned_about(build) -> None:
    """Warnings are errors in these tests."""
    make_trainable(build(FLAT, V=f32(3, 2), W=f32(3, 2)), loss="mse", freeze="V")
    make_trainable(build(FLAT, V=f32(3, 2), W=f32(3, 2)), loss="mse", output="s")
    make_trainable(build(FLAT, V=f32(3, 2), W=f32(3, 2)), loss="mse", train="W")
