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
from onward.backends.onnxruntime.order import sort_for_memory
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
            session = backend.OnnxRuntimeSession(program, fused=fused)
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
