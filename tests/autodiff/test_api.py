"""onward.gradient, vjp and jvp on whole models, against PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from autodiff.text_models import model, parse, run
from cases.control_flow import CASES as CONTROL_FLOW
from onward.compiler.derivatives import gradient, jvp, vjp

NET = """g (double[N,3] x) => (double loss, double[N,2] y) {
    p = MatMul(x, w)
    q = Add(p, b)
    h = Tanh(q)
    y = MatMul(h, v)
    s = Mul(y, y)
    loss = ReduceMean<keepdims=0>(s)
}"""
RNG = np.random.default_rng(0)
W, V, X = RNG.normal(size=(3, 4)), RNG.normal(size=(4, 2)), RNG.normal(size=(5, 3))
B = np.array([0.1, -0.2, 0.3, 0.0])


def net() -> onnx.ModelProto:
    proto = parse(NET)
    for name, array in {"w": W, "b": B, "v": V}.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w + b) @ v


def test_gradient_by_initializers_inputs_and_intermediates_agrees_with_torch() -> None:
    x, w, b, v = (torch.tensor(a, requires_grad=True) for a in (X, W, B, V))
    h = torch.tanh(x @ w + b)
    h.retain_grad()
    ((h @ v) ** 2).mean().backward()

    result = run(gradient(net(), of="loss", wrt=["x", "w", "b", "v", "h"]), x=X)

    for name, value in {"x": x, "w": w, "b": b, "v": v, "h": h}.items():
        np.testing.assert_allclose(result[f"grad/{name}"], value.grad.numpy(), rtol=1e-12)


def test_vjp_agrees_with_torch() -> None:
    cotangent = RNG.normal(size=(5, 2))
    _, pull = torch.func.vjp(forward, *map(torch.tensor, (X, W, B, V)))
    expected = pull(torch.tensor(cotangent))

    result = run(vjp(net(), of="y", wrt=["x", "w", "b", "v"]), x=X, **{"cotangent/y": cotangent})

    for name, value in zip("xwbv", expected, strict=True):
        np.testing.assert_allclose(result[f"grad/{name}"], value.numpy(), rtol=1e-12)


def test_jvp_agrees_with_torch() -> None:
    tangents = {n: RNG.normal(size=a.shape) for n, a in {"x": X, "w": W, "b": B, "v": V}.items()}
    _, expected = torch.func.jvp(
        forward, tuple(map(torch.tensor, (X, W, B, V))), tuple(map(torch.tensor, tangents.values()))
    )
    proto = jvp(net(), of="y", wrt=list(tangents))

    result = run(proto, x=X, **{f"tangent/{n}": t for n, t in tangents.items()})

    onnx.checker.check_model(proto, full_check=True)
    np.testing.assert_allclose(result["tangent/y"], expected.numpy(), rtol=1e-12)


def test_jvp_leaves_no_trace_of_the_reverse_pass_it_came_from() -> None:
    proto = jvp(parse("g (double[2] x) => (double[2] y) { e = Exp(x) y = Mul(e, x) }"), of="y", wrt="x")

    assert [i.name for i in proto.graph.input] == ["x", "tangent/x"]
    assert [n.op_type for n in proto.graph.node if n.op_type == "ReduceSum"] == []


def test_jvp_of_something_independent_is_zeros() -> None:
    proto = jvp(parse("g (double[N] x, double[N] w) => (double[N] y) { y = Exp(x) }"), of="y", wrt="w")

    result = run(proto, x=np.ones(3), w=np.ones(3), **{"tangent/w": np.ones(3)})

    np.testing.assert_array_equal(result["tangent/y"], np.zeros(3))


@pytest.mark.parametrize("name", ["If-taken", "Loop-with scan output", "Scan-directions 0 and 1, axis 1"])
def test_jvp_through_control_flow_agrees_with_finite_differences(name: str) -> None:
    case = next(c for c in CONTROL_FLOW if str(c) == name).model()
    output = case.outputs[0]
    names = [n for n, a in case.feeds.items() if a.dtype.kind == "f"]
    tangents = {n: np.random.default_rng(3).normal(size=case.feeds[n].shape) for n in names}

    result = run(jvp(case.proto, of=output, wrt=names), **case.feeds, **{f"tangent/{n}": tangents[n] for n in names})

    step = 1e-5
    moved = [
        run(case.proto, **{n: a + s * step * tangents[n] if n in names else a for n, a in case.feeds.items()})
        for s in (-1, 1)
    ]
    np.testing.assert_allclose(
        result[f"tangent/{output}"], (moved[1][output] - moved[0][output]) / (2 * step), rtol=1e-6
    )


def test_a_model_comes_from_a_path_with_external_data(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(net(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert (tmp_path / "weights.bin").stat().st_size > 0

    from_path = run(gradient(str(path), of="loss", wrt="w"), x=X)

    np.testing.assert_array_equal(from_path["grad/w"], run(gradient(net(), of="loss", wrt="w"), x=X)["grad/w"])


def test_a_model_of_an_old_opset_is_upgraded_first() -> None:
    old = parse("g (double[2,3] x) => (double y) { y = ReduceSum<axes=[0, 1], keepdims=0>(x) }", opset=11)

    result = run(gradient(old, of="y", wrt="x"), x=np.ones((2, 3)))

    np.testing.assert_array_equal(result["grad/x"], np.ones((2, 3)))


@pytest.mark.parametrize("opset", [18, 20, 21, 23, 25, 28])
def test_lowered_graphs_are_valid_at_each_opset(opset: int) -> None:
    text = """g (float[N,4] x, float[4,4] w, float[4] s) => (float loss) {
        p = MatMul(x, w)
        q = Softmax<axis=-1>(p)
        n = LayerNormalization<axis=-1>(q, s)
        r = Relu(n)
        t = Transpose<perm=[1, 0]>(r)
        loss = ReduceMean<keepdims=0>(t)
    }"""

    proto = gradient(parse(text, opset), of="loss", wrt=["x", "w", "s"])

    onnx.checker.check_model(proto, full_check=True)
    assert proto.opset_import[0].version == opset


def test_the_forward_outputs_are_unchanged() -> None:
    before, after = run(net(), x=X), run(gradient(net(), of="loss", wrt="w"), x=X)

    np.testing.assert_array_equal(before["y"], after["y"])


def test_a_gradient_of_a_gradient_has_a_name_of_its_own() -> None:
    once = gradient(parse("g (double[2] x) => (double[2] y) { a = Mul(x, x) y = Mul(a, x) }"), of="y", wrt="x")

    twice = gradient(once, of="grad/x", wrt="x")

    result = run(twice, x=[1.0, 2.0])
    np.testing.assert_allclose(result["grad/x"], [3.0, 12.0])
    np.testing.assert_allclose(result["grad/x_2"], [6.0, 12.0])


def test_a_model_with_functions_is_differentiated_through_them() -> None:
    case = model("g (double[2] x) => (double[2] y) { y = Exp(x) }", x=[0.0, 1.0])
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 18, "my" : 1]>
        g (double[2] x) => (double[2] y) { a, b = my.pair(x) y = Mul(a, b) }
        <domain: "my", opset_import: ["" : 18]>
        pair (v) => (p, q) { p = Exp(v) q = Identity(v) }"""
    )

    result = run(gradient(proto, of="y", wrt=["x", "b"]), **case.feeds)

    np.testing.assert_allclose(result["grad/x"], np.exp([0.0, 1.0]) * [1.0, 2.0])
    np.testing.assert_allclose(result["grad/b"], np.exp([0.0, 1.0]))


def test_a_rule_of_the_user_replaces_a_built_in_one_whatever_is_imported_first() -> None:
    code = """
import numpy as np, onnx, onward
@onward.register_gradient("Exp")
def doubled(rule, doutput):
    return {"input": rule.op.Mul(rule.op.Mul(doutput, rule.output("output")), 2.0)}
net = onnx.parser.parse_model('<ir_version: 10, opset_import: ["" : 18]> g (double x) => (double y) { y = Exp(x) }')
from onward.backends.reference import Evaluator
print(float(Evaluator(onward.gradient(net, of="y", wrt="x")).run({"x": np.array(0.0)})["grad/x"]))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout == "2.0\n"
