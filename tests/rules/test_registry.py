"""Contracts of the table of gradient rules."""

from __future__ import annotations

import ast
import collections
import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
import tomllib

import onward.autodiff
import onward.testing.gradcheck as gradcheck
from cases import Case, all_cases
from onward.autodiff import rules as rules
from onward.autodiff.registry import (
    GRADIENT,
    NON_DIFFERENTIABLE,
    ZERO,
    all_rules,
    declare,
    find_rule,
    gradient,
    register_gradient,
)
from onward.compiler.coverage import coverage
from onward.compiler.derivatives import gradient as differentiate
from onward.graph.schema import WORKING_OPSET, all_schemas, newest_opset, raw_schema, schema, versions
from onward.testing import assert_gradients, one_node_model

TESTS = Path(__file__).parent.parent
CASES = all_cases()
BY_OPERATOR: dict[str, list[Case]] = collections.defaultdict(list)
for _case in CASES:
    BY_OPERATOR[_case.op].append(_case)
STANDARD = [s for s in all_schemas() if not s.deprecated]
DIFFERENTIABLE = sorted({r.op_type for r in all_rules() if r.domain == "" and r.differentiable})


def table(name: str) -> dict:
    return tomllib.loads((TESTS / name).read_text())


# -- completeness --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", [s.op_type for s in STANDARD])
def test_every_operator_of_the_standard_is_in_a_stated_condition(operator: str) -> None:
    rule = find_rule(operator, "", newest_opset())

    assert rule is not None, f"{operator}: no rule and no declaration"
    assert set(rule.conditions) == set(schema(operator).input_names)


def test_at_least_150_operators_have_a_gradient() -> None:
    assert sum(o.condition == "GRADIENT" for o in coverage()) >= 150


def test_an_unsupported_input_says_why() -> None:
    unsupported = [(r.op_type, n, c) for r in all_rules() for n, c in r.conditions.items() if c.kind == "UNSUPPORTED"]

    assert not [(operator, name) for operator, name, condition in unsupported if not condition.reason]


def test_every_rule_states_its_formula() -> None:
    silent = [r.op_type for r in all_rules() if r.function is not None and r.domain == "" and not r.function.__doc__]

    assert not silent


@pytest.mark.skipif(newest_opset() < 28, reason="cases of operators newer than the installed onnx are left out")
def test_every_rule_has_an_ordinary_an_edge_and_a_special_case() -> None:
    known = {op: set(gap["missing"]) for op, gap in table("known_gaps.toml").get("cases", {}).items()}
    gaps = {}
    for operator in DIFFERENTIABLE:
        missing = {"ordinary", "edge", "special"} - {c.kind for c in BY_OPERATOR[operator]}
        if missing:
            gaps[operator] = missing

    assert gaps == known  # a gap that was closed must leave the table


def test_every_known_gap_has_a_reason() -> None:
    assert all(gap["reason"] for gap in table("known_gaps.toml").get("cases", {}).values())


# -- agreement with the schema -------------------------------------------------------------------------------


def test_conditions_agree_with_the_schema_tags_except_where_listed() -> None:
    listed = table("tag_disagreements.toml")
    expected = {(op, name, "Unknown") for op, names in listed["unknown"].items() for name in names}
    expected |= {(*key.split("."), "NonDifferentiable") for key in listed["differentiable_here"]}
    expected |= {(*key.split("."), "Differentiable") for key in listed["flat_here"]}
    found = set()
    for known in all_schemas():
        rule = find_rule(known.op_type, "", newest_opset())
        for parameter in known.inputs if rule is not None else ():
            ours, tag = rule.conditions[parameter.name] is GRADIENT, parameter.differentiation
            if ours != (tag == "Differentiable"):
                # An input that neither of us says to be differentiable is no disagreement.
                found.add((known.op_type, parameter.name, tag))

    assert found == expected


# -- closure: what rules emit --------------------------------------------------------------------------------


