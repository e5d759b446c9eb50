"""What the text says: onnx-mlir's names and forms, levels, roles, bindings; and which graph it is of."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest
from onnx import parser

import onward
from hostile.files import known_gap, small_model
from mlir.readers import read_by_xdsl, reprinted
from models import perceptron
from onward.errors import ArgumentError, ModelError


def net(body: str, inputs: str = "float[2,3] x", outputs: str = "float[2,3] y", opset: int = 18) -> onnx.ModelProto:
    proto = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    )
    for node in proto.graph.node:  # onnx's parser sets empty names
        if not node.domain:
            node.ClearField("domain")
        for attribute in node.attribute:
            if attribute.HasField("t"):
                attribute.t.ClearField("name")
    return proto


def operations(text: str) -> list[str]:
    return re.findall(r'"(onnx\.\w+)"\(', text)


def test_a_small_model_reads_like_this() -> None:
    text = onward.mlir.to_text(net("c = Constant <value = float[3] {1, 2.5, nan}> () y = Add (x, c)", "float[N,3] x"))

    assert text == (
        'module attributes {onward.model = {ir_version = 10, opset_import = [{domain = "", version = 18}]}} {\n'
        '  func.func @main_graph(%x: tensor<?x3xf32> {onnx.name = "x", onnx.dim_params = "0:N"}) '
        '-> (tensor<2x3xf32> {onnx.name = "y"}) attributes {onward.graph = {name = "g"}} {\n'
        '    %c = "onnx.Constant"() {value = dense<[1.0, 2.5, 0x7FC00000]> : tensor<3xf32>, '
        'onward.attributes = {value = {t = {stored = "float_data"}}}, onward.level = "core", onward.outputs = ["c"]} '
        ": () -> tensor<3xf32>\n"
        '    %y = "onnx.Add"(%x, %c) {onward.level = "core", onward.outputs = ["y"]} '
        ": (tensor<?x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>\n"
        '    "onnx.Return"(%y) : (tensor<2x3xf32>) -> ()\n'
        "  }\n"
        '  "onnx.EntryPoint"() {func = @main_graph} : () -> ()\n'
        "}\n"
    )


def test_operations_have_the_names_of_onnx_mlir() -> None:
    body = """a = MaxPool <kernel_shape = [1]> (x) b, i = MaxPool <kernel_shape = [1]> (x)
              c = ReduceMean <axes = [1]> (a) d = Squeeze (c, i) e = com.me.Own (d) y = Cast <to = 10> (e)"""

    text = onward.mlir.to_text(net(body, "float[1,1,4] x", opset=13))

    assert operations(text)[:6] == [
        "onnx.MaxPoolSingleOut", "onnx.MaxPool", "onnx.ReduceMeanV13", "onnx.Squeeze", "onnx.Custom", "onnx.Cast",
    ]  # fmt: skip
    assert 'domain_name = "com.me", function_name = "Own"' in text
    assert "to = f16" in text


def test_absent_inputs_and_outputs_are_none_up_to_the_schema() -> None:
    text = onward.mlir.to_text(net("y = Clip (x, , x) z, , = Dropout (x)"))

    assert '"onnx.Clip"(%x, %none, %x)' in text
    assert re.search(r'%z, %v\w* = "onnx.Dropout"\(%x, %none, %none\).* -> \(tensor<2x3xf32>, none\)', text)
    assert '%none = "onnx.NoValue"() {value} : () -> none' in text


def test_each_operation_has_its_level() -> None:
    body = "a = MatMul (x, x) b = Gemm (x, x) s = StringNormalizer (t) y = me.Own (a)"
    proto = net(body, "float[3,3] x, string[1] t")
    body_of = [onnx.helper.make_node("Relu", ["a"], ["b"])]
    proto.functions.append(onnx.helper.make_function("me", "Own", ["a"], ["b"], body_of, proto.opset_import))

    levels = re.findall(r'"onnx.(\w+)"\(.*?onward.level = "(\w+)"', onward.mlir.to_text(proto))

    assert levels == [("MatMul", "core"), ("Gemm", "function"), ("StringNormalizer", "other"), ("Custom", "function"),
                      ("Relu", "function")]  # fmt: skip


def test_the_core_level_has_core_operators_alone() -> None:
    model = perceptron()

    text = onward.mlir.to_text(model, level="core")

    assert set(re.findall(r'onward.level = "(\w+)"', text)) == {"core"}
    assert '"onnx.Gemm"' in onward.mlir.to_text(model) or '"onnx.Relu"' in onward.mlir.to_text(model)


def test_a_training_entry_is_a_region_that_reads_the_values_of_the_graph() -> None:
    text = onward.mlir.to_text(small_model())

    assert '"onward.training"() ({' in text
    assert '"onnx.Gradient"(' in text
    assert 'update_binding = [{key = "W", value = ' in text
    inner = text.partition('"onward.training"')[2]
    assert "(%y, %" in inner


def test_a_model_local_function_is_a_function() -> None:
    proto = net("y = me.Own (x)")
    body = [onnx.helper.make_node("Relu", ["a"], ["b"])]
    proto.functions.append(onnx.helper.make_function("me", "Own", ["a"], ["b"], body, proto.opset_import))

    text = onward.mlir.to_text(proto)

    assert 'func.func private @me.Own(%a: !onward.any {onnx.name = "a"})' in text


def test_a_step_says_what_its_arguments_are_and_what_its_results_replace() -> None:
    model = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.Adam(1e-3))

    text = onward.mlir.to_text(model, graph="step")

    assert '"onnx.Gradient"' not in text
    for role in ("input", "target", "parameter", "state", "setting"):
        assert f'onward.role = "{role}"' in text
    replaced = set(re.findall(r'onward.replaces = "([^"]+)"', text))
    assert replaced == set(onward.compile(model, profile="portable").first.step.replaces.values())  # type: ignore[union-attr]


@pytest.mark.parametrize("graph", ["inference", "step", "evaluate", "initialize"])
def test_each_graph_is_read_by_others_and_runs_when_it_comes_back(graph: str) -> None:
    model = onward.samples.build("linear")

    text = onward.mlir.to_text(model, graph=graph)

    assert len(list(reprinted(text))) == 2
    read_by_xdsl(text)
    onnx.checker.check_model(onward.mlir.from_text(text), full_check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dialect": "tosa"}, "no such dialect `tosa`"),
        ({"graph": "backward"}, "no such graph `backward`"),
        ({"level": "low"}, "no such level `low`"),
        ({"weights": "elsewhere"}, "no such place of the weights"),
        ({"weights": "external"}, "only a file of the dialect `onnx`"),
        ({"graph": "step", "entry": "other"}, "no such training entry `other`"),
        ({"entry": "train"}, "belongs to no entry"),
        ({"level": "core"}, "not lowered to core operators as a whole"),
        ({"dialect": "torch-onnx", "graph": "model"}, "has no training entries"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        onward.mlir.to_text(onward.samples.build("linear"), **arguments)  # type: ignore[arg-type]


def test_a_model_without_training_has_no_step() -> None:
    with pytest.raises(ArgumentError, match="no graph `step`"):
        onward.mlir.to_text(perceptron(), graph="step")


def test_a_model_that_mlir_cannot_express_is_refused_with_all_reasons() -> None:
    proto = net("y = Add (x, nothing) y = Relu (x)")

    with pytest.raises(ModelError) as caught:
        onward.mlir.to_text(proto)

    assert [d.code for d in caught.value.diagnostics] == ["M132", "M132"]
    assert "nothing defines `nothing` before it is used" in str(caught.value)
    assert "`y` is defined twice" in str(caught.value)


@pytest.mark.skipif(shutil.which("onnx-mlir") is None, reason=known_gap("onnx_mlir"))
def test_onnx_mlir_itself_reads_and_compiles_the_text(tmp_path: Path) -> None:
    for graph in ("inference", "step"):
        path = tmp_path / f"{graph}.mlir"
        onward.mlir.save(onward.samples.build("linear"), path, graph=graph)
        subprocess.run(["onnx-mlir", "--EmitLib", str(path), "-o", str(tmp_path / graph)], check=True)
        assert (tmp_path / f"{graph}.so").exists()
