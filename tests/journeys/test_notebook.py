"""A notebook, executed by a real Jupyter kernel: the bar is one redrawn output, and nothing is red."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient

TRAIN = """
import numpy as np
import onward

rng = np.random.default_rng(0)
images, labels = rng.random((256, 1, 8, 8), dtype=np.float32), rng.integers(0, 10, 256)
trainer = onward.Trainer(onward.samples.build("digits"))
history = trainer.fit(images, labels, epochs=3, batch_size=32, validation_data=0.25, metrics=["accuracy"])
"""


def execute(*cells: str, **settings) -> list[list[dict]]:
    """Run the cells and return the outputs of each."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(book, timeout=300, kernel_name="python3", **settings).execute()
    return [cell["outputs"] for cell in book["cells"]]


@pytest.fixture(scope="module")
def outputs():
    return execute(
        TRAIN,
        "history",
        "history.plot()",
        "onward.samples.build('digits')",
        "trainer.program",
        "onward.check(onward.samples.build('digits'))",
        "trainer.predictions(images[:5], top=2)",
        "trainer.find_learning_rate(images, labels, steps=20)",
        "history.to_frame()",
    )


def html(output: dict) -> str:
    return "".join(output["data"].get("text/html", "") or output["data"].get("image/svg+xml", ""))


def test_training_draws_one_bar_with_losses_and_metrics(outputs):
    """Journey 13: train in a notebook, and look at everything there."""
    shown = outputs[0]

    assert [o["output_type"] for o in shown] == ["display_data"]
    page = html(shown[0])
    assert '<progress value="18" max="18">' in page
    assert "finished" in page
    for column in ("loss", "accuracy", "val_loss", "val_accuracy"):
        assert f">{column}</th>" in page
    assert page.count("<tr>") == 4  # a heading and three epochs


def test_nothing_is_printed_in_red(outputs):
    streams = [o for shown in outputs for o in shown if o["output_type"] in ("stream", "error")]

    assert streams == []


def test_every_object_shows_itself(outputs):
    needed = ["best val_loss", "<svg", "Training model", "train step", "no problems found", "class_2", "Learning rates"]

    for shown, text in zip(outputs[1:8], needed, strict=True):
        assert text in html(shown[-1])
    assert "val_accuracy" in html(outputs[8][-1])


def test_an_error_is_shown_once_and_the_bar_says_stopped():
    broken = "def fail(run, logs):\n    raise RuntimeError('stop here')\n"
    fit = "trainer.fit(images, labels, epochs=3, callbacks=[fail])"

    shown = execute(TRAIN, broken + fit, allow_errors=True)[1]

    assert [o["output_type"] for o in shown] == ["display_data", "error"]
    assert "stopped" in html(shown[0])
    assert shown[1]["evalue"] == "stop here"
