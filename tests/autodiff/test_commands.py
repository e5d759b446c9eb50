"""onward grad and onward ops."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
import typer
from typer.testing import CliRunner

from autodiff.text_models import parse, run
from onward.cli.grad import grad
from onward.cli.ops import ops
from onward.errors import ArgumentError


def invoke(command: object, *arguments: str) -> str:
    app = typer.Typer()
    app.command()(command)  # type: ignore[type-var]
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_grad_writes_a_model_with_the_gradient(tmp_path: Path) -> None:
    onnx.save(parse("g (double[2] x, double[2] w) => (double[2] y) { y = Mul(x, w) }"), tmp_path / "net.onnx")
    output = tmp_path / "out.onnx"

    printed = invoke(grad, str(tmp_path / "net.onnx"), "--of", "y", "--wrt", "x", "--wrt", "w", "-o", str(output))

    assert "outputs grad/x, grad/w" in printed
    assert run(onnx.load(output), x=[1.0, 2.0], w=[3.0, 4.0])["grad/x"].tolist() == [3.0, 4.0]


def test_grad_writes_the_backward_of_a_node_as_a_function(tmp_path: Path) -> None:
    onnx.save(parse("g (double[2] x) => (double[2] y) { y = Softmax(x) }"), tmp_path / "net.onnx")
    output = tmp_path / "out.onnx"

    invoke(grad, str(tmp_path / "net.onnx"), "--of", "y", "--wrt", "x", "--functions", "-o", str(output))

    assert [f.name for f in onnx.load(output).functions] == ["SoftmaxGradient"]


def test_ops_prints_every_operator_and_the_count() -> None:
    printed = invoke(ops)

    assert "LayerNormalization" in printed
    assert "indices: not differentiable" in printed
    assert "gradient" in printed.splitlines()[-1]


def test_ops_can_be_asked_for_one_name() -> None:
    printed = invoke(ops, "softmaxcross")

    assert "SoftmaxCrossEntropyLoss" in printed
    assert "MatMul" not in printed


def test_ops_prints_json() -> None:
    operators = {o["name"]: o for o in json.loads(invoke(ops, "--json")) if o["domain"] == "ai.onnx"}

    assert operators["Gather"]["inputs"] == {"data": "GRADIENT", "indices": "NON_DIFFERENTIABLE"}
    assert operators["Gather"]["second_order"] is True
    assert operators["Floor"]["condition"] == "ZERO"
    assert len(operators) > 200


def test_ops_lists_the_decomposed_operators_of_microsoft_apart() -> None:
    printed = invoke(ops, "gelu")
    found = {o["name"]: o for o in json.loads(invoke(ops, "--json")) if o["domain"] == "com.microsoft"}

    assert "QuickGelu: Y = X sigmoid(alpha X)." in printed
    assert "of the standard: 1 gradient" in printed
    assert found["EmbedLayerNormalization"]["condition"] == "DECOMPOSED"


def test_ops_of_an_unknown_operator_names_near_ones() -> None:
    with pytest.raises(ArgumentError, match="did you mean `Softmax`"):
        invoke(ops, "Sofmax")
