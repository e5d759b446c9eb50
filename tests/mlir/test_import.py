"""What other tools write is read: the forms of onnx-mlir, and what IREE's importer writes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onward
from mlir.readers import read_by_iree
from models import perceptron, stock_session
from onward.errors import ModelError

PRETTY = """
// RUN: onnx-mlir-opt %s
#map = loc("somewhere")
func.func @main_graph(%arg0: tensor<?x4xf32> {onnx.name = "x", onnx.dim_params = "0:N"}) -> tensor<*xf32> {
  %0 = onnx.Constant dense<[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]> : tensor<4x2xf32>
  %1 = onnx.Constant {value_ints = [-1, 1]} : tensor<2xi64>
  %2 = "onnx.NoValue"() {value} : () -> none
  %3 = "onnx.MatMul"(%arg0, %0) {onnx_node_name = "product"} : (tensor<?x4xf32>, tensor<4x2xf32>) -> tensor<*xf32>
  %4:2 = "onnx.Split"(%3, %2) {axis = 1 : si64, num_outputs = 2 : si64}
      : (tensor<*xf32>, none) -> (tensor<*xf32>, tensor<*xf32>)
  %5 = "onnx.ReduceSum"(%4#1, %2) <{keepdims = 1 : si64}> : (tensor<*xf32>, none) -> tensor<*xf32> loc(#map)
  %6 = "onnx.Conv"(%3, %3, %2) {strides = [1, 1]} : (tensor<*xf32>, tensor<*xf32>, none) -> tensor<*xf32>
  %7 = "onnx.Reshape"(%5, %1) : (tensor<*xf32>, tensor<2xi64>) -> tensor<*xf32>
  onnx.Return %7 : tensor<*xf32>
}
"""
BRANCH = """
func.func @choose(%arg0: tensor<i1>, %arg1: tensor<2xf32>) -> tensor<2xf32> {
  %0 = "onnx.If"(%arg0) ({
    %1 = "onnx.Neg"(%arg1) : (tensor<2xf32>) -> tensor<2xf32>
    onnx.Yield %1 : tensor<2xf32>
  }, {
    onnx.Yield %arg1 : tensor<2xf32>
  }) : (tensor<i1>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
"""


def run(proto: onnx.ModelProto, **feeds: np.ndarray) -> list[np.ndarray]:
    return stock_session(proto).run(None, feeds)


def test_the_forms_of_onnx_mlir_are_read() -> None:
    proto = onward.mlir.from_text(PRETTY)

    assert [(n.op_type, len(n.input)) for n in proto.graph.node] == [
        ("Constant", 0), ("Constant", 0), ("MatMul", 2), ("Split", 1), ("ReduceSum", 1), ("Conv", 2), ("Reshape", 2),
    ]  # fmt: skip
    assert proto.graph.node[2].name == "product"
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    assert len(proto.graph.output[0].type.tensor_type.shape.dim) == 2  # MLIR left the rank open, ONNX does not


def test_what_was_read_runs_on_onnx_runtime() -> None:
    text = "\n".join(line for line in PRETTY.splitlines() if "onnx.Conv" not in line)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)

    (y,) = run(onward.mlir.from_text(text), x=x)

    np.testing.assert_array_equal(y, [[(x @ np.array([2, 4, 6, 8])).sum()]])


@pytest.mark.parametrize("flag", [True, False])
def test_a_branch_may_yield_a_value_from_outside(flag: bool) -> None:
    proto = onward.mlir.from_text(BRANCH)
    onnx.checker.check_model(proto, full_check=True)
    x = np.array([1, 2], np.float32)

    (y,) = run(proto, arg0=np.array(flag), arg1=x)

    np.testing.assert_array_equal(y, -x if flag else x)


def test_versions_in_names_choose_the_operator_set() -> None:
    text = PRETTY.replace('"onnx.ReduceSum"(%4#1, %2)', '"onnx.ReduceSumV11"(%4#1)').replace(
        "(tensor<*xf32>, none) -> tensor<*xf32> loc", "(tensor<*xf32>) -> tensor<*xf32> loc"
    )
    text = text.replace('%4:2 = "onnx.Split"(%3, %2) {axis', '%4:2 = "onnx.SplitV11"(%3) {axis').replace(
        "(tensor<*xf32>, none) -> (tensor", "(tensor<*xf32>) -> (tensor"
    )

    proto = onward.mlir.from_text(text)

    assert proto.opset_import[0].version == 12
    assert {"ReduceSum", "Split"} <= {n.op_type for n in proto.graph.node}


def test_one_of_several_functions_is_chosen_by_name() -> None:
    text = BRANCH + BRANCH.replace("@choose", "@other")

    with pytest.raises(ModelError, match="several and no `onnx.EntryPoint`"):
        onward.mlir.from_text(text)

    assert onward.mlir.from_text(text, function="other").graph.name == "other"


def test_the_form_of_iree_is_read_back_and_gives_the_same_numbers() -> None:
    model = perceptron()
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)

    text = onward.mlir.to_text(model, dialect="torch-onnx", weights="resource")
    again = onward.mlir.from_text(text)

    assert "torch.operator" in text
    ours, theirs = stock_session(again), stock_session(model)
    feeds = dict.fromkeys([i.name for i in ours.get_inputs()], x)
    for a, b in zip(ours.run(None, feeds), theirs.run(None, {theirs.get_inputs()[0].name: x}), strict=True):
        np.testing.assert_array_equal(a, b)


def test_iree_reads_the_form_that_is_for_it() -> None:
    for graph in ("inference", "step"):
        read_by_iree(onward.mlir.to_text(onward.samples.build("digits"), dialect="torch-onnx", graph=graph))


def test_the_form_of_iree_is_what_its_importer_writes() -> None:
    pytest.importorskip("iree.compiler", reason="pip install iree-base-compiler")
    import iree.compiler.ir as ir
    from iree.compiler.extras import onnx_importer

    proto = onnx.shape_inference.infer_shapes(perceptron())
    text = onward.mlir.to_text(proto, dialect="torch-onnx")

    with ir.Context() as context:
        info = onnx_importer.ModelInfo(proto, config=onnx_importer.Config())
        module = info.create_module(context)
        onnx_importer.NodeImporter.define_function(info.main_graph, module.operation).import_all()
        theirs, ours = (_structure(m.operation) for m in (module, ir.Module.parse(text)))

    assert ours == theirs
    assert len(str(ours)) > 1000


def _structure(operation: object) -> list[object]:
    """Return the operations in it with their types and attributes; of tensors only the types."""
    found: list[object] = []
    for region in operation.regions:  # type: ignore[attr-defined]
        for block in region.blocks:
            for op in (o.operation for o in block.operations):
                if op.name != "torch.constant.none":  # their importer writes one that nobody uses
                    written = {name: str(op.attributes[name]) for name in op.attributes}
                    attributes = {k: v.rpartition(" : ")[2] if v.startswith("dense") else v for k, v in written.items()}
                    types = [str(v.type) for v in (*op.operands, *op.results)]
                    found.append((op.name, attributes, types, _structure(op)))
    return found


def test_a_form_for_iree_with_unknown_types_is_refused() -> None:
    proto = perceptron()
    proto.graph.node.append(onnx.helper.make_node("Own", [proto.graph.output[0].name], ["z"], domain="me"))
    proto.opset_import.add(domain="me", version=1)
    proto.graph.output.add(name="z")

    with pytest.raises(ModelError, match="the type of `%z` is not known") as caught:
        onward.mlir.to_text(proto, dialect="torch-onnx")

    assert {d.code for d in caught.value.diagnostics} == {"M132"}
