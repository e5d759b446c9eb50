"""What is written down about a run: log, events, plot, report, progress."""

from __future__ import annotations

import io
import json
import math
import re
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from onward.errors import ArgumentError, MissingExtra
from onward.train import EarlyStopping, JsonLog, LossPlot, Report, TensorBoard, Trainer
from onward.train.history import History
from onward.train.plot import Line, line_chart, nice_ticks
from onward.train.progress import PlainLines, ProgressBar
from onward.train.report import build_report
from train.fake import linear_data
from train.test_fit import StopAt, make_trainer

QUIET = {"progress": "none", "batch_size": 16}


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_json_log_has_a_line_for_every_step_and_epoch(tmp_path):
    path = tmp_path / "log.jsonl"

    history = make_trainer().fit(*linear_data(64), epochs=2, callbacks=[JsonLog(path)], **QUIET)

    lines = records(path)
    assert [r["event"] for r in lines] == ["start", *["step"] * 4, "epoch", *["step"] * 4, "epoch", "end"]
    assert [r["loss"] for r in lines if r["event"] == "epoch"] == history["loss"]


def test_json_log_of_a_resumed_run_reads_like_one_run(tmp_path):
    path = tmp_path / "log.jsonl"
    arguments = {"epochs": 2, "checkpoint": tmp_path / "run", "checkpoint_every": 2, **QUIET}
    with pytest.raises(KeyboardInterrupt):
        make_trainer().fit(*linear_data(64), callbacks=[JsonLog(path), StopAt(7)], **arguments)

    Trainer.resume(tmp_path / "run").fit(*linear_data(64), callbacks=[JsonLog(path)], progress="none")

    assert [r["step"] for r in records(path) if r["event"] == "step"] == list(range(1, 9))
    assert [r["epoch"] for r in records(path) if r["event"] == "epoch"] == [1, 2]


def test_tensorboard_reads_the_events(tmp_path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")

    history = make_trainer().fit(*linear_data(64), epochs=2, callbacks=[TensorBoard(tmp_path)], **QUIET)

    (path,) = tmp_path.iterdir()
    found = {}
    for event in loader.EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.tensor.float_val[0]))
    assert [step for step, _ in found["step/loss"]] == list(range(1, 9))
    np.testing.assert_allclose([v for _, v in found["epoch/loss"]], history["loss"], rtol=1e-6)


def test_plot_is_well_formed_and_draws_every_line(tmp_path):
    path = tmp_path / "loss.svg"

    make_trainer().fit(
        *linear_data(64), epochs=3, validation_data=linear_data(20, 1), callbacks=[LossPlot(path)], **QUIET
    )

    root = ET.parse(path).getroot()
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Loss", "each step", "training", "validation", "step"} <= set(texts)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 3


def test_a_chart_with_gaps_equal_values_and_one_point_is_drawn():
    svg = line_chart(
        [
            Line("a <b>", [(0, math.nan), (1, 2.0), (2, math.inf), (3, 2.0)], 0),
            Line("one", [(1, 2.0)], 1),
            Line("none", [], 2),
        ],
        title="a & b",
        x_label="x",
    )

    ET.fromstring(svg)
    assert "nan" not in svg.lower().replace("nano", "")
    assert "inf" not in svg.lower()


def test_log_scale_only_for_positive_values():
    wide = line_chart([Line("a", [(0, 1e-4), (1, 1e2)], 0)], title="", x_label="", y_label="y")
    signed = line_chart([Line("a", [(0, -1e-4), (1, 1e2)], 0)], title="", x_label="", y_label="y")

    assert "(log)" in wide
    assert "(log)" not in signed


@pytest.mark.parametrize(("low", "high"), [(0, 1e-9), (-5, 5), (1e6, 1.1e6), (0.001, 12345)])
def test_ticks_are_few_round_and_inside(low, high):
    ticks = nice_ticks(low, high, 5)

    assert 2 <= len(ticks) <= 8
    assert all(low - 1e-12 <= t <= high * (1 + 1e-9) + 1e-12 for t in ticks)


class Tags(HTMLParser):
    """Checks that every tag is closed."""

    void = {"meta", "br", "link", "img"}

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_report_is_one_self_contained_document(tmp_path):
    path = tmp_path / "report.html"

    make_trainer().fit(
        *linear_data(64),
        epochs=3,
        validation_data=linear_data(20, 1),
        metrics=["mae"],
        callbacks=[Report(path, "<my model>")],
        **QUIET,
    )

    page = Tags()
    page.feed(path.read_text())
    text = " ".join(page.text)
    assert page.open == []
    assert not any(a.get("src") or a.get("href") for _, a in page.seen)
    assert "<my model>" in text
    assert "batch size" in text
    assert "python" in text
    assert "finished" in text


def test_report_shows_the_confusion_matrix_with_class_names():
    history = History(epochs=[{"epoch": 1, "step": 5, "loss": 0.5, "seconds": 1.0}], confusion=[[5, 1], [0, 9]])

    page = build_report(history, title="t", settings={}, environment={}, classes=("cat", "dog & cat"))

    assert "1 of class cat taken for dog &amp; cat (16.7 %)" in page
    assert "14 of 15 right" in page


