"""Values that wait for the backward pass in 16 bits: the same loss, gradients within rounding, less memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from typer.testing import CliRunner

import onward
from onward.backends import open_session
from onward.cli import build_app
from onward.compiler.program import PlainGraph, Program
from onward.errors import ArgumentError, CheckpointError, NumericError
from onward.passes.recompute.settings import read_store
from onward.passes.recompute.storing import NARROW, WIDE
from onward.train import Trainer
from passes.test_recompute import NETWORKS, ROWS, Network, drawn, lenet, parsed, trainable, trained, transformer

ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # of one number; errors of several add up
STORED = ("transformer", "batch norm", "dropout", "lstm")  # of LeNet, the most is in use where nothing waits


def narrowed(graph: PlainGraph) -> list[ir.Node]:
    """Return the nodes that round a value to 16 bits."""
    return [n for n in graph.model.graph if n.op_type == "Cast" and (n.name or "").startswith(NARROW)]


def gradients(program: Program, batch: dict[str, np.ndarray]) -> tuple[bytes, dict[str, np.ndarray]]:
    """Return the loss and the gradients, which are outputs of the program's own graph, on ONNX Runtime."""
    session = open_session(program, "onnxruntime", threads=1, fused=False)
    graph = program.entries["train"].gradients
    assert graph is not None
    found = session.run_graph(graph, batch)
    return found["loss"].tobytes(), {x: found[name] for name, (_, x) in graph.gradient_of.items()}


