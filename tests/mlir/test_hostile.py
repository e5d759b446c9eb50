"""A hostile text gives an error of ours, soon, and takes little memory."""

from __future__ import annotations

import os
import pathlib
import time
import tracemalloc

import pytest

import onward
from hostile.files import small_model
from mlir.mutants import mutant, outcome
from onward.errors import ModelError
from whole import WHOLE

FUNCTION = "func.func @main_graph() -> tensor<1xf32> {{\n{}\n  onnx.Return %0 : tensor<1xf32>\n}}\n"


def constant(value: str, kind: str = "tensor<1xf32>") -> str:
    return FUNCTION.format(f'  %0 = "onnx.Constant"() {{value = {value}}} : () -> {kind}')


def refusal(text: str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        onward.mlir.from_text(text)
    return caught.value


@pytest.mark.parametrize("block", range(4))
def test_a_mutant_is_read_or_refused(block: int) -> None:
    count = 5000 if WHOLE else 60

    outcomes = {outcome(mutant(index)) for index in range(block * 5000, block * 5000 + count)}

    assert "DIFFERENT" not in outcomes
    assert any(o.startswith("refused") for o in outcomes)


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("", "M131", "no function"),
        ("module {", "M130", "an operation is missing"),
        ("module { func.func @f() { cf.br ^bb1 } }", "M130", "`cf.br` in a form of its own"),
        ("[" * 100_000, "M130", "an operation is missing"),
        (constant("[" * 100_000), "M103", "nested too deeply"),
        (constant("{a = " * 100_000), "M103", "nested too deeply"),
        ('"onnx.If"() ({' * 100_000, "M103", "nested too deeply"),
        (constant("1" * 100_000), "M130", "too many digits"),
        (constant("dense<1.0> : tensor<999999999999xf32>"), "M130", "take too much memory"),
        (constant("dense<[" + "0.0," * 1000 + "0.0]> : tensor<3xf32>"), "M130", "is written with the shape [1001]"),
        (constant('dense<"0x00"> : tensor<3xf32>'), "M130", "has 1 bytes"),
        (constant('dense<"0xZZ"> : tensor<1xi8>'), "M130", "not hex"),
        (constant("dense<[[1.0], [2.0, 3.0]]> : tensor<2xf32>"), "M130", "different lengths"),
        (constant("dense<300> : tensor<1xui8>"), "M130", "not an element of an integer type with 8 bits"),
        (constant("dense<1.0> : tensor<1xf77>"), "M130", "which ONNX does not have"),
        (constant("dense<1> : tensor<?xi64>"), "M130", "unknown size"),
        (constant("dense_resource<w> : tensor<1xf32>"), "M131", "the data of resource `w` is missing"),
        (constant("affine_map<(d0) -> (d0)>"), "M130", "`affine_map` cannot be in an ONNX model"),
        (constant("dense<1.0> : tensor<" + "1x" * 65 + "f32>"), "M130", "too many dimensions"),
        (FUNCTION.format('  %0 = "onnx.Relu"(%0) : (tensor<1xf32>) -> tensor<1xf32>'), "M131", "nothing defines `%0`"),
        (FUNCTION.format('  %0 = "onnx.Dim"() : () -> tensor<1xf32>'), "M131", "`onnx.Dim` is no operator of ONNX"),
        (FUNCTION.format('  %0 = "x.Y"() : () -> tensor<1xf32>'), "M131", "`x.Y` is no operation of ONNX"),
        (FUNCTION.format('  %0:2 = "onnx.Relu"() : () -> tensor<1xf32>'), "M130", "1 results and 2 names"),
        (FUNCTION.format('  %0 = "onnx.Relu"(%a) : () -> tensor<1xf32>'), "M130", "1 operands and 0 types"),
        (FUNCTION.format("  %0 = onnx.Constant unit"), "M130", "a constant has no tensor"),
        ('module attributes {onward.model = {nothing = 1}} { func.func @f() { "onnx.Return"() : () -> () } }', "M131",
         "ModelProto has no field `nothing`"),
        ('module attributes {onward.model = {ir_version = "a"}} { func.func @f() { return } }', "M131",
         "field `ir_version` has a value of another kind"),
        ('module attributes {onward.model = {producer_name = "\\FF"}} { func.func @f() { return } }', "M131",
         "field `producer_name` of ModelProto cannot be set"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(text: str, code: str, message: str) -> None:
    began = time.process_time()

    error = refusal(text)

    assert (error.code, message in str(error)) == (code, True), str(error)
    assert len(str(error)) < 2000
    assert time.process_time() - began < 5


def test_a_short_text_does_not_fill_the_memory() -> None:
    tracemalloc.start()
    refusal(constant("dense<1.0> : tensor<100000x100000xf32>") * 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 50e6


def test_the_place_of_a_mistake_is_named() -> None:
    text = onward.mlir.to_text(small_model()).replace('"onnx.MatMul"(', '"onnx.MatMul"((')

    error = refusal(text)

    line = next(i for i, t in enumerate(text.splitlines(), 1) if "onnx.MatMul" in t)
    assert error.diagnostics[0].place.startswith(f"line {line}, column ")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("../secret.safetensors", "M107"),
        ("/etc/passwd", "M107"),
        ("a/b.safetensors", "M107"),
        ("gone.safetensors", "M108"),
    ],
)
def test_weights_come_only_from_the_folder_of_the_text(name: str, code: str, tmp_path: pathlib.Path) -> None:
    onward.mlir.save(onward.samples.build("digits"), tmp_path / "net.mlir", weights="external")
    text = (tmp_path / "net.mlir").read_text().replace("net.safetensors", name)
    (tmp_path / "net.mlir").write_text(text)

    with pytest.raises(ModelError) as caught:
        onward.mlir.load(tmp_path / "net.mlir")

    assert caught.value.code == code


def test_a_link_is_not_followed_to_weights(tmp_path: pathlib.Path) -> None:
    onward.mlir.save(onward.samples.build("digits"), tmp_path / "net.mlir", weights="external")
    os.rename(tmp_path / "net.safetensors", tmp_path / "other")
    os.symlink(tmp_path / "other", tmp_path / "net.safetensors")

    with pytest.raises(ModelError, match="a link, or no file"):
        onward.mlir.load(tmp_path / "net.mlir")


def test_a_file_that_is_not_text_is_refused(tmp_path: pathlib.Path) -> None:
    for data, found in ((b"ML\xefR\r", "bytecode"), (small_model().SerializeToString() + b"\0", "an ONNX model?")):
        (tmp_path / "net.mlir").write_bytes(data)
        with pytest.raises(ModelError, match="not MLIR text") as caught:
            onward.mlir.load(tmp_path / "net.mlir")
        assert found in str(caught.value)
    with pytest.raises(ModelError, match="cannot open"):
        onward.mlir.load(tmp_path / "nothing.mlir")
    with pytest.raises(ModelError, match="not a regular file"):
        onward.mlir.load(tmp_path)


def test_a_file_beyond_the_limit_is_not_read(tmp_path: pathlib.Path) -> None:
    from onward.mlir.scanner import Limits

    onward.mlir.save(small_model(), tmp_path / "net.mlir")

    with pytest.raises(ModelError, match="too large"):
        onward.mlir.load(tmp_path / "net.mlir", limits=Limits(file_bytes=100))


def test_a_full_disk_leaves_the_old_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onward.storage import atomic

    path = tmp_path / "net.mlir"
    path.write_text("old")

    def full(operation: str, _: pathlib.Path) -> None:
        if operation == "write":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic, "boundary", full)
    with pytest.raises(ModelError, match="No space left"):
        onward.mlir.save(small_model(), path)

    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["net.mlir"]