def emitted_operators() -> dict[str, set[str]]:
    """Return every operator that a rule's source makes a node of, with the files that do."""
    names = {s.op_type for s in all_schemas()}
    found: dict[str, set[str]] = collections.defaultdict(set)
    root = Path(onward.autodiff.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            operator = node.func.attr
            if operator in ("call", "multi") and node.args and isinstance(node.args[0], ast.Constant):
                operator = str(node.args[0].value)
            if operator in names and not (isinstance(node.func.value, ast.Name) and node.func.value.id in ("ir", "np")):
                found[operator].add(path.name)
    return found


EMITTED = emitted_operators()


def test_the_emitted_operators_are_found() -> None:
    assert {"Add", "Mul", "MatMul", "ReduceSum", "Loop", "If", "Scan", "SequenceMap"} <= set(EMITTED)


@pytest.mark.parametrize("operator", sorted(EMITTED))
def test_every_emitted_operator_exists_wherever_it_is_needed_and_has_a_condition(operator: str) -> None:
    first = min(versions(operator))
    if first > WORKING_OPSET:
        # An operator that is newer than the working opset may be emitted by its own family only.
        rule = find_rule(operator, "", newest_opset())
        assert EMITTED[operator] == {Path(rule.function.__code__.co_filename).name}
    for opset in range(max(WORKING_OPSET, first), newest_opset() + 1):
        found = raw_schema(operator, "", opset)
        assert found is not None, f"{operator} at opset {opset}, used in {EMITTED[operator]}"
        assert not found.deprecated, f"{operator} at opset {opset}, used in {EMITTED[operator]}"
        assert find_rule(operator, "", opset) is not None, f"{operator} has no gradient of its own"


def first_case(operator: str) -> Case | None:
    fitting = [c for c in BY_OPERATOR[operator] if c.kind == "ordinary" and c.domain == ""]
    return fitting[0] if fitting else None


@pytest.mark.parametrize("operator", [op for op in DIFFERENTIABLE if first_case(op) is not None])
def test_the_backward_of_an_operator_is_valid_at_the_oldest_and_newest_opset(operator: str) -> None:
    case = first_case(operator)
    assert case is not None
    given = case.opset or 23
    since = schema(operator, "", given).since_version
    # The case is written for one version of the operator: its inputs and attributes may differ at others.
    same = [
        v
        for v in range(WORKING_OPSET, newest_opset() + 1)
        if (s := schema(operator, "", v)) and s.since_version == since
    ]
    for opset in {min(same), max(same)} if same else {given}:
        model = dataclasses.replace(case, opset=opset).model(dtype=np.float32)
        names = case.differentiated(model)
        try:
            onnx.checker.check_model(gradcheck._with_loss(model, {}), full_check=True)
        except onnx.shape_inference.InferenceError:
            continue  # onnx rejects the forward node itself: the body of MeanVarianceNormalization without axes
        lowered = differentiate(gradcheck._with_loss(model, {}), of="testing/loss", wrt=names)

        onnx.checker.check_model(lowered, full_check=True)
        emitted = {n.op_type for n in lowered.graph.node}
        now = lowered.opset_import[0].version
        assert not [op for op in emitted if find_rule(op, "", now) is None]


# -- registration --------------------------------------------------------------------------------------------


def test_an_unknown_input_name_fails_at_registration() -> None:
    with pytest.raises(TypeError, match="Exp has no input `axes`; it has input"):
        gradient("Exp", opset=13, replace=True, axes=ZERO)(lambda rule, doutput: {})


def test_an_unknown_output_name_fails_at_registration() -> None:
    with pytest.raises(TypeError, match="Exp has no output `Z`; it has output"):
        gradient("Exp", opset=13, replace=True)(lambda rule, dZ: {})


def test_a_second_rule_for_the_same_version_fails_at_registration() -> None:
    assert find_rule("Add").opset == 7
    with pytest.raises(TypeError, match=r"Add \(opset 7\) already has a rule"):
        gradient("Add", opset=7)(lambda rule, dC: {})


def test_a_declaration_must_state_every_input() -> None:
    with pytest.raises(TypeError, match="no condition stated for input B"):
        declare("And", opset=7, A=NON_DIFFERENTIABLE)


def test_the_rule_of_the_highest_version_not_above_is_chosen() -> None:
    register_gradient("Versioned", domain="test.registry")(lambda rule, dY: {"X": dY})

    assert find_rule("Versioned", "test.registry").opset == 1
    assert find_rule("ReduceSum", "", 12) is None or find_rule("ReduceSum", "", 12).opset <= 12
    assert find_rule("ReduceSum", "", 28).opset <= 28


def test_a_rule_that_returns_a_name_that_is_no_input_is_refused() -> None:
    with replaced("Exp", lambda rule, doutput: {"nonsense": doutput}), pytest.raises(TypeError, match="`nonsense`"):
        assert_gradients(one_node_model("Exp", input=np.ones(2)))


def test_a_rule_that_forgets_an_input_is_refused() -> None:
    with (
        replaced("MatMul", lambda rule, dY: {"A": dY}),
        pytest.raises(TypeError, match="the rule of MatMul returned no gradient for B"),
    ):
        assert_gradients(one_node_model("MatMul", A=np.eye(2), B=np.eye(2)))


# -- the tester is tested ------------------------------------------------------------------------------------


class replaced:
    """Use another rule for an operator inside a `with` block."""

    def __init__(self, op_type: str, function: object) -> None:
        self.rule = find_rule(op_type, "", newest_opset())
        self.wrong = function

    def __enter__(self) -> None:
        self._put(self.wrong)

    def __exit__(self, *_: object) -> None:
        self._put(self.rule.function)

    def _put(self, function: object) -> None:
        from onward.autodiff import registry

        key = (self.rule.domain, self.rule.op_type)
        registry._RULES[key] = [
            dataclasses.replace(r, function=function) if r.opset == self.rule.opset else r for r in registry._RULES[key]
        ]


def matmul(left: float = 1.0, right: float = 1.0, transposed: bool = False) -> object:
    """Return a rule for square matrices, right with the defaults."""

    def rule_of_matmul(rule, dY):  # type: ignore[no-untyped-def]
        op, A, B = rule.op, rule.input("A"), rule.input("B")
        dA = op.MatMul(dY, B if transposed else op.Transpose(B, perm=[1, 0]))
        dB = op.MatMul(op.Transpose(A, perm=[1, 0]), dY)
        return {"A": op.Mul(dA, left), "B": op.Mul(dB, right)}

    return rule_of_matmul


SQUARE = {"A": np.random.default_rng(0).normal(size=(3, 3)), "B": np.random.default_rng(1).normal(size=(3, 3))}


def test_the_tester_accepts_a_right_rule() -> None:
    with replaced("MatMul", matmul()):
        assert_gradients(one_node_model("MatMul", **SQUARE))


@pytest.mark.parametrize(
    "wrong",
    [matmul(left=1.001), matmul(right=0.999), matmul(transposed=True), matmul(left=2.0), matmul(right=-1.0)],
    ids=["0.1 % too large", "0.1 % too small", "transposed", "scaled", "wrong sign"],
)
def test_the_tester_catches(wrong: object) -> None:
    with replaced("MatMul", wrong), pytest.raises(AssertionError, match="gradient with respect to"):
        assert_gradients(one_node_model("MatMul", **SQUARE))


def test_the_tester_catches_a_missing_term() -> None:
    def without_correction(rule, doutput):  # type: ignore[no-untyped-def]
        return {"input": rule.op.Mul(doutput, rule.output("output"))}  # softmax without its mean

    with replaced("Softmax", without_correction), pytest.raises(AssertionError, match="gradient with respect to input"):
        assert_gradients(one_node_model("Softmax", input=np.array([[0.1, 0.2, 0.4]])))


def test_the_tester_catches_a_gradient_that_is_zero() -> None:
    with replaced("Exp", lambda rule, doutput: {"input": None}), pytest.raises(AssertionError):
        assert_gradients(one_node_model("Exp", input=np.ones(2)))


def test_the_tester_catches_a_gradient_of_the_wrong_shape() -> None:
    def summed(rule, doutput):  # type: ignore[no-untyped-def]
        return {"input": rule.op.ReduceSum(doutput, keepdims=0)}

    with replaced("Exp", summed), pytest.raises(AssertionError, match="shape"):
        assert_gradients(one_node_model("Exp", input=np.zeros(2)))


def test_the_tester_refuses_single_precision() -> None:
    with pytest.raises(AssertionError, match="float32, not float64"):
        assert_gradients(one_node_model("Exp", input=np.ones(2, np.float32)))


def test_the_tester_takes_the_first_output_where_none_is_required() -> None:
    weights = {"W": np.ones((1, 4, 1)), "R": np.ones((1, 4, 1))}

    model = one_node_model("LSTM", X=np.ones((2, 1, 1)), hidden_size=1, **weights)

    assert model.outputs == ("Y",)


# -- the coverage page ---------------------------------------------------------------------------------------


def test_coverage_has_every_operator_in_one_condition() -> None:
    operators = coverage()

    assert {o.name for o in operators} == {s.op_type for s in all_schemas()}
    assert not [o.name for o in operators if not o.stated]
