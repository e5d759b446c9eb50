"""The native kernels of LSTM and GRU layers, beside the plain graph and beside PyTorch."""

from __future__ import annotations

import collections
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.backends import open_session
from onward.backends.onnxruntime.native import library
from onward.backends.onnxruntime.session import _rewritten

pytestmark = pytest.mark.skipif(library.compiler() is None, reason="this machine has no C compiler")
FEATURES = 5
GATES = {"LSTM": 4, "GRU": 3}


def network(
    kind: str, hidden: int, steps: int, batch: int, *, depth: int = 1, bias: bool = True, states: bool = False,
    every: bool = True,
) -> onnx.ModelProto:  # fmt: skip
    """Return `x` [time, batch, features] -> layers -> product of all steps (`every`) or of the last states -> `y`."""
    rng = np.random.default_rng(0)
    weights: list[TensorProto] = []
    nodes: list[onnx.NodeProto] = []

    def weight(name: str, *shape: int) -> str:
        weights.append(numpy_helper.from_array((rng.uniform(-1, 1, shape) * hidden**-0.5).astype(np.float32), name))
        return name

    rows, outputs, value = GATES[kind] * hidden, ["Y", "h", "c"][: GATES[kind] - 1], "x"
    attributes: dict[str, Any] = {"linear_before_reset": 1} if kind == "GRU" else {}
    for i in range(depth):
        inputs = [value, weight(f"W{i}", 1, rows, hidden if i else FEATURES), weight(f"R{i}", 1, rows, hidden)]
        inputs += [weight(f"B{i}", 1, 2 * rows) if bias else "", ""]
        if states:
            inputs += [weight(f"{s}0{i}", 1, batch, hidden) for s in outputs[1:]]
        made = [f"{o}{i}" for o in outputs]
        nodes.append(helper.make_node(kind, inputs, made, name=f"layer{i}", hidden_size=hidden, **attributes))
        value = f"X{i + 1}"
        weights.append(numpy_helper.from_array(np.array([1]), f"axes{i}"))
        nodes.append(helper.make_node("Squeeze", [made[0], f"axes{i}"], [value], name=f"squeeze{i}"))
    last = made[1]
    if kind == "LSTM":
        nodes.append(helper.make_node("Add", made[1:], ["last"], name="last"))
        last = "last"
    nodes.append(helper.make_node("MatMul", [value if every else last, weight("V", hidden, 2)], ["y"], name="head"))
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, "N", FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [steps if every else 1, "N", 2])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def compiled(model: onnx.ModelProto, rate: float = 0.1) -> onward.Program:
    return onward.compile(onward.make_trainable(model, loss="mse", optimizer=onward.SGD(rate)))


