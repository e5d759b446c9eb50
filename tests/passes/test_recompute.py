"""Recomputation for the backward pass: the same numbers, less memory, and errors that say what is possible."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper

import onward
from onward.backends import open_session
from onward.compiler.program import PlainGraph, Program
from onward.errors import ArgumentError, CheckpointError
from onward.passes.cleanup import MergeEqualNodes
from onward.passes.recompute.lowering import PREFIX
from onward.passes.recompute.settings import read_recompute
from onward.train import Trainer

STEPS = 20
ROWS = 8
Network = tuple[onnx.ModelProto, dict[str, np.ndarray]]


def parsed(body: str, x: str, y: str, weights: dict[str, tuple[int, ...]], extra: dict[str, Any] | None = None) -> Any:
    """Return a network of drawn weights; `extra` are further initializers."""
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> net ({x}) => ({y}) {{ {body} }}')
    draw = np.random.default_rng(0)
    for name, shape in weights.items():
        scale = 1 / np.sqrt(np.prod(shape[1:]) or 1)
        proto.graph.initializer.append(numpy_helper.from_array((draw.normal(size=shape) * scale).astype("f"), name))
    for name, value in (extra or {}).items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return proto


def drawn(*shape: int, classes: int = 4) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(1)
    return {"x": draw.normal(size=shape).astype(np.float32), "labels": draw.integers(0, classes, shape[0])}


def transformer(layers: int = 2, width: int = 16, length: int = 12, rows: int = ROWS) -> Network:
    """Return a transformer encoder with one head: attention, LayerNormalization, two products with a Gelu between."""
    lines, weights = [], {}
    for i in range(layers):
        names = [f"{k}{i}" for k in ("q", "k", "v", "o")]
        weights |= {f"W{n}": (width, width) for n in names}
        weights |= {f"U{i}": (width, 4 * width), f"D{i}": (4 * width, width)}
        weights |= {f"s{i}": (width,), f"t{i}": (width,), f"e{i}": (width,), f"f{i}": (width,)}
        q, k, v, o = names
        lines += [
            f"{q} = MatMul(h{i}, W{q}) {k} = MatMul(h{i}, W{k}) {v} = MatMul(h{i}, W{v})",
            f"kt{i} = Transpose<perm = [0, 2, 1]>({k}) sc{i} = MatMul({q}, kt{i}) p{i} = Softmax<axis = -1>(sc{i})",
            f"at{i} = MatMul(p{i}, {v}) {o} = MatMul(at{i}, W{o}) r{i} = Add(h{i}, {o})",
            f"n{i} = LayerNormalization(r{i}, s{i}, t{i}) u{i} = MatMul(n{i}, U{i}) sg{i} = Sigmoid(u{i})",
            f"g{i} = Mul(u{i}, sg{i}) d{i} = MatMul(g{i}, D{i}) z{i} = Add(n{i}, d{i})",
            f"h{i + 1} = LayerNormalization(z{i}, e{i}, f{i})",
        ]
    weights["head"] = (width, 4)
    body = "h0 = Identity(x) " + " ".join(lines) + f" m = ReduceMean<keepdims = 0>(h{layers}, axes) y = MatMul(m, head)"
    proto = parsed(body, f"float[N, {length}, {width}] x", "float[N, 4] y", weights, {"axes": np.array([1])})
    return proto, drawn(rows, length, width)


def lenet() -> Network:
    body = """
        c = Conv<pads = [2, 2, 2, 2]>(x, K) a = Relu(c) p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(a)
        d = Conv(p, L) b = Relu(d) q = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(b)
        f = Flatten(q) g = Gemm(f, W, w) t = Tanh(g) y = Gemm(t, V, v)"""
    weights = {"K": (6, 1, 5, 5), "L": (16, 6, 5, 5), "W": (144, 32), "w": (32,), "V": (32, 4), "v": (4,)}
    return parsed(body, "float[N, 1, 16, 16] x", "float[N, 4] y", {**weights, "W": (64, 32)}), drawn(ROWS, 1, 16, 16)


def batch_norm() -> Network:
    body = ""
    weights: dict[str, tuple[int, ...]] = {"head": (8, 4)}
    extra: dict[str, Any] = {"axes": np.array([2, 3])}
    for i, channels in enumerate((3, 8, 8)):
        weights[f"K{i}"] = (8, channels, 3, 3)
        extra |= {f"s{i}": np.ones(8, "f"), f"b{i}": np.zeros(8, "f")}
        extra |= {f"mean{i}": np.zeros(8, "f"), f"var{i}": np.ones(8, "f")}
        body += f"c{i} = Conv<pads = [1, 1, 1, 1]>({'x' if i == 0 else f'r{i - 1}'}, K{i}) "
        body += f"n{i} = BatchNormalization(c{i}, s{i}, b{i}, mean{i}, var{i}) r{i} = Relu(n{i}) "
    body += "m = ReduceMean<keepdims = 0>(r2, axes) y = MatMul(m, head)"
    return parsed(body, "float[N, 3, 8, 8] x", "float[N, 4] y", weights, extra), drawn(ROWS, 3, 8, 8)


def dropout() -> Network:
    body = """
        a = MatMul(x, A) b = Sigmoid(a) c = Dropout(b, ratio)
        d = MatMul(c, B) e = Tanh(d) f = Dropout(e, ratio) y = MatMul(f, C)"""
    weights = {"A": (8, 64), "B": (64, 64), "C": (64, 4)}
    proto = parsed(body, "float[N, 8] x", "float[N, 4] y", weights, {"ratio": np.float32(0.5)})
    return proto, drawn(ROWS, 8)


def lstm() -> Network:
    """Return two recurrent layers, large enough that ONNX Runtime's backend keeps their gates."""
    body = """
        t = Transpose<perm = [1, 0, 2]>(x) i = Tanh(t) h, l = LSTM<hidden_size = 64>(i, W, R, B)
        s = Squeeze(h, one) g = Sigmoid(s) k, last = LSTM<hidden_size = 64>(g, W2, R2, B2)
        u = Squeeze(last, zero) y = MatMul(u, head)"""
    weights = {"W": (1, 256, 8), "R": (1, 256, 64), "B": (1, 512), "head": (64, 4)}
    weights |= {"W2": (1, 256, 64), "R2": (1, 256, 64), "B2": (1, 512)}
    axes = {"one": np.array([1]), "zero": np.array([0])}
    return parsed(body, "float[N, 5, 8] x", "float[N, 4] y", weights, axes), drawn(ROWS, 5, 8)


