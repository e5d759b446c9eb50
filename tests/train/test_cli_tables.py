"""Tables and weights at the command line."""

from __future__ import annotations

import json

import onnx
import pytest
from typer.testing import CliRunner

import onward
from onward.cli import build_app
from onward.errors import ArgumentError
from onward.train import Preparation
from train.tables import COLUMNS, TARGET, cars, regression


def run(*arguments):
    return CliRunner().invoke(build_app(), [str(a) for a in arguments], catch_exceptions=False)


@pytest.fixture
def files(tmp_path):
    cars().to_csv(tmp_path / "cars.csv", index=False)
    onward.save(regression(), tmp_path / "net.train.onnx")
    return tmp_path


def test_a_table_is_trained_on_and_its_preparation_is_embedded(files):
    table = ["--data", files / "cars.csv", "--target", TARGET, "--features", ",".join(COLUMNS)]
    wishes = ["--rescale", "standard", "--missing", "Horsepower=mean", "--sample-weight", "Acceleration"]
    saved = ["-o", files / "t.onnx", "--inference", files / "i.onnx", "--embed-preparation"]

    done = run("train", files / "net.train.onnx", *table, *wishes, *saved)

    assert done.exit_code == 0, done.output
    assert [i.name for i in onnx.load(files / "i.onnx").graph.input] == COLUMNS
    stored = onward.Trainer(files / "t.onnx").preparation
    assert stored.rescale == "standard"
    assert stored.missing == {"Horsepower": "mean"}
    assert run("evaluate", files / "t.onnx", "--data", files / "cars.csv").exit_code == 0
    assert run("strip", files / "t.onnx", "-o", files / "s.onnx", "--embed-preparation").exit_code == 0
    assert (files / "s.onnx").read_bytes() == (files / "i.onnx").read_bytes()


@pytest.mark.parametrize("stored", [True, False], ids=["tuned on a table", "of a stranger"])
def test_an_inference_file_is_evaluated_on_a_table_with_its_target_named(files, stored):
    if stored:
        table = ["--data", files / "cars.csv", "--target", TARGET, "--features", "Cylinders,Weight_in_lbs"]
        onward.save(regression(2), files / "net.train.onnx")
        assert run("train", files / "net.train.onnx", *table, "--inference", files / "i.onnx").exit_code == 0
    else:
        onward.save(onward.to_inference(regression(2)), files / "i.onnx")
    renamed = cars()[["Cylinders", "Weight_in_lbs", TARGET]].rename(columns={TARGET: "consumed"})
    renamed.to_csv(files / "new.csv", index=False)

    done = run("evaluate", files / "i.onnx", "--data", files / "new.csv", "--target", "consumed", "-m", "mae", "--json")

    assert done.exit_code == 0, done.output
    off = onward.Trainer(files / "i.onnx").predict(renamed[["Cylinders", "Weight_in_lbs"]].to_numpy("f"))
    mae = abs(off[:, 0] - renamed["consumed"]).mean()
    assert json.loads(done.output)["mae"] == pytest.approx(mae, rel=1e-5)


def test_wrong_words_are_reported_together_as_options(files):
    with pytest.raises(ArgumentError) as caught:
        run("train", files / "net.train.onnx", "--data", files / "cars.csv", "--missing", "foo", "--rescale", "x")

    assert [d.message for d in caught.value.diagnostics] == ["--rescale is `x`", "--missing is `foo`"]


def test_wrong_class_weights_are_reported_as_options(files):
    table = ["--data", files / "cars.csv", "--target", TARGET, "--features", ",".join(COLUMNS)]

    with pytest.raises(ArgumentError, match="--class-weight is `cat`"):
        run("train", files / "net.train.onnx", *table, "--class-weight", "cat")


def test_stripping_a_model_without_a_preparation_says_so(files):
    with pytest.raises(ArgumentError, match="carries no preparation"):
        run("strip", files / "net.train.onnx", "-o", files / "s.onnx", "--embed-preparation")

    assert not (files / "s.onnx").exists()
    assert Preparation().summary() == []
