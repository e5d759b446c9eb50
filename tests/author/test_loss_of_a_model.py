"""The loss of a training model: what it reads, its labels, and losses of one's own."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import onward
from author.small import f32, gradient, operators
from onward import losses
from onward.author import make_trainable
from onward.check import check
from onward.errors import ArgumentError


def test_cross_entropy_after_softmax_is_refused(build) -> None:
    proto = build("m (float[N, 3] x) => (float[N, 2] p) { z = MatMul(x, W) p = Softmax(z) }", W=f32(3, 2))

    with pytest.raises(ArgumentError) as caught:
        make_trainable(proto, loss="cross_entropy")

    assert "`CrossEntropy` expects logits, and output `p` is already a Softmax" in str(caught.value)
    assert 'hint: let the loss read the logits: output="z"' in str(caught.value)


PASSING = {
    "Identity": "p = Identity(s)",
    "Reshape": "shape = Constant <value_ints = [-1, 2]> () p = Reshape(s, shape)",
    "Cast": "p = Cast <to = 1> (s)",
    "Squeeze and Unsqueeze": "axis = Constant <value_ints = [1]> () u = Unsqueeze(s, axis) p = Squeeze(u, axis)",
    "Flatten": "p = Flatten(s)",
    "Transpose": "t = Transpose <perm = [1, 0]> (s) p = Transpose <perm = [1, 0]> (t)",
    "Dropout": "p = Dropout(s)",
    "Clip": "low = Constant <value_float = 0.1> () p = Clip(s, low)",
    "several": "i = Identity(s) c = Cast <to = 1> (i) p = Flatten(c)",
}


@pytest.mark.parametrize("passing", PASSING)
@pytest.mark.parametrize(
    ("loss", "activation"),
    [
        ("cross_entropy", "Softmax"),
        ("cross_entropy", "Sigmoid"),
        ("cross_entropy", "HardSigmoid"),
        ("nll", "Softmax"),
        ("nll", "Sigmoid"),
        ("kl_div", "Softmax"),
        ("bce_with_logits", "Sigmoid"),
        ("bce_with_logits", "Softmax"),
        ("bce_with_logits", "LogSoftmax"),
        ("bce", "LogSoftmax"),
        (losses.MSE() + 0.5 * losses.BCEWithLogits(), "Sigmoid"),
    ],
    ids=str,
)
def test_a_loss_of_another_scale_is_refused_through_nodes_that_pass_numbers_on(build, loss, activation, passing):
    text = f"m (float[N, 3] x) => (float[N, 2] p) {{ z = MatMul(x, W) s = {activation}(z) {PASSING[passing]} }}"

    with pytest.raises(ArgumentError) as caught:
        make_trainable(build(text, W=f32(3, 2)), loss=loss)

    (problem,) = caught.value.diagnostics
    assert problem.code == "A115"
    assert problem.message.endswith(f"and output `p` is already a {activation}") or problem.message.endswith(
        f"and output `p` is the result of a {activation}"
    )
    assert 'output="z"' in problem.hint


BY_HAND = {
    "Exp, ReduceSum, Div": "e = Exp(z) t = ReduceSum(e, axis) p = Div(e, t)",
    "minus the maximum": "m = ReduceMax(z, axis) d = Sub(z, m) e = Exp(d) t = ReduceSum(e, axis) p = Div(e, t)",
}


@pytest.mark.parametrize("body", BY_HAND)
@pytest.mark.parametrize("loss", ["cross_entropy", "nll", "bce_with_logits"])
def test_a_softmax_that_is_written_out_is_a_softmax(build, body, loss) -> None:
    text = "m (float[N, 3] x) => (float[N, 2] p) { z = MatMul(x, W) axis = Constant <value_ints = [1]> () "

    with pytest.raises(ArgumentError, match="is already a Softmax|is the result of a Softmax"):
        make_trainable(build(f"{text} {BY_HAND[body]} }}", W=f32(3, 2)), loss=loss)


SIGMOID_BY_HAND = {
    "1 / (1 + exp(-x))": "m = Neg(z) e = Exp(m) t = Add(one, e) p = Div(one, t)",
    "the reciprocal of 1 + exp(-x)": "m = Mul(z, less) e = Exp(m) t = Add(e, one) p = Reciprocal(t)",
    "exp(x) / (1 + exp(x))": "e = Exp(z) t = Add(e, one) p = Div(e, t)",
    "with 0 - x": "m = Sub(zero, z) e = Exp(m) t = Add(one, e) q = Div(one, t) p = Identity(q)",
}
NUMBERS = {"one": np.ones(1, np.float32), "less": np.float32(-1), "zero": np.float32(0)}


@pytest.mark.parametrize("body", SIGMOID_BY_HAND)
@pytest.mark.parametrize("loss", ["cross_entropy", "nll", "bce_with_logits"])
def test_a_sigmoid_that_is_written_out_is_a_sigmoid(build, body, loss) -> None:
    text = f"m (float[N, 3] x) => (float[N, 2] p) {{ z = MatMul(x, W) {SIGMOID_BY_HAND[body]} }}"
    proto = build(text, W=f32(3, 2), **NUMBERS)

    with pytest.raises(ArgumentError, match="is already a Sigmoid|is the result of a Sigmoid") as caught:
        make_trainable(proto, loss=loss)

    assert 'output="z"' in str(caught.value)
    make_trainable(proto, loss="bce", train="W")  # what it gives are probabilities


@pytest.mark.parametrize(
    "body",
    ["m = Neg(z) e = Exp(m) t = Add(two, e) p = Div(one, t)", "e = Exp(z) t = Add(one, e) p = Div(one, t)"],
    ids=["2 + exp(-x)", "1 / (1 + exp(x)), whose logits nothing computes"],
)
def test_what_only_resembles_a_sigmoid_is_none(build, body) -> None:
    text = f"m (float[N, 3] x) => (float[N, 2] p) {{ z = MatMul(x, W) {body} }}"

    make_trainable(build(text, W=f32(3, 2), one=np.float32(1), two=np.float32(2)), loss="bce_with_logits", train="W")


@pytest.mark.parametrize("added", ["p = Add(s, eps)", "p = Add(eps, s)", "p = Sub(s, eps)"])
@pytest.mark.parametrize(
    ("loss", "activation"), [("cross_entropy", "Softmax"), ("nll", "Softmax"), ("bce_with_logits", "Sigmoid")]
)
def test_a_small_number_that_is_added_to_probabilities_hides_nothing(build, added, loss, activation) -> None:
    text = f"m (float[N, 3] x) => (float[N, 2] p) {{ z = MatMul(x, W) s = {activation}(z) {added} }}"

    with pytest.raises(ArgumentError, match=f"{activation}") as caught:
        make_trainable(build(text, W=f32(3, 2), eps=np.float32(1e-7)), loss=loss)

    assert 'output="z"' in str(caught.value)


def test_the_logarithm_of_a_softmax_and_a_small_number_is_a_log_softmax(build) -> None:
    text = "m (float[N, 3] x) => (float[N, 2] p) { z = MatMul(x, W) s = Softmax(z) e = Add(s, eps) p = Log(e) }"
    proto = build(text, W=f32(3, 2), eps=np.float32(1e-7))

    make_trainable(proto, loss="nll", train="W")
    with pytest.raises(ArgumentError, match="is the result of a LogSoftmax"):
        make_trainable(proto, loss="bce", train="W")


@pytest.mark.parametrize("loss", ["cross_entropy", "nll"])
def test_the_columns_of_no_and_yes_are_probabilities(build, loss) -> None:
    """Softmax of (1 - p, p) has other numbers, and never comes near 0 or 1."""
    text = (
        "m (float[N, 3] x) => (float[N, 2] y) { z = MatMul(x, W) p = Sigmoid(z) one = Constant <value_float = 1.0> () "
        "q = Sub(one, p) y = Concat <axis = 1> (q, p) }"
    )

    with pytest.raises(ArgumentError) as caught:
        make_trainable(build(text, W=f32(3, 1)), loss=loss)

    assert "output `y` is the result of a Sigmoid" in str(caught.value)
    assert 'output="z", with loss="bce_with_logits"' in str(caught.value)


def test_the_logarithm_of_a_softmax_is_a_log_softmax(build) -> None:
    text = "m (float[N, 3] x) => (float[N, 2] p) { z = MatMul(x, W) s = Softmax(z) p = Log(s) }"
    proto = build(text, W=f32(3, 2))

    make_trainable(proto, loss="nll")
    with pytest.raises(
        ArgumentError, match="`BCE` expects probabilities, and output `p` is the result of a LogSoftmax"
    ):
        make_trainable(proto, loss="bce")


@pytest.mark.parametrize(
    ("loss", "activation"),
    [
        ("cross_entropy", "LogSoftmax"),  # Softmax of LogSoftmax is the same Softmax
        ("nll", "LogSoftmax"),
        ("kl_div", "LogSoftmax"),
        ("bce", "Sigmoid"),
        ("bce", "Softmax"),
        ("mse", "Softmax"),
        ("bce_with_logits", "Tanh"),
    ],
)
def test_a_loss_of_the_right_scale_is_accepted(build, loss: str, activation: str) -> None:
    text = f"m (float[N, 3] x) => (float[N, 2] p) {{ z = MatMul(x, W) s = {activation}(z) p = Identity(s) }}"

    assert make_trainable(build(text, W=f32(3, 2)), loss=loss).targets == ["labels"]


def test_cross_entropy_of_a_log_softmax_has_the_gradient_of_cross_entropy_of_logits(build) -> None:
    logits = "m (float[N, 3] x) => (float[N, 2] p) { p = MatMul(x, W) }"
    logarithms = "m (float[N, 3] x) => (float[N, 2] p) { z = MatMul(x, W) p = LogSoftmax(z) }"
    weights, batch = f32(3, 2), {"x": f32(5, 3), "labels": np.array([0, 1, 1, 0, 1])}
    trained = []
    for text in (logits, logarithms):
        trainer = onward.Trainer(make_trainable(build(text, W=weights), loss="cross_entropy", optimizer="sgd"))
        trainer.step(batch)
        trained.append(trainer.parameters["W"])

    np.testing.assert_allclose(trained[0], trained[1], rtol=1e-5)


@pytest.mark.parametrize(
    ("loss", "expects", "hint"),
    [
        (losses.CTC(time_axis=1), "log-probabilities, and output `p` is the result of a", ", with CTC(logits=True)"),
        (losses.CTC(time_axis=1, logits=True), "logits, and output `p` is already a", ""),
        (losses.NLL(axis=-1), "log-probabilities, and output `p` is the result of a", ', with loss="cross_entropy"'),
    ],
    ids=["ctc", "ctc of logits", "nll"],
)
def test_a_loss_of_log_probabilities_after_softmax_is_refused(build, loss, expects: str, hint: str) -> None:
    proto = build("m (float[N, T, 3] x) => (float[N, T, 2] p) { z = MatMul(x, W) p = Softmax(z) }", W=f32(3, 2))

    with pytest.raises(ArgumentError) as caught:
        make_trainable(proto, loss=loss)

    assert f"`{type(loss).__name__}` expects {expects} Softmax\n" in str(caught.value)
    assert str(caught.value).endswith(f'hint: let the loss read the logits: output="z"{hint}')


def test_the_loss_may_read_a_value_that_is_no_output(build) -> None:
    proto = build("m (float[N, 3] x) => (float[N, 2] p) { z = MatMul(x, W) p = Softmax(z) }", W=f32(3, 2))

    model = make_trainable(proto, loss="cross_entropy", output="z")

    assert check(model.proto(), pedantic=True).findings == ()
    assert model.outputs == ["p"]


TWO = "m (float[N, 3] x) => (float[N, 2] a, float[N, 1] b) { h = Tanh(x) a = MatMul(h, A) b = MatMul(h, B) }"


def test_each_output_has_a_loss_and_a_label_of_its_own(build) -> None:
    proto = build(TWO, A=f32(3, 2), B=f32(3, 1))

    model = make_trainable(proto, loss={"a": "cross_entropy", "b": (losses.L1(), 0.5)}, optimizer="sgd")

    assert model.targets == ["labels/a", "labels/b"]
    assert check(model.proto(), pedantic=True).findings == ()


def test_labels_of_several_losses_can_be_named(build) -> None:
    proto = build(TWO, A=f32(3, 2), B=f32(3, 1))

    model = make_trainable(proto, loss={"a": "cross_entropy", "b": "mse"}, label={"a": "kind", "b": "size"})

    assert model.targets == ["kind", "size"]


def test_several_outputs_need_a_choice(build) -> None:
    with pytest.raises(ArgumentError) as caught:
        make_trainable(build(TWO, A=f32(3, 2), B=f32(3, 1)), loss="mse")

    assert str(caught.value) == (
        "error[A101]: `MSE` reads 1 output, the model has 2\n  at output=\n  found: `a`, `b`\n"
        "  needed: output= with one name\n\nhint: onward doctor FILE says which output a loss can read"
    )


def test_a_loss_of_three_outputs_needs_no_labels(build) -> None:
    text = """m (float[N, 3] x, float[N, 3] p, float[N, 3] n) => (float[N, 2] a, float[N, 2] b, float[N, 2] c) {
        a = MatMul(x, W) b = MatMul(p, W) c = MatMul(n, W) }"""

    model = make_trainable(build(text, W=f32(3, 2)), loss="triplet_margin", optimizer="sgd")

    assert model.targets == []
    assert gradient(model).attributes["zs"].as_strings() == ("x", "p", "n")


def test_a_python_function_is_a_loss(mlp, steps) -> None:
    model = make_trainable(
        mlp,
        loss=lambda op, y, t: op.ReduceMean(op.Abs(op.Sub(y, t)), keepdims=0),
        label={"target": ("float32", ["N", 2])},
        optimizer="sgd",
    )
    x, t = f32(5, 3), f32(5, 2)

    outputs = steps(model).step({"x": x, "target": t})

    np.testing.assert_allclose(outputs["loss"], np.abs(outputs["y"] - t).mean(), rtol=1e-5)


def test_a_loss_of_ones_own_needs_to_know_its_labels(mlp) -> None:
    with pytest.raises(ArgumentError, match='label=\\{"labels": \\("int64", \\["N"\\]\\)\\}'):
        make_trainable(mlp, loss=lambda op, y, t: y)


def test_an_onnx_function_is_a_loss(mlp, steps) -> None:
    function = helper.make_function(
        "my.losses", "SquaredSum", ["a", "b"], ["l"],
        [
            helper.make_node("Sub", ["a", "b"], ["d"]),
            helper.make_node("ReduceSumSquare", ["d"], ["l"], keepdims=0),
        ],
        [helper.make_opsetid("", 18)],
    )  # fmt: skip
    model = make_trainable(mlp, loss=function, label={"t": ("float32", ["N", 2])}, optimizer="sgd")
    x, t = f32(5, 3), f32(5, 2)

    outputs = steps(model).step({"x": x, "t": t})

    assert "SquaredSum" in operators(model)
    np.testing.assert_allclose(outputs["loss"], ((outputs["y"] - t) ** 2).sum(), rtol=1e-5)


def test_an_onnx_model_is_a_loss(mlp, build, tmp_path) -> None:
    loss = build(
        """l (float[N, 2] a, float[N, 2] b) => (float l) {
            d = Sub(a, b) e = Mul(d, w) l = ReduceSumSquare <keepdims = 0> (e) }""",
        w=f32(2),
    )
    onnx.save(loss, tmp_path / "loss.onnx")

    model = make_trainable(mlp, loss=tmp_path / "loss.onnx", optimizer="sgd")

    assert model.targets == ["labels"]
    assert list(model.parameters) == ["W1", "W2"]
    assert check(model.proto(), pedantic=True).findings == ()


def test_an_onnx_graph_is_a_loss(mlp, build, steps) -> None:
    graph = build(
        "l (float[N, 2] a, float[N, 2] b) => (float l) { d = Sub(a, b) l = ReduceSumSquare <keepdims = 0> (d) }"
    )
    model = make_trainable(mlp, loss=graph.graph, optimizer="sgd")
    x, t = f32(5, 3), f32(5, 2)

    outputs = steps(model).step({"x": x, "labels": t})

    np.testing.assert_allclose(outputs["loss"], ((outputs["y"] - t) ** 2).sum(), rtol=1e-5)


def test_a_loss_that_does_not_fit_says_so(mlp) -> None:
    with pytest.raises(ArgumentError) as caught:
        make_trainable(mlp, loss=lambda op, y, t: op.MatMul(y, t), label={"t": ("float32", [7, 7])})

    assert "error[A115]: the loss does not accept the outputs and labels\n  at loss=\n  found: " in str(caught.value)


def test_a_model_that_does_not_fit_together_is_not_blamed_on_the_loss(build) -> None:
    proto = build("m (float[N, 3] x) => (float[N, 2] y) { h = MatMul(x, W) y = Tanh(h) }", W=f32(4, 2))

    with pytest.raises(ArgumentError) as caught:
        make_trainable(proto, loss="mse")

    assert "error[A118]: the types or shapes of the model do not fit together" in str(caught.value)
    assert "ONNX Runtime" in str(caught.value)


def test_a_loss_does_not_read_integers(build) -> None:
    proto = build("m (float[N, 3] x) => (int64[N, 1] k) { z = MatMul(x, W) k = ArgMax <axis = 1> (z) }", W=f32(3, 2))

    with pytest.raises(ArgumentError) as caught:
        make_trainable(proto, loss="mse")

    assert str(caught.value) == (
        "error[A115]: `MSE` cannot read output `k`\n  at output=\n  found: int64\n  needed: a floating-point tensor"
    )


NORMALISED = (
    "s = Softmax(z) n = ReduceL1(s, axis) none = Equal(n, zero) d = Where(none, one, n) p = Div(s, d)"  # skl2onnx
)


def test_a_softmax_that_is_normalised_again_is_a_softmax(build) -> None:
    """Every classifier of several classes that skl2onnx makes of a logistic regression."""
    text = f"m (float[N, 3] x) => (float[N, 2] p) {{ z = MatMul(x, W) {NORMALISED} }}"
    numbers = {"axis": np.array([-1]), "zero": np.float32(0), "one": np.float32(1)}

    with pytest.raises(ArgumentError, match="is already a Softmax") as caught:
        make_trainable(build(text, W=f32(3, 2), **numbers), loss="cross_entropy")

    assert 'output="z"' in str(caught.value)


def test_a_loss_may_name_an_output_that_is_a_map_in_the_file(build) -> None:
    text = "m (float[N, 3] x) => (float[N, 2] p) { z = MatMul(x, W) p = Relu(z) }"
    proto = build(text, W=f32(3, 2))
    proto.graph.node.add(op_type="ZipMap", domain="ai.onnx.ml", input=["p"], output=["by_name"]).attribute.append(
        helper.make_attribute("classlabels_int64s", [0, 1])
    )
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    entry = helper.make_map_type_proto(onnx.TensorProto.INT64, helper.make_tensor_type_proto(1, []))
    proto.graph.output[0].CopyFrom(helper.make_value_info("by_name", helper.make_sequence_type_proto(entry)))

    model = make_trainable(proto, loss="mse", output="by_name")

    assert list(model.parameters) == ["W"]
