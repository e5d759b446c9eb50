"""Test the tester: each defect that a backend may have fails a case which the same backend passes without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import onward.backends.onnxruntime as honest
from onward.autodiff import registry
from onward.autodiff import rule as rule_module

Edit = Callable[[onnx.ModelProto], None]


class Planted:
    """The onnxruntime backend of Onward, which edits each model before it runs it."""

    def __init__(self, edit: Edit | None = None, *, initializes: bool = True) -> None:
        self.edit, self.initializes = edit, initializes

    def _edited(self, model: onnx.ModelProto) -> onnx.ModelProto:
        if self.edit is not None:
            self.edit(model)
        return model

    def prepare(self, model: onnx.ModelProto, device: str = "CPU") -> Any:
        return honest.prepare(self._edited(model), device)

    def prepare_training(self, model: onnx.ModelProto, device: str = "CPU", entry: int | None = 0) -> Any:
        prepared = honest.prepare_training(self._edited(model), device, entry)
        if not self.initializes:
            prepared.initialize = lambda: None
        return prepared


def nodes(model: onnx.ModelProto, op_type: str) -> Iterator[tuple[onnx.GraphProto, onnx.NodeProto]]:
    for graph in [model.graph, *(info.algorithm for info in model.training_info)]:
        for node in list(graph.node):
            if node.op_type == op_type:
                yield graph, node


def names(node: onnx.NodeProto, attribute: str) -> list[str]:
    return [s.decode() for a in node.attribute if a.name == attribute for s in a.strings]


def ignore_zs(model: onnx.ModelProto) -> None:
    """Take the values of zs from the graph instead of the node's inputs."""
    for _, node in nodes(model, "Gradient"):
        xs, zs = names(node, "xs"), names(node, "zs")
        node.input[len(xs) :] = zs


def ignore_point(model: onnx.ModelProto) -> None:
    """Take the values of xs from the graph instead of the node's inputs."""
    for _, node in nodes(model, "Gradient"):
        xs = names(node, "xs")
        node.input[: len(xs)] = xs


def mean_of_y(model: onnx.ModelProto) -> None:
    """Differentiate the mean of y, not the sum."""
    for graph, node in nodes(model, "Gradient"):
        y = next(a for a in node.attribute if a.name == "y")
        place = list(graph.node).index(node)
        graph.node.insert(place, helper.make_node("ReduceMean", [y.s.decode()], ["mean_of_y"], keepdims=0))
        y.s = b"mean_of_y"


def no_bias_correction(model: onnx.ModelProto) -> None:
    """Run Adam as if T were 0."""
    for graph, node in nodes(model, "Adam"):
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(0, np.int64), "never"))
        node.input[1] = "never"


def epsilon_inside_the_root(model: onnx.ModelProto) -> None:
    """Compute Adagrad with sqrt(H + epsilon), for one tensor and no other attribute."""
    for graph, node in nodes(model, "Adagrad"):
        if len(node.input) != 5 or {a.name for a in node.attribute} != {"epsilon"}:
            continue
        R, _, X, G, H = node.input
        new_X, new_H = node.output
        dtype = onnx.helper.tensor_dtype_to_np_dtype(graph.input[2].type.tensor_type.elem_type)
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(node.attribute[0].f, dtype), "epsilon"))
        graph.node.remove(node)
        graph.node.extend([
            helper.make_node("Mul", [G, G], ["g2"]), helper.make_node("Add", [H, "g2"], [new_H]),
            helper.make_node("Add", [new_H, "epsilon"], ["inside"]), helper.make_node("Sqrt", ["inside"], ["root"]),
            helper.make_node("Div", [G, "root"], ["ratio"]), helper.make_node("Mul", [R, "ratio"], ["step"]),
            helper.make_node("Sub", [X, "step"], [new_X]),
        ])  # fmt: skip


def stale_statistics(model: onnx.ModelProto) -> None:
    """Never replace the running mean and variance."""
    for info in model.training_info:
        kept = [b for b in info.update_binding if b.key not in ("mean", "var")]
        del info.update_binding[:]
        info.update_binding.extend(kept)


def inference_statistics(model: onnx.ModelProto) -> None:
    """Normalise with the running statistics in training."""
    for graph, node in nodes(model, "BatchNormalization"):
        if len(node.output) > 1:
            statistics = node.output[1:]
            del node.output[1:]
            del node.attribute[:]
            place = list(graph.node).index(node)
            for number, name in enumerate(statistics):
                graph.node.insert(place, helper.make_node("Identity", [node.input[3 + number]], [name]))


def standard_for_nesterov(model: onnx.ModelProto) -> None:
    for _, node in nodes(model, "Momentum"):
        next(a for a in node.attribute if a.name == "mode").s = b"standard"


