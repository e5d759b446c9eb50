"""The board: totals, changes since the last run, the page, and the files of onnx/backend-scoreboard."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from onward.cli import build_app
from onward.errors import ArgumentError
from onward.scoreboard.board import Board, History, make_board, write_board
from onward.scoreboard.pool import Contestant, Outcome, Run
from onward.scoreboard.tests import BoardTest, sampled

TESTS = [
    BoardTest("node", "test_add", ("Add",), ("float32",), {}),
    BoardTest("node", "test_mul", ("Mul",), ("float32", "int64"), {}),
    BoardTest("gradient", "Mul/broadcast", ("Mul",), ("float64",), {}),
]


def _outcomes(letters: str) -> dict[str, Outcome]:
    words = {
        "p": Outcome("passed", "", 0.1),
        "f": Outcome("failed", "</script>&no", 0.2),
        "s": Outcome("skipped", "why"),
    }
    return {t.id: words[letter] for t, letter in zip(TESTS, letters, strict=True)}


def _write(folder: Path, letters: str, name: str = "mine", *, keep: bool = False) -> dict:
    run = Run(Contestant(name, "my.backend"), {"onnx": "1.23.2"}, _outcomes(letters))
    write_board(make_board(TESTS, [run], History.of(folder), keep=keep), folder)
    return json.loads((folder / "results.json").read_text())


def _data(folder: Path) -> dict:
    page = (folder / "index.html").read_text()
    return json.loads(page.partition('id="data">')[2].partition("</script>")[0])


def test_results_are_counted_and_a_skip_is_no_pass(tmp_path: Path) -> None:
    (row,) = _write(tmp_path, "pfs")["backends"]

    assert row["totals"] == {"passed": 1, "failed": 1, "skipped": 1}


def test_the_page_is_one_file_that_loads_nothing_and_escapes_messages(tmp_path: Path) -> None:
    _write(tmp_path, "pfs")

    page = (tmp_path / "index.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    assert _data(tmp_path)["backends"][0]["status"] == "pfs"
    assert _data(tmp_path)["backends"][0]["messages"]["1"] == "</script>&no"


def test_a_second_run_is_compared_with_the_first(tmp_path: Path) -> None:
    _write(tmp_path, "pfs")
    _write(tmp_path, "fps")

    (row,) = _data(tmp_path)["backends"]
    assert (row["gained"], row["lost"]) == ([1], [0])
    assert [run["backends"]["mine"]["passed"] for run in json.loads((tmp_path / "trend.json").read_text())] == [1, 1]


def test_results_that_cannot_be_read_are_no_last_run(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"format": 1, "backen')
    (tmp_path / "trend.json").write_text("[[")

    _write(tmp_path, "pfs")

    assert _data(tmp_path)["backends"][0]["compared"] is False


def test_keep_keeps_other_backends(tmp_path: Path) -> None:
    _write(tmp_path, "ppp", "first")
    kept = _write(tmp_path, "fff", "second", keep=True)
    alone = _write(tmp_path, "fff", "second")

    assert {row["name"]: row["totals"]["passed"] for row in kept["backends"]} == {"first": 3, "second": 0}
    assert [row["name"] for row in alone["backends"]] == ["second"]


def test_runs_in_other_folders_are_added(tmp_path: Path) -> None:
    _write(tmp_path / "here", "ppp", "first")
    _write(tmp_path / "there", "pfs", "second")

    done = _scoreboard("--with", str(tmp_path / "there"), "-o", str(tmp_path / "here"))

    found = json.loads((tmp_path / "here" / "results.json").read_text())
    assert done.exit_code == 0
    assert {row["name"]: row["totals"]["passed"] for row in found["backends"]} == {"first": 3, "second": 1}
    assert set(found["tests"]) == {t.id for t in TESTS}


def test_a_folder_without_results_is_named(tmp_path: Path) -> None:
    done = _scoreboard("--with", str(tmp_path / "nothing"), "-o", str(tmp_path / "site"))

    assert isinstance(done.exception, ArgumentError)
    assert "nothing" in str(done.exception)


def test_a_sample_is_the_same_in_every_run_and_shown_as_one(tmp_path: Path) -> None:
    many = [BoardTest("node", f"test_{k}", (), (), {}) for k in range(300)]

    chosen = sampled(many, 3)

    assert 60 < len(chosen) < 140
    assert chosen == sampled(list(reversed(many)), 3)[::-1]
    assert sampled(many, 1) == many


def test_the_report_has_the_form_of_onnx_backend_scoreboard(tmp_path: Path) -> None:
    _write(tmp_path, "pfs")

    place = tmp_path / "backend-scoreboard" / "mine"
    report = json.loads((place / "report.json").read_text())
    assert report.pop("date")
    assert report == {
        "passed": ["OnnxBackendNodeModelTest::test_add_cpu"],
        "failed": ["OnnxBackendNodeModelTest::test_mul_cpu"],
        "skipped": [],
    }
    (trend,) = json.loads((place / "trend.json").read_text())
    assert {k: trend[k] for k in ("passed", "failed", "skipped", "total_ops", "versions")} == {
        "passed": 1, "failed": 1, "skipped": 0, "total_ops": 2, "versions": [{"name": "onnx", "version": "1.23.2"}],
    }  # fmt: skip
    assert json.loads((place / "ops.json").read_text())[1] == {
        "domain": "", "op_type": "Mul", "passed_tests": 0, "failed_tests": 1, "skipped_tests": 0, "total_tests": 1,
    }  # fmt: skip


# -- the command -----------------------------------------------------------------------------------------------------


def _scoreboard(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["scoreboard", *arguments])


def test_the_command_runs_good_and_bad_backends_side_by_side(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import a_module_that_is_not_there\n")

    done = _scoreboard(
        "--backend", "onward.backends.reference", "--backend", str(bad), "--suite", "onnx",
        "--only", "test_adagrad", "-o", str(tmp_path / "site"), "--jobs", "1",
    )  # fmt: skip

    assert done.exit_code == 1
    assert "onward reference   2/2" in done.output
    assert "bad cannot be used: ModuleNotFoundError" in done.output
    part = "Only tests with `test_adagrad` in their names ran."
    assert part in done.output
    assert part in (tmp_path / "site" / "index.html").read_text("utf-8")
    assert (tmp_path / "site" / "index.html").exists()


def test_shares_are_rounded_down_as_on_the_page() -> None:
    assert [Board.percent(p, 162) for p in (0, 150, 161, 162)] == ["0.0 %", "92.5 %", "99.3 %", "100 %"]
    assert Board.percent(0, 0) == "0.0 %"


def test_every_wrong_argument_is_named_at_once(tmp_path: Path) -> None:
    done = _scoreboard("--backend", str(tmp_path / "a.py"), "--backend", "m@/no/python", "-o", str(tmp_path / "site"))

    assert isinstance(done.exception, ArgumentError)
    assert "a.py" in str(done.exception)
    assert "/no/python" in str(done.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--backend", "m", "--timeout", "nan"],
        ["--backend", "m", "--jobs", "-1"],
        ["--backend", "m", "--sample", "0"],
    ],
)
def test_a_command_without_sense_is_refused(arguments: list[str]) -> None:
    assert _scoreboard(*arguments).exit_code == 2


def test_a_peer_without_its_environment_is_told_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conformance" / "adapters").mkdir(parents=True)
    (tmp_path / "conformance" / "adapters" / "tinygrad.py").write_text("")
    monkeypatch.chdir(tmp_path)

    assert "make scoreboard-peers PEERS=tinygrad" in str(_scoreboard("--peer", "tinygrad").exception)
    assert "did you mean `tinygrad`?" in str(_scoreboard("--peer", "tinygrd").exception)


def test_a_suite_that_is_half_written_is_told_and_the_other_tests_run(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "manifest.json").write_text('{"version": "1.0.0", "cas')

    done = _scoreboard(
        "--backend", "onward.backends.reference", "--only", "test_momentum", "--data", str(data),
        "-o", str(tmp_path / "site"), "--jobs", "1",
    )  # fmt: skip

    assert done.exit_code == 1
    assert "manifest.json is damaged" in done.output
    assert "2/2" in done.output
