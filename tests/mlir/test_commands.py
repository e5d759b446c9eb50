"""`onward export` and `onward import`, and the example."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onward.cli import build_app
from onward.errors import OnwardError
from onward.model import serde
from onward.samples import build

ROOT = Path(__file__).parents[2]


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(build_app(), [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_export_and_import_give_the_same_file(tmp_path: Path) -> None:
    serde.save(build("digits"), tmp_path / "net.onnx")

    said = invoke(
        "export", tmp_path / "net.onnx", "--mlir", "onnx", "--weights", "external", "-o", tmp_path / "net.mlir"
    )
    read = invoke("import", tmp_path / "net.mlir", "-o", tmp_path / "again.onnx")

    assert "the whole model, weights in" in said
    assert "net.safetensors" in said
    assert "9 nodes, 1 training entry" in read
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "net.onnx").read_bytes()


def test_the_form_for_iree_says_that_it_is_the_inference_graph(tmp_path: Path) -> None:
    serde.save(build("linear"), tmp_path / "net.onnx")

    said = invoke("export", tmp_path / "net.onnx", "--mlir", "torch-onnx", "-o", tmp_path / "net.mlir")

    assert said.rstrip().endswith("the inference graph")


def test_a_mistake_is_said_in_options(tmp_path: Path) -> None:
    from onward.cli.speech import spoken

    serde.save(build("linear"), tmp_path / "net.onnx")

    with pytest.raises(OnwardError) as caught:
        invoke("export", tmp_path / "net.onnx", "--mlir", "torch-onnx", "--graph", "model", "-o", tmp_path / "net.mlir")

    assert spoken(caught.value.diagnostics[0]).needed.startswith("--graph inference, --graph step")
    assert not (tmp_path / "net.mlir").exists()


def test_the_program_ends_with_a_message_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "bad.mlir").write_text('module { "onnx.Nothing"( }')

    command = [sys.executable, "-m", "onward", "import", str(tmp_path / "bad.mlir"), "-o", str(tmp_path / "x.onnx")]
    result = subprocess.run(command, capture_output=True, text=True)

    assert result.returncode == 2
    assert "error[M130]" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "x.onnx").exists()


def test_the_example_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/mlir/export_look_import.py"), str(tmp_path / "new")]

    result = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "NO_COLOR": "1"})

    assert "the same model, bit by bit: True" in result.stdout
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        "core.mlir", "digits.mlir", "digits.safetensors", "step.mlir", "step.torch.mlir",
    ]  # fmt: skip