def test_report_of_many_classes_lists_the_worst_confusions():
    matrix = np.diag(np.full(50, 9)).tolist()
    matrix[3][7] = 4
    history = History(epochs=[{"epoch": 1, "step": 5, "loss": 0.5, "seconds": 1.0}], confusion=matrix)

    page = build_report(history, title="t", settings={}, environment={})

    assert "<tr><td>3</td><td>7</td><td>4</td><td>31 %</td></tr>" in page


def test_a_place_that_cannot_be_written_fails_before_the_first_step(tmp_path):
    trainer = make_trainer()

    with pytest.raises(ArgumentError, match="the report `.*` cannot be written"):
        trainer.fit(*linear_data(), callbacks=[Report(tmp_path)], **QUIET)

    assert trainer.steps == 0


def test_plain_lines_show_epochs_and_the_reason_of_a_stop(capsys):
    make_trainer().fit(
        *linear_data(),
        epochs=9,
        learning_rate=0.0,
        callbacks=[EarlyStopping("loss", patience=1, min_delta=1.0)],
        progress="plain",
    )

    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("epoch 1/9  loss ")
    assert lines[-1].startswith("stopped: loss has not improved for 1 epochs")


def test_plain_lines_report_between_epochs(capsys):
    make_trainer().fit(*linear_data(64), callbacks=[PlainLines(every=0.0)], **QUIET)

    assert "epoch 1/1  step 1/4  loss" in capsys.readouterr().err


def test_progress_bar_prints_a_table_with_one_row_per_epoch():
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=110, no_color=True)

    make_trainer().fit(*linear_data(), epochs=2, callbacks=[ProgressBar(console)], **QUIET)

    text = output.getvalue()
    assert "samples/s" in text
    assert "1/2" in text
    assert "2/2" in text


def test_quiet_prints_nothing(capsys):
    make_trainer().fit(*linear_data(), **QUIET)

    assert capsys.readouterr() == ("", "")


def drawn(columns, **more):
    """Return what a terminal of that width has been sent by a run, line by line."""
    console = Console(file=io.StringIO(), force_terminal=True, width=columns, color_system=None)
    bar = ProgressBar(console)
    make_trainer().fit(*linear_data(64), callbacks=[bar], validation_data=linear_data(32, 1), **{**QUIET, **more})
    return console.file.getvalue().replace("\r", "\n").splitlines()


@pytest.mark.parametrize("columns", [40, 60, 80, 100])
def test_the_bar_stays_on_one_line_in_a_narrow_terminal(columns):
    lines = drawn(columns, epochs=2)

    bars = [line for line in lines if "loss" in line and "left" in line]
    assert bars
    assert all("left" in line and line.count("epoch") + line.count("validating") <= 1 for line in bars)
    assert not [line for line in lines if line.strip() in ("samples/s", "steps")]


def test_a_table_with_one_metric_fits_eighty_columns():
    lines = drawn(80, epochs=1, metrics=["mae"])

    heading = next(line for line in lines if "val_loss" in line)
    assert "samples/s" in heading


def test_a_finished_run_that_is_resumed_says_so(tmp_path, capsys):
    make_trainer().fit(*linear_data(64), checkpoint=tmp_path, **QUIET)

    Trainer.resume(tmp_path).fit(*linear_data(64), progress="plain")

    assert capsys.readouterr().err == "this run is finished, at step 4 after epoch 1; raise epochs to go on\n"


def test_a_matrix_of_many_classes_shows_those_that_occur():
    matrix = [[0] * 1000 for _ in range(1000)]
    matrix[3][3], matrix[3][7], matrix[901][901] = 4, 1, 2

    history = History(epochs=[{"epoch": 1, "step": 5, "loss": 0.5, "seconds": 1.0}], confusion=matrix)
    names = [f"name{i}" for i in range(1000)]

    page = build_report(history, title="t", settings={}, environment={}, classes=names)

    assert re.findall(r'<th class="row" title="(\w+)"', page) == ["name3", "name7", "name901"]
    assert "6 of 7 right; 3 of 1,000 classes occur" in page


def test_a_plot_is_written_as_png(tmp_path):
    run = SimpleNamespace(history=SimpleNamespace(epochs=[{"step": 1, "loss": 2.0}], step_losses=[(0, 3.0), (1, 2.0)]))

    LossPlot(tmp_path / "loss.png").on_fit_end(run)

    from PIL import Image

    with Image.open(tmp_path / "loss.png") as image:
        assert image.size == (1440, 760)


def test_a_plot_of_another_kind_is_refused_before_the_training(tmp_path):
    with pytest.raises(ArgumentError, match="needed: a name in .svg or .png"):
        LossPlot(tmp_path / "loss.pdf")


def test_png_without_its_library_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)

    with pytest.raises(MissingExtra, match=r"pip install 'onward\[plots\]'"):
        LossPlot(tmp_path / "loss.png")
