"""`onward train --config`, `--print-config`, `--json` and `--find-lr`, as a user types them."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import tomllib
from typer.testing import CliRunner

import onward
from onward.cli import build_app
from onward.cli.config import names_of, read_config, render_config
from onward.cli.train import TrainOptions
from onward.errors import ArgumentError
from train.test_backends import model, samples


def call(*arguments):
    return CliRunner().invoke(build_app(), [str(a) for a in arguments], catch_exceptions=True)


def ok(*arguments):
    result = call(*arguments)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onward.save(model(), "m.onnx")
    x, y = samples(120)
    np.savez("d.npz", x=x, labels=y)
    return tmp_path


def test_print_config_needs_neither_model_nor_data_and_names_every_option():
    printed = ok("train", "--print-config").stdout

    for name in names_of(TrainOptions):
        assert f"\n{name} = " in printed or f"\n# {name} is not set" in printed
    assert tomllib.loads(printed)["keep"] == 3
    assert {f.name for f in dataclasses.fields(TrainOptions)} - set(names_of(TrainOptions).values()) == {
        "config", "print_config",
    }  # fmt: skip


def test_a_printed_configuration_gives_the_same_options(work):
    given = [
        "train", "m.onnx", "--data", "d.npz", "-e", 3, "--lr", 0.1, "-m", "accuracy", "-m", "f1", "--best",
        "--set-backend", "threads=1", "--scale", "1/255", "--column", 'x="q',
    ]  # fmt: skip
    first = ok(*given, "--print-config").stdout
    (work / "run.toml").write_text(first)

    again = ok("train", "--config", "run.toml", "--print-config").stdout

    assert again == first
    assert read_config(work / "run.toml", TrainOptions)["metric"] == ["accuracy", "f1"]


def test_every_option_survives_the_way_through_a_file(tmp_path):
    """Each field gets a value that is not its default."""
    from pathlib import Path

    hints = {f.name: str(f.type).partition("Option(")[0] for f in dataclasses.fields(TrainOptions)}
    values = {}
    for name in names_of(TrainOptions).values():
        kind = hints[name]
        values[name] = (
            ["a=1", "ü\t"] if "list[" in kind else Path("x y") if "Path" in kind else True if "bool" in kind
            else 7 if "int" in kind else 1e-5 if "float" in kind else 'te"xt'
        )  # fmt: skip
    options = TrainOptions(**values)
    (tmp_path / "all.toml").write_text(render_config(options), encoding="utf-8")

    read = read_config(tmp_path / "all.toml", TrainOptions)

    assert {n: Path(v) if "Path" in hints[n] else v for n, v in read.items()} == values


def test_a_run_from_a_configuration_is_the_run_of_the_command_line(work):
    (work / "run.toml").write_text(
        'file = "m.onnx"\ndata = "d.npz"\nepochs = 2\nbatch_size = 16\nlearning-rate = 0.01\n'
    )

    ok("train", "--config", "run.toml", "-o", "a.onnx", "-q")
    ok("train", "m.onnx", "-d", "d.npz", "-e", 2, "-b", 16, "--lr", 0.01, "-o", "b.onnx", "-q")
    ok("train", "--config", "run.toml", "--lr", 0.02, "-o", "c.onnx", "-q")  # the command line wins

    a, b, c = ((work / f"{n}.onnx").read_bytes() for n in "abc")
    assert a == b
    assert a != c


def test_all_mistakes_of_a_configuration_are_listed(work):
    (work / "bad.toml").write_text('batch_sise = 3\nepochs = "two"\nbest = 1\ndata = 3.5\nfile = 3\n')

    with pytest.raises(ArgumentError) as error:
        read_config(work / "bad.toml", TrainOptions)

    text = str(error.value)
    assert "did you mean `batch-size`" in text
    assert "`epochs` is 'two'" in text
    assert "true or false" in text
    assert len(error.value.diagnostics) == 5
    for content, message in (("a = = 1", "is not TOML"), (None, "cannot be read")):
        path = work / "other.toml"
        path.write_text(content) if content else path.unlink()
        assert message in str(call("train", "--config", path).exception)


def test_json_prints_a_line_per_step_and_epoch_and_nothing_else(work):
    result = ok(
        "train", "m.onnx", "-d", "d.npz", "-e", 2, "-b", 60, "--json", "--inference", "i.onnx", "-m", "accuracy"
    )

    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [e["event"] for e in events] == ["start", "step", "step", "epoch", "step", "step", "epoch", "end", "saved"]
    assert events[-1]["path"] == "i.onnx"
    assert "accuracy" in events[3]
    assert result.stderr == ""


def test_find_lr_prints_a_rate_and_trains_nothing(work):
    result = ok("train", "m.onnx", "-d", "d.npz", "--find-lr", "--plot", "rates.svg", "-o", "t.onnx")
    as_json = json.loads(ok("train", "m.onnx", "-d", "d.npz", "--find-lr", "--json").stdout)

    assert float(result.stdout) == pytest.approx(as_json["suggestion"], rel=0.1)
    assert "--lr" in result.stderr
    ET.parse("rates.svg")
    assert not (work / "t.onnx").exists()


def test_find_lr_draws_a_png_too_and_refuses_other_pictures_before_the_search(work):
    ok("train", "m.onnx", "-d", "d.npz", "--find-lr", "--plot", "rates.png")

    assert (work / "rates.png").read_bytes().startswith(b"\x89PNG")
    refused = call("train", "m.onnx", "-d", "d.npz", "--find-lr", "--plot", "rates.pdf").exception
    assert isinstance(refused, ArgumentError)
    assert "a plot cannot be written as `rates.pdf`" in str(refused)


def test_python_3_10_reads_toml_with_tomli(monkeypatch):
    from onward.cli import config

    tomli = object()

    def without_tomllib(name):
        if name == "tomllib":
            raise ModuleNotFoundError(name)
        return {"tomli": tomli}[name]

    monkeypatch.setattr("importlib.import_module", without_tomllib)

    assert config._toml() is tomli
