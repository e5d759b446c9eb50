"""Surgery of one's own: cut at any value, attach any graph or function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onward
from onward import surgery
from onward.surgery.notes import read_note
from surgery.networks import declared, network, run

X = np.random.default_rng(1).standard_normal((2, 6)).astype(np.float32)
IMAGE = np.random.default_rng(1).standard_normal((2, 3, 5, 5)).astype(np.float32)
BODY = network(
    "h = Gemm(x, V) features = Relu(h) z = Gemm(features, W, b) y = Softmax(z)", {"V": (6, 5), "W": (5, 4), "b": (4,)}
)
EMBEDDING = network("z = Gemm(x, W) y = LpNormalization(z)", {"W": (6, 4)})


def weight(model: onward.TrainingModel, name: str) -> np.ndarray:
    tensor = model.graph.initializers[name].const_value
    assert tensor is not None
    return tensor.numpy()


def test_a_cut_leaves_only_what_the_value_needs() -> None:
    model = network(
        "h = Gemm(x, V) y = Gemm(h, W) u = Add(y, w)",
        {"V": (6, 6), "W": (6, 4)},
        "float[N, 6] x, float[N, 4] w",
        "float[N, 4] u",
    )

    short = surgery.cut(model, "h")

    assert (short.inputs, short.outputs, list(short.graph.initializers)) == (["x"], ["h"], ["V"])
    assert declared(short) == ["N", 6]
    np.testing.assert_array_equal(run(short, x=X), X @ weight(short, "V"))


def test_a_new_linear_layer_at_a_value() -> None:
    new = surgery.replace_head(BODY, ["cat", "dog"], cut="features")

    features = run(surgery.cut(BODY, "features"), x=X)
    logits = features @ weight(new, "head.weight") + weight(new, "head.bias")
    wanted = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(run(new, x=X), wanted, rtol=1e-5)
    assert new.outputs == ["y"]
    assert "W" not in new.graph.initializers


def test_a_classifier_on_an_embedding_keeps_the_embedding() -> None:
    trainable = onward.make_trainable(EMBEDDING, classes=3, cut="y", train="head")

    assert set(trainable.parameters) == {"head.weight", "head.bias"}
    assert trainable.outputs == ["logits"]
    wanted = run(EMBEDDING, x=X) @ weight(trainable, "head.weight")
    np.testing.assert_allclose(run(trainable, x=X), wanted, rtol=1e-5, atol=1e-6)


def test_an_image_is_averaged_and_a_sequence_is_not() -> None:
    image = network("y = Conv(x, K)", {"K": (4, 3, 1, 1)}, "float[N, 3, 5, 5] x", "float[N, 4, 5, 5] y")
    steps = network("y = MatMul(x, W)", {"W": (6, 4)}, "float[N, T, 6] x", "float[N, T, 4] y")

    one, each = surgery.replace_head(image, 2, cut="y"), surgery.replace_head(steps, 2, cut="y")

    wanted = run(image, x=IMAGE).mean((2, 3)) @ weight(one, "head.weight")
    np.testing.assert_allclose(run(one, x=IMAGE), wanted, rtol=1e-4, atol=1e-6)
    assert declared(one) == ["N", 2]
    assert declared(each) == ["N", "T", 2]


def test_a_head_of_ones_own_takes_the_place_of_the_last_layer() -> None:
    def head(op: Any, value: Any) -> Any:
        hidden = op.Relu(op.MatMul(value, np.ones((5, 8), np.float32)))
        return op.Softmax(op.MatMul(hidden, np.full((8, 2), 0.1, np.float32)), axis=-1)

    trainable = onward.make_trainable(BODY, classes=["cat", "dog"], head=head)

    assert declared(trainable) == ["N", 2]
    np.testing.assert_allclose(run(trainable, x=X), 0.5, rtol=1e-6)
    assert len(trainable.parameters) == 3  # the two matrices of the head, and V
    assert read_note(trainable)["text"].startswith("the given head reads `features` [N, 5]")


def _head_model(opset: int = 18, rows: int = 5) -> onnx.ModelProto:
    return network(
        "q = MatMul(a, W) r = Add(q, b) s = Softmax(r)",
        {"W": (rows, 3), "b": (3,)},
        f"float[M, {rows}] a",
        "float[M, 3] s",
        opset=opset,
    )


@pytest.mark.parametrize("opset", [13, 18, 21])
def test_a_model_is_attached_with_its_weights_whatever_its_opset(opset: int, tmp_path: Path) -> None:
    onnx.save(_head_model(opset), tmp_path / "head.onnx")

    new = surgery.replace_head(BODY, head=str(tmp_path / "head.onnx"))

    wanted = run(_head_model(), a=run(surgery.cut(BODY, "features"), x=X))
    np.testing.assert_allclose(run(new, x=X), wanted, rtol=1e-6)
    trainable = onward.make_trainable(BODY, head=tmp_path / "head.onnx", train="head")
    assert [weight(trainable, name).shape for name in trainable.parameters] == [(5, 3), (3,)]
    assert read_note(trainable)["logits"] == "r"


def test_a_function_is_attached() -> None:
    function = onnx.parser.parse_function('<opset_import: ["": 18], domain: "mine"> twice (a) => (b) { b = Add(a, a) }')

    new = surgery.attach(BODY, function)

    np.testing.assert_allclose(run(new, x=X), 2 * run(BODY, x=X))


def test_attach_adds_outputs_and_keeps_the_others() -> None:
    new = surgery.attach(BODY, lambda op, h: op.ReduceSum(h, keepdims=0), at="features")

    assert new.outputs == ["y", "head/ReduceSum:out"]
    np.testing.assert_array_equal(run(new, "y", x=X), run(BODY, x=X))


def test_attach_to_several_values() -> None:
    new = surgery.attach(BODY, lambda op, a, b: op.Concat(a, b, axis=1), at=["features", "y"])

    assert declared(new) == ["N", 9]


def test_the_source_does_not_change() -> None:
    before = BODY.SerializeToString()
    source = onward.load(BODY)

    surgery.cut(source, "h")
    surgery.attach(source, lambda op, y: op.Neg(y))
    surgery.replace_head(source, 7)
    surgery.replace_head(source, 7, cut="h")

    assert source.proto().SerializeToString() == onward.load(before).proto().SerializeToString()


def test_outputs_that_do_not_depend_on_the_cut_stay() -> None:
    model = network(
        "h = Gemm(x, V) y = Gemm(h, W) u = Neg(x)", {"V": (6, 6), "W": (6, 4)}, outputs="float[N, 4] y, float[N, 6] u"
    )

    new = surgery.replace_head(model, 2, cut="h")

    assert new.outputs == ["y", "u"]
    assert declared(new, "y") == ["N", 2]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ({"classes": 3, "cut": "featurs"}, "A100", "did you mean `features`"),
        ({"classes": 3, "cut": "W"}, "A133", "`W` is a weight"),
        ({"cut": "features"}, "A101", "nothing says which classes"),
        ({"classes": 3, "head": 7}, "A101", "invalid head"),
        ({"classes": 3, "head": lambda op, v: 5}, "A101", "does not return a value"),
        ({"head": _head_model(rows=6)}, "A133", "does not take `features`"),
        ({"classes": 9, "head": _head_model()}, "A133", "the head does not have 9 classes"),
        ({"head": lambda op, v: (op.Neg(v), op.Abs(v))}, "A133", "several results"),
        ({"classes": 3, "output": "nothing"}, "A100", "no such value"),
        ({"classes": 3, "activation": "soft"}, "A100", "invalid activation="),
        ({"classes": 3, "blank": 9}, "A101", "the blank is not one of the classes"),
        ({"classes": ["a"], "old_classes": ["a"]}, "A101", "names of the old classes do not fit"),
        ({"classes": 3, "old_classes": list("abcd")}, "A101", "the new classes have no names"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(onward.OnwardError, match=message) as error:
        surgery.replace_head(BODY, **arguments)

    assert error.value.code == code


def test_features_of_unknown_size_are_refused() -> None:
    model = network("y = Relu(x)", {}, "float[N, F] x", "float[N, F] y")

    with pytest.raises(onward.OnwardError, match="a linear layer cannot read `y`"):
        surgery.replace_head(model, 3, cut="y")


def test_a_mapping_of_losses_is_refused_with_the_way_out() -> None:
    with pytest.raises(onward.OnwardError, match="surgery.replace_head"):
        onward.make_trainable(BODY, classes=3, loss={"y": "mse"})
