"""The portable profile: the same gradients and losses, nothing that the deny-list names, and the list itself."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper, parser
from typer.testing import CliRunner

import onward
import onward.testing.gradcheck as gradcheck
from cases import Case, all_cases
from compiler.zoo import ZOO
from models import stock_session
from onward.autodiff.rules import _taps
from onward.backends import open_session
from onward.backends.base import profile_of, register_backend
from onward.backends.reference import Evaluator
from onward.cli import build_app
from onward.compiler.derivatives import gradient
from onward.passes.portable.deny_list import denied, entries
from onward.passes.portable.rewrites import _REWRITES
from onward.testing.models import one_node_model
from rules.test_gradients import test_gradient_agrees_with_torch as agrees_with_torch
from whole import WHOLE

# The rules that ask for the profile, and the operators of which the list names a form.
OPERATORS = {"Conv", "ConvTranspose", "MaxPool"}
CASES = [c for c in all_cases() if c.op in OPERATORS]


def found_in(proto: onnx.ModelProto, *, remedy: str = "rewritten") -> list[str]:
    """Return the names of the entries that a model has something of."""
    return [d.entry.name for d in denied(ir.from_proto(proto).graph) if d.entry.remedy == remedy]


def both(case: Case, *, dynamic: bool = False, dtype: Any = None) -> tuple[onnx.ModelProto, onnx.ModelProto, Any]:
    """Return the gradients of a case in both profiles, and what to feed."""
    model = case.model(dynamic=dynamic, dtype=dtype)
    with_loss = gradcheck._with_loss(model, gradcheck._random_weights(case.model(dtype=dtype), seed=0))
    made = [
        gradient(with_loss, of="testing/loss", wrt=case.differentiated(model), profile=p)
        for p in ("default", "portable")
    ]
    return made[0], made[1], dict(model.feeds)


# -- gradients -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True], ids=["known", "unknown"])
@pytest.mark.parametrize("case", list(all_cases()) if WHOLE else CASES, ids=str)
def test_a_portable_gradient_is_the_default_one(case: Case, dynamic: bool) -> None:
    """The default one agrees with finite differences and with PyTorch (tests/rules/test_gradients.py)."""
    if dynamic and case.symbolic:
        pytest.skip(case.symbolic)
    default, portable, feeds = both(case, dynamic=dynamic)

    assert not found_in(portable)
    if portable == default:
        return  # nothing of this operator has another form
    expected, actual = Evaluator(default).run(feeds), Evaluator(portable).run(feeds)
    for name in (n for n in expected if n.startswith("grad/")):
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("case", [c for c in CASES if c.torch is not None], ids=str)
def test_a_portable_gradient_agrees_with_torch(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradcheck, "gradient", functools.partial(gradient, profile="portable"))

    agrees_with_torch(case)


# ONNX Runtime has no Conv in float64.
POOLS = [c for c in CASES if c.op == "MaxPool" and c.kind == "ordinary" and not c.onnxruntime]


@pytest.mark.parametrize("case", POOLS, ids=str)
def test_a_portable_gradient_agrees_with_finite_differences_of_onnxruntime(case: Case) -> None:
    """In float64, by the runtime that trains: along one random direction of all inputs."""
    model = case.model()
    weights = gradcheck._random_weights(model, seed=0)
    with_loss, names = gradcheck._with_loss(model, weights), case.differentiated(model)
    lowered = gradient(with_loss, of="testing/loss", wrt=names, profile="portable")
    forward, session = stock_session(with_loss), stock_session(lowered)
    rng, step = np.random.default_rng(3), 1e-3
    along = {n: rng.uniform(-1, 1, model.feeds[n].shape) for n in names}

    def loss(offset: float) -> float:
        moved = {n: a + offset * along[n] if n in along else a for n, a in model.feeds.items()}
        return float(forward.run(["testing/loss"], moved)[0])

    found = session.run([f"grad/{n}" for n in names], dict(model.feeds))

    expected = (8 * (loss(step) - loss(-step)) - (loss(2 * step) - loss(-2 * step))) / (12 * step)
    slope = sum(float((g * along[n]).sum()) for n, g in zip(names, found, strict=True))
    assert slope == pytest.approx(expected, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("attributes", [{"strides": [2, 2]}, {}, {"pads": [1, 1, 1, 1]}], ids=["apart", "near", "pads"])
def test_of_equal_elements_the_first_gets_the_gradient_as_in_torch(attributes: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    X = np.random.default_rng(0).integers(0, 2, (2, 3, 6, 8)).astype(np.float64)
    model = one_node_model("MaxPool", X=X, kernel_shape=[2, 2], **attributes)
    weights = gradcheck._random_weights(model, seed=0)
    lowered = gradient(gradcheck._with_loss(model, weights), of="testing/loss", wrt=["X"], profile="portable")

    found = Evaluator(lowered).run(model.feeds)["grad/X"]

    x = torch.tensor(X, requires_grad=True)
    stride, padding = attributes.get("strides", 1), 1 if "pads" in attributes else 0
    pooled = torch.nn.functional.max_pool2d(x, 2, stride=stride[0] if stride != 1 else 1, padding=padding)
    (pooled * torch.tensor(next(iter(weights.values())))).sum().backward()
    np.testing.assert_allclose(found, x.grad.numpy(), rtol=1e-12)


def test_a_pool_that_is_wrong_by_a_thousandth_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = _taps.to_the_first
    case = next(c for c in CASES if str(c) == "MaxPool-pads strides")
    monkeypatch.setattr(
        "onward.autodiff.rules.pooling.to_the_first",
        lambda rule, *rest: rule.op.Mul(right(rule, *rest), 1.001),
    )

    with pytest.raises(AssertionError):
        test_a_portable_gradient_is_the_default_one(case, dynamic=False)
    with pytest.raises(AssertionError):
        test_a_portable_gradient_agrees_with_finite_differences_of_onnxruntime(case)


# -- programs ------------------------------------------------------------------------------------------------


def network(shape: tuple[int, ...], layers: list[tuple[str, dict[str, Any]]]) -> onnx.ModelProto:
    """Return a network of convolutions, pools and normalisations, with ten classes at its end."""
    rng, nodes, weights, last, channels = np.random.default_rng(0), [], {}, "x", shape[0]

    def weight(name: str, array: np.ndarray) -> str:
        weights[name] = array.astype(np.float32)
        return name

    for i, (op, given) in enumerate(layers):
        inputs = [last]
        if op == "Conv":
            attributes = {k: v for k, v in given.items() if k != "outputs"}
            kernel = (given["outputs"], channels // given.get("group", 1), *given["kernel_shape"])
            inputs += [weight(f"W{i}", rng.standard_normal(kernel) / np.sqrt(np.prod(kernel[1:])))]
            inputs += [weight(f"b{i}", np.zeros(given["outputs"]))]
            channels = given["outputs"]
        else:
            attributes = given
        if op == "BatchNormalization":
            values = {"scale": np.ones, "bias": np.zeros, "mean": np.zeros, "var": np.ones}
            inputs += [weight(f"{name}{i}", make(channels)) for name, make in values.items()]
        last = f"h{i}"
        nodes.append(helper.make_node(op, inputs, [last], name=f"layer{i}", **attributes))
    rank = len(shape) - 1
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["mean"], name="mean"))
    nodes.append(helper.make_node("Flatten", ["mean"], ["flat"], name="flat"))
    weight("W", rng.standard_normal((channels, 10)) / np.sqrt(channels))
    nodes.append(helper.make_node("MatMul", ["flat", "W"], ["y"], name="fc"))
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", *shape])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 10])],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    assert rank >= 1
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def conv(outputs: int, *kernel: int, **rest: Any) -> tuple[str, dict[str, Any]]:
    return "Conv", {"outputs": outputs, "kernel_shape": list(kernel), **rest}


RELU: tuple[str, dict[str, Any]] = ("Relu", {})
NETWORKS = {
    "lenet": lambda: network(
        (1, 14, 14),
        [
            conv(6, 5, 5, pads=[2, 2, 2, 2]), RELU, ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
            conv(16, 3, 3), RELU, ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ],
    ),
    "batch norm": lambda: network(
        (3, 8, 8), [conv(8, 3, 3, strides=[2, 2], pads=[1, 1, 1, 1]), ("BatchNormalization", {}), RELU, conv(8, 1, 1)]
    ),
    "depthwise": lambda: network(
        (3, 8, 8),
        [
            conv(6, 3, 3), RELU, conv(6, 3, 3, group=6, pads=[1, 1, 1, 1]), RELU, conv(30, 3, 3, group=6),
            ("MaxPool", {"kernel_shape": [2, 2], "ceil_mode": 1, "strides": [2, 2]}),
        ],
    ),
    "1-D": lambda: network(
        (2, 20), [conv(6, 5, dilations=[2]), RELU, ("MaxPool", {"kernel_shape": [3], "dilations": [2]}), conv(8, 3)]
    ),
    "3-D": lambda: network(
        (1, 6, 6, 6), [conv(4, 3, 3, 3), RELU, ("MaxPool", {"kernel_shape": [2, 2, 2], "strides": [2, 2, 1]})]
    ),
}  # fmt: skip
SAMPLES = ("linear", "digits", "mnist")


def trainable(name: str) -> Any:
    if name in SAMPLES:
        return onward.samples.build(name)
    return onward.make_trainable(NETWORKS[name](), loss="cross_entropy", optimizer=onward.Adam(1e-2))


def batches(program: onward.Program, count: int) -> Iterator[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    for _ in range(count):
        batch = {}
        for spec in (*program.inputs, *program.targets):
            shape = [d if isinstance(d, int) else 4 for d in spec.shape]
            whole = spec.dtype.startswith("int")
            batch[spec.name] = (rng.integers(0, 10, shape) if whole else rng.standard_normal(shape)).astype(spec.dtype)
        yield batch


@pytest.mark.parametrize("name", [*SAMPLES, *NETWORKS])
def test_both_profiles_train_alike(name: str) -> None:
    model = trainable(name)
    default, portable = onward.compile(model), onward.compile(model, profile="portable")
    # Plain graphs: native kernels replace other nodes in each profile, and sum in another order.
    first, second = (open_session(p, "onnxruntime", native=False) for p in (default, portable))

    losses = np.array([[float(s.step(b)[default.loss]) for s in (first, second)] for b in batches(default, 20)])

    assert (default.profile, portable.profile) == ("default", "portable")
    assert not [e for g in portable.graphs() for e in found_in(g.proto())]
    np.testing.assert_allclose(losses[:, 1], losses[:, 0], rtol=1e-6, atol=1e-6)
    assert losses[-1, 0] != losses[0, 0]
    for key, value in first.get_state().items():
        np.testing.assert_allclose(second.get_state()[key], value, rtol=1e-3, atol=1e-4, err_msg=key)


# What computes with numbers; the others move them, or read them as sizes and places.
ARITHMETIC = {
    *("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Max", "Min", "Sum", "MatMul", "Greater", "Less", "Equal", "Where"),
    *("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift", "Range", "CumSum", "ReduceSum", "ReduceMax", "ArgMax"),
}


@pytest.mark.parametrize("name", [*SAMPLES, *NETWORKS])
def test_int64_is_computed_only_on_sizes_counters_and_labels(name: str) -> None:
    program = onward.compile(trainable(name), profile="portable")
    step = onnx.shape_inference.infer_shapes(program.step, data_prop=True)
    types = {v.name: v.type.tensor_type for v in (*step.graph.value_info, *step.graph.input, *step.graph.output)}
    labels = {t.name for t in program.targets}

    large = [
        f"{node.op_type} of {value}"
        for node in step.graph.node
        if node.op_type in ARITHMETIC
        for value in (*node.input, *node.output)
        if value not in labels and value in types and types[value].elem_type == onnx.TensorProto.INT64
        if len(types[value].shape.dim) > 1 or any(d.dim_param or d.dim_value > 8 for d in types[value].shape.dim)
    ]

    assert len(types) > len(step.graph.input) + len(step.graph.output)  # the shapes are known
    assert large == []


@pytest.mark.parametrize("name", ZOO)
def test_no_portable_program_has_what_the_list_names(name: str) -> None:
    program = onward.compile(ZOO[name](), profile="portable", split=True)

    assert not [e for g in program.graphs() for e in found_in(g.proto())]


def test_portable_and_core_go_together() -> None:
    program = onward.compile(trainable("lenet"), profile="portable", core=True)
    plain = onward.compile(trainable("lenet"))
    (batch,) = batches(plain, 1)

    losses = [float(open_session(p, "onnxruntime").step(batch)[plain.loss]) for p in (plain, program)]

    assert program.core
    assert not [e for g in program.graphs() for e in found_in(g.proto())]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


def test_the_manifest_says_the_profile(tmp_path: Path) -> None:
    onward.compile(onward.samples.build("linear"), profile="portable").save(tmp_path / "a")
    onward.compile(onward.samples.build("linear")).save(tmp_path / "b")

    assert onward.Program.load(tmp_path / "a").profile == "portable"
    assert '"profile": "default"' in (tmp_path / "b/manifest.json").read_text()


def test_the_command_prints_the_profile_and_warns(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    onward.save(trainable("depthwise"), str(file))

    done = CliRunner().invoke(build_app(), ["compile", str(file), "--profile", "portable", "-o", f"{tmp_path}/program"])

    assert done.exit_code == 0
    assert "profile: portable" in done.stdout
    assert "M306" in done.stderr
    assert "a pool with ceil_mode is not safe on every runtime" in done.stderr
    assert "JSEP 1.30.0: refuses to run" in done.stderr


def test_a_default_program_has_no_warnings_and_a_portable_one_names_node_and_runtime() -> None:
    default, portable = (onward.compile(trainable("3-D"), profile=p) for p in ("default", "portable"))

    assert default.warnings == ()
    assert "node `layer2`" in portable.warnings[0].place
    assert "onnxruntime-web" in portable.warnings[0].found


def test_a_profile_that_does_not_exist_is_refused() -> None:
    with pytest.raises(onward.OnwardError, match="profile") as error:
        onward.compile(onward.samples.build("linear"), profile="portabel")

    assert "`portable`" in str(error.value)


def test_a_trainer_takes_a_profile_and_resumes_with_it(tmp_path: Path) -> None:
    trainer = onward.Trainer(onward.samples.build("digits"), profile="portable")
    trainer.save_checkpoint(tmp_path)

    assert trainer.program.profile == "portable"
    assert onward.Trainer.resume(tmp_path).program.profile == "portable"
    with pytest.raises(onward.OnwardError, match="profile `portable`"):
        onward.Trainer(trainer.program, profile="default")


def test_a_backend_says_which_profile_it_needs() -> None:
    from onward.backends import _reference, base

    register_backend("elsewhere", _reference, profile="portable")
    try:
        assert onward.Trainer(onward.samples.build("linear"), backend="elsewhere").program.profile == "portable"
        assert profile_of("onnxruntime") == "default"
    finally:
        for registry in (base._BACKENDS, base._PROFILES):
            registry.pop("elsewhere")


# -- what the model itself has -------------------------------------------------------------------------------


def inference(text: str, opset: int = 18) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')


def feeds_of(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return standard normal numbers for each input; 7 for a dimension that has no number."""
    rng = np.random.default_rng(0)
    shapes = {v.name: [d.dim_value or 7 for d in v.type.tensor_type.shape.dim] for v in proto.graph.input}
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


