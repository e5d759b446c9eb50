"""What is said when a gradient cannot be given: every problem at once, with the place and what to do."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest

from autodiff.text_models import parse
from onward.autodiff import registry
from onward.autodiff.registry import find_rule
from onward.compiler.derivatives import gradient, jvp, lower_gradients, vjp
from onward.errors import ArgumentError, NotDifferentiable

G = "ai.onnx.preview.training.Gradient"


def refusal(text: str) -> NotDifferentiable:
    with pytest.raises(NotDifferentiable) as caught:
        lower_gradients(parse(text))
    return caught.value


MYSTERY = """
<ir_version: 10, opset_import: ["" : 18, "my.ops" : 1]>
net (int64[N] tokens) => (float loss) <float[4,2] "emb.weight" = {1,2,3,4,5,6,7,8}> {
    e = Gather("emb.weight", tokens)
    u = my.ops.Riddle(e)
    v = Tanh(u)
    m = my.ops.Mystery(v)
    loss = ReduceSum<keepdims=0>(m)
}
"""


def mystery() -> onnx.ModelProto:
    proto = onnx.parser.parse_model(MYSTERY.replace('"emb.weight"', "emb_weight"))
    for node, name in zip(
        proto.graph.node, ["/emb/Gather", "/head/Riddle", "/head/Tanh", "/head/M", "/loss"], strict=True
    ):
        node.name = name
    proto.graph.initializer[0].name = "emb.weight"
    proto.graph.node[0].input[0] = "emb.weight"
    return proto


def test_every_blocking_node_is_listed_with_its_place_path_and_remedy() -> None:
    with pytest.raises(NotDifferentiable) as caught:
        gradient(mystery(), of="loss", wrt="emb.weight")

    assert str(caught.value) == (
        "error[D201]: no gradient rule for `Riddle` (my.ops)\n"
        "  at node `/head/Riddle`, between parameter `emb.weight` and output `loss`\n"
        "  found: the path `emb.weight` → `/emb/Gather` → `/head/Riddle` → `/head/Tanh` → `/head/M` → `/loss` → "
        "`loss`\n"
        "\n"
        'hint: freeze it with freeze=["emb.weight"], or add a rule (docs/adding_a_rule.md)\n'
        "\n"
        "error[D201]: no gradient rule for `Mystery` (my.ops)\n"
        "  at node `/head/M`, between parameter `emb.weight` and output `loss`\n"
        "  found: the path `emb.weight` → `/emb/Gather` → `/head/Riddle` → `/head/Tanh` → `/head/M` → `/loss` → "
        "`loss`\n"
        "\n"
        'hint: freeze it with freeze=["emb.weight"], or add a rule (docs/adding_a_rule.md)'
    )


def test_the_middle_of_a_long_path_is_left_out() -> None:
    nodes = " ".join(f"t{i + 1} = Tanh(t{i})" for i in range(30))
    text = f"""<ir_version: 10, opset_import: ["" : 18, "my.ops" : 1]>
        g (float[2] x) => (float[2] y) {{ t0 = Tanh(x) {nodes} y = my.ops.Mystery(t30) }}"""

    with pytest.raises(NotDifferentiable) as caught:
        gradient(onnx.parser.parse_model(text), of="y", wrt="x")

    assert "→ … →" in caught.value.diagnostics[0].found
    assert len(caught.value.diagnostics[0].found) < 120


def test_a_blocked_path_that_no_gradient_takes_is_no_problem() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18, "my.ops" : 1]>
        g (float[2] x, float[2] w) => (float[2] y) { m = my.ops.Mystery(w) y = Mul(x, m) }"""

    proto = gradient(onnx.parser.parse_model(text), of="y", wrt="x")

    assert [o.name for o in proto.graph.output] == ["y", "grad/x"]


def test_unknown_names_are_all_listed_with_the_nearest_ones() -> None:
    error = refusal(f'g (float[2] weight) => (float[2] d) {{ y = Exp(weight) d = {G}<xs=["wieght"], y="yy">(weight) }}')

    assert [d.code for d in error.diagnostics] == ["D100", "D100"]
    assert "xs names `wieght`, which is not a tensor of the graph" in str(error)
    assert "did you mean `weight`?" in str(error)
    assert "y names `yy`" in str(error)


def test_a_name_defined_after_the_gradient_is_refused() -> None:
    error = refusal(
        f'g (float[2] x) => (float[2] d, float[2] late) {{ y = Exp(x) d = {G}<xs=["x"], y="late">(x) late = Exp(y) }}'
    )

    assert error.code == "D100"
    assert "y names `late`, which is computed only after it" in str(error)


def test_an_integer_x_is_refused() -> None:
    error = refusal(
        f"""g (int64[2] i) => (float[2] d) {{
        f = Cast<to=1>(i)
        y = Exp(f)
        d = {G}<xs=["i"], y="y">(i) }}"""
    )

    assert error.code == "D101"
    assert "xs names `i`, which is not a floating-point tensor" in str(error)
    assert "found: tensor(int64)" in str(error)


def test_an_integer_y_is_refused() -> None:
    error = refusal(f'g (float[2] x) => (float[2] d) {{ y = Cast<to=7>(x) d = {G}<xs=["x"], y="y">(x) }}')

    assert error.code == "D101"
    assert "y names `y`" in str(error)


def test_a_sequence_is_not_a_tensor() -> None:
    with pytest.raises(NotDifferentiable, match=r"found: seq\(tensor\(float\)\)"):
        gradient(parse("g (float[2] x) => (float[2] y) { s = SequenceConstruct(x) y = Exp(x) }"), of="s", wrt="x")


