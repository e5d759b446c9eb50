"""Gradients by PyTorch's autograd: those of the written backward pass, in one process and in several."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

import onward
from backends.team import ThreadTeam, together
from backends.test_torch_module import convolutional
from backends.test_torch_shares import graph_of, images, shared_cases, tried_cases
from frontends.runs import batches, start
from frontends.zoo import ZOO, Subject
from onward.backends.graph.forward import why_not
from onward.backends.torch.autograd import Forward
from onward.backends.torch.batch_split import Cut, Shared
from onward.backends.torch.interpreter import Interpreter
from onward.backends.torch.session import TorchSession
from onward.backends.torch.tensors import to_tensor
from onward.compiler.compile import compile_model
from onward.errors import ArgumentError
from whole import WHOLE, sample

pytestmark = pytest.mark.usefixtures("one_thread")


# -- one process -----------------------------------------------------------------------------------------------------

FEW = ("parameter groups", "depthwise convolutions", "decoder with tied embedding", "gru", "embedding bag")


@pytest.mark.parametrize("subject", sample(ZOO, [s for s in ZOO if s.name in FEW]), ids=lambda s: s.name)
def test_autograd_follows_the_written_backward_pass(subject: Subject) -> None:
    program = compile_model(start(subject)[2], split=True)
    ((name, entry),) = program.entries.items()
    step = entry.gradients
    session = TorchSession(program, gradients="autograd")
    ((inputs, targets),) = batches(subject, 1)
    feeds = {n: t.numpy() for n, t in zip(program.input_names, (*inputs, targets), strict=True)}

    written, found = session._run(step, feeds), session.differentiate(name, feeds)

    assert set(found) == set(written)
    scale = max(float(written[g].abs().max()) for g in step.gradient_of)  # a key's bias has a gradient of rounding only
    for name, value in written.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5 * scale, msg=lambda m, n=name: f"{n}: {m}")


def test_both_ways_show_the_same_outputs() -> None:
    program = compile_model(convolutional(), split=True)
    feeds = {n: t.numpy() for n, t in images(6).items()}

    written, found = (TorchSession(program, gradients=way).step(feeds) for way in ("graph", "autograd"))

    assert {n: v.shape for n, v in found.items()} == {n: v.shape for n, v in written.items()}


@pytest.mark.parametrize("sizes", ["2, 3", "2, 2, 2"])
@pytest.mark.parametrize("training", [0, 1])
def test_a_batch_normalisation_of_one_example_in_front_of_a_transpose(training: int, sizes: str) -> None:
    outputs = "h, mean_, var_" if training else "h"
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 18]>
        g (double[1, 3, {sizes}] x, double[3] scale, double[3] bias) => (double[1, K, 3] y)
        <double[3] mean = {{0.1, 0.2, 0.3}}, double[3] var = {{1, 2, 3}}, int64[3] shape = {{1, 3, -1}}>
        {{
            {outputs} = BatchNormalization <training_mode: int = {training}> (x, scale, bias, mean, var)
            tokens = Reshape(h, shape)
            y = Transpose <perm: ints = [0, 2, 1]> (tokens)
        }}
    """)
    run = Interpreter(ir.from_proto(model).graph, 18).run
    generator = torch.Generator().manual_seed(0)
    shapes = {"x": [1, 3, *map(int, sizes.split(","))], "scale": [3], "bias": [3]}
    values = [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes.values()]

    # PyTorch's own F.batch_norm fails this: the gradient arrives with its channels last
    assert torch.autograd.gradcheck(lambda *v: run(dict(zip(shapes, v, strict=True)))["y"].sin(), values)


def two_branches() -> onward.TrainingModel:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 18]>
        choose (float[N, 3] x) => (float[N, 1] y)
        <float[3, 1] w = {1, 2, 3}, float[3, 1] v = {4, 5, 6}, float zero = {0}>
        {
            sum = ReduceSum <keepdims: int = 0> (x)
            positive = Greater(sum, zero)
            y = If (positive) <then_branch = yes () => (float[N, 1] a) { a = MatMul(x, w) },
                               else_branch = no () => (float[N, 1] b) { b = MatMul(x, v) }>
        }
    """)
    return onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.1))


def test_a_parameter_of_the_branch_not_taken_gets_zero() -> None:
    program = compile_model(two_branches(), split=True)
    session = TorchSession(program, gradients="autograd")

    session.step({"x": np.ones((2, 3), np.float32), "labels": np.zeros((2, 1), np.float32)})

    np.testing.assert_array_equal(session.get_state()["v"], program.state["v"])
    assert np.any(session.get_state()["w"] != program.state["w"])


def test_auto_uses_autograd_where_it_can_and_says_so() -> None:
    program = compile_model(convolutional(), split=True)

    session = TorchSession(program)

    assert list(session.describe()["gradients"].values()) == ["autograd"]


def test_without_halves_the_step_graph_runs() -> None:
    session = TorchSession(compile_model(convolutional()))

    assert list(session.describe()["gradients"].values()) == ["graph"]


def test_autograd_that_is_asked_for_and_impossible_says_why() -> None:
    with pytest.raises(ArgumentError, match=r"no gradients graph \(compile it with split=True\)"):
        TorchSession(compile_model(convolutional()), gradients="autograd")


def test_an_unknown_way_lists_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match="auto, autograd, graph"):
        TorchSession(compile_model(convolutional()), gradients="numeric")


def rounding() -> onward.TrainingModel:
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 18]>
        rounded (float[N, 3] x) => (float[N, 1] y)
        <float[3, 1] w = {1, 2, 3}, float scale = {0.1}, uint8 zero = {0}>
        { q = QuantizeLinear(w, scale, zero) d = DequantizeLinear(q, scale, zero) y = MatMul(x, d) }
    """)
    return onward.make_trainable(model, loss="mse", optimizer=onward.SGD(0.1), train="w")


