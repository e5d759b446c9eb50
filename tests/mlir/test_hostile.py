"""A hostile text gives an error of ours, soon, and takes little memory."""

from __future__ import annotations

import os
import pathlib
import time
import tracemalloc

import onnx
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


def aliases(first: str, each: str, count: int, sign: str = "#") -> str:
    """Return aliases, each of which has the one before it in `each`, where that says `{}`."""
    lines = [f"{sign}a0 = {first}"]
    lines += [f"{sign}a{i} = {each}".replace("{}", f"{sign}a{i - 1}") for i in range(1, count)]
    return "\n".join(lines) + "\n"


def with_attribute(value: str) -> str:
    return FUNCTION.format(f'  %0 = "onnx.Relu"() {{x = {value}}} : () -> tensor<1xf32>')


def with_graph(value: str) -> str:
    text = constant("dense<1.0> : tensor<1xf32>")
    return text.replace("> {", f"> attributes {{onward.graph = {value}}} {{", 1)


TEN = ", ".join(["{}"] * 10)
ONE = '"onnx.Constant"() {value = #a} : () -> tensor<1xf32>'
SHORT = {
    "a constant": constant("dense<1.0> : tensor<100000x100000xf32>") * 3,
    "results": FUNCTION.format("  " + "%a:99999, " * 1000 + '%0 = "onnx.Relu"() : () -> ()'),
    "lists of aliases": aliases("[1]", f"[{TEN}]", 60) + with_attribute("#a59"),
    "graphs of aliases": aliases("{}", f"{{node = [{{attribute = [{{graphs = [{TEN}]}}]}}]}}", 60) + with_graph("#a59"),
    "types of aliases": aliases("i1", f"({TEN}) -> ()", 60, "!") + with_attribute("!a59"),
    "an alias of a tensor": "#a = dense<1.0> : tensor<1000000xf32>\n"
    + FUNCTION.format("\n".join(f"  %{i} = {ONE}" for i in range(3000))),
}
DEEP = {
    "lists": aliases("[1]", "[{}]", 50_000) + with_attribute("#a49999"),
    "graphs": aliases("{}", "{node = [{attribute = [{g = {}}]}]}", 50_000) + with_graph("#a49999"),
    "sequences": aliases("tensor<1xf32>", "!onnx.Seq<{}>", 50_000, "!") + with_attribute("!a49999"),
    "tensors": aliases("tensor<1xf32>", "tensor<2x{}>", 50_000, "!") + with_attribute("dense<1> : !a49999"),
}


@pytest.mark.parametrize("name", SHORT)
def test_a_short_text_does_not_fill_the_memory(name: str) -> None:
    began = time.process_time()
    tracemalloc.start()
    try:
        refusal(SHORT[name])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 50e6
    assert time.process_time() - began < 10


@pytest.mark.parametrize("name", DEEP)
def test_aliases_nest_no_deeper_than_what_is_written_out(name: str) -> None:
    assert refusal(DEEP[name]).code == "M103"


def test_an_alias_stands_for_what_it_names() -> None:
    text = "#a = dense<2.5> : tensor<1xf32>\n!t = tensor<1xf32>\n"
    text += FUNCTION.format('  %1, %0 = "onnx.Constant"() {value = #a, y = [#a]} : () -> (!t, !t)')

    (node,) = onward.mlir.from_text(text).graph.node

    assert [a.name for a in node.attribute] == ["value", "y"]
    assert onnx.numpy_helper.to_array(node.attribute[0].t) == 2.5
    assert onnx.numpy_helper.to_array(node.attribute[1].tensors[0]) == 2.5


USED = '  %{} = "onnx.Constant"() {{value = dense_resource<w> : tensor<{}xf32>}} : () -> tensor<{}xf32>'
RESOURCE = '{{-# dialect_resources: {{ builtin: {{ w: "0x{}" }} }} #-}}'


def test_a_resource_is_not_copied_without_end() -> None:
    lines = "\n".join(USED.format(i, 100_000, 100_000) for i in range(3000))

    error = refusal(FUNCTION.format(lines) + RESOURCE.format("00" * 400_004))

    assert "resource `w` is used too often" in str(error)


def test_a_resource_may_be_used_twice() -> None:
    lines = "\n".join(USED.format(i, 1, 1) for i in range(2))

    proto = onward.mlir.from_text(FUNCTION.format(lines) + RESOURCE.format("040000000000803F"))

    assert [onnx.numpy_helper.to_array(n.attribute[0].t).tolist() for n in proto.graph.node] == [[1.0]] * 2


