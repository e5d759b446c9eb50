"""Shares: the shares of several processes give the results of one process."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

import onward
from backends.node_tests import cases, difference, torch_backend
from backends.team import ThreadTeam, together
from backends.test_torch_module import convolutional
from models import perceptron
from onward.backends.torch import batch_split_layers  # noqa: F401 - registers the rules
from onward.backends.torch.batch_split import RULES, Cut, Partial, Share, Shared
from onward.backends.torch.interpreter import Interpreter
from onward.backends.torch.registry import REGISTRY
from onward.backends.torch.tensors import to_numpy, to_tensor
from onward.compiler.compile import compile_model
from onward.compiler.program import Program
from whole import WHOLE

pytestmark = pytest.mark.usefixtures("one_thread")


def graph_of(model: onnx.ModelProto) -> tuple[ir.Graph, int]:
    version = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    return ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(model)).graph, version


# -- single operators, by ONNX's own tests ---------------------------------------------------------------------------


@functools.cache
def shared_cases() -> list[Any]:
    """Return the node tests of operators that have a rule."""
    found = []
    for case in cases():
        kinds = {n.op_type for n in case.model.graph.node}
        if kinds <= set(RULES) and all(REGISTRY.find(k, "", 17) or REGISTRY.find(k, "", 25) for k in kinds):
            found.append(case)
    return found


def tried_cases() -> list[Any]:
    """Return all of them, or in `make test` the first three of each operator."""
    found: dict[tuple[str, ...], list[Any]] = {}
    for case in shared_cases():
        found.setdefault(tuple(n.op_type for n in case.model.graph.node), []).append(case)
    return [case for same in found.values() for case in (same if WHOLE else same[:3])]


def run_shared(model: onnx.ModelProto, tensors: dict[str, torch.Tensor], axis: int, size: int) -> list[list[Any]]:
    """Return the outputs in each of `size` processes, all floats and integers of more than one element shared out."""

    def work(team: ThreadTeam) -> list[Any]:
        feeds: dict[str, Any] = {}
        for name, value in tensors.items():
            fits = axis < value.ndim and value.shape[axis] > 1 and value.is_floating_point()
            feeds[name] = team.share(value, axis, Cut(team.evenly(value.shape[axis]))) if fits else value
        with torch.no_grad():
            results = Shared(*graph_of(model), team).run(feeds)
        return [team.whole(v) for v in results.values()]

    return together(size, work)


def arrays_of(value: Any) -> Any:
    return [arrays_of(v) for v in value] if isinstance(value, list) else to_numpy(value)


def test_every_operator_gives_the_same_on_shares_along_any_axis() -> None:
    wrong, tried = {}, 0
    for case in tried_cases():
        inputs, _ = case.data_sets[0]
        arrays = [onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x for x in inputs]
        if not all(isinstance(a, (np.ndarray, np.generic)) and a.dtype.kind in "fiub" for a in arrays):
            continue
        tensors = {v.name: to_tensor(np.asarray(a)) for v, a in zip(case.model.graph.input, arrays, strict=True)}
        try:
            with torch.no_grad():
                expected = list(Interpreter(*graph_of(case.model)).run(tensors).values())
        except Exception:  # noqa: BLE001 - what one process cannot run either is for test_torch_operators
            continue
        if any(isinstance(value, np.ndarray) for value in expected):  # computed on the host, which shares nothing
            continue
        for axis in range(max((t.ndim for t in tensors.values()), default=0)):
            tried += 1
            try:
                outputs = run_shared(case.model, tensors, axis, 2)
            except Exception as error:  # noqa: BLE001 - whatever is raised is the finding
                wrong[case.name, axis] = f"{type(error).__name__}: {error}"
                continue
            for own in outputs:
                for actual, wanted in zip(own, expected, strict=True):
                    if wanted is not None and (
                        problem := difference(actual, arrays_of(wanted), 1e-4, 1e-5, torch_backend())
                    ):
                        wrong[case.name, axis] = problem

    assert wrong == {}, wrong
    assert tried > (1000 if WHOLE else 400)


@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum"])
def test_a_reduction_over_no_axis_is_that_of_single_elements_on_shares_too(kind: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 18]> g (float[4, 2] x) => (float[4, 2] y)
            {{ y = {kind} <noop_with_empty_axes = 1> (x) }}"""
    )
    x = torch.arange(1.0, 9.0).reshape(4, 2) * torch.tensor([1.0, 1.0 if kind == "ReduceLogSum" else -1.0])
    wanted = {"ReduceSum": x, "ReduceSumSquare": x * x, "ReduceLogSum": x.log()}.get(kind, x.abs())

    for results in run_shared(model, {"x": x}, 0, 2):
        torch.testing.assert_close(results[0], wanted)


