"""Layers of different names that share weights: the warning, and `untie`."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import onnx
import pytest

from onward.author import Phase, TiedWeightsWarning, make_trainable
from onward.check import check
from onward.errors import ArgumentError

RNG = np.random.default_rng(3)
W = RNG.normal(size=(3, 3)).astype(np.float32)
TWO_LAYERS = "m (float[N, 3] x) => (float[N, 3] y) { h = MatMul(x, W) y = MatMul(h, W) }"
TABLE = "m (int64[N] x) => (float[N, 3] y) { h = Gather(W, x) y = MatMul(h, W) }"


def named(proto: onnx.ModelProto, *names: str) -> onnx.ModelProto:
    for node, name in zip(proto.graph.node, names, strict=True):
        node.name = name
    return proto


def scoped(proto: onnx.ModelProto, *scopes: str) -> onnx.ModelProto:
    """Record the modules of the nodes in the metadata, as PyTorch's exporter does."""
    for node, scope in zip(proto.graph.node, scopes, strict=True):
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(["", scope, "linear"]))
    return proto


def test_modules_of_different_names_that_share_a_matrix_give_a_warning(build) -> None:
    proto = scoped(build(TWO_LAYERS, W=W), "layers.0", "layers.1")

    with pytest.warns(TiedWeightsWarning) as caught:
        make_trainable(proto, loss="mse")

    text = str(caught[0].message)
    assert "warning[A117]: layers of different names share 1 weight" in text
    assert "`W` in layers.0, layers.1" in text
    assert 'untie="*"' in text
    assert "keep_shared=True" in text


def test_node_names_with_paths_also_identify_modules(build) -> None:
    proto = named(build(TWO_LAYERS, W=W), "/layers.0/MatMul", "/layers.1/MatMul")

    with pytest.warns(TiedWeightsWarning, match="layers.0, layers.1"):
        make_trainable(proto, loss="mse")


@pytest.mark.parametrize(
    "names",
    [("/fc/MatMul", "/fc/MatMul_1"), ("/fc/MatMul", "/fc_1/MatMul"), ("a", "b"), ("", "")],
    ids=["one module", "one module used twice", "no modules", "no names"],
)
def test_a_module_that_is_used_twice_gives_no_warning(build, names) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = make_trainable(named(build(TWO_LAYERS, W=W), *names), loss="mse")

    assert list(model.parameters) == ["W"]


def test_an_embedding_tied_to_the_last_layer_gives_no_warning(build) -> None:
    make_trainable(scoped(build(TABLE, W=W), "embedding", "head"), loss="mse")  # warnings are errors here


def test_frozen_weights_give_no_warning(build) -> None:
    text = "m (float[N, 3] x) => (float[N, 3] y) { h = MatMul(x, W) i = MatMul(h, W) y = MatMul(i, V) }"
    proto = scoped(build(text, W=W, V=W + 1), "layers.0", "layers.1", "head")

    model = make_trainable(proto, loss="mse", train="V")

    assert list(model.parameters) == ["V"]


def test_keep_shared_silences_the_warning(build) -> None:
    model = make_trainable(scoped(build(TWO_LAYERS, W=W), "a", "b"), loss="mse", keep_shared=True)

    assert list(model.parameters) == ["W"]


def test_untie_gives_each_module_a_weight_of_its_own(build, steps) -> None:
    proto = scoped(build(TWO_LAYERS.replace("W", "a_W"), a_W=W), "a", "b")
    proto.graph.initializer[0].name = "a.W"
    for node in proto.graph.node:
        node.input[1] = "a.W"

    model = make_trainable(proto, loss="mse", optimizer="sgd", untie="*")

    assert list(model.parameters) == ["a.W", "b.W"]
    assert check(model).findings == ()
    run = steps(model)
    x = RNG.normal(size=(2, 3)).astype(np.float32)
    run.step({"x": x, "labels": x})
    assert not np.array_equal(run.state["a.W"], run.state["b.W"])


def test_untie_copies_a_transpose_that_several_modules_read(build) -> None:
    text = "m (float[N, 3] x) => (float[N, 3] y) { t = Transpose(W) h = MatMul(x, t) y = MatMul(h, t) }"
    proto = scoped(build(text, W=W), "a", "a", "b")

    model = make_trainable(proto, loss="mse", untie="W")

    assert list(model.parameters) == ["W", "b.W"]
    assert [n.op_type for n in model.graph].count("Transpose") == 2


def test_untie_takes_the_name_of_the_identity_that_stands_for_a_merged_weight(build) -> None:
    text = "m (float[N, 3] x) => (float[N, 3] y) { V = Identity(W) h = MatMul(x, W) y = MatMul(h, V) }"
    proto = named(build(text, W=W), "Identity_0", "/a/MatMul", "/b/MatMul")

    model = make_trainable(proto, loss="mse", untie="*")

    assert list(model.parameters) == ["W", "V"]
    assert [n.op_type for n in model.graph] == ["MatMul", "MatMul"]


def test_a_weight_named_in_full_is_copied_for_each_node_where_no_modules_are_known(build) -> None:
    model = make_trainable(named(build(TWO_LAYERS, W=W), "first", "second"), loss="mse", untie="W")

    assert list(model.parameters) == ["W", "second.W"]


def test_untie_without_a_match_lists_the_shared_weights(build) -> None:
    proto = scoped(build(TWO_LAYERS, W=W), "a", "b")

    with pytest.raises(ArgumentError, match="`V` matches no shared weight") as caught:
        make_trainable(proto, loss="mse", untie="V")

    assert "`W`" in str(caught.value)


def test_the_command_line_warns_on_stderr_and_takes_untie(build, tmp_path) -> None:
    onnx.save(scoped(build(TWO_LAYERS, W=W), "a", "b"), tmp_path / "m.onnx")

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "onward", "make-trainable", "m.onnx", "--loss", "mse", "-o", "t.onnx", *more]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)

    warned, untied, kept = run(), run("--untie", "*"), run("--keep-shared")

    assert warned.stderr.startswith("warning[A117]: layers of different names share 1 weight")
    assert "2 parameters" in untied.stdout
    assert untied.stderr == kept.stderr == ""
    assert "make.py" not in warned.stderr


def test_the_update_of_an_earlier_phase_is_no_layer_that_shares_a_weight(build) -> None:
    proto = named(build("m (float[N, 3] x) => (float[N, 3] y) { y = MatMul(x, W) }", W=W), "/fc/MatMul")

    with warnings.catch_warnings():
        warnings.simplefilter("error", TiedWeightsWarning)
        phases = [Phase(train="head", epochs=1), Phase(train="*", epochs=1)]
        model = make_trainable(proto, loss="mse", optimizer="sgd", phases=phases)

    assert len(model.entries) == 2
