"""`Trainer.profile` and `onward profile`: times that add up, layers with their backward, operations that are right."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onward
from onward.backends.measurement import Layer, Measurement, OperatorTime
from onward.backends.onnxruntime.measure import _runs, operations
from onward.backends.onnxruntime.native import library
from onward.backends.onnxruntime.profiler_cost import INSIDE, ProfilerCost
from onward.errors import ArgumentError
from onward.train.profile import Profile
from onward.train.profile_page import step_box


@pytest.fixture(scope="module")
def profiled() -> Profile:
    trainer = onward.Trainer(onward.samples.mnist(), threads=1)
    before = trainer.state

    found = trainer.profile(batch_size=8, steps=4)

    assert all(np.array_equal(before[name], value) for name, value in trainer.state.items())
    assert trainer.steps == 0
    return found


@pytest.mark.parametrize("name", ["linear", "mnist"])
def test_the_phases_add_up_to_the_step_and_the_layers_to_forward_and_backward(name: str) -> None:
    """The layers of the sample `linear` took 123 % of its step: ONNX Runtime's profiler costs more than they do."""
    found = onward.Trainer(onward.samples.build(name), threads=1).profile(batch_size=8, steps=6)

    phases = {p.name: p.seconds for p in found.phases}
    assert {"feeding", "forward", "backward", "update", "session"} <= set(phases)
    assert sum(phases.values()) == pytest.approx(found.step_seconds[1], rel=1e-9)
    assert sum(p.share for p in found.phases) == pytest.approx(1.0, rel=1e-9)
    assert sum(e.forward for e in found.layers) == pytest.approx(phases["forward"], rel=1e-9)
    assert sum(e.backward for e in found.layers) == pytest.approx(phases["backward"], rel=1e-9)


def test_the_session_s_own_work_is_a_part_of_the_step() -> None:
    """The step of the sample `linear` was said to take 12 µs, which is half of what it takes."""
    trainer = onward.Trainer(onward.samples.linear(), threads=1)
    feeds = {"X": np.ones((32, 1), np.float32), "labels": np.ones((32, 1), np.float32)}

    found = trainer.profile(feeds["X"], feeds["labels"], batch_size=32, steps=100)
    times = []
    for _ in range(100):
        began = time.perf_counter()
        trainer.session.step(feeds)
        times.append(time.perf_counter() - began)

    assert found.step_seconds[1] > 0.7 * min(times)


def test_what_the_profiler_costs_is_taken_off_and_said() -> None:
    event = {"dur": 12, INSIDE: 2}

    assert ProfilerCost(2e-6, 4e-6).without(event) == pytest.approx(2e-6)
    assert ProfilerCost(2e-6, 4e-6).without({"dur": 1}) == 0.0

    found = onward.Trainer(onward.samples.linear(), threads=1).profile(steps=2)
    assert found.measured.profiler is not None
    taken = found.measured.profiler.seconds_per_operator
    assert 0 < taken < 1e-3
    assert f"its cost is taken off: {taken * 1e6:.1f} µs for each of {len(found.operators)}" in found.to_html()
    assert found.to_dict()["profiler"]["seconds_per_operator"] == taken
    assert "its cost is taken off" in found.to_trace()["otherData"]["operators"]


def test_operators_inside_of_others_are_counted_there() -> None:
    def event(name: str, start: int, seconds: int) -> dict[str, Any]:
        return {"cat": "Node", "name": name, "ts": start, "dur": seconds, "args": {"op_name": name}}

    events = [event("Loop", 0, 9), event("Add", 1, 2), event("Mul", 4, 2), event("Neg", 9, 1)]
    (run,) = _runs([*events, {"name": "model_run", "ts": 0, "dur": 12}])

    assert [(e["name"], e[INSIDE]) for e in run] == [("Loop", 2), ("Neg", 0)]


def measured(graph: float) -> Profile:
    times = [
        OperatorTime("Neg", n, phase, n, at, 2.0) for n, phase, at in (("a", "forward", 1.0), ("b", "update", 5.0))
    ]
    phases = {"feeding": [1.0, 1.0], "graph": [graph, graph]}
    return Profile("m", "b", {"x": (1,)}, Measurement(phases, tuple(times)), data=[3.0])


def test_operators_are_fitted_into_the_graph_where_other_steps_were_faster() -> None:
    short, long = measured(graph=2.0), measured(graph=10.0)

    assert [(o.start, o.seconds) for o in short.operators] == [(0.0, 1.0), (1.0, 1.0)]
    assert [(o.start, o.seconds) for o in long.operators] == [(0.0, 2.0), (8.0, 2.0)]  # one pause, which is left
    assert {p.name: p.seconds for p in short.phases} == {"data": 3.0, "feeding": 1.0, "forward": 1.0, "update": 1.0}
    assert {p.name: p.seconds for p in long.phases}["between operators"] == 6.0


