"""The core operators: every decomposition against ONNX's node tests, every gradient, every sample, and the backend."""

from __future__ import annotations

import re
import sys
import unittest
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tomllib
from onnx import helper

import onward
import onward.testing.gradcheck as gradcheck
from cases import Case, all_cases
from models import stock_session
from onward.backends import open_session
from onward.backends.reference import Evaluator
from onward.compiler.core import lower_to_core
from onward.compiler.derivatives import gradient
from onward.errors import ModelError
from onward.graph.schema import all_schemas
from onward.passes.core import registry
from onward.passes.core.operators import CANNOT, CATEGORIES, CORE
from onward.passes.core.registry import table
from whole import WHOLE

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "examples"))
import minimal_backend  # noqa: E402

SAMPLES = ("linear", "digits", "mnist")


# -- the set -------------------------------------------------------------------------------------------------


def test_every_operator_is_core_or_decomposed_or_listed_with_a_reason() -> None:
    names = {s.op_type for s in all_schemas("")}
    groups = [set(CORE), set(table()) - {"Pad"}, set(CANNOT)]

    assert names == set().union(*groups) & names
    assert sum(map(len, groups)) == len(set().union(*groups)), "an operator is in two of the groups"


def test_every_core_operator_has_a_category_and_a_reason() -> None:
    assert all(o.category in CATEGORIES and o.why for o in CORE.values())


def test_the_minimal_backend_has_the_core_operators_and_no_others() -> None:
    assert {*minimal_backend.OPERATORS, "If", "Loop"} == set(CORE)


def test_the_minimal_backend_is_short() -> None:
    assert len((ROOT / "examples/minimal_backend.py").read_text().splitlines()) <= 500


# -- decompositions against ONNX's own tests -----------------------------------------------------------------

RANDOM = ("test_bernoulli", "test_training_dropout")
GAPS = tomllib.loads((ROOT / "tests/known_gaps.toml").read_text())["core_node_tests"]


def is_gap(name: str) -> bool:
    return any(re.fullmatch(gap["tests"], name) for gap in GAPS)


