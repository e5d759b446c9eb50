"""`make_trainable` refuses parameters whose every way to the loss is blocked, and names the operators that block."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import onward
from author.small import f32
from onward.author import make_trainable
from onward.autodiff import registry
from onward.errors import ArgumentError, NotDifferentiable, OnwardError


def own(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    """Make a model with operators that neither ONNX nor Onward knows."""
    proto = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 18, "my.ops" : 1]>' + text)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in weights.items())
    return proto


FOO = "m (float[N, 3] x) => (float[N, 2] y) { z = MatMul(x, W) u = my.ops.Foo(z) y = Add(u, b) }"


def test_an_unknown_operator_on_every_way_is_refused() -> None:
    proto = own(FOO, W=f32(3, 2), b=f32(2))

    with pytest.raises(NotDifferentiable) as caught:
        make_trainable(proto, loss="mse")

    (problem,) = caught.value.diagnostics
    assert problem.code == "D201"
    assert problem.message == "no gradient rule for `Foo` (my.ops)"
    assert problem.place == "the only Foo, between parameter `W` and the loss"
    assert 'freeze=["W"]' in problem.hint


def test_what_is_behind_an_unknown_operator_may_be_frozen() -> None:
    model = make_trainable(own(FOO, W=f32(3, 2), b=f32(2)), loss="mse", freeze="W")

    assert list(model.parameters) == ["b"]
    onward.compile(model)


def test_a_rule_of_one_s_own_opens_the_way() -> None:
    @onward.register_gradient("Fooled", domain="my.ops")
    def fooled(rule, dY):
        """Y = X, so dX = dY."""
        return {"X": dY}

    try:
        model = make_trainable(own(FOO.replace("Foo(", "Fooled("), W=f32(3, 2), b=f32(2)), loss="mse")
    finally:
        del registry._RULES["my.ops", "Fooled"]

    assert list(model.parameters) == ["W", "b"]


@pytest.mark.parametrize("operator", ["Round", "Sign", "Floor", "Ceil", "Bernoulli"])
def test_an_operator_that_is_flat_on_every_way_is_refused(build, operator: str) -> None:
    text = f"m (float[N, 3] x) => (float[N, 2] y) {{ z = MatMul(x, W) y = {operator}(z) }}"

    with pytest.raises(ArgumentError, match=f"every path to the loss ends at {operator}"):
        make_trainable(build(text, W=f32(3, 2)), loss="mse")


def test_several_blocking_operators_are_all_named() -> None:
    text = (
        "m (float[N, 3] x) => (float[N, 2] y) "
        "{ a = MatMul(x, V) b = MatMul(x, W) u = my.ops.Foo(a) v = my.ops.Bar(b) y = Add(u, v) }"
    )

    with pytest.raises(NotDifferentiable) as caught:
        make_trainable(own(text, V=f32(3, 2), W=f32(3, 2)), loss="mse")

    assert {d.message for d in caught.value.diagnostics} == {
        "no gradient rule for `Foo` (my.ops)",
        "no gradient rule for `Bar` (my.ops)",
    }


def test_a_function_of_the_model_is_no_obstacle() -> None:
    proto = own(FOO, W=f32(3, 2), b=f32(2))
    node = onnx.helper.make_node("Tanh", ["X"], ["Y"])
    opsets = [onnx.helper.make_opsetid("", proto.opset_import[0].version)]
    proto.functions.append(onnx.helper.make_function("my.ops", "Foo", ["X"], ["Y"], [node], opsets))

    model = make_trainable(proto, loss="mse")

    assert list(model.parameters) == ["W", "b"]
    onward.compile(model)


NAMES = {
    "float": "FLOAT",
    "double": "DOUBLE",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "tensor(float)": "FLOAT",
    "bfloat16": "BFLOAT16",
    onnx.TensorProto.FLOAT: "FLOAT",
    "int64": "INT64",
    "<f4": "FLOAT",
}


def difference(op, output, label):
    return op.ReduceMean(op.Sub(output, op.CastLike(label, output)), keepdims=0)


@pytest.mark.parametrize("name", NAMES)
def test_the_type_of_a_label_has_onnx_s_meaning(build, name) -> None:
    proto = build("m (float[N, 3] x) => (float[N, 2] y) { y = MatMul(x, W) }", W=f32(3, 2))

    model = make_trainable(proto, loss=difference, label={"labels": (name, ["N", 2])})

    (label,) = [v for v in model.entries[0].algorithm.inputs if v.name == "labels"]
    assert label.dtype.name == NAMES[name]


@pytest.mark.parametrize("name", ["floaty", "undefined", 99, None])
def test_a_type_that_does_not_exist_is_refused(build, name) -> None:
    proto = build("m (float[N, 3] x) => (float[N, 2] y) { y = MatMul(x, W) }", W=f32(3, 2))

    with pytest.raises(OnwardError, match="invalid description of label `labels`"):
        make_trainable(proto, loss=difference, label={"labels": (name, ["N"])})