OWN = {
    "indices": "net (float[2,3,6,6] x) => (float[2,3,3,3] y, int64[2,3,3,3] i) "
    "{ y, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2], storage_order = 1> (x) }",
    "indices, unknown sizes": "net (float[N,C,H,W] x) => (float[N,C,A,B] y, int64[N,C,A,B] i) "
    "{ y, i = MaxPool <kernel_shape = [3, 2], strides = [2, 1], pads = [1, 0, 1, 1], dilations = [1, 2]> (x) }",
    "unpooled": "net (float[2,3,6,6] x) => (float[2,3,6,6] u) "
    "{ y, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) "
    "u = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (y, i) }",
    "dilations": "net (float[N,2,H,9] x) => (float[N,2,A,B] y) "
    "{ y = MaxPool <kernel_shape = [3, 3], dilations = [2, 3], pads = [1, 0, 0, 2]> (x) }",
    "groups": "net (float[N,4,7,7] x, float[10,2,3,3] w, float[10] b) => (float[N,10,A,B] y) "
    "{ y = Conv <group = 2, pads = [1, 1, 1, 1], kernel_shape = [3, 3]> (x, w, b) }",
    "multiplier": "net (float[N,6,7,7] x, float[30,1,3,3] w, float[30] b) => (float[N,30,A,B] y) "
    "{ y = Conv <group = 6, strides = [2, 1], kernel_shape = [3, 3]> (x, w, b) }",
    "groups of unknown size": "net (float[N,6,H,W] x, float[30,1,3,3] w) => (float[N,30,A,B] y) "
    "{ r = Relu(w) y = Conv <group = 6> (x, r) }",
    "channels": "net (float[N,6,H,W] x, float[16,6,3,3] w, float[16] b) => (float[N,16,A,B] y) "
    "{ y = Conv <dilations = [2, 1]> (x, w, b) }",
    "concat": "net (float[N,2] x) => (float[N,L] y) { y = Concat <axis = 1> (" + ", ".join("x" * 60) + ") }",
    "split": "net (float[N,25] x) => (float[N,3] a, float[N,3] b, float[N,3] c, float[N,3] d, float[N,3] e, "
    "float[N,3] f, float[N,3] g, float[N,3] h, float[N,1] i) "
    "{ a, b, c, d, e, f, g, h, i = Split <axis = -1, num_outputs = 9> (x) }",
    "backwards": "net (float[3,N,5] x) => (float[A,B,C] y) <int64[3] s = {-1, 9, 1}, int64[3] e = "
    "{-9223372036854775808, 0, 5}, int64[3] a = {0, 1, 2}, int64[3] t = {-1, -2, 2}> { y = Slice (x, s, e, a, t) }",
    "size": "net (float[N,3,H] x, float s) => (int64 n, int64 one, int64 few) "
    "{ n = Size (x) one = Size (s) h = Shape (x) f = Concat <axis = 0> (h, h) few = Size (f) }",
    "size, unknown rank": "net (float[A,1,B] x, float s) => (int64 n, int64 one) "
    "{ r = Squeeze (x) n = Size (r) t = Squeeze (s) one = Size (t) }",
}


