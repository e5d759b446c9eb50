"""Gradients of random graphs are their slopes; and the search for mistakes finds one."""

from __future__ import annotations

import dataclasses

import pytest

from autodiff.random_graphs import find_problem, random_model
from onward.autodiff import registry
from onward.autodiff.registry import RuleSpec, find_rule


@pytest.mark.parametrize("seed", range(45))
def test_the_gradient_of_a_random_graph_is_its_slope(seed: int) -> None:
    assert find_problem(seed, twice=seed % 3 == 0) == ""


def test_the_same_number_is_the_same_graph() -> None:
    assert random_model(7).SerializeToString() == random_model(7).SerializeToString()


def test_random_graphs_have_subgraphs_functions_and_gradient_nodes() -> None:
    operators = {n.op_type for seed in range(45) for n in random_model(seed).graph.node}

    assert {"If", "Loop", "Scan", "Half", "Whole", "Gradient"} <= operators


def test_a_wrong_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = find_rule("Tanh", "", 20)
    assert rule is not None

    def too_large(it, doutput):  # type: ignore[no-untyped-def]
        right = rule.function(it, doutput)
        return {"input": it.op.Mul(right["input"], 1.001)}

    wrong: list[RuleSpec] = [dataclasses.replace(rule, function=too_large)]
    monkeypatch.setitem(registry._RULES, ("", "Tanh"), wrong)

    assert "is not the slope" in find_problem(0)
