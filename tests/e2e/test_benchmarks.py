"""The harness of `make bench` on the smallest network, so that it does not rot; the numbers are not looked at."""

from __future__ import annotations

import doctest
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

sys.path.append(str(Path(__file__).parent.parent.parent / "benchmarks"))
import flops
import growth
import peers
import prepare
import reading
import report
import run
import workloads

NAME = "mlp:batch=4,width=8,depth=1"
IN_PROCESS = ("onward", "onward plain", "torch eager", "torch fused", "torch tuned")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> peers.Files:
    made = peers.Files(tmp_path_factory.mktemp("files"), NAME)
    prepare.write_training(workloads.find(NAME), made)
    return made


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def losses(peer: str, files: peers.Files) -> list[float]:
    workload, spec = workloads.find(NAME), peers.PEERS[peer]
    module = importlib.import_module(f"peers.{spec.module}")
    step = module.build(workload, workload.batches(2), files, **spec.options)
    return [step(0), step(1)]


@pytest.mark.parametrize("peer", IN_PROCESS)
def test_every_peer_of_this_environment_has_the_losses_of_torch_eager(peer: str, files: peers.Files) -> None:
    expected = losses("torch eager", files)

    found = losses(peer, files)

    np.testing.assert_allclose(found, expected, rtol=1e-4)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a process that its parent ended")
def test_a_stopped_worker_ends_with_a_run_that_was_killed(files: peers.Files) -> None:
    killed = f"""if True:
        import os, signal, sys
        sys.path.append({str(Path(run.__file__).parent)!r})
        import run
        print(run.Worker("onward plain", {NAME!r}, __import__("pathlib").Path({str(files.folder)!r}))._process.pid)
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)"""

    told = subprocess.run([sys.executable, "-c", killed], stdout=subprocess.PIPE, text=True, check=False)

    pid = int(told.stdout)
    until = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    left = is_alive(pid)
    if left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def test_a_worker_trains_in_its_own_process_and_reports(files: peers.Files) -> None:
    worker = run.Worker("onward plain", NAME, files.folder)

    worker.run(2)
    worker.turn(0.0)
    worker.close()

    result = worker.result(worker.losses)
    assert (result["steps"], result["loss_off"]) == (2, 0)
    assert result["low_ms"] <= result["median_ms"] <= result["high_ms"]
    assert result["first_step_s"] > 0
    assert result["peak_mib"] > 1


def test_a_worker_that_fails_says_why(tmp_path: Path) -> None:
    worker = run.Worker("onward plain", NAME, tmp_path)
    worker.close()

    error = worker.result([])["error"]

    assert "mlp-batch=4,width=8,depth=1.train.onnx" in error
    assert str(tmp_path) not in error


@pytest.mark.skipif(sys.platform == "win32", reason="a script of the shell")
def test_what_a_worker_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nsleep 30 &\necho '{\"losses\": []}'\nwait\n")
    script.chmod(0o755)
    monkeypatch.setattr(peers.Peer, "python", script)
    worker = run.Worker("onward", NAME, tmp_path)
    began = time.perf_counter()

    worker.close()  # and wait until nobody has its output open

    assert time.perf_counter() - began < 15


@pytest.mark.parametrize(("quiet_after", "repeated", "disturbed"), [(0, 0, 0), (2, 2, 0), (9, run.REPEATS, 1)])
def test_a_turn_that_others_disturb_is_repeated(
    quiet_after: int, repeated: int, disturbed: int, absent: run.Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = iter([0.5] * quiet_after + [0.0] * 9)

    def train(steps: int) -> float:
        absent.last = {"times": [9.0] * run.WARM + [0.1] * (steps - run.WARM)}
        return next(shares)

    absent.error, absent.last = "", {"times": [0.1]}
    monkeypatch.setattr(absent, "run", train)

    absent.turn(0.4)

    assert (absent.repeated, absent.disturbed) == (repeated, disturbed)
    assert absent.times == [0.1] * 4


def test_a_page_is_that_of_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "--docs", "--keep"])

    with pytest.raises(SystemExit, match="one run"):
        run.main()


def test_a_page_is_not_begun_without_all_peers(absent: run.Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "--docs"])

    with pytest.raises(SystemExit, match="not installed: .*absent; run `make bench-peers`"):
        run.main()


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def measure(workload: str, *_: object) -> dict[str, object]:
        asked.append(workload)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return RUN["workloads"]["mlp-64"]  # type: ignore[no-any-return, index]

    command = ["run.py", "--workload", "mlp-64,mlp-256", "--peer", "onward", "--output", str(tmp_path)]
    monkeypatch.setattr(run, "measure", measure)
    monkeypatch.setattr(run.compileall, "compile_dir", lambda *_, **__: None)
    monkeypatch.setattr(report, "plot", lambda *_: None)
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(KeyboardInterrupt):
        run.main()

    monkeypatch.setattr(sys, "argv", [*command, "--continue"])
    run.main()

    assert asked == ["mlp-64", "mlp-256", "mlp-256"]
    page = report.markdown(json.loads((tmp_path / "bench.json").read_text()))
    assert "interrupted and continued between workloads (1 ×)" in page
    monkeypatch.setattr(sys, "argv", [*command, "--continue", "--rounds", "3"])
    with pytest.raises(SystemExit, match="differs in asked"):
        run.main()


