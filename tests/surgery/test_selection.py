"""Layers by the graph, and the words that choose them: `head`, `last:3`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onward
from onward import surgery
from onward.surgery.selection import expand_selection
from surgery.networks import network

# Two blocks with a shortcut, a normalisation after each convolution, and a head.
RESIDUAL = network(
    """a = Conv<pads = [1, 1, 1, 1]>(x, c1.w, c1.b) n = BatchNormalization(a, n1.s, n1.b, m, v) r = Relu(n)
    b = Conv<pads = [1, 1, 1, 1]>(r, c2.w) c = Conv(r, shortcut.w) d = Add(b, c) e = PRelu(d, slope)
    g = GlobalAveragePool(e) f = Flatten(g) z = MatMul(f, fc.w) y = Add(z, fc.b)""".replace(".", "_"),
    {
        "c1_w": (5, 3, 3, 3), "c1_b": (5,), "n1_s": (5,), "n1_b": (5,), "m": (5,), "c2_w": (5, 5, 3, 3),
        "shortcut_w": (5, 5, 1, 1), "slope": (5, 1, 1), "fc_w": (5, 4), "fc_b": (4,),
    },
    "float[N, 3, 5, 5] x",
    constants={"v": np.ones(5, np.float32)},
)  # fmt: skip


def test_a_layer_has_its_bias_and_normalisation_and_the_last_comes_first() -> None:
    found = surgery.layers(onward.load(RESIDUAL))

    assert [(layer.depth, layer.operator, layer.weights) for layer in found] == [
        (1, "MatMul", ("fc_w", "fc_b")),
        (2, "Conv", ("shortcut_w", "slope")),
        (2, "Conv", ("c2_w",)),
        (3, "Conv", ("c1_w", "c1_b", "n1_s", "n1_b")),
    ]


@pytest.mark.parametrize(
    ("train", "trained"),
    [
        ("head", {"fc_w", "fc_b"}),
        ("last:1", {"fc_w", "fc_b"}),
        ("last:2", {"fc_w", "fc_b", "shortcut_w", "slope"}),
        (["head", "c1_*"], {"fc_w", "fc_b", "c1_w", "c1_b"}),
        ("last:4", {"fc_w", "fc_b", "shortcut_w", "slope", "c2_w", "c1_w", "c1_b", "n1_s", "n1_b"}),
    ],
)
def test_words_choose_what_is_trained(train: str | list[str], trained: set[str]) -> None:
    assert set(onward.make_trainable(RESIDUAL, train=train).parameters) == trained


def test_words_choose_what_is_frozen() -> None:
    model = onward.make_trainable(RESIDUAL, freeze=["head", "last:2"])

    assert set(model.parameters) == {"c2_w", "c1_w", "c1_b", "n1_s", "n1_b"}


def test_names_with_brackets_are_names_and_not_globs() -> None:
    model = network("y = Gemm(x, W, b)", {"W": (6, 4), "b": (4,)})
    model.graph.initializer[0].name = model.graph.node[0].input[1] = "W[0]"

    assert list(onward.make_trainable(model, train="head").parameters) == ["W[0]", "b"]


def test_a_normalisation_of_the_input_belongs_to_the_first_layer() -> None:
    model = network(
        "n = LayerNormalization(x, s, c) h = Gemm(n, V) r = Relu(h) y = Gemm(r, W)",
        {"s": (6,), "c": (6,), "V": (6, 6), "W": (6, 4)},
    )

    assert [layer.weights for layer in surgery.layers(onward.load(model))] == [("W",), ("s", "c", "V")]


def test_a_shared_weight_belongs_to_the_last_layer_that_reads_it() -> None:
    model = network("h = Gemm(x, V) y = Gemm(h, V)", {"V": (6, 6)}, outputs="float[N, 6] y")

    assert [layer.weights for layer in surgery.layers(onward.load(model))] == [("V",)]


def test_the_body_of_an_if_is_one_layer() -> None:
    model = network(
        """h = Gemm(x, V) s = ReduceSum<keepdims = 0>(h) zero = Constant<value = float {0.0}>() c = Greater(s, zero)
        y = If (c) <
            then_branch = then () => (float[N, 4] p) { p = Gemm(h, W, b) },
            else_branch = other () => (float[N, 4] q) { q = MatMul(h, U) }
        >""",
        {"V": (6, 6), "W": (6, 4), "b": (4,), "U": (6, 4)},
    )

    found = surgery.layers(onward.load(model))

    assert [(layer.operator, layer.weights) for layer in found] == [("If", ("W", "b", "U")), ("Gemm", ("V",))]


def test_the_head_of_ones_own_graph_is_what_was_attached() -> None:
    def head(op: object, value: object) -> object:
        hidden = op.Relu(op.MatMul(value, np.ones((5, 7), np.float32)))  # type: ignore[attr-defined]
        return op.MatMul(hidden, np.ones((7, 2), np.float32))  # type: ignore[attr-defined]

    model = onward.make_trainable(RESIDUAL, classes=2, head=head, train="head")

    assert [v.const_value.numpy().shape for v in model.parameters.values()] == [(5, 7), (7, 2)]


def test_the_words_serve_a_training_model_too() -> None:
    model = onward.make_trainable(RESIDUAL, classes=3)

    assert expand_selection(model, ["head", "n1_*"]) == ["fc_w", "fc_b", "n1_*"]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("last:0", "`last:0` does not say how many layers"),
        ("last:x", "`last:x` does not say how many layers"),
        ("last:", "`last:` does not say how many layers"),
        ("last:5", "fewer than 5 layers"),
    ],
)
def test_a_depth_that_does_not_fit_is_refused(train: str, message: str) -> None:
    with pytest.raises(onward.OnwardError, match=message) as error:
        onward.make_trainable(RESIDUAL, train=train)

    assert error.value.code == "A131"


def test_a_network_without_a_head_says_why_and_all_mistakes_come_at_once() -> None:
    model = network("z = Gemm(x, W) y = BatchNormalization(z, s, s, s, s)", {"W": (6, 4), "s": (4,)})

    with pytest.raises(onward.OnwardError) as error:
        onward.make_trainable(model, train=["head", "last:9"], loss="mse")

    assert [d.code for d in error.value.diagnostics] == ["A131", "A131"]
    assert "BatchNormalization `y` stands between" in str(error.value)


def test_layers_of_a_file_whose_weights_are_in_constant_nodes(tmp_path: Path) -> None:
    path = tmp_path / "constants.onnx"
    body = "V = Constant<value = float[2, 3] {1, 2, 3, 4, 5, 6}>() h = MatMul(x, V) r = Relu(h) y = Gemm(r, W)"
    onnx.save(network(body, {"W": (3, 4)}, inputs="float[N, 2] x"), path)

    assert [layer.weights for layer in surgery.layers(path)] == [("W",), ("V",)]
    assert [layer.weights for layer in surgery.layers(path, "r")] == [("V",)]


def test_layers_before_a_value_that_is_not_there_names_the_nearest() -> None:
    with pytest.raises(onward.OnwardError, match=r"no such value in the model `yy`(.|\n)*did you mean `y`"):
        surgery.layers(onward.load(RESIDUAL), "yy")
