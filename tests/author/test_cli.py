from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import typer
from typer.testing import CliRunner

from onward import samples
from onward.cli.make_trainable import make_trainable
from onward.cli.sample import sample
from onward.cli.strip import strip
from onward.errors import ArgumentError
from onward.model import serde


def run(command, *arguments: str):
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(arguments), catch_exceptions=True)


def test_sample_writes_the_file_and_says_what_to_feed(tmp_path: Path) -> None:
    result = run(sample, "mnist", "-o", str(tmp_path / "m.onnx"))

    assert "feed `images`, `labels`; 10 parameters to train" in result.output
    assert (tmp_path / "m.onnx").read_bytes() == samples.build("mnist").proto().SerializeToString()


def test_make_trainable_takes_globs_and_settings(tmp_path: Path) -> None:
    serde.save(samples.digits_network(), tmp_path / "in.onnx")

    result = run(
        make_trainable, str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx"), "--loss", "cross_entropy",
        "--set-loss", "label_smoothing=0.1", "--optimizer", "adamw", "--learning-rate", "0.01", "--set", "beta1=0.8",
        "--train", "fc*", "--freeze", "*.bias", "--label", "digit",
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    model = serde.load(tmp_path / "out.onnx")
    assert list(model.parameters) == ["fc1.weight", "fc2.weight"]
    assert model.targets == ["digit"]
    assert "2 parameters (33,408 numbers) to train, 6 frozen" in result.output


def test_a_setting_without_a_value_is_an_error(tmp_path: Path) -> None:
    serde.save(samples.digits_network(), tmp_path / "in.onnx")

    result = run(make_trainable, str(tmp_path / "in.onnx"), "-o", "x", "--loss", "mse", "--set", "beta1")

    assert isinstance(result.exception, ArgumentError)
    assert str(result.exception) == "error[A101]: `beta1` is not a setting\n  at --set\n  needed: NAME=VALUE"


def test_strip_gives_back_the_inference_model(tmp_path: Path) -> None:
    run(sample, "digits", "-o", str(tmp_path / "d.onnx"))

    result = run(strip, str(tmp_path / "d.onnx"), "-o", str(tmp_path / "i.onnx"))

    assert "removed 1 training entry" in result.output
    stripped = onnx.load(tmp_path / "i.onnx")
    original = samples.digits_network().proto()
    assert not stripped.training_info
    assert [n.SerializeToString() for n in stripped.graph.node] == [n.SerializeToString() for n in original.graph.node]
    for ours, theirs in zip(stripped.graph.initializer, original.graph.initializer, strict=True):
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(ours), onnx.numpy_helper.to_array(theirs))


def test_strip_refuses_an_average_that_does_not_exist(tmp_path: Path) -> None:
    run(sample, "linear", "-o", str(tmp_path / "l.onnx"))

    result = run(strip, str(tmp_path / "l.onnx"), "-o", str(tmp_path / "i.onnx"), "--average")

    with pytest.raises(ArgumentError, match="the model keeps no moving average"):
        raise result.exception


def test_a_quantized_model_is_dequantized_and_quantized_again(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]> net (float[N, 4] x) => (float[N, 3] y)
        <float s = {0.5}> { w = DequantizeLinear(W_quantized, s) y = MatMul(x, w) }"""
    )
    integers = np.arange(-6, 6, dtype=np.int8).reshape(4, 3)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(integers, "W_quantized"))
    onnx.save(proto, tmp_path / "q.onnx")
    files = [str(tmp_path / name) for name in ("q.onnx", "train.onnx", "again.onnx")]

    made = run(make_trainable, files[0], "-o", files[1], "--loss", "mse", "--dequantize")
    stripped = run(strip, files[1], "-o", files[2], "--quantize")

    assert "1 parameter (12 numbers) to train" in made.output
    assert "removed 1 training entry" in stripped.output
    again = onnx.load(files[2])
    assert [n.op_type for n in again.graph.node] == ["DequantizeLinear", "MatMul"]
    (stored,) = [onnx.numpy_helper.to_array(i) for i in again.graph.initializer if i.name == "W_quantized"]
    np.testing.assert_array_equal(stored, integers)
