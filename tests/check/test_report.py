"""The report: what a person reads, what a program reads, and what the command line returns."""

from __future__ import annotations

import json
import re

import onnx
import pytest
import typer
from typer.testing import CliRunner

from check import models
from onward.check import check, render_codes_page
from onward.cli.check import check as check_command
from onward.errors import CheckFailed, Severity, catalogue


def broken() -> onnx.ModelProto:
    """Return a model with one error (C105) and one warning (C122)."""
    model = models.linear()
    info = model.training_info[0]
    info.update_binding[1].key = "HH"
    info.algorithm.initializer.append(models.tensor("spare", [[0.0]] * 3))
    info.update_binding.add(key="spare", value="W_new")
    return model


def test_a_finding_reads_as_where_found_needed_and_hint():
    model = models.linear()
    model.training_info[0].update_binding[0].key = "Wx"

    assert check(model).render() == (
        "error[C105]: `Wx` is to be updated, but is not an initializer\n"
        "  at training_info[0].update_binding[0]\n"
        "  needed: an initializer of the graph or of training_info[0].algorithm\n"
        "\n"
        "hint: did you mean `W`?\n"
        "\n"
        "model: 1 error"
    )


def test_a_place_names_graph_position_name_and_operator():
    model = models.linear()
    model.training_info[0].algorithm.node[3].output.append("dX")

    assert check(model).findings[0].place == 'training_info[0].algorithm, node 3 "grad" (Gradient)'


def test_errors_come_before_warnings():
    report = check(broken())

    assert [f.severity for f in report.findings] == [Severity.ERROR, Severity.WARNING]
    assert (len(report.errors), len(report.warnings), report.ok) == (1, 1, False)


def test_json_has_every_finding_with_all_its_fields():
    report = check(broken())

    data = json.loads(report.to_json())

    assert (data["ok"], data["errors"], data["warnings"]) == (False, 1, 1)
    assert [f["code"] for f in data["findings"]] == ["C105", "C122"]
    assert set(data["findings"][0]) == {"code", "message", "place", "found", "needed", "hint", "severity"}


def test_raise_if_errors_carries_every_error():
    model = broken()
    model.ir_version = 6

    with pytest.raises(CheckFailed) as caught:
        check(model).raise_if_errors()

    assert [d.code for d in caught.value.diagnostics] == ["C101", "C105"]


def test_raise_if_errors_returns_a_clean_report():
    report = check(models.linear())

    assert report.raise_if_errors() is report


def test_an_object_with_a_proto_is_checked():
    class Holder:
        def proto(self):
            return models.linear()

    assert check(Holder()).ok


def test_every_code_of_the_checker_explains_itself():
    for code, entry in catalogue().items():
        if code.startswith("C"):
            assert entry.title
            assert entry.why.endswith((".", ")")), code
            assert entry.fix.endswith("."), code


def test_the_page_of_codes_has_every_code():
    page = render_codes_page()

    assert set(re.findall(r"^### ([A-Z]\d+):", page, re.M)) == set(catalogue())


# The command line


@pytest.fixture
def run(tmp_path):
    app = typer.Typer()
    app.command("check")(check_command)

    @app.callback()
    def main() -> None:
        """Make the app have commands."""

    def invoke(model: onnx.ModelProto | bytes | None, *arguments: str, **environment: str):
        files = []
        if model is not None:
            path = tmp_path / "model.onnx"
            path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
            files = [str(path)]
        return CliRunner().invoke(app, ["check", *files, *arguments], env=environment)

    return invoke


def test_a_clean_model_exits_with_0(run):
    result = run(models.linear())

    assert result.exit_code == 0
    assert "no problems found" in result.stdout


def test_errors_exit_with_1_and_go_to_stdout(run):
    result = run(broken())

    assert result.exit_code == 1
    assert "error[C105]: `HH` is to be updated" in result.stdout
    assert "1 error, 1 warning" in result.stdout


def test_warnings_alone_exit_with_0_and_with_1_if_pedantic(run):
    model = models.linear()
    del model.training_info[0].update_binding[:]

    assert run(model).exit_code == 0
    assert run(model, "--pedantic").exit_code == 1


def test_a_file_that_is_no_model_exits_with_2_and_says_so_on_stderr(run):
    result = run(b"not a model at all")

    assert result.exit_code == 2
    assert result.stdout == ""
    assert "error[M" in result.stderr


def test_a_missing_file_exits_with_2(run):
    assert run(None, "nowhere.onnx").exit_code == 2


def test_json_on_the_command_line_is_the_report(run):
    result = run(broken(), "--json")

    assert result.exit_code == 1
    assert [f["code"] for f in json.loads(result.stdout)["findings"]] == ["C105", "C122"]


def test_json_of_a_file_that_is_no_model_is_json_too(run):
    result = run(b"not a model at all", "--json")

    assert result.exit_code == 2
    assert json.loads(result.stdout)["unreadable"] is True


def test_without_colour_there_is_no_escape_sequence(run):
    result = run(broken(), NO_COLOR="1", FORCE_COLOR="1")

    assert "\x1b[3" not in result.stdout


def test_markup_in_names_is_printed_as_it_is(run):
    model = models.linear()
    model.training_info[0].update_binding[0].key = "[red]W[/red]"

    assert "`[red]W[/red]`" in run(model).stdout


def test_explain_prints_title_why_and_fix(run):
    result = run(None, "--explain", "c105")

    assert result.exit_code == 0
    assert result.stdout.startswith("C105: update_binding key is not an initializer\n")
    assert catalogue()["C105"].why in result.stdout
    assert f"fix: {catalogue()['C105'].fix}" in result.stdout


def test_explain_of_an_unknown_code_names_near_ones(run):
    result = run(None, "--explain", "C1O5")

    assert result.exit_code == 2
    assert "C105" in result.stderr


def test_no_file_is_a_usage_error(run):
    assert run(None).exit_code == 2


def test_onward_check_stays_callable_after_its_package_was_imported():
    import onward
    import onward.check.report

    assert onward.check(models.linear()).ok
    assert onward.check(models.linear(), pedantic=True).ok
