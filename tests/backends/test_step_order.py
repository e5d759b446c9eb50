"""The order in which ONNX Runtime executes a training step: what it keeps in memory at the same time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import onward
from onward.backends.onnxruntime import session as backend
from onward.backends.onnxruntime.order import put_ends_first, sort_for_memory
from onward.graph.walk import is_sorted
from onward.train import Trainer

LAYERS, WIDTH, ROWS = 12, 8, 512
BYTES = ROWS * WIDTH * 4  # of the values of one layer


def network() -> onnx.ModelProto:
    """Return a chain of layers whose values are much larger than their weights."""
    body = "".join(f"h{i} = Gemm(r{i}, W{i}, b{i}) r{i + 1} = Relu(h{i})\n" for i in range(LAYERS))
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> net (float[N, {WIDTH}] r0) => (float[N, {WIDTH}] r{LAYERS}) '
        f"{{ {body} }}"
    )
    draw = np.random.default_rng(0)
    for i in range(LAYERS):
        for name, shape in ((f"W{i}", (WIDTH, WIDTH)), (f"b{i}", (WIDTH,))):
            value = draw.normal(size=shape).astype(np.float32)
            proto.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return proto


def executed(model: onnx.ModelProto, feeds: dict[str, np.ndarray], folder: Path) -> list[tuple[str, int]]:
    """Return the nodes in ONNX Runtime's order, each with the bytes of its outputs. Nothing is fused."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})
    events = json.loads(Path(session.end_profiling()).read_text())
    ran = [e for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    return [(e["name"].removesuffix("_kernel_time"), int(e["args"]["output_size"])) for e in ran]


def most_alive(model: onnx.ModelProto, order: list[tuple[str, int]]) -> int:
    """Return the largest sum of bytes of values that were computed and are still to be read."""
    nodes = {n.name: n for n in model.graph.node}
    last = {x: i for i, (name, _) in enumerate(order) for x in nodes[name].input}
    alive: dict[str, int] = {}
    most = 0
    for i, (name, size) in enumerate(order):
        alive[nodes[name].output[0]] = size
        most = max(most, sum(alive.values()))
        alive = {value: size for value, size in alive.items() if last.get(value, -1) > i}
    return most


@pytest.mark.parametrize("fused", [False, True], ids=["plain update", "fused update"])
def test_the_gradients_of_outputs_do_not_wait_for_those_of_weights(
    fused: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if fused:
        pytest.importorskip("numba")
    program = onward.compile(onward.make_trainable(network(), loss="mse", optimizer=onward.SGD(0.1)))
    batch = {"r0": np.ones((ROWS, WIDTH), np.float32), "labels": np.zeros((ROWS, WIDTH), np.float32)}
    alive = {}
    for kind in ("built", "sorted"):
        with monkeypatch.context() as patch:
            if kind == "built":
                patch.setattr(backend, "sort_for_memory", lambda graph: None)
            session = backend.OnnxRuntimeSession(program, fused=fused, native=False)
            session.step(batch)
        (step,) = session._steps.values()
        model = ir.serde.serialize_model(step.model)
        for i, node in enumerate(model.graph.node):
            node.name = f"{i} {node.op_type}"
        feeds = {**program.state, **program.settings, **batch}
        alive[kind] = most_alive(model, executed(model, feeds, tmp_path)) / BYTES

    assert alive["sorted"] <= LAYERS + 4  # the values of the layers, and what one step of the backward pass needs
    assert alive["built"] > (2 * LAYERS if fused else LAYERS)  # else the test would show nothing


def test_the_order_changes_no_number() -> None:
    batch = {
        "r0": np.random.default_rng(1).normal(size=(ROWS, WIDTH)).astype(np.float32),
        "labels": np.zeros((ROWS, WIDTH), np.float32),
    }
    model = onward.make_trainable(network(), loss="mse", optimizer=onward.Adam(0.01))
    states = []
    for keep in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if keep:
                patch.setattr(backend, "sort_for_memory", lambda graph: None)
            trainer = Trainer(model)
            for _ in range(3):
                trainer.step(batch)
        states.append({n: a.tobytes() for n, a in trainer.session.get_state().items()})

    assert states[0] == states[1]


def test_a_sorted_graph_is_still_in_order_and_has_the_same_nodes() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]> net (float[N] x, bool p) => (float[N] y, float[N] z) {
        a = Exp(x)
        z = Neg(a)
        b = Sin(a)
        y = If(p) <
            then_branch = t () => (float[N] u) { u = Add(a, b) },
            else_branch = f () => (float[N] v) { v = Identity(b) }
        >
    }"""
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    before = {node.op_type for node in model.graph}

    sort_for_memory(model.graph)

    assert {node.op_type for node in model.graph} == before
    assert is_sorted(model.graph)
    onnx.checker.check_model(ir.serde.serialize_model(model))


def waiting(nodes: list[onnx.NodeProto]) -> int:
    """Return how many nodes wait at most, if of the nodes whose makers are done the first one in the list is next."""
    maker = {name: i for i, node in enumerate(nodes) for name in node.output}
    missing = [{maker[x] for x in node.input if x in maker} for node in nodes]
    readers: dict[int, list[int]] = {}
    for i, makers in enumerate(missing):
        for m in makers:
            readers.setdefault(m, []).append(i)
    ready = [i for i, makers in enumerate(missing) if not makers]
    most = 0
    while ready:
        node = min(ready)
        ready.remove(node)
        for reader in readers.get(node, ()):
            missing[reader].discard(node)
            if not missing[reader]:
                ready.append(reader)
                most = max(most, len(ready))
    return most


def many_ends(count: int) -> ir.Model:
    """Return a chain of `count` nodes, each of which also leads to an output of its own."""
    body = "".join(f"h{i + 1} = Sin(h{i}) y{i} = Exp(h{i + 1})\n" for i in range(count))
    outputs = ", ".join(f"float[N] y{i}" for i in range(count))
    text = f'<ir_version: 8, opset_import: ["" : 18]> net (float[N] h0) => ({outputs}) {{ {body} }}'
    model: ir.Model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    for index, node in enumerate(model.graph):
        node.name = f"{node.op_type}_{index}"
    sort_for_memory(model.graph)
    return model


@pytest.mark.parametrize("count", [20, 40])
def test_few_nodes_wait_when_onnxruntime_sorts_a_step_with_many_results(count: int) -> None:
    model = many_ends(count)
    before = ir.serde.serialize_model(model)
    after = ir.serde.serialize_model(model)

    put_ends_first(after.graph, model.graph)

    assert waiting(list(before.graph.node)) >= count
    assert waiting(list(after.graph.node)) <= 2


def test_nodes_that_nothing_reads_come_first_and_the_order_of_execution_stays(tmp_path: Path) -> None:
    model = many_ends(12)
    before = ir.serde.serialize_model(model)
    after = ir.serde.serialize_model(model)
    batch = {"h0": np.ones(3, np.float32)}

    put_ends_first(after.graph, model.graph)

    assert [n.op_type for n in after.graph.node] == ["Exp"] * 12 + ["Sin"] * 12
    assert executed(after, batch, tmp_path) == executed(before, batch, tmp_path)


def test_onnxruntime_runs_a_choice_that_comes_before_what_its_branches_read() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]> net (float[N] x, bool p) => (float[N] y, float[N] z) {
        a = Exp(x)
        z = Neg(a)
        b = Sin(a)
        y = If(p) <
            then_branch = t () => (float[N] u) { u = Add(a, b) },
            else_branch = f () => (float[N] v) { v = Identity(b) }
        >
    }"""
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))

    session = backend._load(model, onnxruntime.SessionOptions(), ["CPUExecutionProvider"])

    x = np.array([0.5, 2.0], np.float32)
    y, z = session.run(None, {"x": x, "p": np.array(True)})
    np.testing.assert_allclose(y, np.exp(x) + np.sin(np.exp(x)), rtol=1e-6)
    np.testing.assert_allclose(z, -np.exp(x), rtol=1e-6)


def test_rewriting_a_step_looks_at_its_outputs_as_often_for_few_layers_as_for_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = onward.compile(onward.make_trainable(network(), loss="mse", optimizer=onward.SGD(0.1)))
    calls = []
    remove = ir.Graph.remove
    monkeypatch.setattr(
        ir.Graph, "remove", lambda graph, *args, **keys: calls.append(1) or remove(graph, *args, **keys)
    )

    model = backend._rewritten(program.entries["train"].step, 1)

    assert sum(n.op_type == "Expand" for n in model.graph) >= LAYERS  # one bias of each layer was rewritten
    assert len(calls) < LAYERS
