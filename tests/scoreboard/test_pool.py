"""Backends that misbehave: each kind of misbehaviour is one failure, or one broken backend, and the rest goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onward.scoreboard import pool
from onward.scoreboard.pool import Contestant, run_tests
from onward.scoreboard.tests import BoardTest

GOOD = """
import os, sys, time, unittest
class Prepared:
    def __init__(self, name): self.name = name
    def run(self, inputs):
        {misdeed}
        return (inputs[0] * 2,)
def supports_device(device): return True
def prepare(model, device, **kwargs): return Prepared(model.graph.name)
"""


@pytest.fixture(scope="module")
def tests(tmp_path_factory: pytest.TempPathFactory) -> list[BoardTest]:
    """Four tests that double a number; the graph has the name of the test."""
    root = tmp_path_factory.mktemp("tests")
    return [_test(root / name, name) for name in ("a", "b", "c", "d")]


def _test(folder: Path, name: str) -> BoardTest:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
    model = helper.make_model(helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], name, [x], [y]))
    data = folder / "test_data_set_0"
    data.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")
    value = np.array([1, 2], np.float32)
    (data / "input_0.pb").write_bytes(numpy_helper.from_array(value).SerializeToString())
    (data / "output_0.pb").write_bytes(numpy_helper.from_array(value * 2).SerializeToString())
    request = {"kind": "onnx", "folder": str(folder), "rtol": 1e-3, "atol": 1e-7, "asks": False}
    return BoardTest("node", name, ("Add",), ("float32",), request)


def _run(tmp_path: Path, tests: list[BoardTest], misdeed: str = "pass", **options: object) -> pool.Run:
    backend = tmp_path / "fake.py"
    backend.write_text(GOOD.format(misdeed=misdeed))
    return run_tests(Contestant("fake", str(backend)), tests, **options)


def _statuses(run: pool.Run) -> str:
    return "".join(run.outcomes[f"node/{n}"].status[0] for n in "abcd" if f"node/{n}" in run.outcomes)


def test_a_good_backend_passes_everything(tmp_path: Path, tests: list[BoardTest]) -> None:
    run = _run(tmp_path, tests, jobs=2)

    assert _statuses(run) == "pppp"
    assert run.versions["onnx"] == onnx.__version__
    assert not run.broken


MISDEEDS = {
    "crash": ("os.kill(os.getpid(), 11)", "ended by SIGSEGV"),
    "exit": ("os._exit(3)", "ended with exit code 3"),
    "hang": ("time.sleep(60)", "no answer within 4 s"),
    "wrong": ("inputs = [inputs[0] + 1]", "output[0][0] is 4.0, not 2.0: 2 of 2 elements differ"),
    "shape": ("return (inputs[0][:1],)", "output[0] has shape [1], not [2]"),
    "type": ("return (inputs[0].astype('d') * 2,)", "output[0] has type float64, not float32"),
    "count": ("return ()", "output has 0 elements, not 1"),
    "raise": ("raise KeyError('no kernel')", "KeyError: 'no kernel'"),
    "quit": ("sys.exit(0)", "SystemExit: 0"),
    "leak": ("hog = bytearray(600 << 20); time.sleep(30)", "used more than 0.5 GB of memory"),
    "no tuple": ("return inputs[0] * 2", "returned ndarray, not a tuple"),
}


@pytest.mark.parametrize("name", MISDEEDS)
def test_a_misdeed_is_one_failure_and_the_rest_goes_on(name: str, tmp_path: Path, tests: list[BoardTest]) -> None:
    misdeed, message = MISDEEDS[name]

    run = _run(
        tmp_path, tests[:3], f"if self.name == 'b': {misdeed}", timeout=4 if name == "hang" else 60, memory=1 << 29
    )

    assert _statuses(run) == "pfp"
    assert message in run.outcomes["node/b"].message
    assert not run.broken


def test_a_skip_is_not_a_pass(tmp_path: Path, tests: list[BoardTest]) -> None:
    run = _run(tmp_path, tests, "if self.name == 'c': raise unittest.SkipTest('no such type')")

    assert _statuses(run) == "ppsp"
    assert run.outcomes["node/c"].message == "no such type"


def test_rubbish_on_stdout_and_a_read_of_stdin_do_not_disturb(tmp_path: Path, tests: list[BoardTest]) -> None:
    rubbish = "print('{\"id\": 0}'); os.write(1, b'x' * 300000); os.write(2, b'y' * 300000); sys.stdin.read()"

    assert _statuses(_run(tmp_path, tests, rubbish)) == "pppp"


def test_a_process_that_a_backend_leaves_behind_does_not_hold_up_the_board(
    tmp_path: Path, tests: list[BoardTest]
) -> None:
    """It has the pipes of the worker, and is in a session of its own, so that it is not ended with it."""
    detach = "(os.setsid(), time.sleep(20), os._exit(0)) if os.fork() == 0 else os._exit(3)"

    run = _run(tmp_path, tests[:2], f"if self.name == 'a': {detach}", timeout=3)

    assert run.outcomes["node/a"].status == "failed"
    assert run.outcomes["node/b"].status == "passed"


def test_a_backend_that_does_not_import_is_broken_with_the_place(tmp_path: Path, tests: list[BoardTest]) -> None:
    (tmp_path / "bad.py").write_text("import a_module_that_is_not_there\n")

    run = run_tests(Contestant("bad", str(tmp_path / "bad.py")), tests)

    assert run.broken == "ModuleNotFoundError: No module named 'a_module_that_is_not_there' (at bad.py:1)"
    assert not run.outcomes


@pytest.mark.parametrize(("code", "message"), [
    ("import os; os._exit(7)", "while it was imported: the process ended with exit code 7"),
    ("import sys; sys.exit(1)", "SystemExit: 1"),
    ("def supports_device(device): return False", "does not support the CPU"),
    ("x = 1", "has no attribute 'supports_device'"),
])  # fmt: skip
def test_a_backend_that_ends_at_its_import_is_broken(
    code: str, message: str, tmp_path: Path, tests: list[BoardTest]
) -> None:
    (tmp_path / "bad.py").write_text(code)

    assert message in run_tests(Contestant("bad", str(tmp_path / "bad.py")), tests).broken


def test_a_backend_that_always_crashes_is_given_up(
    tmp_path: Path, tests: list[BoardTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "GIVE_UP", 2)

    run = _run(tmp_path, tests, "os._exit(3)")

    assert _statuses(run) == "ff"
    assert "2 tests in a row ended the process" in run.broken


def test_a_test_that_is_half_written_fails_with_the_place(tmp_path: Path, tests: list[BoardTest]) -> None:
    broken = _test(tmp_path / "half", "half")
    (tmp_path / "half" / "model.onnx").unlink()

    run = _run(tmp_path, [broken, tests[0]])

    assert run.outcomes["node/half"].status == "failed"
    assert "half/model.onnx" in run.outcomes["node/half"].message
    assert run.outcomes["node/a"].status == "passed"


def test_the_worker_needs_nothing_of_onward() -> None:
    source = pool.WORKER.read_text()

    assert "import onward\n" not in source
    assert "from onward" not in source