def damping_at_the_first_step(model: onnx.ModelProto) -> None:
    """Use beta of Momentum at T = 0, too."""
    for graph, node in nodes(model, "Momentum"):
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(1, np.int64), "always"))
        node.input[1] = "always"


def no_post_decay(model: onnx.ModelProto) -> None:
    for _, node in nodes(model, "Adam"):
        kept = [a for a in node.attribute if a.name != "norm_coefficient_post"]
        del node.attribute[:]
        node.attribute.extend(kept)


EDITS: list[tuple[Edit, str]] = [
    (ignore_zs, "-at-another-point"),
    (ignore_point, "-at-another-point"),
    (mean_of_y, "gradient/Gradient/tensor"),
    (no_bias_correction, "optimizer/Adam/defaults"),
    (epsilon_inside_the_root, "optimizer/Adagrad/epsilon"),
    (stale_statistics, "training/batch"),
    (inference_statistics, "training/batch"),
    (standard_for_nesterov, "optimizer/Momentum/nesterov"),
    (damping_at_the_first_step, "optimizer/Momentum/standard"),
    (no_post_decay, "optimizer/Adam/norm"),
]


def statuses(suite: Path, backend: Any, only: str) -> list[str]:
    import onward_conformance

    cases = onward_conformance.cases(suite, only=only)
    assert cases
    return [onward_conformance.run(case, backend).status for case in cases]


@pytest.mark.parametrize(("edit", "only"), EDITS, ids=lambda v: v.__name__ if callable(v) else "")
def test_a_defect_in_the_meaning_of_a_node_is_caught(suite: Path, edit: Edit, only: str) -> None:
    assert set(statuses(suite, Planted(), only)) == {"passed"}

    assert "failed" in statuses(suite, Planted(edit), only)


def wrong_sign(rule: Any, dC: Any) -> Any:
    return {"A": dC, "B": dC}


def whole_gradient_to_each_of_a_tie(rule: Any, dmax: Any) -> Any:
    op, C = rule.op, rule.output("max")
    return {"data_0": [op.Mul(dmax, op.cast(op.Equal(x, C), dmax.dtype)) for x in rule.inputs("data_0")]}


def transposed_weight(rule: Any, dY: Any) -> Any:
    op = rule.op
    return {"A": op.MatMul(dY, op.Transpose(rule.input("B"))), "B": op.MatMul(op.Transpose(dY), rule.input("A"))}


def dropout_without_scale(rule: Any, doutput: Any) -> Any:
    import onnx_ir as ir

    mask = rule.request_output("mask")
    mask.type, mask.shape = ir.TensorType(ir.DataType.BOOL), rule.input("data").shape
    return {"data": rule.op.Mul(doutput, rule.op.cast(mask, doutput.dtype))}


RULES = [
    (wrong_sign, "Sub", "gradient/Sub/broadcast"),
    (whole_gradient_to_each_of_a_tie, "Max", "gradient/Max/ties"),
    (transposed_weight, "MatMul", "gradient/Gradient/two-layers"),
    (dropout_without_scale, "Dropout", "gradient/Dropout/"),
]


@pytest.mark.parametrize(("function", "op_type", "only"), RULES, ids=lambda v: v.__name__ if callable(v) else "")
def test_a_defect_in_a_rule_is_caught(
    suite: Path, monkeypatch: pytest.MonkeyPatch, function: Any, op_type: str, only: str
) -> None:
    assert set(statuses(suite, Planted(), only)) == {"passed"}
    rules = [dataclasses.replace(r, function=function) for r in registry._RULES["", op_type]]
    monkeypatch.setitem(registry._RULES, ("", op_type), rules)

    assert "failed" in statuses(suite, Planted(), only)


def test_a_gradient_that_is_not_summed_over_broadcast_axes_is_caught(
    suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule_module.Rule, "unbroadcast", lambda self, grad, source, target: grad)

    assert "failed" in statuses(suite, Planted(), "gradient/Gradient/broadcasting")


def test_a_backend_that_does_not_initialize_is_caught(suite: Path) -> None:
    assert set(statuses(suite, Planted(), "training/initialization")) == {"passed"}

    assert statuses(suite, Planted(initializes=False), "training/initialization") == ["failed"]


def test_a_checker_that_refuses_everything_or_nothing_fails_every_invalid_file(suite: Path) -> None:
    class Strict:
        @staticmethod
        def check_model(model: onnx.ModelProto) -> None:
            raise ValueError("no")

    class Lenient:
        @staticmethod
        def check_model(model: onnx.ModelProto) -> None:
            pass

    assert set(statuses(suite, Strict, "invalid/")) == {"failed"}
    assert set(statuses(suite, Lenient, "invalid/")) == {"failed"}
