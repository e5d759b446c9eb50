"""A fresh head for other classes, in front of everything that exporters put behind the last linear layer.

The oracle: classes whose weights are kept (`old_classes`) have the numbers that they had, at their new places.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import onward
from onward import surgery
from onward.model.class_names import class_names
from onward.surgery.notes import read_note
from surgery.networks import CLASSES, declared, network, run

X = np.random.default_rng(1).standard_normal((2, 6)).astype(np.float32)
IMAGE = np.random.default_rng(1).standard_normal((2, 3, 5, 5)).astype(np.float32)
STEPS = np.random.default_rng(1).standard_normal((2, 7, 6)).astype(np.float32)

W, B = {"W": (6, 4)}, {"W": (6, 4), "b": (4,)}
K = {"K": (4, 3, 1, 1), "b": (4,)}
IN_IMAGE = "float[N, 3, 5, 5] x"
IN_STEPS = "float[N, T, 6] x"

# name: (model, input, class axis of the output, what the output is)
HEADS = {
    "Gemm": (network("y = Gemm(x, W, b)", B), X, 1, "logits"),
    "Gemm, transposed": (network("y = Gemm<transB = 1>(x, W, b)", {"W": (4, 6), "b": (4,)}), X, 1, "logits"),
    "Gemm without bias": (network("y = Gemm(x, W)", W), X, 1, "logits"),
    "Gemm, bias [1, 4]": (network("y = Gemm(x, W, b)", {"W": (6, 4), "b": (1, 4)}), X, 1, "logits"),
    "MatMul": (network("y = MatMul(x, W)", W), X, 1, "logits"),
    "MatMul, Add": (network("z = MatMul(x, W) y = Add(z, b)", B), X, 1, "logits"),
    "Add of the bias first": (network("z = MatMul(x, W) y = Add(b, z)", B), X, 1, "logits"),
    "a transposed weight": (
        network("V = Transpose<perm = [1, 0]>(W) z = MatMul(x, V) y = Add(z, b)", {"W": (4, 6), "b": (4,)}),
        X,
        1,
        "logits",
    ),
    "Softmax": (network("z = Gemm(x, W, b) y = Softmax<axis = -1>(z)", B), X, 1, "softmax"),
    "Softmax, Identity": (network("z = Gemm(x, W, b) s = Softmax(z) y = Identity(s)", B), X, 1, "softmax"),
    "Softmax by hand": (
        network(
            "z = Gemm(x, W, b) e = Exp(z) s = ReduceSum<keepdims = 1>(e, axes) y = Div(e, s)",
            B,
            constants={"axes": np.array([1])},
        ),
        X,
        1,
        "softmax",
    ),
    "Softmax by hand, stable": (
        network(
            """z = Gemm(x, W, b) m = ReduceMax<axes = [1]>(z) d = Sub(z, m) e = Exp(d)
                s = ReduceSum<keepdims = 1>(e, axes) y = Div(e, s)""",
            B,
            constants={"axes": np.array([1])},
            opset=17,
        ),
        X,
        1,
        "softmax",
    ),
    "Sigmoid by hand": (
        network(
            "z = Gemm(x, W, b) m = Neg(z) e = Exp(m) t = Add(e, one) y = Div(one, t)",
            B,
            constants={"one": np.ones(1, np.float32)},
        ),
        X,
        1,
        "sigmoid",
    ),
    "exp(x) / (1 + exp(x))": (
        network(
            "z = Gemm(x, W, b) e = Exp(z) t = Add(e, one) y = Div(e, t)", B, constants={"one": np.ones(1, np.float32)}
        ),
        X,
        1,
        "sigmoid",
    ),
    "Sigmoid, Cast": (
        network("z = Gemm(x, W, b) s = Sigmoid(z) y = Cast<to = 11>(s)", B, outputs="double[N, 4] y"),
        X,
        1,
        "sigmoid",
    ),
    "Reshape with the number of classes": (
        network("z = Gemm(x, W, b) r = Reshape(z, shape) y = Softmax(r)", B, constants={"shape": np.array([-1, 4])}),
        X,
        1,
        "softmax",
    ),
    "Reshape with a batch": (
        network(
            "z = Gemm(x, W, b) y = Reshape(z, shape)",
            B,
            "float[2, 6] x",
            "float[2, 1, 4] y",
            constants={"shape": np.array([2, 1, 4])},
        ),
        X,
        2,
        "logits",
    ),
    "Reshape with a shape that is computed": (
        network(
            """z = Gemm(x, W, b) s = Shape(x) n = Gather(s, zero) m = Unsqueeze(n, axes)
                shape = Concat<axis = 0>(m, four) y = Reshape(z, shape)""",
            B,
            constants={"zero": np.array(0), "axes": np.array([0]), "four": np.array([4])},
        ),
        X,
        1,
        "logits",
    ),
    "Softmax of an old opset, over the last axes": (
        network("z = Gemm(x, W, b) y = Softmax<axis = 1>(z)", B, opset=11),
        X,
        1,
        "softmax",
    ),
    "a scale and a shift for each class": (
        network("z = MatMul(x, W) s = Mul(z, b) y = Add(s, c)", {"W": (6, 4), "b": (4,), "c": (1, 4)}),
        X,
        1,
        "logits",
    ),
    "a temperature": (
        network("z = Gemm(x, W, b) y = Div(z, t)", B, constants={"t": np.float32(2)}),
        X,
        1,
        "logits",
    ),
    "1x1 Conv, pooling, Flatten": (
        network("z = Conv(x, K, b) p = GlobalAveragePool(z) y = Flatten(p)", K, IN_IMAGE),
        IMAGE,
        1,
        "logits",
    ),
    "Conv, Relu, pooling, Squeeze, Softmax": (
        network(
            "z = Conv(x, K, b) r = Relu(z) p = GlobalAveragePool(r) s = Squeeze(p, axes) y = Softmax(s)",
            K,
            IN_IMAGE,
            constants={"axes": np.array([2, 3])},
        ),
        IMAGE,
        1,
        "softmax",
    ),
    "3x3 Conv, ReduceMean": (
        network(
            "z = Conv<pads = [1, 1, 1, 1]>(x, K, b) y = ReduceMean<keepdims = 0>(z, axes)",
            {"K": (4, 3, 3, 3), "b": (4,)},
            IN_IMAGE,
            constants={"axes": np.array([2, 3])},
        ),
        IMAGE,
        1,
        "logits",
    ),
    "segmentation": (
        network("z = Conv(x, K, b) y = Softmax<axis = 1>(z)", K, IN_IMAGE, "float[N, 4, 5, 5] y"),
        IMAGE,
        1,
        "softmax",
    ),
    "segmentation, channels last": (
        network(
            "z = Conv(x, K, b) t = Transpose<perm = [0, 2, 3, 1]>(z) y = Softmax(t)", K, IN_IMAGE, "float[N, 5, 5, 4] y"
        ),
        IMAGE,
        3,
        "softmax",
    ),
    "segmentation, Resize with sizes": (
        network(
            'z = Conv(x, K, b) y = Resize<mode = "linear">(z, , , sizes)',
            K,
            "float[2, 3, 5, 5] x",
            "float[2, 4, 10, 10] y",
            constants={"sizes": np.array([2, 4, 10, 10])},
        ),
        IMAGE,
        1,
        "logits",
    ),
    "ConvTranspose": (
        network(
            "y = ConvTranspose<strides = [2, 2]>(x, K, b)",
            {"K": (3, 4, 2, 2), "b": (4,)},
            IN_IMAGE,
            "float[N, 4, 10, 10] y",
        ),
        IMAGE,
        1,
        "logits",
    ),
    "tokens": (
        network("z = MatMul(x, W) a = Add(z, b) y = Softmax(a)", B, IN_STEPS, "float[N, T, 4] y"),
        STEPS,
        2,
        "softmax",
    ),
    "time first": (
        network(
            "t = Transpose<perm = [1, 0, 2]>(x) z = MatMul(t, W) y = LogSoftmax(z)", W, IN_STEPS, "float[T, N, 4] y"
        ),
        STEPS,
        2,
        "log",
    ),
    "classes before time": (
        network("z = MatMul(x, W) y = Transpose<perm = [0, 2, 1]>(z)", W, IN_STEPS, "float[N, 4, T] y"),
        STEPS,
        1,
        "logits",
    ),
    "tokens in one matrix": (
        network(
            """s = Shape(x) n = Gather(s, zero) t = Gather(s, one) m = Mul(n, t) f = Shape<start = 2>(x)
                k = Unsqueeze(m, axes) flat = Concat<axis = 0>(k, f) r = Reshape(x, flat) z = Gemm(r, W, b)
                a = Unsqueeze(n, axes) c = Unsqueeze(t, axes) shape = Concat<axis = 0>(a, c, rest)
                y = Reshape(z, shape)""",
            B,
            IN_STEPS,
            "float[A, E, C] y",
            {"zero": np.array(0), "one": np.array(1), "axes": np.array([0]), "rest": np.array([-1])},
        ),
        STEPS,
        2,
        "logits",
    ),
}


def expected(old: np.ndarray, chosen: list[int], axis: int, kind: str) -> np.ndarray:
    """Return the output for the classes `chosen` of the old ones."""
    kept = np.take(old, chosen, axis)
    if kind == "softmax":
        kept = kept / kept.sum(axis, keepdims=True)
    if kind == "log":
        kept = kept - np.log(np.exp(kept).sum(axis, keepdims=True))
    return kept


@pytest.mark.parametrize("name", HEADS)
def test_kept_classes_have_their_numbers_at_their_new_places(name: str) -> None:
    model, x, axis, kind = HEADS[name]

    new = surgery.replace_head(model, ["dog", "ant", "cat"], old_classes=CLASSES)

    np.testing.assert_allclose(run(new, x=x), expected(run(model, x=x), [3, 0, 2], axis, kind), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", HEADS)
def test_more_classes_than_before_and_their_shape_is_declared(name: str) -> None:
    model, x, axis, kind = HEADS[name]

    new = surgery.replace_head(model, ["dog", *"fghij"], old_classes=CLASSES)

    result = run(new, x=x)
    assert result.shape[axis] == 6
    assert declared(new)[axis] == 6
    if kind in ("logits", "sigmoid"):
        np.testing.assert_allclose(result.take(0, axis), run(model, x=x).take(3, axis), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", [n for n in HEADS if n != "time first"])  # cross entropy wants the batch first
def test_the_loss_is_the_cross_entropy_of_the_probabilities_that_the_file_gives(name: str) -> None:
    model, x, axis, kind = HEADS[name]
    labels = np.random.default_rng(0).integers(0, 5, np.delete(run(model, x=x).shape, axis))

    trainable = onward.make_trainable(model, classes=5, train="head", optimizer=onward.SGD(0.05))

    result = np.moveaxis(run(trainable, x=x), axis, -1).astype(np.float64)
    logarithms = (
        np.log(result) if kind in ("softmax", "sigmoid") else result - np.log(np.exp(result).sum(-1, keepdims=True))
    )
    wanted = -np.take_along_axis(logarithms, labels[..., None], -1).mean()
    trainer = onward.Trainer(trainable)
    losses = [float(trainer.step({"x": x, "labels": labels})["loss"]) for _ in range(5)]
    assert losses[0] == pytest.approx(wanted, rel=1e-4)
    assert losses[-1] < losses[0]


def test_an_output_that_value_info_repeats_has_the_new_number_there_too() -> None:
    model = network("z = Gemm(x, W, b) y = Softmax<axis = -1>(z)", B)
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 4]))
    assert onward.to_inference(onward.load(model)).graph.value_info == model.graph.value_info  # nothing else is lost

    proto = onward.to_inference(surgery.replace_head(model, 7))

    sizes = {v.name: v.type.tensor_type.shape.dim[1].dim_value for v in [*proto.graph.value_info, *proto.graph.output]}
    assert set(sizes.values()) == {7}


def test_the_rest_of_the_network_keeps_its_weights_and_names() -> None:
    model = network("h = Gemm(x, V, c) r = Relu(h) y = Gemm(r, W, b)", {"V": (6, 6), "c": (6,), **B})

    new = surgery.replace_head(model, 3)

    assert list(new.graph.initializers) == ["V", "c", "W", "b"]
    for tensor in model.graph.initializer[:2]:
        np.testing.assert_array_equal(
            new.graph.initializers[tensor.name].const_value.numpy(), onnx.numpy_helper.to_array(tensor)
        )
    assert new.inputs == ["x"]
    assert new.outputs == ["y"]


def test_the_weights_are_drawn_with_the_seed() -> None:
    model = HEADS["Gemm"][0]

    one, same, other = (surgery.replace_head(model, 4, seed=seed).graph.initializers["W"] for seed in (0, 0, 1))

    first = one.const_value.numpy()
    np.testing.assert_array_equal(first, same.const_value.numpy())
    assert not np.array_equal(first, other.const_value.numpy())
    assert abs(first).max() <= 6**-0.5
    assert first.std() == pytest.approx(6**-0.5 / 3**0.5, rel=0.3)


def test_a_weight_that_another_layer_reads_too_stays_there() -> None:
    tied = network("h = Gemm<transB = 1>(x, W) y = MatMul(h, W)", {"W": (4, 6)}, outputs="float[N, 6] y")

    new = surgery.replace_head(tied, 3)

    assert new.graph.initializers["W"].const_value.numpy().shape == (4, 6)
    assert run(new, x=X).shape == (2, 3)


def test_a_note_says_which_layer_became_which() -> None:
    model = HEADS["1x1 Conv, pooling, Flatten"][0]
    model.graph.node[0].name = "last"

    new = surgery.replace_head(model, 3)

    assert read_note(new)["text"] == (
        "Conv `last` with 4 classes (weight [4, 3, 1, 1]) became one with 3; output `y` is [N, 3]"
    )


def test_class_names_are_where_evaluate_predict_and_reports_look(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("cat\ndog\ncow\n")

    trainable = onward.make_trainable(HEADS["Softmax"][0], classes=str(tmp_path / "names.txt"))

    assert class_names(trainable) == ("cat", "dog", "cow")
    trainer = onward.Trainer(trainable)
    assert trainer.preparation.classes == ("cat", "dog", "cow")
    assert onward.Trainer(onward.make_trainable(trainer.to_inference(), output="z")).preparation.classes[1] == "dog"


def test_a_number_of_classes_forgets_old_names() -> None:
    named = surgery.replace_head(HEADS["Gemm"][0], ["cat", "dog"])

    assert class_names(surgery.replace_head(named, 3)) == ()


@pytest.mark.parametrize(("classes", "names"), [(["cat", "dog"], "{0: 'cat', 1: 'dog'}"), (2, None)])
def test_names_that_ultralytics_keeps_in_the_file_do_not_stay_those_of_the_old_head(
    classes: object, names: str | None
) -> None:
    model = onward.load(HEADS["Gemm"][0])
    model.ir.metadata_props["names"] = "{0: 'a', 1: 'b', 2: 'c', 3: 'd'}"

    new = surgery.replace_head(model, classes)  # type: ignore[arg-type]

    assert new.ir.metadata_props.get("names") == names


def test_other_preparation_of_the_data_stays() -> None:
    model = onward.load(HEADS["Gemm"][0])
    model.ir.metadata_props["onward.preparation"] = '{"scale": 0.5, "classes": ["a", "b", "c", "d"]}'

    trainer = onward.Trainer(onward.make_trainable(model, classes=["cat", "dog"]))

    assert (trainer.preparation.scale, trainer.preparation.classes) == (0.5, ("cat", "dog"))


def test_a_sigmoid_becomes_a_softmax_where_one_of_several_classes_is_right() -> None:
    one = network("z = Gemm(x, W, b) y = Sigmoid(z)", {"W": (6, 1), "b": (1,)}, outputs="float[N, 1] y")

    exclusive = onward.make_trainable(one, classes=3)
    several = onward.make_trainable(one, classes=3, loss="bce_with_logits")

    np.testing.assert_allclose(run(exclusive, x=X).sum(1), 1.0, rtol=1e-6)
    assert [n.op_type for n in several.graph] == ["Gemm", "Sigmoid"]
    assert "Sigmoid became Softmax" in read_note(exclusive)["text"]


def test_the_bias_of_a_single_class_becomes_one_for_each() -> None:
    one = network("z = MatMul(x, W) y = Add(z, b)", {"W": (6, 1), "b": (1,)}, outputs="float[N, 1] y")

    new = surgery.replace_head(one, 3)

    np.testing.assert_array_equal(new.graph.initializers["b"].const_value.numpy(), np.zeros(3))


def test_the_class_alone_as_an_output_follows() -> None:
    model = network("z = Gemm(x, W, b) y = ArgMax<axis = 1, keepdims = 0>(z)", B, outputs="int64[N] y")

    trainable = onward.make_trainable(model, classes=["dog", "ant"])

    assert run(trainable, x=X).max() < 2
    assert read_note(trainable)["logits"] == "z"


def test_label_and_probabilities_of_one_head_need_no_choice() -> None:
    model = network(
        "z = Gemm(x, W, b) p = Softmax(z) y = ArgMax<axis = 1>(z)", B, outputs="int64[N, 1] y, float[N, 4] p"
    )

    new = surgery.replace_head(model, 3)

    assert declared(new, "p") == ["N", 3]


def test_ctc_adds_the_blank_and_finds_its_axes() -> None:
    x = STEPS
    for name, feeds in (("tokens", (2, 7)), ("time first", (2, 7))):
        trainable = onward.make_trainable(HEADS[name][0], loss="ctc", classes=list("abc"), train="head")

        assert class_names(trainable) == ("<blank>", "a", "b", "c")
        trainer = onward.Trainer(trainable)
        labels = {
            "labels": np.array([[1, 2], [3, 0]]),
            "labels/output_lengths": np.full(feeds[0], feeds[1]),
            "labels/label_lengths": np.array([2, 1]),
        }
        values = [float(trainer.step({"x": x, **labels})["loss"]) for _ in range(3)]
        assert values[-1] < values[0]
        assert run(trainer.to_inference(), x=x).shape[-1] == 4


def test_a_loss_object_with_another_axis_is_refused() -> None:
    with pytest.raises(onward.OnwardError, match=r"reads axis 1; the classes are on axis 2.*\n.*\n.*axis=-1"):
        onward.make_trainable(HEADS["tokens"][0], classes=5, loss=onward.losses.CrossEntropy())


# ------------------------------------------------------------------ what is refused


def refusal(*args: object, **kwargs: object) -> onward.OnwardError:
    with pytest.raises(onward.OnwardError) as error:
        surgery.replace_head(*args, **kwargs)  # type: ignore[arg-type]
    return error.value


def test_several_outputs_need_a_choice_and_the_message_lists_them() -> None:
    model = network(
        "h = Relu(x) y = Gemm(h, W, b) z = Gemm(h, V)", {**B, "V": (6, 2)}, outputs="float[N, 4] y, float[N, 2] z"
    )

    error = refusal(model, 3)

    assert error.code == "A132"
    for text in ("the model has 2 outputs", "`y` [N, 4] ends in Gemm", "`z` [N, 2] ends in Gemm", "output= with"):
        assert text in str(error)
    assert declared(surgery.replace_head(model, 3, output="z"), "z") == ["N", 3]
    assert declared(surgery.replace_head(model, 3, output="z"), "y") == ["N", 4]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("z = Gemm(x, W, b) y = BatchNormalization(z, s, b, b, s)", "BatchNormalization .* stands between"),
        ("z = Gemm(x, W, b) r = Reshape(z, mixed) y = Reshape(r, back)", "Reshape .* mixes the classes"),
        ("z = Gemm(x, W, b) y = Softmax<axis = 0>(z)", "Softmax .* is not over the classes"),
        ("z = Gemm(x, W, b) w = Gemm(x, W, b) y = Add(z, w)", "Add .* stands between"),
        ("y = Gather(T, i)", "Gather .* stands between"),
    ],
)
def test_a_head_that_is_not_certain_is_refused_with_values_to_cut_at(body: str, reason: str) -> None:
    inputs = "int64[N] i" if "Gather" in body else "float[N, 6] x"
    weights = {name: shape for name, shape in {**B, "s": (4,), "T": (9, 4)}.items() if f"{name}" in body}
    constants = {"mixed": np.array([-1, 2]), "back": np.array([-1, 4])}
    model = network(body, weights, inputs, constants={k: v for k, v in constants.items() if k in body})

    error = refusal(model, 3)

    assert error.code == "A132"
    assert re.search(reason, str(error)), str(error)
    assert "cut= with" in str(error)
    assert "`y` [N, 4], the output" in str(error)


def test_a_top_k_of_more_classes_than_there_are_is_refused() -> None:
    model = network(
        "z = Gemm(x, W, b) y, i = TopK(z, k)", B, outputs="float[N, 3] y, int64[N, 3] i", constants={"k": np.array([3])}
    )

    assert "TopK" in str(refusal(model, 2, output="z"))
    assert refusal(model, 2, output="z").code == "A133"


def test_a_layer_inside_of_a_function_is_found() -> None:
    model = network("z = MatMul(x, W) y = Add(z, b)", B)
    function = onnx.parser.parse_function(
        '<opset_import: ["": 18], domain: "pkg"> linear (a, w, b) => (c) { m = MatMul(a, w) c = Add(m, b) }'
    )
    called = onnx.ModelProto()
    called.CopyFrom(model)
    called.functions.append(function)
    called.opset_import.add(domain="pkg", version=1)
    del called.graph.node[:]
    called.graph.node.append(onnx.helper.make_node("linear", ["x", "W", "b"], ["y"], domain="pkg"))

    trainable = onward.make_trainable(called, classes=["dog", "ant"], train="head")

    assert list(trainable.parameters) == ["W", "b"]
    assert run(trainable, x=X).shape == (2, 2)


def test_a_quantised_head_is_refused_with_the_way_to_floats(tmp_path: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    onnx.save(HEADS["Softmax"][0], tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "int8.onnx")

    assert "dequantize=True" in str(refusal(tmp_path / "int8.onnx", 3))
    trainable = onward.make_trainable(tmp_path / "int8.onnx", classes=3, train="head", dequantize=True)
    assert run(trainable, x=X).shape == (2, 3)


@pytest.mark.parametrize("loss", ["focal", "dice"])
def test_other_losses_find_the_axis_of_the_classes_too(loss: str) -> None:
    trainable = onward.make_trainable(HEADS["segmentation, channels last"][0], classes=3, loss=loss)

    trainer = onward.Trainer(trainable)
    labels = np.random.default_rng(0).integers(0, 3, (2, 5, 5))
    if loss == "dice":
        labels = np.eye(3, dtype=np.float32)[labels] if trainer.program.targets[0].dtype == "float32" else labels
    values = [float(trainer.step({"x": IMAGE, "labels": labels})["loss"]) for _ in range(3)]
    assert values[-1] < values[0]


def test_one_class_and_cross_entropy_is_refused() -> None:
    with pytest.raises(onward.OnwardError, match="nothing to choose"):
        onward.make_trainable(HEADS["Gemm"][0], classes=1)


def test_a_training_model_is_refused() -> None:
    with pytest.raises(onward.OnwardError, match="training entries cannot get another head"):
        surgery.replace_head(onward.make_trainable(HEADS["Gemm"][0]), 3)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (0, "at least one class"),
        (-2, "at least one class"),
        (10**12, "from 1 to 10,000,000"),
        (2.5, "classes is 2.5"),
        (True, "classes is True"),
        ([], "there are no classes"),
        (["a", "b", "a"], "two classes are called `a`"),
        (["a", ""], "class 1 has no name"),
        (["a", 3], "class 1 has no name"),
        ("a,,b", "class 1 has no name"),
        ("nothing.txt", "no file `nothing.txt`"),
    ],
)
def test_classes_that_are_no_classes_are_refused(classes: object, message: str) -> None:
    error = refusal(HEADS["Gemm"][0], classes)

    assert error.code == "A130"
    assert message in str(error)


def test_all_wrong_names_are_listed_at_once() -> None:
    assert len(refusal(HEADS["Gemm"][0], ["a", "a", "", "b", "b"]).diagnostics) == 3


def test_a_file_of_names_may_have_a_mark_windows_lines_and_the_space(tmp_path: Path) -> None:
    file = tmp_path / "letters.txt"
    file.write_bytes("\ufeffä\r\nb \r\n \r\n\r\n".encode())

    assert class_names(surgery.replace_head(HEADS["Gemm"][0], file)) == ("ä", "b", " ")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "letters.bin"
    file.write_bytes(b"\xff\xfe\x00")

    assert "cannot be read as a list of names" in str(refusal(HEADS["Gemm"][0], file))