def error(found: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> float:
    """Return the largest relative error of a gradient, by the length of it."""
    assert found.keys() == exact.keys()
    assert exact
    return max(float(np.linalg.norm(found[n] - exact[n]) / np.linalg.norm(exact[n])) for n in exact)


def both(name: str, dtype: str) -> tuple[Program, Program, dict[str, np.ndarray]]:
    proto, batch = NETWORKS[name]()
    model = trainable(proto, onward.SGD(0.1))
    sizes = {"N": ROWS}
    return onward.compile(model, split=True, store=dtype, sizes=sizes), onward.compile(model, split=True), batch


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", STORED)
def test_the_loss_is_the_same_and_gradients_are_within_rounding(name: str, dtype: str) -> None:
    program, exact, batch = both(name, dtype)

    loss, found = gradients(program, batch)

    expected_loss, expected = gradients(exact, batch)
    assert loss == expected_loss
    assert 0 < error(found, expected) <= 2 * ROUNDING[dtype]
    assert program.stored["train gradients"].values == len(narrowed(program.entries["train"].gradients))  # type: ignore[arg-type]
    assert program.stored["train step"].bytes_after < program.stored["train step"].bytes_before


@pytest.mark.parametrize("dtype", ROUNDING)
def test_a_wrong_widening_is_seen(dtype: str) -> None:
    program, exact, batch = both("batch norm", dtype)
    graph = program.entries["train"].gradients
    assert graph is not None
    widening = [n for n in graph.model.graph if n.op_type == "Cast" and (n.name or "").startswith(WIDE)]
    for node in widening:
        factor = ir.Node("", "Constant", [], [ir.AttrFloat32("value_float", 1 + 8 * ROUNDING[dtype])], num_outputs=1)
        wrong = ir.Node("", "Mul", [node.outputs[0], factor.outputs[0]], num_outputs=1, name=f"wrong/{node.name}")
        factor.outputs[0].name, wrong.outputs[0].name = f"factor/{node.name}", f"wrong/{node.name}:out"
        users = [(use.node, use.idx) for use in node.outputs[0].uses() if use.node is not wrong]
        graph.model.graph.insert_after(node, [factor, wrong])
        for user, position in users:
            user.replace_input_with(position, wrong.outputs[0])

    _, found = gradients(program, batch)

    assert widening
    assert error(found, gradients(exact, batch)[1]) > 2 * ROUNDING[dtype]


def test_nothing_is_rounded_where_no_memory_is_saved() -> None:
    proto, batch = lenet()
    model = trainable(proto)
    program = onward.compile(model, store="float16", sizes={"N": ROWS})

    found = trained(program, batch, steps=3)

    assert program.stored["train step"].values == 0
    assert "keeps nothing in float16" in program.stored["train step"].told("float16")
    expected = trained(onward.compile(model), batch, steps=3)
    assert {n: v.tobytes() for n, v in found.items()} == {n: v.tobytes() for n, v in expected.items()}


def maximum() -> Network:
    """Return a network whose gradients compare values: those of a maximum go to all numbers that are equal to it."""
    body = """
        a = MatMul(x, A) b = Tanh(a) c = MatMul(b, B) d = Sigmoid(c) e = MatMul(d, C) f = Tanh(e)
        m = ReduceMax<keepdims = 0>(f, axes) y = MatMul(m, D)"""
    weights = {"A": (16, 64), "B": (64, 64), "C": (64, 64), "D": (64, 4)}
    proto = parsed(body, "float[N, 24, 16] x", "float[N, 4] y", weights, {"axes": np.array([1])})
    return proto, drawn(ROWS, 24, 16)


def test_values_that_are_compared_stay_exact() -> None:
    proto, batch = maximum()
    program = onward.compile(trainable(proto), split=True, store="bfloat16", sizes={"N": ROWS})

    stored = {n.inputs[0].name for n in narrowed(program.entries["train"].step) if n.inputs[0] is not None}

    assert stored
    assert "f" not in stored
    exact = onward.compile(trainable(proto), split=True)
    assert error(gradients(program, batch)[1], gradients(exact, batch)[1]) <= 2 * ROUNDING["bfloat16"]


def test_integers_masks_inputs_and_outputs_stay_as_they_are() -> None:
    for name in STORED:
        program, _, _ = both(name, "float16")
        step = program.entries["train"].step
        for node in narrowed(step):
            (source,) = node.inputs
            assert source is not None
            assert source.dtype == ir.DataType.FLOAT
            assert source.producer() is not None
            assert not source.is_graph_output()


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("level", ["ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"])
def test_a_stock_onnx_runtime_keeps_both_casts(level: str, dtype: str, tmp_path: Path) -> None:
    proto, _ = transformer()
    program = onward.compile(trainable(proto), store=dtype, sizes={"N": ROWS})
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.add_free_dimension_override_by_name("N", ROWS)
    options.log_severity_level = 4

    onnxruntime.InferenceSession(program.step.SerializeToString(), options, providers=["CPUExecutionProvider"])

    names = [n.name for n in onnx.load(tmp_path / "optimized.onnx").graph.node if n.op_type == "Cast"]
    assert sum(name.startswith(NARROW) for name in names) == program.stored["train step"].values
    assert sum(name.startswith(WIDE) for name in names) >= program.stored["train step"].values


@pytest.mark.parametrize("options", [{"profile": "portable"}, {"core": True}, {"recompute": "auto"}], ids=str)
def test_it_goes_with_the_other_ways_to_compile(options: dict[str, Any]) -> None:
    proto, batch = transformer()
    model = trainable(proto, onward.SGD(0.1))
    program = onward.compile(model, split=True, store="float16", sizes={"N": ROWS}, **options)

    found = gradients(program, batch)[1]

    assert program.stored["train gradients"].values
    exact = onward.compile(model, split=True, sizes={"N": ROWS}, **options)
    assert 0 < error(found, gradients(exact, batch)[1]) <= 2 * ROUNDING["float16"]


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_other_backends_round_the_same(backend: str) -> None:
    if backend == "torch":
        pytest.importorskip("torch")
    proto, batch = NETWORKS["dropout"]()
    model = trainable(proto, onward.SGD(0.1))
    found = []
    for name in ("onnxruntime", backend):
        trainer = Trainer(model, name, store="float16")
        assert narrowed(trainer.program.entries["train"].step)
        found.append({"loss": np.array([trainer.step(batch)["loss"] for _ in range(3)]), **trainer.state})
    exact = Trainer(model)
    apart = {"loss": np.array([exact.step(batch)["loss"] for _ in range(3)]), **exact.state}
    difference = [max(float(np.abs(f[n] - found[0][n]).max()) for n in ("A", "B", "C")) for f in (found[1], apart)]
    assert difference[0] <= 1e-6 < difference[1]


def test_two_hundred_steps_on_digits_stay_close_to_the_exact_losses() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(n_class=4, return_X_y=True)
    x = np.repeat((images / 16).astype(np.float32).reshape(-1, 1, 8, 8), 3, axis=1)[:640].reshape(20, 32, 3, 8, 8)
    y = labels[:640].reshape(20, 32).astype(np.int64)
    proto, _ = NETWORKS["batch norm"]()
    losses = {}
    for dtype in (None, "float16", "bfloat16"):
        trainer = Trainer(trainable(proto, onward.SGD(0.05)), store=dtype)
        assert dtype is None or narrowed(trainer.program.entries["train"].step)
        steps = [trainer.step({"x": x[i % 20], "labels": y[i % 20]})["loss"] for i in range(200)]
        losses[dtype] = np.array(steps)
    assert losses[None][-20:].mean() < 0.5 * losses[None][:20].mean()
    assert 0 < np.abs(losses["float16"] - losses[None]).max() < 0.005
    assert 0 < np.abs(losses["bfloat16"] - losses[None]).max() < 0.03


def test_a_number_beyond_float16_is_an_error_that_says_so() -> None:
    proto, batch = NETWORKS["batch norm"]()
    batch = {**batch, "x": batch["x"] * 1e6}
    trainer = Trainer(trainable(proto), store="float16")
    with pytest.raises(NumericError, match="float16 ends at 65504") as caught:
        trainer.fit(batch["x"], batch["labels"], epochs=3, batch_size=ROWS, progress="none")
    assert "stored/" in str(caught.value)

    wide = Trainer(trainable(proto), store="bfloat16")
    for _ in range(3):
        wide.step(batch)

    assert all(np.isfinite(v).all() for v in wide.state.values())


def test_the_manifest_says_what_is_stored(tmp_path: Path) -> None:
    proto, _ = transformer()
    program = onward.compile(trainable(proto), store="bfloat16", sizes={"N": ROWS})
    program.save(tmp_path / "program")
    manifest = json.loads((tmp_path / "program" / "manifest.json").read_text())
    assert manifest["store"]["store"] == "bfloat16"
    assert manifest["store"]["stored"]["train step"]["values"] == len(narrowed(program.entries["train"].step))

    again = Program.load(tmp_path / "program")

    assert again.store == program.store
    assert again.stored == program.stored
    with pytest.raises(ArgumentError, match="the program was compiled with another `store`"):
        Trainer(again, store="float16", sizes={"N": ROWS})


def test_a_resumed_run_stores_too_and_is_equal_to_the_bit(tmp_path: Path) -> None:
    proto, batch = NETWORKS["dropout"]()
    model = trainable(proto)
    whole = Trainer(model, store="float16", threads=1)
    for _ in range(6):
        whole.step(batch)
    part = Trainer(model, store="float16", threads=1)
    for _ in range(3):
        part.step(batch)
    part.save_checkpoint(tmp_path)

    resumed = Trainer.resume(tmp_path)
    for _ in range(3):
        resumed.step(batch)

    assert resumed.program.store == part.program.store
    assert {n: v.tobytes() for n, v in resumed.state.items()} == {n: v.tobytes() for n, v in whole.state.items()}
    with pytest.raises(CheckpointError, match="compiled program"):
        Trainer.resume(tmp_path, store=None)


@pytest.mark.parametrize("asked", ["float8", "half", 16, True, ["float16"], ""])
def test_other_types_are_refused(asked: Any) -> None:
    with pytest.raises(ArgumentError, match="store"):
        read_store(asked)


def test_the_command_line_says_that_gradients_are_approximate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto, batch = NETWORKS["batch norm"]()
    onward.save(trainable(proto), tmp_path / "net.train.onnx")
    np.savez(tmp_path / "data.npz", x=batch["x"], labels=batch["labels"])
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(build_app(), list(arguments))
        return " ".join(done.output.split()) + str(done.exception)

    compiled = run("compile", "net.train.onnx", "--store", "float16", "--size", f"N={ROWS}", "-o", "program")
    told = run("train", "net.train.onnx", "--data", "data.npz", "--store", "bfloat16", "-b", str(ROWS))
    refused = run("train", "net.train.onnx", "--data", "data.npz", "--store", "float8")

    assert "in float16: about" in compiled
    assert "gradients are approximate" in compiled
    assert "note: train step keeps" in told
    assert "in bfloat16: about" in told
    assert "`float8`" in refused
    assert "bfloat16" in refused


MEASURED = """
import json, sys
import onward
from onward.backends import open_session
from test_recompute import trainable, transformer

def memory(field):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines[field].split()[0]) * 1024

proto, batch = transformer(layers=6, width=64, length=128, rows=16)
program = onward.compile(trainable(proto, onward.SGD(0.1)), store=json.loads(sys.argv[1]), sizes={"N": 16})
session = open_session(program, "onnxruntime", threads=1, fused=False)
session.step({"x": batch["x"][:1], "labels": batch["labels"][:1]})
before = memory("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
for _ in range(2):
    session.step(batch)
print(json.dumps([memory("VmHWM") - before, [[v.bytes_before, v.bytes_after] for v in program.stored.values()]]))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of a process is read on Linux")
def test_the_measured_memory_falls_as_the_estimate_does() -> None:
    def measure(dtype: str | None) -> tuple[int, list[list[int]]]:
        command = [sys.executable, "-c", MEASURED, json.dumps(dtype)]
        env = {**os.environ, "PYTHONPATH": str(Path(onward.__file__).parent.parent)}
        ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent, env=env)
        peak, estimates = json.loads(ran.stdout.splitlines()[-1])
        return peak, estimates

    plain, _ = measure(None)
    stored, ((before, after),) = measure("float16")

    assert stored < 0.8 * plain
    assert 0.5 < (plain - stored) / (before - after) < 2
