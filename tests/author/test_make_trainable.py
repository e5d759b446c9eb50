from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onward import losses, optimizers, samples, schedules
from onward.author import make_trainable
from onward.check import check
from onward.errors import ArgumentError
from onward.model import serde
from onward.model.convert import combined_proto

RNG = np.random.default_rng(3)


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def operators(model) -> list[str]:
    return [n.op_type for n in model.entries[0].algorithm]


def gradient(model):
    (node,) = model.gradient_nodes()
    return node


MLP = """
mlp (float[N, 3] x) => (float[N, 2] y) {
    h = MatMul(x, W1)
    a = Relu(h)
    y = MatMul(a, W2)
}
"""


@pytest.fixture
def mlp(build):
    return build(MLP, W1=f32(3, 4), W2=f32(4, 2))


VARIANTS = {
    "plain": {},
    "schedule": {"optimizer": optimizers.Adam(schedules.Warmup(schedules.Cosine(1e-3, 100), 10))},
    "groups": {"optimizer": optimizers.AdamW(1e-3, groups={"b*": {"weight_decay": 0.0}})},
    "function": {"optimizer": optimizers.TorchAdam(1e-3, amsgrad=True)},
    "everything": {
        "optimizer": optimizers.RMSprop(
            1e-3, clip_value=1.0, clip_norm=1.0, clip_global_norm=1.0, accumulate=4, ema=0.99, momentum=0.9
        )
    },
    "scalars in the state": {"optimizer": optimizers.NAdam()},
    "frozen": {"freeze": ["W1", "b1"]},
    "initialised": {"initialize": "he"},
    "average initialised": {"initialize": "xavier", "optimizer": optimizers.SGD(0.1, ema=0.9)},
    "sum of losses": {"loss": losses.MSE() + 0.1 * losses.L1()},
    "other names": {"label": "t", "loss_name": "error"},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_file_passes_the_strict_checker(name: str) -> None:
    model = make_trainable(samples.perceptron(), **{"loss": "mse", "optimizer": "adam", **VARIANTS[name]})

    report = check(model.proto(), pedantic=True)

    assert report.findings == ()


@pytest.mark.parametrize("name", VARIANTS)
def test_onnx_accepts_the_combined_graph(name: str) -> None:
    model = make_trainable(samples.perceptron(), **{"loss": "mse", "optimizer": "adam", **VARIANTS[name]})

    proto = combined_proto(serde.from_proto(model.proto()), model.entries[0])

    onnx.checker.check_model(proto, full_check=True)


@pytest.mark.parametrize("loss", [n for n in sorted(losses.NAMES) if losses.NAMES[n].num_outputs == 1 and n != "ctc"])
def test_every_loss_of_one_output_gives_a_valid_file(loss: str) -> None:
    model = make_trainable(samples.perceptron(), loss=loss, optimizer="sgd")

    assert check(model.proto(), pedantic=True).findings == ()


@pytest.mark.parametrize("optimizer", sorted(optimizers.NAMES))
def test_every_optimizer_gives_a_valid_file(optimizer: str) -> None:
    model = make_trainable(samples.perceptron(), loss="mse", optimizer=optimizer)

    assert check(model.proto(), pedantic=True).findings == ()


def test_xs_are_the_parameters_and_zs_all_else_that_the_loss_reads(mlp) -> None:
    model = make_trainable(mlp, loss="mse", optimizer="sgd", freeze="W1")

    node = gradient(model)

    assert node.attributes["xs"].as_strings() == ("W2",)
    assert node.attributes["zs"].as_strings() == ("x", "labels", "W1")
    assert [v.name for v in node.inputs] == ["W2", "x", "labels", "W1"]
    assert [v.name for v in node.outputs] == ["grad/W2"]


def test_labels_loss_and_rate_have_the_agreed_names(mlp) -> None:
    model = make_trainable(mlp, loss="mse", optimizer="adam")

    algorithm = model.entries[0].algorithm

    assert [v.name for v in algorithm.inputs] == ["labels", "learning_rate"]
    assert algorithm.outputs[0].name == "loss"
    assert set(model.state) == {"step", "adam/v/W1", "adam/h/W1", "adam/v/W2", "adam/h/W2"}


def test_labels_take_their_shape_from_the_output(build) -> None:
    proto = build("m (float[batch, 3, 8, 8] x) => (float[batch, 5, 8, 8] y) { y = Conv(x, W) }", W=f32(5, 3, 1, 1))

    model = make_trainable(proto, loss="cross_entropy", optimizer="sgd")

    label = model.entries[0].algorithm.inputs[0]
    assert (label.dtype.name, [str(d) for d in label.shape]) == ("INT64", ["batch", "8", "8"])


def test_the_model_that_was_given_stays_as_it_was(mlp) -> None:
    before = mlp.SerializeToString()

    make_trainable(mlp, loss="mse", optimizer="adam", initialize="he")

    assert mlp.SerializeToString() == before


def test_the_inference_graph_keeps_its_nodes(mlp) -> None:
    model = make_trainable(mlp, loss="mse", optimizer="adam")

    assert model.proto().graph.node == serde.from_proto(mlp).proto().graph.node


def test_reading_the_file_again_gives_the_same_file(mlp) -> None:
    proto = make_trainable(mlp, loss="mse", optimizer=optimizers.TorchAdam(accumulate=2)).proto()

    again = serde.from_proto(proto).proto()

    assert again.SerializeToString() == proto.SerializeToString()


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
    found = [running.step(batch)["loss"] for _ in range(50)]

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
        "  needed: a glob that fits one of: `fc1.weight`, `fc2.weight`, `conv1.weight`, `conv2.weight`, `fc1.bias`, "
        "`conv1.bias`, `conv2.bias`, `fc2.bias`\n\n"
        "hint: did you mean `fc1.weight`?\n\n"
        "error[A110]: `conf1.bias` matches no weight of the model\n"
        "  at freeze=\n"
        "  needed: a glob that fits one of: `conv1.bias`, `conv2.bias`, `fc1.bias`, `fc2.bias`, `conv1.weight`, "
        "`conv2.weight`, `fc1.weight`, `fc2.weight`\n\n"
        "hint: did you mean `conv1.bias`?"
    )


