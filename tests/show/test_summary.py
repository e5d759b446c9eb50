"""What `onward show` says about a model."""

from __future__ import annotations

import json

import onnx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from hostile.files import rich_model, small_model
from onward.cli import build_app
from onward.model import serde
from onward.model.text import render_function, render_graph
from onward.show.report import print_summary, size_text
from onward.show.summary import summarize


def printed(proto: onnx.ModelProto, **options) -> str:
    console = Console(width=110, record=True, file=open("/dev/null", "w"), highlight=False)  # noqa: SIM115
    print_summary(summarize(serde.from_proto(proto)), console, **options)
    console.file.close()
    return console.export_text()


def test_parameters_state_and_frozen_are_told_apart():
    facts = summarize(serde.from_proto(rich_model()))

    assert [t["name"] for t in facts["parameters"]["tensors"]] == ["W", "b"]
    assert [t["name"] for t in facts["state"]["tensors"]] == ["W_v", "b_v", "T", "second/W_v", "second/T"]
    assert [t["name"] for t in facts["frozen"]["tensors"]] == ["bf16", "f16", "as_floats", "empty"]


def test_sizes_are_counted():
    facts = summarize(serde.from_proto(small_model()))

    assert facts["parameters"]["elements"] == 8
    assert facts["parameters"]["bytes"] == 32
    assert facts["parameters"]["tensors"][0] == {
        "name": "W", "type": "float", "shape": [3, 2], "elements": 6, "bytes": 24,
    }  # fmt: skip


def test_the_loss_and_the_optimizer_with_its_settings_are_found():
    entry = summarize(serde.from_proto(small_model()))["entries"][0]

    assert entry["loss"]["name"] == "loss"
    assert entry["loss"]["operator"] == "ReduceMean"
    assert entry["optimizer"] == [
        {
            "name": "Momentum",
            "settings": {"learning_rate": 0.1, "alpha": 0.9, "beta": 1.0, "mode": "standard", "norm_coefficient": 0.0},
        }
    ]


def test_what_make_trainable_wrote_about_the_optimizer_wins():
    proto = small_model()
    told = json.dumps({"name": "AdamW", "weight_decay": 0.01, "clip": None})
    proto.training_info[0].algorithm.metadata_props.add(key="onward.optimizer", value=told)

    entry = summarize(serde.from_proto(proto))["entries"][0]

    assert entry["optimizer"] == [{"name": "AdamW", "settings": {"weight_decay": 0.01}}]


@pytest.mark.parametrize("text", ["not json", "[" * 100_000, "3", '{"name": {}}'])
def test_other_text_under_our_key_does_no_harm(text):
    proto = small_model()
    proto.training_info[0].algorithm.metadata_props.add(key="onward.optimizer", value=text)

    summarize(serde.from_proto(proto))


def test_an_update_in_plain_arithmetic_is_called_custom():
    proto = small_model()
    info = proto.training_info[0]
    del info.update_binding[:]
    info.update_binding.add(key="T", value="T_new")

    assert summarize(serde.from_proto(proto))["entries"][0]["optimizer"] == [{"name": "custom", "settings": {}}]


def test_the_summary_is_json():
    facts = summarize(serde.from_proto(rich_model()))

    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert facts["opsets"]["ai.onnx.preview.training"] == 1
    assert [e["name"] for e in facts["entries"]] == ["train", "second/train"]
    assert facts["entries"][1]["update_binding"] == {
        "W": "second/W_new", "second/W_v": "second/W_v_new", "second/T": "second/T_new",
    }  # fmt: skip


def test_the_terminal_shows_it_at_a_glance():
    text = printed(small_model())

    for line in (
        "inputs  x  float[batch, 3]",
        "nodes  2: 1 MatMul, 1 Add",
        "feeds  labels  float[batch, 2]",
        "loss  loss  ReduceMean",
        "optimizer  Momentum  learning_rate 0.1",
        "each step  W ← W_new",
        "reset  W ← W_init",
        "parameters  2 trained, 8 elements, 32 B",
    ):
        assert line in text, text


def test_long_lists_are_cut_and_all_shows_them():
    assert "and 1 more (--all lists them)" in printed(small_model())
    assert "more (--all" not in printed(small_model(), all_rows=True)


def test_names_that_look_like_markup_are_printed_as_they_are():
    proto = small_model()
    proto.graph.name = "[red]name[/red]"

    assert "[red]name[/red]" in printed(proto)


def test_sizes_are_written_for_people():
    assert [size_text(n) for n in (0, 999, 1000, 1_500_000, 2_340_000_000)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.5 MB",
        "2.3 GB",
    ]


def test_nodes_are_readable_as_text():
    model = serde.from_proto(rich_model())

    text = render_graph(model.graph, roles={"W": "parameter"})

    assert "weight  W: float[3, 2]  (parameter)" in text
    assert "xW = MatMul(x, W; documented=3)  → float[batch, 2]" in text
    assert "h = my.functions.Scale:a(xW; by=2)" in text
    assert "h5, _ = Dropout(h4, _, flag)" in text
    assert "\n      branch_out = Add(h, c)" in text  # inside If, indented


def test_functions_are_readable_as_text():
    function = next(iter(serde.from_proto(rich_model()).ir.functions.values()))

    assert render_function(function).splitlines()[0] == "function my.functions.Scale:a(X)"
    assert "by_value = Constant(value_float=@by)" in render_function(function)


@pytest.fixture
def file(tmp_path):
    serde.save(small_model(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def run(*arguments: object):
    return CliRunner().invoke(build_app(), [str(a) for a in arguments])


def test_the_command_prints_the_summary(file):
    result = run("show", file)

    assert result.exit_code == 0
    assert "2 trained" in result.stdout


def test_the_command_prints_json_and_nothing_else(file):
    assert json.loads(run("show", file, "--json").stdout)["name"] == "small"


def test_the_command_prints_all_graphs(file):
    text = run("show", file, "--graph").stdout

    for part in ("forward: small", "training: train", "update  W ← W_new", "reset: reset", "set     W ← W_init"):
        assert part in text


def test_the_command_writes_a_page(file, tmp_path):
    result = run("show", file, "--html", tmp_path / "m.html")

    assert result.exit_code == 0
    assert (tmp_path / "m.html").read_text().startswith("<!DOCTYPE html>")


def test_the_upgrade_command_writes_a_newer_file(tmp_path):
    node = onnx.helper.make_node("Squeeze", ["x"], ["y"], axes=[0])
    graph = onnx.helper.make_graph([node], "g", [], [])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 11)]), tmp_path / "a.onnx")

    result = run("upgrade", tmp_path / "a.onnx", "-o", tmp_path / "b.onnx", "--opset", 13)

    assert "operator set 11 → 13, no training entries" in result.stdout
    assert serde.load(tmp_path / "b.onnx").opset == 13