def test_a_wrong_rule_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(run: Shared, node: Any, inputs: list[Any]) -> Any:
        return inputs[0].like(run.plain(node, [inputs[0].tensor, *inputs[1:]]))

    monkeypatch.setitem(RULES, "Softmax", careless)
    case = next(c for c in shared_cases() if c.name == "test_softmax_axis_0")
    x = to_tensor(case.data_sets[0][0][0])

    (first, *_), _ = run_shared(case.model, {"x": x}, 0, 2)

    assert difference(first, case.data_sets[0][1][0], 1e-4, 1e-5, torch_backend()) is not None


# -- training steps --------------------------------------------------------------------------------------------------


def gradients_of(program: Program, feeds: dict[str, torch.Tensor], team: ThreadTeam | None, **options: Any) -> Any:
    """Return the outputs of the gradients graph for a batch: of one process, or whole and as they are of a member."""
    step = program.first.gradients
    graph, version = graph_of(step.proto())
    state = {n: to_tensor(v) for n, v in {**program.state, **program.settings}.items()}
    wanted = [v.name for v in graph.inputs]
    if team is None:
        with torch.no_grad():
            return Interpreter(graph, version).run({n: v for n, v in {**state, **feeds}.items() if n in wanted})
    count = next(iter(feeds.values())).shape[0]
    team.samples = team.evenly(count)
    own = {n: team.share(v, 0, Cut(team.samples)) for n, v in feeds.items()}
    kept = {n: team.share(v, 0, Cut(team.evenly(v.shape[0]))) if team.can_cut(v.shape) else v for n, v in state.items()}
    held = kept if options.get("shard") else state
    made_whole: set[str] = set()
    run = Shared(graph, version, team, made_whole=made_whole, cut=step.outputs if options.get("shard") else ())
    with torch.no_grad():
        results = run.run({n: v for n, v in {**held, **own}.items() if n in wanted})
        as_they_are = dict(results)
        return {n: team.whole(v) for n, v in results.items()}, as_they_are, made_whole


def assert_the_same(program: Program, feeds: dict[str, torch.Tensor], size: int, **options: Any) -> list[Any]:
    expected = gradients_of(program, feeds, None)
    members = together(size, lambda team: gradients_of(program, feeds, team, **options))
    for whole, _, _ in members:
        for name, value in expected.items():
            scale = float(value.double().abs().max()) if value.numel() else 0.0
            torch.testing.assert_close(whole[name].double(), value.double(), rtol=1e-5, atol=1e-6 * scale + 1e-9)
    return members


def images(count: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return {"x": torch.randn(count, 1, 6, 6, generator=g), "labels": torch.randint(0, 3, (count,), generator=g)}


@pytest.mark.parametrize(("count", "size"), [(8, 2), (7, 3), (1, 2), (2, 3)])
def test_batch_statistics_and_dropout_masks_are_those_of_the_whole_batch(count: int, size: int) -> None:
    program = compile_model(convolutional(), split=True)

    members = assert_the_same(program, images(count), size)

    if count > 1:
        assert all(isinstance(as_they_are["grad/fc.weight"], Partial) for _, as_they_are, _ in members)
        assert all(made_whole == set() for _, _, made_whole in members)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_mean_of_a_loss_counts_weights_and_ignored_labels_of_all_processes(reduction: str) -> None:
    loss = onward.losses.CrossEntropy(weight=[0.5, 2.0, 1.0], ignore_index=-1, reduction=reduction)
    model = onward.make_trainable(perceptron(), loss=loss, optimizer=onward.SGD(0.1))
    g = torch.Generator().manual_seed(0)
    labels = torch.tensor([-1, -1, -1, 0, 1, 2, 1, 0])  # the first process of two has one that counts
    feeds = {"x": torch.randn(8, 4, generator=g), "labels": labels}

    assert_the_same(compile_model(model, split=True), feeds, 2)


def test_sharded_weights_give_gradients_that_are_cut_like_them() -> None:
    program = compile_model(convolutional(), split=True)

    members = assert_the_same(program, images(8), 2, shard=True)

    for _, as_they_are, _ in members:
        gradient = as_they_are["grad/conv.weight"]
        assert isinstance(gradient, Share)
        assert gradient.tensor.shape == (2, 1, 3, 3)  # of (4, 1, 3, 3)