def node_tests() -> Iterator[Any]:
    """Yield the node tests of ai.onnx: one of each operator, or all of them in the whole run."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sorted(collect_testcases(None), key=lambda c: c.name)
    seen: set[str] = set()
    for case in found:
        kinds = {n.op_type for n in case.model.graph.node}
        if any(o.domain not in ("", "ai.onnx") for o in case.model.opset_import) or case.name.startswith(RANDOM):
            continue
        if not WHOLE and (is_gap(case.name) or kinds <= seen | set(CORE)):
            continue
        seen |= kinds
        yield case


@pytest.mark.parametrize("case", list(node_tests()), ids=lambda c: c.name)
def test_a_decomposition_passes_the_standards_node_test(case: Any) -> None:
    if is_gap(case.name):
        with pytest.raises((AssertionError, unittest.SkipTest, onward.OnwardError)):
            check_node_test(case)
    else:
        check_node_test(case)


def check_node_test(case: Any) -> None:
    prepared = minimal_backend.prepare(case.model)
    for inputs, expected in case.data_sets:
        results = prepared.run([as_arrays(v) for v in inputs])
        for actual, wanted in zip(results, expected, strict=True):
            compare(actual, as_arrays(wanted), case.rtol, case.atol)


def as_arrays(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [as_arrays(v) for v in value]
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def compare(actual: Any, wanted: Any, rtol: float, atol: float) -> None:
    if isinstance(wanted, list):
        for a, w in zip(actual, wanted, strict=True):
            compare(a, w, rtol, atol)
        return
    if wanted is None or np.asarray(wanted).dtype.kind in "OUS":
        assert actual is wanted if wanted is None else (actual == wanted).all()
        return
    assert actual.dtype == wanted.dtype
    loose = {"bfloat16": 1e-2, "float16": 2e-3}.get(wanted.dtype.name, 0.0)
    a, w = (np.asarray(v).astype(np.float64) for v in (actual, wanted))
    np.testing.assert_allclose(a, w, rtol=max(rtol, loose), atol=max(atol, loose, 2e-6))


@pytest.mark.parametrize(
    ("op_type", "function"),
    [
        ("Sinh", np.sinh), ("Cosh", np.cosh), ("Asinh", np.arcsinh), ("Acosh", np.arccosh), ("Atanh", np.arctanh),
        ("Asin", np.arcsin), ("Acos", np.arccos), ("Tan", np.tan), ("Ceil", np.ceil), ("Neg", np.negative),
        ("Reciprocal", np.reciprocal), ("Sigmoid", lambda x: np.exp(-np.logaddexp(0, -x))),
        ("Softplus", lambda x: np.logaddexp(0, x)),
    ],
)  # fmt: skip
def test_special_values_survive(op_type: str, function: Any) -> None:
    x = np.array([0.0, -0.0, 1e-12, -1e-12, 0.3, -0.9, 1.0, -1.0, 1.5, -30.0, 88.0, 700.0, -700.0, np.inf, -np.inf])
    x = np.append(x, np.nan)
    with np.errstate(all="ignore"):
        wanted = function(x)

    (found,) = minimal_backend.run_node(helper.make_node(op_type, ["x"], ["y"]), [x])

    np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=0)
    real = ~np.isnan(wanted)
    assert (np.signbit(found[real]) == np.signbit(wanted[real])).all(), "a zero lost its sign"


def test_integers_do_not_overflow() -> None:
    x = np.array([[-128, 5], [127, -1]], np.int8)
    (least,) = minimal_backend.run_node(
        helper.make_node("ReduceMin", ["x", "a"], ["y"], keepdims=0), [x, np.array([1], np.int64)]
    )

    assert least.tolist() == [-128, -1]


def test_the_standards_body_of_affine_grid_is_not_used_for_a_batch_of_one() -> None:
    theta = np.array([[[1.0, 0.0, 0.5], [0.0, 1.0, -0.5]]], np.float32)
    node = helper.make_node("AffineGrid", ["theta", "size"], ["grid"])

    (grid,) = minimal_backend.run_node(node, [theta, np.array([1, 1, 2, 2], np.int64)])

    np.testing.assert_allclose(grid[0, :, :, 0], [[0, 1], [0, 1]])
    np.testing.assert_allclose(grid[0, :, :, 1], [[-1, -1], [0, 0]])


# -- gradients -----------------------------------------------------------------------------------------------

# These draw numbers of their own, or their forward differs from the reference at a disputed point, not their gradient.
NOT_COMPARED = {"Bernoulli", "Dropout", "RandomNormalLike", "RandomUniformLike"}
CASES = [c for c in all_cases() if c.op not in NOT_COMPARED]
CHOSEN = CASES if WHOLE else list({c.op: c for c in reversed(CASES)}.values())[::3]


def lowered_gradient(case: Case, dynamic: bool, dtype: Any = None) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    model = case.model(dynamic=dynamic, dtype=dtype)
    weights = gradcheck._random_weights(case.model(dtype=dtype), seed=0)
    proto = gradient(gradcheck._with_loss(model, weights), of="testing/loss", wrt=case.differentiated(model))
    return proto, dict(model.feeds)


@pytest.mark.parametrize("dynamic", [False, True], ids=["known", "unknown"])
@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_a_gradient_is_the_same_with_core_operators(case: Case, dynamic: bool) -> None:
    if dynamic and case.symbolic:
        pytest.skip(case.symbolic)
    proto, feeds = lowered_gradient(case, dynamic)

    core = lower_to_core(proto)

    assert_core(core.graph)
    prepared = minimal_backend.Prepared(core)
    found = dict(zip(prepared.graph.outputs, prepared.run(feeds), strict=True))
    for name, wanted in Evaluator(proto).run(feeds).items():
        if name.startswith("grad/") and not isinstance(wanted, list):
            np.testing.assert_allclose(found[name], wanted, rtol=1e-6, atol=1e-8, err_msg=name)


def assert_core(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        assert node.op_type in CORE, node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                assert_core(attribute.g)


@pytest.mark.parametrize("op", ["Conv", "LSTM", "Softmax", "MaxPool", "LayerNormalization", "ScatterElements"])
def test_onnxruntime_runs_the_core_operators(op: str) -> None:
    proto, feeds = lowered_gradient(next(c for c in CASES if c.op == op), dynamic=False, dtype=np.float32)
    names = [o.name for o in proto.graph.output if o.name.startswith("grad/")]

    found = stock_session(lower_to_core(proto)).run(names, feeds)

    for value, wanted in zip(found, stock_session(proto).run(names, feeds), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-3, atol=1e-4)


def test_a_wrong_decomposition_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = registry.Decomposition("Tan", lambda at: at.op.Mul(at.op.Sin(at.input("input")), 1.001), "")
    monkeypatch.setitem(table(), "Tan", wrong)

    with pytest.raises(AssertionError):
        test_special_values_survive("Tan", np.tan)
    with pytest.raises(AssertionError):
        test_a_gradient_is_the_same_with_core_operators(next(c for c in CASES if c.op == "Tan"), dynamic=False)


# -- programs ------------------------------------------------------------------------------------------------


def batches(program: onward.Program, count: int) -> Iterator[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    for _ in range(count):
        batch = {}
        for spec in (*program.inputs, *program.targets):
            shape = [d if isinstance(d, int) else 8 for d in spec.shape]
            whole = spec.dtype.startswith("int")
            numbers = rng.integers(0, 10, shape) if whole else rng.standard_normal(shape)
            batch[spec.name] = numbers.astype(spec.dtype)
        yield batch


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_trains_with_core_operators_as_without(name: str, tmp_path: Path) -> None:
    model = onward.samples.build(name)
    program, core = onward.compile(model), onward.compile(model, core=True)
    core.save(tmp_path)
    plain, stock, own = (
        open_session(program, "onnxruntime"),
        open_session(core, "onnxruntime"),
        minimal_backend.prepare_training(tmp_path),
    )

    losses = np.array([[float(s.step(b)[program.loss]) for s in (plain, stock, own)] for b in batches(program, 20)])

    for graph in core.graphs():
        assert_core(graph.proto().graph)
    np.testing.assert_allclose(losses[:, 1], losses[:, 0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(losses[:, 2], losses[:, 0], rtol=0, atol=1e-5)
    assert losses[-1, 0] < losses[0, 0]
    for key, value in stock.get_state().items():
        np.testing.assert_allclose(own.state()[key], value, rtol=1e-4, atol=1e-5, err_msg=key)


def test_the_manifest_and_the_program_say_that_they_are_core(tmp_path: Path) -> None:
    onward.compile(onward.samples.build("linear"), core=True).save(tmp_path / "core")
    onward.compile(onward.samples.build("linear")).save(tmp_path / "plain")

    assert onward.Program.load(tmp_path / "core").core
    assert not onward.Program.load(tmp_path / "plain").core
    assert minimal_backend.prepare_training(tmp_path / "core").manifest["core"] is True


def test_a_body_of_the_standard_reads_what_its_call_captured() -> None:
    """SequenceMap's function comes from onnx as a message, in which `w` is only a name."""
    net = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 18]>
        net (float[2] a, float[3] b) => (float[n] y) {
            w = Neg(a)
            w0 = ReduceSum<keepdims=0>(w)
            s = SequenceConstruct(a, b)
            t = SequenceMap(s) <body = each (float[N] e) => (float[N] o) { o = Mul(e, w0) }>
            y = ConcatFromSequence<axis=0>(t)
        }""")
    a, b = np.float32([1, 2]), np.float32([3, 4, 5])

    (y,) = minimal_backend.run_model(net, [a, b])

    np.testing.assert_allclose(y, np.concatenate([a, b]) * -3)


def test_a_function_of_a_preview_domain_is_written_with_core_operators() -> None:
    shape = [1, 2, 3, 4]
    given = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in "QKV"]
    out = helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, shape)
    node = helper.make_node("FlexAttention", list("QKV"), ["Y"], domain="ai.onnx.preview")
    imports = [helper.make_opsetid("", 26), helper.make_opsetid("ai.onnx.preview", 1)]
    net = helper.make_model(helper.make_graph([node], "net", given, [out]), opset_imports=imports, ir_version=12)
    Q, K, V = np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)

    (Y,) = minimal_backend.run_model(net, [Q, K, V])

    powers = np.exp(Q @ K.swapaxes(2, 3) / 2)
    np.testing.assert_allclose(Y, powers / powers.sum(-1, keepdims=True) @ V, rtol=1e-5)
    assert_core(lower_to_core(net).graph)


def test_all_nodes_that_cannot_be_lowered_are_named_at_once() -> None:
    net = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20, "my.ops" : 1]>
        net (float[2] x, string[2] s) => (float[2] y, string[2] t) {
            [first] a = my.ops.Triple(x)
            [second] y = Sinh(a)
            [third] t = StringConcat(s, s)
        }""")

    with pytest.raises(ModelError) as error:
        onward.compile(net, core=True)

    text = str(error.value)
    assert text.count("M304") == 2
    assert "`Triple` of domain `my.ops`" in text
    assert "node `first`" in text
    assert "it works on text" in text
    assert "node `third`" in text
    assert "Sinh" not in text


def test_the_backend_speaks_onnx_s_interface() -> None:
    x = np.array([[1.0, -2.0]], np.float32)
    node = helper.make_node("Relu", ["x"], ["y"])

    assert minimal_backend.supports_device("CPU")
    assert not minimal_backend.supports_device("CUDA")
    np.testing.assert_array_equal(minimal_backend.run_node(node, [x])[0], [[1, 0]])