def batch_of(model: onnx.ModelProto, batch: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    steps, out = (v.type.tensor_type.shape.dim[0].dim_value for v in (model.graph.input[0], model.graph.output[0]))
    return {
        "x": rng.standard_normal((steps, batch, FEATURES)).astype(np.float32),
        "labels": rng.standard_normal((out, batch, 2)).astype(np.float32),
    }


def trained(
    program: onward.Program, feeds: dict[str, np.ndarray], *, native: bool, threads: int = 2, steps: int = 3
) -> tuple[list[float], dict[str, np.ndarray]]:
    session = open_session(program, "onnxruntime", native=native, threads=threads)
    return [float(session.step(feeds)["loss"]) for _ in range(steps)], dict(session.get_state())


def compare(model: onnx.ModelProto, batch: int) -> None:
    """Fail where training by native kernels differs from training by the plain graph."""
    program, feeds = compiled(model), batch_of(model, batch)

    (losses, state), (expected_losses, expected) = (trained(program, feeds, native=n) for n in (True, False))

    # atol: a small loss is the square of a difference between numbers near 1, which are rounded to 6e-8.
    np.testing.assert_allclose(losses, expected_losses, rtol=2e-6, atol=2e-7)
    for name, value in state.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def operators(program: onward.Program) -> collections.Counter[str]:
    model = _rewritten(program.entries["train"].step, 2, native=True)
    return collections.Counter(n.op_type for n in model.graph if n.domain or n.op_type in ("LSTM", "GRU", "Scan"))


@pytest.mark.parametrize(
    ("kind", "hidden", "steps", "batch", "options"),
    [
        ("LSTM", 64, 7, 3, {}),
        ("LSTM", 100, 5, 33, {"depth": 2}),
        ("LSTM", 65, 1, 1, {"states": True, "every": False}),
        ("LSTM", 96, 4, 8, {"bias": False, "states": True}),
        ("LSTM", 64, 9, 20, {"bias": False, "every": False}),
        ("LSTM", 272, 4, 9, {}),  # its weights do not fit into the second cache
        ("LSTM", 272, 3, 41, {}),  # nor these, but many rows use them
        ("LSTM", 64, 3, 80, {}),  # more rows for a task than go through a panel of weights at once
        ("GRU", 64, 3, 80, {}),
        ("GRU", 64, 7, 3, {}),
        ("GRU", 100, 5, 33, {"depth": 2}),
        ("GRU", 65, 1, 1, {"states": True, "every": False}),
        ("GRU", 96, 4, 8, {"bias": False, "states": True}),
        ("GRU", 64, 9, 20, {"bias": False, "every": False}),
    ],
)
def test_native_layers_train_as_the_plain_graph(
    kind: str, hidden: int, steps: int, batch: int, options: dict[str, Any]
) -> None:
    compare(network(kind, hidden, steps, batch, **options), batch)


@pytest.mark.parametrize(("kind", "every"), [("LSTM", True), ("LSTM", False), ("GRU", True), ("GRU", False)])
def test_one_operator_runs_forward_and_one_backward(kind: str, every: bool) -> None:
    program = compiled(network(kind, 64, 4, 3, depth=2, every=every))

    found = operators(program)

    forward = "Lstm" if kind == "LSTM" else "GruBiased"
    back = kind.capitalize() + "Back"
    assert found[forward] == 2
    assert found[back] + found[back + "All"] == 2
    assert found[back] == (0 if every else 1)
    assert found["Scan"] == found[kind] == 0


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_gradients_are_those_of_pytorch(kind: str) -> None:
    torch = pytest.importorskip("torch")
    hidden, steps, batch = 72, 6, 11
    model = network(kind, hidden, steps, batch)
    weights = {t.name: torch.tensor(numpy_helper.to_array(t)) for t in model.graph.initializer}
    feeds = batch_of(model, batch)
    order = [0, 2, 3, 1] if kind == "LSTM" else [1, 0, 2]  # i, o, f, c -> i, f, c, o; z, r, h -> r, z, h

    def ordered(value: Any, back: bool = False) -> Any:
        parts = value.chunk(len(order))
        return torch.cat([parts[order.index(i) if back else order[i]] for i in range(len(order))])

    layer = getattr(torch.nn, kind)(FEATURES, hidden).double()
    given = [weights["W0"][0], weights["R0"][0], *weights["B0"][0].chunk(2)]
    with torch.no_grad():
        for parameter, value in zip(layer.parameters(), given, strict=True):
            parameter.copy_(ordered(value))
    y = layer(torch.tensor(feeds["x"]).double())[0] @ weights["V"].double()
    torch.nn.functional.mse_loss(y, torch.tensor(feeds["labels"]).double()).backward()
    dW, dR, *dB = (ordered(p.grad, back=True) for p in layer.parameters())
    expected = {"W0": dW, "R0": dR, "B0": torch.cat(dB)}

    _, state = trained(compiled(model, 1.0), feeds, native=True, steps=1)

    for name, gradient in expected.items():
        found = weights[name].numpy()[0] - state[name][0]
        np.testing.assert_allclose(found, gradient.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("batch", [3, 33])
def test_the_number_of_threads_does_not_change_a_bit(batch: int) -> None:
    for kind in GATES:
        model = network(kind, 70, 4, batch)
        program, feeds = compiled(model), batch_of(model, batch)

        # One step: its loss depends on the forward kernel, and nothing of ONNX Runtime that depends on the threads.
        losses = {trained(program, feeds, native=True, threads=n, steps=1)[0][0] for n in (1, 2, 3)}

        assert len(losses) == 1


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_nan_stays_nan_and_large_numbers_stay_finite(kind: str) -> None:
    model = network(kind, 64, 3, 9)
    program = compiled(model)
    large, missing = batch_of(model, 9), batch_of(model, 9)
    large["x"] *= 1e4
    missing["x"][1, 4, 2] = np.nan

    assert np.isfinite(trained(program, large, native=True, steps=1)[0]).all()
    assert np.isnan(trained(program, missing, native=True, steps=1)[0]).all()


def test_layers_of_float64_stay_as_they_are() -> None:
    model = network("LSTM", 64, 4, 3)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))

    found = operators(compiled(model))

    assert not [name for name in found if name.startswith("Lstm")]
    assert found["Scan"] == 2


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        ("LSTM", "vec h = o * hyperbolic(cell);", "vec h = 1.001f * o * hyperbolic(cell);"),
        ("GRU", "put(dh, dH * z, n);", "put(dh, 1.001f * dH * z, n);"),
    ],
    ids=["forward", "backward"],
)
def test_a_kernel_wrong_by_a_thousandth_is_found(
    kind: str, right: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "native"
    shutil.copytree(library._HERE, copy)
    source = copy / "recurrent.c"
    text = source.read_text(encoding="utf-8")
    assert text.count(right) == 1
    source.write_text(text.replace(right, wrong), encoding="utf-8")
    monkeypatch.setattr(library, "_HERE", copy)
    library._compile(tmp_path / "mutant.so")
    monkeypatch.setattr(library, "load", lambda *parts: str(tmp_path / "mutant.so"))

    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        compare(network(kind, 64, 7, 9), 9)