def test_steps_of_very_different_times_give_a_warning() -> None:
    steady = Profile("m", "b", {"x": (1,)}, Measurement({"graph": [1.0, 1.1, 1.2, 1.3, 9.0]}))
    disturbed = Profile("m", "b", {"x": (1,)}, Measurement({"graph": [1.0, 1.1, 1.2, 8.0, 9.0]}))

    assert not steady.warning
    assert "Careful" not in steady.to_html()
    assert "far apart, probably because other programs use the machine" in disturbed.to_html()


def test_kinds_of_operators_are_counted_over_layers_and_phases() -> None:
    (kind,) = measured(graph=10.0).kinds

    assert (kind.operator, kind.calls, kind.seconds, kind.share) == ("Neg", 2, 4.0, 4 / 11)


def test_the_trace_is_as_long_as_the_step_and_has_the_data_beside_it() -> None:
    events = [e for e in measured(graph=10.0).to_trace()["traceEvents"] if e["ph"] == "X"]

    assert [(e["tid"], e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in events if e["tid"] != 2] == [
        (3, "data", 0.0, 3.0),
        (1, "feeding", 0.0, 1.0),
        (1, "graph", 1.0, 10.0),
        (1, "forward", 1.0, 2.0),
        (1, "update", 9.0, 2.0),
    ]


def test_each_layer_has_its_forward_and_its_backward(profiled: Profile) -> None:
    layers = {layer.name: layer for layer in profiled.layers}

    for name in ("conv1", "conv2", "fc1", "fc2", "fc3"):
        assert layers[name].forward > 0, name
        assert layers[name].backward > 0, name
    assert layers["loss/SoftmaxCrossEntropyLoss"].forward > 0
    assert "(other)" not in layers


def test_a_layer_counts_the_operations_of_its_products(profiled: Profile) -> None:
    fc2 = next(layer for layer in profiled.layers if layer.name == "fc2")

    # Forward, with respect to its input, and with respect to its weights: 2 · batch · 120 · 84 each.
    # Without native kernels, the gradient of the bias is a product with ones, too.
    bias = 2 * 8 * 84 if library.compiler() is None else 0
    assert fc2.operations == 3 * 2 * 8 * 120 * 84 + bias


def free_image() -> onward.TrainingModel:
    text = """<ir_version: 8, opset_import: ["" : 18]> net (float[N, 1, H, W] x) => (float[N, 4] y) {
        c = Conv<pads = [1, 1, 1, 1]>(x, K) g = GlobalAveragePool(c) y = Flatten(g) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.full((4, 1, 3, 3), 0.1, np.float32), "K"))
    return onward.make_trainable(proto, loss="cross_entropy")


def test_free_sizes_of_the_made_up_batch_may_be_given() -> None:
    trainer = onward.Trainer(free_image(), threads=1)

    found = trainer.profile(batch_size=3, steps=1, sizes={"H": 20, "W": 30})

    assert found.batch["x"] == (3, 1, 20, 30)
    with pytest.raises(ArgumentError, match=r"(?s)no such free size `D`.*sizes=.*one of: H, N, W"):
        trainer.profile(sizes={"D": 5})
    with pytest.raises(ArgumentError, match=r"sizes\['H'\]"):
        trainer.profile(sizes={"H": 2.5})
    with pytest.raises(ArgumentError, match="and data as well"):
        trainer.profile(np.zeros((4, 1, 5, 5), np.float32), np.zeros(4, np.int64), sizes={"H": 5})


def test_the_command_says_that_free_sizes_were_small(tmp_path: Path) -> None:
    onward.save(free_image(), tmp_path / "net.train.onnx")
    command = [sys.executable, "-m", "onward", "profile", "net.train.onnx", "--steps", "1", "--size", "H=24"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert "x 32×1×24×" in done.stdout
    assert "free sizes were small: W; give them (--size 'W=64') or --data" in done.stdout


def test_the_batch_may_be_given() -> None:
    trainer = onward.Trainer(onward.samples.digits(), threads=1)
    shape = [d if isinstance(d, int) else 40 for d in trainer.program.inputs[0].shape]

    found = trainer.profile(np.zeros(shape, np.float32), np.zeros(40, np.int64), batch_size=16, steps=2)

    assert found.samples == 16
    assert found.phases[0].name == "data"


@pytest.mark.parametrize(
    ("operator", "inputs", "outputs", "expected"),
    [
        ("Conv", [(2, 6, 9, 9), (4, 3, 3, 3)], [(2, 4, 7, 7)], 2 * (2 * 4 * 7 * 7) * 3 * 3 * 3),
        ("ConvTranspose", [(2, 4, 7, 7), (4, 3, 3, 3)], [(2, 3, 9, 9)], 2 * (2 * 4 * 7 * 7) * 3 * 3 * 3),
        ("MatMul", [(5, 2, 3), (3, 4)], [(5, 2, 4)], 2 * 5 * 2 * 3 * 4),
        ("MatMul", [(3,), (3, 4)], [(4,)], 2 * 3 * 4),
        ("FusedMatMul", [(5, 3, 2), (5, 3, 4)], [(5, 2, 4)], 2 * 5 * 2 * 3 * 4),
        ("LSTM", [(7, 2, 3), (1, 16, 3), (1, 16, 4)], [(7, 1, 2, 4)], 2 * 7 * 2 * (16 * 3 + 16 * 4)),
        ("Relu", [(5,)], [(5,)], 0),
    ],
)
def test_operations(
    operator: str, inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]], expected: int
) -> None:
    assert operations(operator, inputs, outputs) == expected


def test_a_backend_that_times_no_operators_gives_the_whole_step() -> None:
    found = onward.Trainer(onward.samples.linear(), backend="reference").profile(batch_size=4, steps=2)

    assert [p.name for p in found.phases] == ["graph"]
    assert found.layers == ()
    assert "flame" in found.to_html()


def test_a_model_that_takes_text_gives_the_whole_step() -> None:
    text = """<ir_version: 9, opset_import: ["": 19]> net (string[N, 2] x) => (float[N, 1] y) {
        a = Constant <value_string = "a"> ()  b = Equal(x, a)  c = Cast <to = 1> (b)  y = MatMul(c, W) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((2, 1), np.float32), "W"))
    trainer = onward.Trainer(onward.make_trainable(proto, loss="mse", optimizer=onward.SGD(0.1)), threads=1)

    found = trainer.profile(np.array([["a", "b"]] * 4, object), np.zeros((4, 1), np.float32), batch_size=4, steps=2)

    assert [p.name for p in found.phases] == ["data", "graph"]
    with pytest.raises(ArgumentError, match="no batch for the profile can be made up"):
        trainer.profile()