def test_a_quantised_model_has_nothing_to_train(build) -> None:
    text = "m (float[N, 3] x) => (float[N, 2] y) { W = DequantizeLinear(Q, s) y = MatMul(x, W) }"

    with pytest.raises(ArgumentError) as caught:
        make_trainable(build(text, Q=np.ones((3, 2), np.int8), s=np.array(0.1, np.float32)), loss="mse")

    assert "`Q`: it is int8, not floating point; `s`: it is a quantisation scale" in str(caught.value)


def test_parameters_listed_as_inputs_are_inputs_no_more(build) -> None:
    text = "m (float[N, 3] x, float[3, 2] W) => (float[N, 2] y) { y = MatMul(x, W) }"
    proto = build(text, W=f32(3, 2))

    model = make_trainable(proto, loss="mse", optimizer="sgd")

    assert [v.name for v in model.graph.inputs] == ["x"]
    assert check(model.proto(), pedantic=True).findings == ()


def test_an_old_model_is_upgraded_first(build) -> None:
    text = "m (float[N, 3] x) => (float[N] y) { h = MatMul(x, W) y = Squeeze <axes = [1]> (h) }"

    model = make_trainable(build(text, opset=11, ir_version=6, W=f32(3, 1)), loss="mse", optimizer="sgd")

    assert (model.opset, model.ir.ir_version) == (18, 8)
    assert check(model.proto(), pedantic=True).findings == ()


def test_half_precision_weights_train(build) -> None:
    text = "m (float16[N, 3] x) => (float16[N, 2] y) { y = MatMul(x, W) }"

    model = make_trainable(build(text, W=f32(3, 2).astype(np.float16)), loss="mse", optimizer="adam")

    assert model.state["adam/v/W"].dtype.name == "FLOAT"
    assert check(model.proto(), pedantic=True).findings == ()


def test_bfloat16_is_refused_because_gradient_does_not_take_it(build) -> None:
    proto = build("m (float[N, 3] x) => (float[N, 2] y) { b = Cast <to = 1> (W) y = MatMul(x, b) }", W=f32(3, 2))
    raw = np.zeros(6, np.uint16).tobytes()
    proto.graph.initializer[0].CopyFrom(helper.make_tensor("W", TensorProto.BFLOAT16, [3, 2], raw, raw=True))

    with pytest.raises(ArgumentError, match="error\\[A114\\]: `W` is bfloat16, which Gradient cannot differentiate"):
        make_trainable(proto, loss="mse")


def test_a_taken_name_asks_for_another(build) -> None:
    text = "m (float[N, 3] labels) => (float[N, 2] y) { y = MatMul(labels, W) }"

    with pytest.raises(ArgumentError) as caught:
        make_trainable(build(text, W=f32(3, 2)), loss="mse")

    assert str(caught.value) == (
        "error[A112]: the model already has a value called `labels`\n  at label=\n"
        '  needed: a name that the model does not use\n\nhint: pass label="target/labels" or another free name'
    )