def test_a_choice_of_the_compiled_program_is_kept() -> None:
    with onward.straight_through():
        program = compile_model(rounding(), split=True)
    session = TorchSession(program)

    session.step({"x": np.ones((2, 3), np.float32), "labels": np.zeros((2, 1), np.float32)})

    assert "rounds" in why_not(program.entries["train"])
    assert np.all(session.get_state()["w"] < program.state["w"])  # autograd would find zero


# -- several processes -----------------------------------------------------------------------------------------------


def _leaves(arrays: dict[str, Any]) -> dict[str, torch.Tensor]:
    made = {n: to_tensor(np.asarray(a)) for n, a in arrays.items()}
    return {n: t.double().requires_grad_() if t.dtype == torch.float32 else t for n, t in made.items()}


def _total(values: list[Any]) -> torch.Tensor | None:
    """Return a number that depends on every element of the outputs, each with its own weight."""
    known = (torch.float64, torch.float32)  # narrower ones are rounded, and some cannot be added up
    floats = [v for v in values if isinstance(v, torch.Tensor) and v.requires_grad and v.dtype in known]
    if not floats:
        return None
    weights = [torch.cos(torch.arange(v.numel(), dtype=torch.float64)).reshape(v.shape) for v in floats]
    return sum((v.double() * w).sum() for v, w in zip(floats, weights, strict=True))


def _gradients(model: onnx.ModelProto, arrays: dict[str, Any], team: ThreadTeam | None, axis: int) -> Any:
    leaves = _leaves(arrays)
    feeds: dict[str, Any] = dict(leaves)
    if team is None:
        results = list(Interpreter(*graph_of(model)).run(feeds).values())
    else:
        for name, value in leaves.items():
            if axis < value.ndim and value.shape[axis] > 1 and value.is_floating_point():
                feeds[name] = team.share(value, axis, Cut(team.evenly(value.shape[axis])))
        results = [team.whole(v) for v in Shared(*graph_of(model), team).run(feeds).values()]
    total = _total(results)
    if total is None:
        return None
    total.backward()
    return {n: torch.zeros_like(t) if t.grad is None else t.grad for n, t in leaves.items() if t.requires_grad}


def test_every_operator_on_shares_has_the_gradient_of_one_process() -> None:
    wrong, tried = {}, 0
    for case in tried_cases():
        inputs, _ = case.data_sets[0]
        names = [v.name for v in case.model.graph.input]
        values = [onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x for x in inputs]
        if not all(isinstance(a, (np.ndarray, np.generic)) and a.dtype.kind in "fiub" for a in values):
            continue
        arrays = dict(zip(names, values, strict=True))
        try:
            expected = _gradients(case.model, arrays, None, 0)
        except Exception:  # noqa: BLE001 - what autograd cannot differentiate in one process either
            continue
        if expected is None or not all(torch.isfinite(g).all() for g in expected.values()):
            continue
        for axis in range(max((np.ndim(a) for a in values), default=0)):
            tried += 1
            members = together(2, lambda team, c=case, a=arrays, i=axis: _gradients(c.model, a, team, i))
            for name, gradient in expected.items():
                average = (members[0][name] + members[1][name]) / 2  # as DistributedDataParallel does
                if not torch.allclose(average, gradient, rtol=1e-5, atol=1e-6):
                    wrong[case.name, axis, name] = float((average - gradient).abs().max())

    assert wrong == {}, wrong
    assert tried > (300 if WHOLE else 150)


def test_a_message_without_a_way_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(c for c in shared_cases() if c.name == "test_reduce_mean_default_axes_keepdims_example")
    arrays = {v.name: onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x
              for v, x in zip(case.model.graph.input, case.data_sets[0][0], strict=True)}  # fmt: skip
    expected = _gradients(case.model, arrays, None, 0)
    monkeypatch.setattr("onward.backends.torch.batch_split._Added.backward", staticmethod(lambda context, g: (g, None)))

    members = together(2, lambda team: _gradients(case.model, arrays, team, 0))

    average = (members[0]["data"] + members[1]["data"]) / 2
    assert not torch.allclose(average, expected["data"])


@pytest.mark.parametrize(("count", "size"), [(8, 2), (7, 3), (1, 2)])
def test_batch_statistics_and_masks_have_the_gradient_of_the_whole_batch(count: int, size: int) -> None:
    program = compile_model(convolutional(), split=True)
    step = program.first.gradients
    state = {n: to_tensor(v) for n, v in {**program.state, **program.settings}.items()}

    def differentiate(team: ThreadTeam | None) -> dict[str, Any]:
        def make(graph: Any, opset: int, outputs: Any) -> Any:
            alone = team is None
            return (
                Interpreter(graph, opset, outputs=outputs) if alone else Shared(graph, opset, team, outputs=outputs)
            ).run

        own: dict[str, Any] = images(count)
        if team is not None:
            team.samples = team.evenly(count)
            own = {n: team.share(v, 0, Cut(team.samples)) for n, v in own.items()}
        forward = Forward(
            step, make, {n: v.clone() for n, v in state.items()}, lambda v: v if team is None else team.whole(v)
        )
        given = {n: v for n, v in {**state, **own}.items() if n in forward.input_names}
        return forward.differentiate(forward, given, {n: v.clone() for n, v in state.items()})

    expected = differentiate(None)
    members = together(size, differentiate)

    for gradient in step.gradient_of:
        average = sum(m[gradient] for m in members) / size
        scale = float(expected[gradient].abs().max())
        torch.testing.assert_close(average, expected[gradient], rtol=1e-4, atol=1e-5 * scale + 1e-8)