NETWORKS: dict[str, Callable[[], Network]] = {
    "transformer": transformer, "lenet": lenet, "batch norm": batch_norm, "dropout": dropout, "lstm": lstm,
}  # fmt: skip


def trainable(proto: onnx.ModelProto, optimizer: Any = None) -> Any:
    return onward.make_trainable(proto, loss="cross_entropy", optimizer=optimizer or onward.Adam(1e-2))


def trained(program: Program, batch: dict[str, np.ndarray], steps: int = STEPS, **options: Any) -> Any:
    """Return the losses and the state after some steps on ONNX Runtime."""
    # Native kernels replace other nodes where convolutions are computed twice, and sum in another order.
    session = open_session(program, "onnxruntime", threads=1, fused=False, **{"native": False, **options})
    losses = [session.step(batch)["loss"] for _ in range(steps)]
    return {"losses": np.array(losses), **session.get_state()}


def difference(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    assert found.keys() == expected.keys()
    return max(float(np.max(np.abs(found[n].astype("d") - expected[n].astype("d")), initial=0)) for n in expected)


def copies(graph: PlainGraph) -> list[ir.Node]:
    return [n for n in graph.model.graph if (n.outputs[0].name or "").startswith(PREFIX)]


@pytest.mark.parametrize("asked", ["auto", "*"])
@pytest.mark.parametrize("name", NETWORKS)
def test_twenty_steps_give_the_same_losses_and_state(name: str, asked: str) -> None:
    proto, batch = NETWORKS[name]()
    model = trainable(proto)
    program = onward.compile(model, recompute=asked, sizes={"N": ROWS})

    expected = trained(onward.compile(model), batch)

    assert expected["losses"][-1] < expected["losses"][0]
    found = trained(program, batch)
    if name == "batch norm" and asked == "*":
        # The statistics of a layer whose input is computed twice are summed in another order.
        assert difference(found, expected) <= 2e-6
        assert abs(found["losses"] - expected["losses"]).max() <= 1e-6
    else:
        assert {n: v.tobytes() for n, v in found.items()} == {n: v.tobytes() for n, v in expected.items()}
    if asked == "*":
        assert program.estimates["train step"].nodes == len(copies(program.entries["train"].step)) - barriers(program)
        assert program.estimates["train step"].nodes > 0


@pytest.mark.parametrize("asked", ["auto", "*", ["n0", "h1"], ["n*", "u*"]])
def test_native_kernels_compute_both_copies_of_a_normalisation(asked: Any) -> None:
    """A copy that rounds in another way has another sign where the input of a Relu is almost 0."""
    proto, batch = transformer()
    for node in proto.graph.node:  # u * sigmoid(u) becomes relu(u) * relu(u): a bend
        if node.op_type == "Sigmoid":
            node.op_type = "Relu"
    model = trainable(proto)
    plain, again = onward.compile(model), onward.compile(model, recompute=asked, sizes={"N": ROWS})
    assert copies(again.entries["train"].step)

    expected, found = (trained(p, batch, native=None) for p in (plain, again))

    assert {n: v.tobytes() for n, v in found.items()} == {n: v.tobytes() for n, v in expected.items()}


def barriers(program: Program) -> int:
    """Return how many of the added nodes only set a value apart: a Reshape and its shape."""
    added = copies(program.entries["train"].step)
    shapes = [n for n in added if n.op_type == "Constant"]
    return len(shapes) + sum(
        1 for n in added if n.op_type == "Reshape" and n.inputs[1] in {s.outputs[0] for s in shapes}
    )


def test_running_statistics_are_updated_once() -> None:
    proto, batch = batch_norm()
    model = trainable(proto)
    program = onward.compile(model, recompute="*", sizes={"N": ROWS})
    assert any(n.op_type == "BatchNormalization" for n in copies(program.entries["train"].step))

    found, expected = (trained(p, batch, steps=1) for p in (program, onward.compile(model)))

    for statistic in ("mean0", "var0", "mean2", "var2"):
        np.testing.assert_allclose(found[statistic], expected[statistic], rtol=1e-6, atol=1e-8)
        assert not np.array_equal(expected[statistic], np.zeros(8) if "mean" in statistic else np.ones(8))


def test_a_wrong_copy_changes_the_numbers() -> None:
    """The comparison sees another mask of Dropout, and a value that is wrong by 0.1 %."""
    proto, batch = dropout()
    model = trainable(proto)
    expected = trained(onward.compile(model), batch, steps=3)
    for kind in ("mask", "value"):
        program = onward.compile(model, recompute="*", sizes={"N": ROWS})
        graph = program.entries["train"].step.model.graph
        values = {v.name: v for n in graph for v in n.outputs}
        copy = values["again/train/c"].producer()
        assert copy is not None
        if kind == "mask":
            place = next(i for i, v in enumerate(copy.inputs) if v is not None and "Dropout/" in (v.name or ""))
            copy.replace_input_with(place, values["train/Dropout_2/Mul_9:out"])
        else:
            factor = ir.Node("", "Constant", [], [ir.AttrFloat32("value_float", 1.001)], num_outputs=1, name="factor")
            wrong = ir.Node("", "Mul", [copy.inputs[0], factor.outputs[0]], num_outputs=1, name="wrong")
            factor.outputs[0].name, wrong.outputs[0].name = "factor", "wrong"
            graph.insert_before(copy, [factor, wrong])
            copy.replace_input_with(0, wrong.outputs[0])

        assert difference(trained(program, batch, steps=3), expected) > 1e-6, kind


def test_masks_are_kept_and_not_drawn_again() -> None:
    proto, _ = dropout()
    added = copies(onward.compile(trainable(proto), recompute="*", sizes={"N": ROWS}).entries["train"].step)
    assert {n.op_type for n in added} >= {"Sigmoid", "Tanh"}
    assert not {n.op_type for n in added} & {"Less", "BitwiseXor", "BitwiseAnd", "Range"}


@pytest.mark.parametrize("level", ["ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
def test_a_stock_onnx_runtime_does_not_merge_the_copies(level: str, tmp_path: Path) -> None:
    proto, _ = transformer()
    model = trainable(proto)
    counts = {}
    for asked in (None, "auto"):
        program = onward.compile(model, recompute=asked, sizes={"N": ROWS})
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        options.add_free_dimension_override_by_name("N", ROWS)
        options.log_severity_level = 4
        onnxruntime.InferenceSession(program.step.SerializeToString(), options, providers=["CPUExecutionProvider"])
        kinds = [n.op_type for n in onnx.load(tmp_path / "optimized.onnx").graph.node]
        counts[asked] = kinds.count("Softmax")

    assert counts == {None: 2, "auto": 3}  # that of the last layer is used at once


def test_our_own_merging_does_not_merge_the_copies() -> None:
    proto, _ = transformer()
    program = onward.compile(trainable(proto), recompute="auto", sizes={"N": ROWS})
    from onward.model.training_model import TrainingModel
    from onward.passes.base import NO_GRADIENTS, STATE_AS_INPUTS, Unit

    unit = Unit(TrainingModel(program.entries["train"].step.copy_model()), facts={NO_GRADIENTS, STATE_AS_INPUTS})

    MergeEqualNodes()(unit)

    assert sum(n.op_type == "Softmax" for n in unit.graph) == 3


def test_copies_run_right_before_the_backward_pass_needs_them() -> None:
    """In the file; ONNX Runtime's order is measured by the memory test."""
    proto, _ = transformer(layers=3)
    program = onward.compile(trainable(proto), recompute=["sc*", "p*"], sizes={"N": ROWS})
    graph, added = program.entries["train"].step.model.graph, copies(program.entries["train"].step)
    place = {node: i for i, node in enumerate(graph)}
    loss = next(place[n] for n in graph if any(v.name == "loss" for v in n.outputs))

    assert all(place[n] > loss for n in added)
    first = min(place[u.node] for n in added if n.op_type == "Softmax" for u in n.outputs[0].uses())
    last = max(place[n] for n in added if n.op_type == "Softmax")
    assert first < last  # the copies of one layer do not wait for those of another


def test_less_is_estimated_and_a_budget_is_kept() -> None:
    proto, _ = transformer(layers=6, width=32, length=64)
    model = trainable(proto, onward.SGD(0.1))
    found = {}
    for asked in ("auto", "1GB"):
        found[asked] = onward.compile(model, recompute=asked, sizes={"N": 16}).estimates["train step"]
    everything = found["1GB"].bytes_before
    assert found["1GB"].nodes == 0
    assert found["1GB"].bytes_after == everything
    assert found["auto"].bytes_after < 0.9 * everything
    costs = [found["auto"].extra_time]
    for share in (0.8, 0.6, 0.45):
        estimate = onward.compile(model, recompute=int(share * everything), sizes={"N": 16}).estimates["train step"]
        assert estimate.bytes_after <= share * everything
        costs.append(estimate.extra_time)
    assert costs[1] <= costs[2] <= costs[3] < 0.6  # at most the forward pass again


def test_a_budget_that_cannot_be_reached_says_the_smallest() -> None:
    proto, _ = transformer()
    model = trainable(proto)
    with pytest.raises(ArgumentError) as caught:
        onward.compile(model, recompute="10kB", sizes={"N": ROWS})
    text = str(caught.value)
    assert "a step does not fit into 10.0 kB, whatever is recomputed" in text
    smallest = text.split("a budget from ")[1].split(" on")[0]
    number, unit = smallest.split()
    program = onward.compile(model, recompute=f"{float(number) + 0.1:.1f}{unit}", sizes={"N": ROWS})
    assert program.estimates["train step"].bytes_after < program.estimates["train step"].bytes_before


def test_a_budget_needs_the_sizes_of_the_batch() -> None:
    proto, _ = transformer()
    with pytest.raises(ArgumentError, match=r"a budget of memory needs the sizes of the batch") as caught:
        onward.compile(trainable(proto), recompute="2GB")
    assert "free sizes: `N`" in str(caught.value)
    assert "sizes={'N': 32}" in str(caught.value)


def test_patterns_choose_layers_by_value_and_weight() -> None:
    proto, _ = transformer()
    model = trainable(proto)

    found = {
        pattern: {
            v.name
            for n in copies(onward.compile(model, recompute=list(pattern)).entries["train"].step)
            for v in n.outputs
        }
        for pattern in (("sc0", "p0"), ("sg1",), ("U0", "sg0", "g0"))
    }

    assert {n for n in found["sc0", "p0"] if "Reshape" not in n and "Constant" not in n} == {"again/sc0", "again/p0"}
    assert "again/sg1" in found["sg1",]
    assert "again/u0" in found["U0", "sg0", "g0"]


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    proto, _ = transformer()
    with pytest.raises(
        ArgumentError, match=r"`ssc0` matches no node, value, weight or module of the forward pass"
    ) as e:
        onward.compile(trainable(proto), recompute=["ssc0"])
    assert "did you mean `sc0`" in str(e.value)


@pytest.mark.parametrize("asked", [True, 0, [], [3], 1.5])
def test_other_arguments_are_refused(asked: Any) -> None:
    with pytest.raises(ArgumentError, match="recompute"):
        read_recompute(asked)


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="a size is a whole number from 1 on"):
        read_recompute("auto", {"N": 0})


def test_bodies_and_recurrent_layers_run_once() -> None:
    proto, _ = lstm()
    program = onward.compile(trainable(proto), recompute="*", sizes={"N": ROWS})
    assert not {n.op_type for n in copies(program.entries["train"].step)} & {"LSTM", "Scan", "Loop", "If"}


@pytest.mark.parametrize("options", [{"profile": "portable"}, {"core": True}, {"split": True}], ids=str)
def test_it_goes_with_the_other_ways_to_compile(options: dict[str, Any]) -> None:
    proto, batch = transformer()
    model = trainable(proto)
    program = onward.compile(model, recompute="auto", sizes={"N": ROWS}, **options)
    if "split" in options:
        assert set(program.estimates) == {"train step", "train gradients"}
    assert copies(program.entries["train"].step)

    assert difference(trained(program, batch, 3), trained(onward.compile(model, **options), batch, 3)) <= 1e-6


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_other_backends_give_the_same_numbers(backend: str) -> None:
    if backend == "torch":
        pytest.importorskip("torch")
    proto, batch = dropout()
    model = trainable(proto)
    found = []
    for asked in (None, "*"):
        options = {"gradients": "graph"} if backend == "torch" and asked is None else {}
        trainer = Trainer(model, backend, recompute=asked, **options)
        found.append({"loss": np.array([trainer.step(batch)["loss"] for _ in range(3)]), **trainer.state})
    assert difference(found[1], found[0]) <= 1e-7


def test_the_manifest_says_what_is_recomputed(tmp_path: Path) -> None:
    proto, _ = transformer()
    program = onward.compile(trainable(proto), recompute="auto", sizes={"N": ROWS})
    program.save(tmp_path / "program")
    manifest = json.loads((tmp_path / "program" / "manifest.json").read_text())
    assert manifest["recompute"]["recompute"] == "auto"
    assert manifest["recompute"]["sizes"] == {"N": ROWS}
    estimate = manifest["recompute"]["estimates"]["train step"]
    assert estimate["bytes_after"] < estimate["bytes_before"]

    again = Program.load(tmp_path / "program")

    assert again.recompute == program.recompute
    assert copies(again.entries["train"].step)
    with pytest.raises(ArgumentError, match="the program was compiled with another `recompute`"):
        Trainer(again, recompute="2GB", sizes={"N": ROWS})


def test_a_resumed_run_recomputes_too_and_is_equal_to_the_bit(tmp_path: Path) -> None:
    proto, batch = dropout()
    model = trainable(proto)
    whole = Trainer(model, recompute="*", threads=1)
    for _ in range(6):
        whole.step(batch)
    part = Trainer(model, recompute="*", threads=1)
    for _ in range(3):
        part.step(batch)
    part.save_checkpoint(tmp_path)

    resumed = Trainer.resume(tmp_path)
    for _ in range(3):
        resumed.step(batch)

    assert resumed.program.recompute == part.program.recompute
    assert {n: v.tobytes() for n, v in resumed.state.items()} == {n: v.tobytes() for n, v in whole.state.items()}
    with pytest.raises(CheckpointError, match="compiled program"):
        Trainer.resume(tmp_path, recompute=None)
    other = Trainer.resume(tmp_path, recompute=None, allow_changes=True)
    for _ in range(3):
        other.step(batch)
    assert difference(other.state, whole.state) <= 1e-6


MEASURED = """
import json, sys
import onward
from onward.backends import open_session
from test_recompute import drawn, trainable, transformer

def memory(field):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines[field].split()[0]) * 1024

proto, batch = transformer(layers=8, width=64, length=128, rows=24)
asked = json.loads(sys.argv[1])
program = onward.compile(trainable(proto, onward.SGD(0.1)), recompute=asked, sizes={"N": 24})
session = open_session(program, "onnxruntime", threads=1, fused=False)
session.step({"x": batch["x"][:1], "labels": batch["labels"][:1]})
before = memory("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
for _ in range(2):
    session.step(batch)
print(json.dumps([memory("VmHWM") - before, [v.bytes_after for v in program.estimates.values()]]))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of a process is read on Linux")
def test_the_measured_memory_falls_as_the_estimate_does() -> None:
    def measure(asked: Any) -> tuple[int, list[int]]:
        command = [sys.executable, "-c", MEASURED, json.dumps(asked)]
        env = {**os.environ, "PYTHONPATH": str(Path(onward.__file__).parent.parent)}
        ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent, env=env)
        peak, estimates = json.loads(ran.stdout.splitlines()[-1])
        return peak, estimates

    plain, (estimate,) = measure(10**12)
    cheap, (cheap_estimate,) = measure("auto")
    middle, (middle_estimate,) = measure(estimate // 2)

    assert cheap_estimate < estimate
    assert middle_estimate <= estimate // 2
    assert max(cheap, middle) < 0.8 * plain
    assert 0.5 < (plain - cheap) / (estimate - cheap_estimate) < 2
