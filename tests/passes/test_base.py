"""The contract of a pass: its requirements, its promises, and whether it may change a training step."""

from __future__ import annotations

import onnx_ir as ir
import pytest

import onward
from onward.compiler.recipes import FINISH, RECIPES
from onward.model.training_model import TrainingModel
from onward.passes.base import INLINED, NO_GRADIENTS, Pass, PassError, Unit
from onward.passes.cleanup import RemoveDeadNodes
from onward.passes.randomness import RemoveDropout


def unit(**options: object) -> Unit:
    graph = ir.Graph([], [], nodes=[ir.node("Identity", [None], name="n")], opset_imports={"": 18}, name="g")
    return Unit(TrainingModel(ir.Model(graph, ir_version=8)), name="unit", **options)


def test_a_pass_does_not_run_where_its_requirements_do_not_hold() -> None:
    with pytest.raises(PassError, match="pass `remove dead nodes` requires: no Gradient nodes"):
        RemoveDeadNodes()(unit())

    assert RemoveDeadNodes()(unit(facts={NO_GRADIENTS})) is True


def test_a_pass_for_inference_does_not_run_on_a_training_step() -> None:
    with pytest.raises(PassError, match="`remove dropout` is not safe for training, and `unit` trains"):
        RemoveDropout()(unit(trains=True))


def test_a_pass_that_breaks_its_promise_is_found() -> None:
    class Promise(Pass):
        ensures = (INLINED,)

        def run(self, unit: Unit) -> bool:
            unit.model.functions[("d", "f", "")] = ir.Function(
                "d", "f", graph=ir.Graph([], [], nodes=[]), attributes={}
            )
            return True

    with pytest.raises(PassError, match="after pass `promise` this does not hold: no calls of model-local functions"):
        Promise()(unit())


def test_a_pass_says_whether_it_changed_anything() -> None:
    class Silent(Pass):
        def run(self, unit: Unit) -> bool:
            return None  # type: ignore[return-value]

    with pytest.raises(PassError, match="must return whether it modified"):
        Silent()(unit())


def test_every_pass_has_a_name_and_a_description() -> None:
    passes = {*FINISH, *(p for recipe in RECIPES for p in recipe.passes)}

    assert all(p.name and type(p).__doc__ for p in passes)


def test_a_trace_counts_nodes_and_time() -> None:
    trace: list = []

    onward.compile(onward.samples.build("digits"), trace=trace)

    lowered = next(t for t in trace if t.name == "lower gradients" and t.unit == "lowered")
    assert lowered.after > lowered.before
    assert all(t.seconds >= 0 for t in trace)
    assert {t.unit for t in trace} >= {"lowered", "train step", "evaluate", "infer", "initialize"}