def test_a_point_of_growth_that_fails_is_named_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(names: list[str], folder: str) -> str:
        return "no training file" if growth.size(names[0]) > growth.LARGE else ""

    def measure(workload: str, folder: Path, rounds: int) -> growth.Point:
        return {p: {"ms": growth.size(workload) / 1e6, "mib": 1.0, "disturbed": 0} for p in growth.PEERS}

    monkeypatch.setattr(growth, "prepare", prepare)
    monkeypatch.setattr(growth, "measure", measure)
    monkeypatch.setattr(growth, "plot", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["growth.py", "--output", str(tmp_path)])

    growth.main()

    page = capsys.readouterr().out
    assert "| million parameters | 1 to 500 | 1.00 to 64.0 |" in page
    assert "- million parameters 500, onward: no training file" in page
    assert len(json.loads((tmp_path / "growth.json").read_text())["points"]) == 23


def test_a_peer_that_fails_at_every_point_of_growth_has_no_numbers(tmp_path: Path) -> None:
    works, fails = growth.PEERS
    points = {
        str(size): {works: {"ms": float(size), "mib": 1.0}, fails: {"error": "not installed"}}
        for size in growth.SIZES["depth"]
    }
    one = dict(list(points.items())[:1])

    growth.plot({"depth": points}, tmp_path / "growth.svg")

    assert "1.00 to 32.0 | 1.00 | 1 to 1 | – | – | – |" in growth.markdown({"depth": points})
    assert "1.00 to 1.0 | – | 1 to 1 | – | – | – |" in growth.markdown({"depth": one})
    assert fails not in (tmp_path / "growth.svg").read_text()


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> run.Worker:
    monkeypatch.setitem(peers.PEERS, "absent", peers.Peer("none", environment="absent"))
    return run.Worker("absent", NAME, tmp_path)


def test_a_peer_that_is_not_installed_says_how_to_install_it(absent: run.Worker) -> None:
    assert absent.result([]) == {"error": "not installed: make bench-peers"}


def test_a_peer_with_another_loss_is_no_peer(absent: run.Worker) -> None:
    absent.error, absent.losses = "", [2.31]

    result = absent.result([2.30])

    assert result == {"error": "another first loss: 2.31000 instead of 2.30000"}


@pytest.mark.parametrize("workload", workloads.WORKLOADS.values(), ids=lambda w: w.name)
def test_every_workload_has_batches_of_its_shape(workload: workloads.Workload) -> None:
    x, t = workload.batches(1)[0]

    assert x.shape == workload.shape
    assert t.shape == workload.shape[:1]


def test_operations_are_counted_forward_and_for_each_gradient() -> None:
    weights = {"w": np.zeros((3, 1, 3, 3), np.float32), "v": np.zeros((2, 48), np.float32)}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Flatten", ["c"], ["f"]),
            helper.make_node("Gemm", ["f", "v"], ["y"], transB=1),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)

    found = flops.count(model, np.zeros((5, 1, 4, 4), np.float32))

    convolution, product = 2 * 5 * 3 * 16 * 9, 2 * 5 * 2 * 48
    assert found == 2 * convolution + 3 * product  # the input of the convolution needs no gradient


def measured(ms: float) -> dict[str, float]:
    times = {"median_ms": ms, "low_ms": ms - 0.5, "high_ms": ms + 0.5, "best_ms": ms, "disturbed": 0, "repeated": 1}
    times["rounds"] = 1
    return {**times, "steps": 2, "first_step_s": 1.0, "peak_mib": 100.0, "loss_off": 0.0}


RUN = {
    "machine": "m", "date": "1 May 2026", "commit": "abc", "rounds": 1, "turn_s": 0.1, "minutes": 3.0, "interrupted": 0,
    "workloads": {
        "mlp-64": {
            "versions": {"onward": {"onnxruntime": "1.2"}},
            "flops": 2e8, "gemm_gflops": 100.0, "load_before": 0.25, "load_after": 2.0,
            "peers": {"onward": measured(3.0), "torch eager": measured(4.0), "jax jit": measured(2.0),
                      "onnxsim": {"error": "no rule"}},
        }
    },
}  # fmt: skip


def test_the_page_says_which_goals_are_missed_and_who_cannot(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- results: begin -->\nold\n<!-- results: end -->\nafter\n")

    report.write_section(page, "results", report.markdown(RUN))

    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| mlp-64 | **1.50: missed** | 0.8 | 0.75 | – | 1.00 | – |" in text
    assert "| onward | 3.00 | 2.50 to 3.50 | 1.50 | 0.75 | 67% | 1.0 | 100 | 0e+00 |" in text
    assert "Other processes disturbed 3 turns, which were repeated." in text
    assert "- onnxsim: cannot: no rule" in text
    assert "; onnxruntime 1.2. Not part of this run: onward plain, torch fused" in text


def test_the_plots_are_drawn(tmp_path: Path) -> None:
    points = {
        axis: {str(s): {p: {"ms": float(s), "mib": 1.0} for p in growth.PEERS} for s in growth.SIZES[axis]}
        for axis in growth.SIZES
    }

    report.plot(RUN, tmp_path / "bench.svg")
    growth.plot(points, tmp_path / "growth.svg")

    assert "<!-- jax jit -->" in (tmp_path / "bench.svg").read_text()
    assert "<!-- onward, slope 1.00 -->" in (tmp_path / "growth.svg").read_text()


@pytest.mark.parametrize("module", [run, report, growth, workloads], ids=lambda m: m.__name__)
def test_its_examples_are_true(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def test_no_number_gives_no_ratio() -> None:
    assert report.ratio(1.0, math.nan) == ""


@pytest.mark.parametrize(("reader", "workers"), [("onward", 0), ("onward", 1), ("torch", 0)])
def test_every_reader_of_this_environment_delivers_all_photos(
    reader: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BATCH", 4)
    reading.write_photos(tmp_path, 14)

    result = reading.time_reader(reader, tmp_path, workers, limit=14)

    assert result["images"] == 10  # after the first batch
    assert result["rate"] > 0