@pytest.mark.parametrize("argument", ["label", "loss_name"])
def test_an_empty_name_is_refused(argument: str) -> None:
    with pytest.raises(ArgumentError, match="a value must have a name"):
        make_trainable(samples.perceptron(), loss="mse", optimizer=optimizers.SGD(0.1), **{argument: ""})


def test_a_model_with_training_information_is_refused() -> None:
    with pytest.raises(ArgumentError, match="error\\[A113\\]: the model already has a training entry `train`"):
        make_trainable(samples.build("linear"), loss="mse")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": "mze"}, "error[A100]: no such loss `mze`"),
        ({"optimizer": "adamm"}, "error[A100]: no such optimizer `adamm`"),
        ({"optimizer": 3}, "error[A101]: this is not an optimizer"),
        ({"loss": 3}, "error[A101]: this is not a loss"),
        ({"output": "z"}, "error[A100]: no such value in the model `z`\n  at output="),
        ({"batch_norm": "eval"}, "needed: one of: always, freeze, train"),
        ({"initialize": "hee"}, "error[A100]: no such initialisation `hee`"),
        ({"initialize": {"Z": "he"}}, "error[A110]: `Z` matches no parameter or running statistic"),
        ({"loss": losses.MSE(reduction="none")}, "error[A115]: the loss is not one number\n  at loss=\n  found: shape"),
    ],
)
def test_a_wrong_argument_names_the_right_ones(mlp, arguments, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make_trainable(mlp, **{"loss": "mse", **arguments})

    assert message in str(caught.value)


def test_cross_entropy_after_softmax_is_refused(build) -> None:
    proto = build("m (float[N, 3] x) => (float[N, 2] p) { z = MatMul(x, W) p = Softmax(z) }", W=f32(3, 2))

    with pytest.raises(ArgumentError) as caught:
        make_trainable(proto, loss="cross_entropy")

    assert "`CrossEntropy` expects logits, and output `p` is already a Softmax" in str(caught.value)
    assert 'hint: let the loss read what goes into it: output="z"' in str(caught.value)


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
        "  needed: output= with one name"
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


@pytest.mark.parametrize("optimizer", ["adam", "torch_adam", "sgd"])
@pytest.mark.parametrize(("dtype", "text"), [(np.float64, "double"), (np.float16, "float16")])
def test_other_precisions_train(build, steps, dtype: type, text: str, optimizer: str) -> None:
    proto = build(MLP.replace("float[", f"{text}["), W1=f32(3, 4).astype(dtype), W2=f32(4, 2).astype(dtype))
    model = make_trainable(proto, loss="mse", optimizer=optimizers.by_name(optimizer, learning_rate=0.01))
    feeds = {"x": f32(8, 3).astype(dtype), "labels": f32(8, 2).astype(dtype)}

    running = steps(model)
    found = [float(running.step(feeds)["loss"]) for _ in range(20)]

    assert running.state["W1"].dtype == dtype
    assert found[-1] < found[0]
    assert check(model.proto(), pedantic=True).findings == ()


def test_a_loss_that_does_not_fit_says_so(mlp) -> None:
    with pytest.raises(ArgumentError) as caught:
        make_trainable(mlp, loss=lambda op, y, t: op.MatMul(y, t), label={"t": ("float32", [7, 7])})

    assert "error[A115]: the loss does not fit the outputs and labels\n  at loss=\n  found: " in str(caught.value)


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


def test_the_metadata_says_loss_and_optimizer(mlp) -> None:
    model = make_trainable(mlp, loss="mse", optimizer=optimizers.SGD(schedules.Step(0.1, every=5)))

    metadata = model.entries[0].algorithm.metadata_props

    assert metadata["onward.loss"] == "MSE(reduction='mean')"
    assert '"name": "SGD"' in metadata["onward.optimizer"]
    assert '"every": 5' in metadata["onward.optimizer"]


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


def test_a_loss_does_not_read_integers(build) -> None:
    proto = build("m (float[N, 3] x) => (int64[N, 1] k) { z = MatMul(x, W) k = ArgMax <axis = 1> (z) }", W=f32(3, 2))

    with pytest.raises(ArgumentError) as caught:
        make_trainable(proto, loss="mse")

    assert str(caught.value) == (
        "error[A115]: `MSE` cannot read output `k`\n  at output=\n  found: int64\n  needed: a floating-point tensor"
    )