@pytest.mark.parametrize("name", OWN)
def test_what_the_model_itself_has_is_written_otherwise_with_the_same_numbers(name: str) -> None:
    model = inference(OWN[name])
    assert found_in(onnx.shape_inference.infer_shapes(model))

    portable = onward.compile(model, profile="portable").infer

    assert not found_in(portable)
    onnx.checker.check_model(portable, full_check=True)
    feeds = feeds_of(model)
    expected, actual = stock_session(model).run(None, feeds), stock_session(portable).run(None, feeds)
    for value, wanted in zip(actual, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_written_otherwise_is_refused_with_node_and_reason() -> None:
    model = inference(
        "net (float[N] x, int64[R] a) => (float[M] y) <int64[2] s = {-1, -1}, int64[2] e = {-99, -99}, "
        "int64[2] t = {-1, -1}> { [turn] y = Slice (x, s, e, a, t) }"
    )

    with pytest.raises(onward.OnwardError) as error:
        onward.compile(model, profile="portable")

    assert "M305" in str(error.value)
    assert "node `turn`" in str(error.value)
    assert "computed at run time" in str(error.value)


# -- the list ------------------------------------------------------------------------------------------------


def test_every_entry_has_evidence_and_every_avoidable_one_a_rewrite() -> None:
    listed = entries()

    assert {name for name, e in listed.items() if e.remedy == "rewritten"} == set(_REWRITES)
    for entry in listed.values():
        assert entry.remedy in ("rewritten", "warned")
        assert bool(entry.instead) == (entry.remedy == "rewritten")
        assert entry.runtimes
        assert all(r.keys() == {"runtime", "versions", "effect"} and all(r.values()) for r in entry.runtimes)


@pytest.mark.parametrize("name", entries())
def test_the_reproduction_of_an_entry_is_what_it_names(name: str) -> None:
    model = parser.parse_model(entries()[name].reproduction)

    onnx.checker.check_model(model, full_check=True)
    assert name in found_in(onnx.shape_inference.infer_shapes(model), remedy=entries()[name].remedy)
    assert stock_session(model).run(None, feeds_of(model))


def test_the_page_lists_every_entry() -> None:
    page = (Path(__file__).parents[2] / "docs/portable.md").read_text()

    for entry in entries().values():
        assert entry.what in page
        assert all(r["effect"] in page for r in entry.runtimes)