def test_parts_of_the_model_hold_their_layers_in_the_flame_chart() -> None:
    times = [OperatorTime("Conv", n, phase, n, 0.0, 1.0) for phase in ("forward", "backward") for n in ("a", "b", "c")]
    layers = (Layer("a", "Conv", ("block 1",)), Layer("b", "Conv", ("block 1",)), Layer("c", "Conv", ("block 2",)))
    profile = Profile("m", "b", {"x": (1,)}, Measurement({"graph": [6.0, 6.0]}, tuple(times), layers))

    forward = step_box(profile).inside[0]

    assert [(box.title, box.seconds) for box in forward.inside] == [("block 1", 2.0), ("block 2", 1.0)]
    assert [box.title for box in forward.inside[0].inside] == ["a", "b"]


def test_the_trace_holds_every_operator_in_order(profiled: Profile) -> None:
    events = [e for e in profiled.to_trace()["traceEvents"] if e["ph"] == "X" and e["tid"] == 2]

    assert len(events) == len(profiled.measured.operators)
    assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)


def test_a_profile_is_written_by_the_ending_of_its_name(profiled: Profile, tmp_path: Path) -> None:
    page = profiled.save(tmp_path / "p.html").read_text("utf-8")
    numbers = json.loads(profiled.save(tmp_path / "p.json").read_text("utf-8"))
    trace = json.loads(profiled.save(tmp_path / "p.trace.json").read_text("utf-8"))

    assert "conv1" in page
    assert "<script" not in page
    assert numbers["layers"][0]["name"] == "conv1"
    assert trace["traceEvents"]
    with pytest.raises(ArgumentError, match="a name in .html"):
        profiled.save(tmp_path / "p.txt")


def test_a_model_without_training_information_is_refused() -> None:
    model = onward.to_inference(onward.samples.linear())

    with pytest.raises(ArgumentError, match="has no training entry"):
        onward.Trainer(model).profile()


def test_the_command_prints_phases_and_layers(tmp_path: Path) -> None:
    onward.save(onward.samples.mnist(), tmp_path / "m.onnx")
    page = tmp_path / "p.html"
    command = [sys.executable, "-m", "onward", "profile", str(tmp_path / "m.onnx"), "-b", "4", "--steps", "2"]

    result = subprocess.run([*command, "--html", str(page)], capture_output=True, text=True, check=False)
    kinds = subprocess.run([*command, "--operators"], capture_output=True, text=True, check=True).stdout

    assert result.returncode == 0, result.stderr
    assert "backward" in result.stdout
    assert "conv2" in result.stdout
    assert "calls" in kinds
    assert "conv2" not in kinds
    assert page.is_file()


def test_the_command_refuses_wrong_names_before_it_measures(tmp_path: Path) -> None:
    onward.save(onward.samples.linear(), tmp_path / "m.onnx")
    command = [sys.executable, "-m", "onward", "profile", str(tmp_path / "m.onnx"), "--trace", "step.json"]

    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert result.returncode == 1
    assert "--trace is `step.json`" in result.stderr