def test_a_cut_that_is_not_independent_is_refused() -> None:
    error = refusal(
        f"""g (float[2] x, float[2] w) => (float[2] d, float[2] e) {{
        h = Mul(x, w)
        y = Exp(h)
        d, e = {G}<xs=["w", "h"], zs=["x"], y="y">(w, h, x) }}"""
    )

    assert error.code == "D103"
    assert "found: `h` is computed from `w`, `x`" in str(error)
    assert "hint: leave out `h`, or leave out `w`, `x`" in str(error)


def test_a_name_given_twice_is_refused() -> None:
    error = refusal(f'g (float[2] x) => (float[2] d) {{ y = Exp(x) d = {G}<xs=["x"], zs=["x"], y="y">(x, x) }}')

    assert error.code == "D103"
    assert "name a tensor twice" in str(error)


def test_too_few_inputs_are_refused() -> None:
    error = refusal(
        f'g (float[2] x, float[2] w) => (float[2] d) {{ y = Mul(x, w) d = {G}<xs=["x"], zs=["w"], y="y">(x) }}'
    )

    assert error.code == "D102"
    assert "needed: 2 inputs and at most 1 outputs" in str(error)


def test_a_point_of_another_type_is_refused() -> None:
    error = refusal(f'g (float[2] x, double[2] p) => (float[2] d) {{ y = Exp(x) d = {G}<xs=["x"], y="y">(p) }}')

    assert error.code == "D104"
    assert "the input `p` stands for `x` but has another type" in str(error)


def test_random_numbers_inside_a_subgraph_cannot_be_drawn_twice() -> None:
    error = refusal(
        f"""g (float[2] x, float[2] p, bool c) => (float[2] d) {{
        y = If(c) <then_branch = t () => (float[2] a) {{ r = RandomNormalLike(x) a = Mul(r, x) }},
                   else_branch = f () => (float[2] b) {{ b = Identity(x) }}>
        d = {G}<xs=["x"], y="y">(p) }}"""
    )

    assert error.code == "D105"


@pytest.mark.parametrize("function", [gradient, vjp, jvp])
def test_all_wrong_names_of_a_call_are_reported_together(function: object) -> None:
    proto = parse("g (float[2] x, int64[2] i) => (float[2] y) { y = Exp(x) }")

    with pytest.raises(NotDifferentiable) as caught:
        function(proto, of="z", wrt=["x", "i", "nope"])  # type: ignore[operator]

    assert [d.code for d in caught.value.diagnostics] == ["D100", "D101", "D100"]


def test_an_empty_wrt_is_an_argument_error() -> None:
    with pytest.raises(ArgumentError, match="`wrt` is empty"):
        gradient(parse("g (float[2] x) => (float[2] y) { y = Exp(x) }"), of="y", wrt=[])


def test_a_name_twice_in_wrt_is_an_argument_error() -> None:
    with pytest.raises(ArgumentError, match="`wrt` names `x` twice"):
        gradient(parse("g (float[2] x) => (float[2] y) { y = Exp(x) }"), of="y", wrt=["x", "x"])


def test_an_unsupported_input_says_why() -> None:
    from onward.autodiff.registry import UNSUPPORTED, declare

    declare("Puzzle", domain="test.errors", X=UNSUPPORTED("it is a puzzle; use Riddle instead"))
    text = """<ir_version: 10, opset_import: ["" : 18, "test.errors" : 1]>
        g (float[2] x) => (float[2] y) { y = test.errors.Puzzle(x) }"""

    with pytest.raises(NotDifferentiable) as caught:
        gradient(onnx.parser.parse_model(text), of="y", wrt="x")

    assert caught.value.code == "D202"
    assert "no gradient with respect to input `X` of `Puzzle`: it is a puzzle; use Riddle instead" in str(caught.value)


def test_an_output_without_gradient_says_so() -> None:
    text = "g (double[4] x) => (double[2] y) { v, i = TopK(x, k) y = Cast<to=11>(i) }".replace(
        "{ v", "{ k = Constant<value_ints=[2]>() v", 1
    )

    proto = gradient(parse(text), of="y", wrt="x")

    # The indices are integers: flat, so zeros and no error.
    from autodiff.text_models import run

    np.testing.assert_array_equal(run(proto, x=[1.0, 3.0, 2.0, 0.0])["grad/x"], np.zeros(4))


def test_a_gradient_through_an_output_that_a_rule_does_not_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rule of ours leaves out a floating-point output; one that a user registers may."""
    rule = find_rule("LayerNormalization", "", 18)
    assert rule is not None
    only_y = dataclasses.replace(rule, function=lambda it, dY: rule.function(it, dY, None, None), outputs=("Y",))
    monkeypatch.setitem(registry._RULES, ("", "LayerNormalization"), [only_y])
    text = (
        "g (float[2,3] x, float[3] s) => (float[2,3] n, float[2,1] y) { n, m = LayerNormalization(x, s) y = Tanh(m) }"
    )

    with pytest.raises(NotDifferentiable) as caught:
        gradient(parse(text), of="y", wrt="x")

    (problem,) = caught.value.diagnostics
    assert problem.code == "D203"
    assert problem.message == "no gradient through output `Mean` of `LayerNormalization`"
    assert problem.place == "node `LayerNormalization_0`, between input `x` and output `y`"
    assert "LayerNormalization" in {n.op_type for n in gradient(parse(text), of="n", wrt="x").graph.node}
