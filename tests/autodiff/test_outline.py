"""Backwards as functions: one call for each forward node, shared bodies, the same numbers, differentiable again."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import onward.testing.gradcheck as gradcheck
from autodiff.text_models import parse, run
from cases import Case, all_cases
from onward.autodiff.gradient_functions import DOMAIN
from onward.backends.reference import Evaluator
from onward.compiler.derivatives import gradient

FIRST = list({c.op: c for c in reversed(all_cases()) if c.kind == "ordinary"}.values())
TWO_LAYERS = """net (double[3,4] x, double[4] s, double[4] b) => (double[3,4] y) {
    h = LayerNormalization (x, s, b)
    g = Softplus (h)
    z = LayerNormalization (g, s, b)
    y = Mul (z, z)
}"""
FEEDS = {
    "x": np.random.default_rng(0).normal(size=(3, 4)),
    "s": np.array([1.0, 0.5, 2.0, -1.0]),
    "b": np.array([0.1, 0.2, -0.3, 0.0]),
}


@pytest.mark.parametrize("case", FIRST, ids=str)
def test_functions_compute_what_the_plain_nodes_do(case: Case) -> None:
    model = case.model()
    names = case.differentiated(model)
    forward = gradcheck._with_loss(model, gradcheck._random_weights(model, seed=0))

    plain = gradient(forward, of="testing/loss", wrt=names)
    outlined = gradient(forward, of="testing/loss", wrt=names, functions=True)

    expected, actual = Evaluator(plain).run(model.feeds), Evaluator(outlined).run(model.feeds)
    for name in names:
        np.testing.assert_array_equal(actual[f"grad/{name}"], expected[f"grad/{name}"])


@pytest.mark.parametrize("case", [c for c in FIRST if c.dtypes], ids=str)
def test_functions_pass_the_checker_with_strict_shape_inference(case: Case) -> None:
    model = case.model(dtype=np.float32)
    forward = gradcheck._with_loss(model, {})

    outlined = gradient(forward, of="testing/loss", wrt=case.differentiated(model), functions=True)

    onnx.checker.check_model(outlined, full_check=True)


def test_the_backward_of_a_node_is_one_call_named_after_it() -> None:
    lowered = gradient(parse(TWO_LAYERS), of="y", wrt=["x", "s"], functions=True)

    calls = {n.name: n.op_type for n in lowered.graph.node if n.domain == DOMAIN}
    assert calls["grad/LayerNormalization_0"] == "LayerNormalizationGradient"
    assert calls["grad/LayerNormalization_2"] == "LayerNormalizationGradient"
    assert len(lowered.graph.node) <= 3 * 4


def test_nodes_with_the_same_backward_share_a_function() -> None:
    lowered = gradient(parse(TWO_LAYERS), of="y", wrt=["x", "s"], functions=True)

    assert [f.name for f in lowered.functions].count("LayerNormalizationGradient") == 1
    assert not any(f.name.startswith("LayerNormalizationGradient_") for f in lowered.functions)


def test_a_function_speaks_of_inputs_outputs_and_gradients_as_the_rule_does() -> None:
    lowered = gradient(parse(TWO_LAYERS), of="y", wrt=["x", "s"], functions=True)

    function = next(f for f in lowered.functions if f.name == "LayerNormalizationGradient")
    assert {"X", "Scale", "dY"} <= set(function.input)
    assert set(function.output) == {"dX", "dScale"}


def test_nodes_that_differ_in_an_attribute_do_not_share() -> None:
    model = parse("""net (double[3,4] x) => (double[3,4] y) {
        a = Softmax <axis = 0> (x)
        y = Softmax <axis = 1> (a)
    }""")

    lowered = gradient(model, of="y", wrt=["x"], functions=True)

    assert len({n.op_type for n in lowered.graph.node if n.op_type.startswith("SoftmaxGradient")}) == 2


def test_functions_can_be_differentiated_again() -> None:
    plain, outlined = (gradient(parse(TWO_LAYERS), of="y", wrt=["x", "s"], functions=f) for f in (False, True))

    expected = run(gradient(plain, of="grad/x", wrt=["x", "s"]), **FEEDS)
    for functions in (False, True):
        actual = run(gradient(outlined, of="grad/x", wrt=["x", "s"], functions=functions), **FEEDS)
        for name in ("grad/x_2", "grad/s_2"):
            np.testing.assert_allclose(actual[name], expected[name], rtol=1e-12, atol=1e-14)


def test_onnxruntime_runs_functions() -> None:
    text = TWO_LAYERS.replace("double", "float")
    feeds = {k: v.astype(np.float32) for k, v in FEEDS.items()}
    lowered = gradient(parse(text), of="y", wrt=["x", "s", "b"], functions=True)
    session = onnxruntime.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"])

    actual = session.run(["grad/x", "grad/s", "grad/b"], feeds)

    expected = run(lowered, **feeds)
    for name, value in zip(("grad/x", "grad/s", "grad/b"), actual, strict=True):
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5)


def test_an_old_ir_version_is_raised_to_the_first_with_functions() -> None:
    model = parse(TWO_LAYERS)
    model.ir_version = 7

    assert gradient(model, of="y", wrt=["x"], functions=True).ir_version == 8
    assert gradient(model, of="y", wrt=["x"]).ir_version == 7
