"""`tune=`: forms by measurement, kept on disk, written into the manifest, and the same after a resume."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import onward
from onward import runtime
from onward.autodiff.forms import Forms, answering
from onward.cli import build_app
from onward.compiler import tuning
from onward.compiler.tuning import Tuned, Tuner
from onward.errors import ArgumentError
from onward.runtime import BusyWatch, Timed
from onward.train.weights import weighted_program


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the cache for each test, and a short measurement."""
    monkeypatch.setenv("ONWARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "_LEAST_ROUNDS", 1)
    monkeypatch.setattr(tuning, "_ROUNDS", 2)
    monkeypatch.setattr(BusyWatch, "others", lambda self: 0.0)  # whatever else the machine does
    return tmp_path / "cache" / "tuning"


def network(size: int | str = 8) -> onward.TrainingModel:
    """Return a small network with a convolution, a pool and a dense layer."""
    rng = np.random.default_rng(0)
    weights = {"W": (4, 2, 3, 3), "V": (4, 4, 1, 1), "D": (4, 3)}
    nodes = [
        helper.make_node("Conv", ["x", "W"], ["a"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["c", "V"], ["d"], kernel_shape=[1, 1]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("MatMul", ["f", "D"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return onward.make_trainable(proto, loss="cross_entropy", optimizer=onward.Adam(1e-2))


def fake_times(monkeypatch: pytest.MonkeyPatch, fast: set[str]) -> list[str]:
    """Let every form in `fast` take half the time of all others; return the list of what is measured."""
    measured: list[str] = []

    def measure(self: Tuner, question: Any, sizes: Any) -> Any:
        measured.append(question.key)
        return {f: (0.5, 0.5) if f in fast else (1.0, 1.0) for f in question.forms}, 0.0

    monkeypatch.setattr(Tuner, "_measure", measure)
    return measured


FAST = {"compare", "taps", "product", "image-flat"}


def batch(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((24, 2, 8, 8)).astype(np.float32), rng.integers(0, 3, 24)


# -- compile -------------------------------------------------------------------------------------------------


def test_the_forms_are_measured_and_written_down(cache: Path, tmp_path: Path) -> None:
    tuner = Tuner(4)

    program = onward.compile(network(), tune=tuner)

    assert {t.question.key.split(":")[0] for t in tuner.found} == {"Conv dW", "Conv dX", "MaxPool dX"}
    assert all(t.seconds[t.question.usual] > 0 and not t.reason for t in tuner.found)
    assert program.choices == {t.question.key: t.form for t in tuner.found}
    assert len(list(cache.iterdir())) == len(tuner.found) == 4
    program.save(tmp_path / "program")
    assert onward.Program.load(tmp_path / "program").choices == program.choices


def test_without_tune_nothing_is_measured_and_nothing_written(cache: Path, tmp_path: Path) -> None:
    program = onward.compile(network())
    program.save(tmp_path / "program")

    assert program.choices == {}
    assert "choices" not in json.loads((tmp_path / "program" / "manifest.json").read_text())
    assert not cache.exists()


def test_the_fastest_form_is_taken_and_the_loss_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = onward.compile(network())
    fake_times(monkeypatch, FAST)

    tuned = onward.compile(network(), tune=True)

    assert set(tuned.choices.values()) == FAST
    assert tuned.step != usual.step
    x, labels = batch()
    losses = [onward.Trainer(p).fit(x, labels, epochs=3, batch_size=8, progress="none") for p in (usual, tuned)]
    first, second = (np.array([float(e["loss"]) for e in h.epochs]) for h in losses)
    np.testing.assert_allclose(second, first, rtol=1e-6)


def test_what_was_measured_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = fake_times(monkeypatch, FAST)
    first = onward.compile(network(), tune=True)
    assert len(measured) == 4

    second, tuner = onward.compile(network(), tune=(tuner := Tuner())), tuner

    assert len(measured) == 4
    assert all(t.kept for t in tuner.found)
    assert second.choices == first.choices
    assert second.step == first.step


@pytest.mark.parametrize("other", [{"batch": 64}, {"threads": 3}])
def test_other_sizes_and_threads_are_measured_for_themselves(monkeypatch: pytest.MonkeyPatch, other: Any) -> None:
    measured = fake_times(monkeypatch, set())
    onward.compile(network(), tune=Tuner(threads=1))

    onward.compile(network(), tune=Tuner(**{"threads": 1, **other}))

    assert len(measured) == 8


@pytest.mark.parametrize("damage", ["cut", "other bytes", "no JSON", "other words", "other forms"])
def test_a_damaged_file_is_made_again(cache: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    measured = fake_times(monkeypatch, FAST)
    first = onward.compile(network(), tune=True)
    for file in cache.iterdir():
        content = file.read_bytes()
        data = {
            "no JSON": b"{",
            "other words": b'{"seconds": 3}',
            "other forms": b'{"seconds": {"none of ours": [1, 1]}, "others": 0}',
        }.get(damage)
        whole = None if data is None else hashlib.sha256(data).digest() + data
        file.write_bytes(whole or (content[:20] if damage == "cut" else content[:-1] + b"X"))

    again = onward.compile(network(), tune=True)

    assert len(measured) == 8
    assert again.choices == first.choices


def test_a_form_with_other_numbers_is_never_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from onward.autodiff.rules import convolution

    right = convolution._by_tap
    monkeypatch.setattr(convolution, "_by_tap", lambda rule, *rest: rule.op.Mul(right(rule, *rest), 1.001))
    tuner = Tuner(4)

    onward.compile(network(), tune=tuner)

    by_kernel = next(t for t in tuner.found if "taps" in t.question.forms)
    assert "taps" not in by_kernel.seconds
    assert "textbook" in by_kernel.seconds


def test_a_form_that_does_not_run_is_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Timed.run
    calls: list[Any] = []

    def run(self: Timed) -> Any:
        if self not in calls:
            calls.append(self)
        if calls.index(self) == 1:  # the second form of the first gradient
            raise RuntimeError("no kernel")
        return right(self)

    monkeypatch.setattr(Timed, "run", run)
    tuner = Tuner(4)

    onward.compile(network(), tune=tuner)

    assert len(tuner.found[0].seconds) == len(tuner.found[0].question.forms) - 1


def test_a_size_that_nobody_knows_keeps_the_usual_form() -> None:
    tuner = Tuner(4)

    program = onward.compile(network("H"), tune=tuner)

    assert all(t.form == t.question.usual and "a size is not known" in t.reason for t in tuner.found)
    assert program.step == onward.compile(network("H")).step


def test_a_size_by_name() -> None:
    tuner = Tuner(4, sizes={"H": 8})

    onward.compile(network("H"), tune=tuner)

    first = next(t for t in tuner.found if t.question.key.startswith("Conv dW: float32[N, 2, H, H]"))
    assert first.sizes[0] == (4, 2, 8, 8)


@pytest.mark.parametrize(
    ("times", "disturbed", "form"),
    [
        ({"a": (1.0, 2.0), "b": (0.9, 1.8)}, False, "b"),
        ({"a": (1.0, 2.0), "b": (0.97, 1.8)}, False, "a"),
        ({"a": (1.0, 2.0), "b": (0.9, 1.8)}, True, "a"),
        ({"a": (1.0, 2.0), "b": (0.5, 1.9)}, True, "a"),
        ({"a": (1.0, 2.0), "b": (0.5, 1.0)}, True, "b"),
    ],
)
def test_a_gain_must_be_clear_and_beside_other_processes_clearer(times: Any, disturbed: bool, form: str) -> None:
    assert tuning._fastest(times, "a", disturbed) == form


def test_a_busy_machine_chooses_nothing_and_keeps_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BusyWatch, "others", lambda self: 0.9)
    tuner = Tuner(4)

    program = onward.compile(network(), tune=tuner)

    assert program.step == onward.compile(network()).step
    assert all(t.reason.startswith("other processes used 90% of the cores") for t in tuner.found)
    assert not cache.exists()
    assert "other processes disturbed 4 of the measurements" in tuner.described()


def test_the_watch_sees_what_others_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(runtime, "_busy_seconds", iter([10.0, 10.0 + 1.0]).__next__)
    monkeypatch.setattr(runtime.time, "perf_counter", iter([0.0, 1.0]).__next__)
    monkeypatch.setattr(runtime.time, "process_time", iter([0.0, 0.5]).__next__)
    monkeypatch.setattr(runtime.os, "cpu_count", lambda: 2)

    assert BusyWatch().others() == 0.25


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tune": "yes"}, "tune is 'yes'.*True, or the number of samples"),
        ({"tune": 0}, "batch"),
        ({"tune": True, "core": True}, "other runtimes.*core=True"),
        ({"tune": True, "profile": "portable"}, "other runtimes.*portable"),
    ],
)
def test_mistakes(options: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=f"(?s){words}"):
        onward.compile(network(), **options)


# -- trainer -------------------------------------------------------------------------------------------------


def test_a_resumed_run_takes_the_same_forms_byte_for_byte(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_times(monkeypatch, FAST)
    x, labels = batch()
    told: dict[str, Any] = {"batch_size": 8, "progress": "none"}
    whole = onward.Trainer(network(), tune=8, threads=1)
    whole.fit(x, labels, epochs=4, **told)
    part = onward.Trainer(network(), tune=8, threads=1)
    part.fit(x, labels, epochs=2, checkpoint=tmp_path / "run", **told)
    for file in cache.iterdir():
        file.unlink()
    monkeypatch.setattr(Tuner, "_measure", None)  # a resumed run measures nothing

    resumed = onward.Trainer.resume(tmp_path / "run")
    resumed.fit(x, labels, epochs=4, progress="none")

    assert set(resumed.program.choices.values()) == FAST
    for name, value in whole.state.items():
        assert value.tobytes() == resumed.state[name].tobytes(), name


def test_a_weighted_run_has_the_same_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_times(monkeypatch, FAST)
    model = network()
    tuned, usual = onward.compile(model, tune=True), onward.compile(model)

    by_comparing, by_indices = (weighted_program(p, model, None, False) for p in (tuned, usual))

    pools = [[len(n.output) for n in p.step.graph.node if n.op_type == "MaxPool"] for p in (by_comparing, by_indices)]
    assert pools[1] == [2]  # with Indices
    assert set(pools[0]) == {1}
    assert by_comparing.choices == tuned.choices


def test_a_run_that_was_tuned_is_the_run_of_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_times(monkeypatch, FAST)

    assert onward.Trainer(network(), tune=True).is_of(network())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: onward.Trainer(onward.compile(network()), tune=True), "a Program has its gradients already"),
        (lambda: onward.Trainer(network(), "reference", tune=True), "backend 'reference'"),
    ],
)
def test_mistakes_of_a_trainer(make: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        make()


# -- command -------------------------------------------------------------------------------------------------


def test_the_command_says_what_it_chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_times(monkeypatch, FAST)
    onward.save(network(), tmp_path / "net.onnx")
    run = CliRunner().invoke
    arguments = ["compile", str(tmp_path / "net.onnx"), "--tune", "--batch", "16", "-o", str(tmp_path / "program")]

    plain = run(build_app(), arguments)
    explained = run(build_app(), [*arguments, "--explain"])

    assert plain.exit_code == explained.exit_code == 0, plain.output + explained.output
    assert (
        "tuned: 4 of 4 gradients with a choice take another form than usual (4 measured now, 0 before)" in plain.output
    )
    assert "(0 measured now, 4 before)" in explained.output
    assert "compare* 500.000, indices 1000.000" in explained.output
    manifest = json.loads((tmp_path / "program" / "manifest.json").read_text())
    assert set(manifest["choices"].values()) == FAST


def test_the_command_that_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_times(monkeypatch, FAST)
    onward.save(network(), tmp_path / "net.onnx")
    x, labels = batch()
    np.savez(tmp_path / "data.npz", x=x, labels=labels)
    arguments = ["train", str(tmp_path / "net.onnx"), "--data", str(tmp_path / "data.npz"), "--tune", "-b", "8"]

    result = CliRunner().invoke(build_app(), [*arguments, "--checkpoint", str(tmp_path / "run")])

    assert result.exit_code == 0, result.output
    assert "tuned: 4 of 4 gradients" in result.output
    assert set(onward.Trainer.resume(tmp_path / "run").program.choices.values()) == FAST


def test_options_of_the_command_that_need_tune(tmp_path: Path) -> None:
    result = CliRunner().invoke(build_app(), ["compile", "net.onnx", "--explain", "--threads", "2"])

    assert "--threads to --tune" in result.output + str(result.exception)


def test_the_reason_of_a_gain() -> None:
    with answering(forms := Forms()):
        onward.compile(network())
    assert not forms.asked  # a compilation has its own table

    program = onward.compile(network(), tune=(tuner := Tuner(4)))

    assert program.choices
    assert all(isinstance(t, Tuned) and t.gain >= 1 for t in tuner.found)