LINES = 20_000
HEAD = "func.func @f(%c: tensor<i1>) -> tensor<i1> {\n"
CHAIN = "".join(f'  %x{i} = "onnx.Not"(%c) : (tensor<i1>) -> tensor<i1>\n' for i in range(LINES))
REGIONS = "({ onnx.Yield %x5 : tensor<i1> }, { onnx.Yield %x6 : tensor<i1> })"
MANY = f"{', '.join(['%c'] * LINES)} : {', '.join(['tensor<i1>'] * LINES)}\n"
LONG = {
    "results of a branch": f'{HEAD}  %0 = "onnx.If"(%c) ({{\n{CHAIN}  onnx.Yield {MANY}  }}, {{\n'
    "  onnx.Yield %c : tensor<i1>\n  }) : (tensor<i1>) -> tensor<i1>\n  return %0 : tensor<i1>\n}",
    "branches": HEAD
    + CHAIN
    + "".join(f'  %y{i} = "onnx.If"(%c) {REGIONS} : (tensor<i1>) -> tensor<i1>\n' for i in range(3000))
    + "  return %y0 : tensor<i1>\n}",
    "comments": "//\n" * 500_000 + f"{HEAD}  return %c : tensor<i1>\n}}",
    "escapes": 'module attributes {a = "' + "\\5C" * 500_000 + f'"}} {{\n{HEAD}  return %c : tensor<i1>\n}} }}',
}


@pytest.mark.parametrize("name", LONG)
def test_time_and_memory_grow_with_the_length_of_a_text(name: str) -> None:
    began = time.process_time()

    onward.mlir.from_text(LONG[name])

    assert time.process_time() - began < 15


@pytest.mark.parametrize("half", ["\ud800", "module {} // \udfff\ud834"])
def test_half_of_a_character_is_refused(half: str) -> None:
    assert "half of a character" in str(refusal(half))


@pytest.mark.parametrize("patch", ['{"\\FF" = 1}', '{clear = ["\\FF"]}', '{opset_import = [{"\\ED\\A0\\80" = 1}]}'])
def test_a_field_whose_name_is_no_text_is_refused(patch: str) -> None:
    """A look into protobuf's own mapping of fields would leave an exception behind, which ends in a SystemError."""
    error = refusal(f"module attributes {{onward.model = {patch}}} {{ func.func @f() {{ return }} }}")

    assert "has no field" in str(error)


NO_TEXT = '"\\FF"'
RELU = '%0 = "onnx.Relu"(%a){} : (tensor<1xf32>) -> tensor<1xf32>'
NAMED = {
    "a function": ("@f", f"@{NO_TEXT}"),
    "an argument": ("%a: tensor<1xf32>", f"%a: tensor<1xf32> {{onnx.name = {NO_TEXT}}}"),
    "a result": ("-> (tensor<1xf32>)", f"-> (tensor<1xf32> {{onnx.name = {NO_TEXT}}})"),
    "a value": (RELU.format(""), RELU.format(f" {{onward.outputs = [{NO_TEXT}]}}")),
    "a node": (RELU.format(""), RELU.format(f" {{onnx_node_name = {NO_TEXT}}}")),
    "an attribute": (RELU.format(""), RELU.format(f" {{{NO_TEXT} = 1}}")),
    "an operation": ("onnx.Relu", "onnx.\\FF"),
    "a domain": (
        RELU.format(""),
        RELU.format(f' {{domain_name = {NO_TEXT}, function_name = "F"}}').replace("Relu", "Custom"),
    ),
    "an initializer": (
        RELU.format(""),
        f"%0 = onnx.Constant {{onward.initializer = {{}}, onward.outputs = [{NO_TEXT}]}} dense<1.0> : tensor<1xf32>",
    ),
    "an operator of IREE": ('"onnx.Relu"', 'torch.operator "onnx.\\FF"'),
}


@pytest.mark.parametrize("what", NAMED)
def test_a_name_that_is_no_text_is_refused(what: str) -> None:
    text = (
        f"func.func @f(%a: tensor<1xf32>) -> (tensor<1xf32>) {{\n  {RELU.format('')}\n  return %0 : tensor<1xf32>\n}}"
    )
    if what == "an operator of IREE":
        text = text.replace(") {", ") attributes {torch.onnx_meta.opset_version = 18 : si64} {", 1)
    old, new = NAMED[what]
    assert old in text

    assert refusal(text.replace(old, new)).code == "M131"


def test_a_function_with_too_many_attributes_of_arguments_is_refused() -> None:
    text = """"func.func"() <{arg_attrs = [{}, {}], sym_name = "f", function_type = (tensor<1xf32>) -> ()}> ({
    ^bb0(%a: tensor<1xf32>):
      "onnx.Return"(%a) : (tensor<1xf32>) -> ()
    }) : () -> ()"""

    assert "attributes of arguments that it does not have" in str(refusal(text))


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
