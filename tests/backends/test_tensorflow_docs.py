"""The examples of docs/tensorflow.md run, where TensorFlow is installed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("tf2onnx")

from contract.test_docs_run import PAGES, run_page


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = re.sub(r"<!-- not run:.*?-->\n", "", PAGES["docs/tensorflow.md"].read_text())
    monkeypatch.chdir(tmp_path)

    assert run_page(page, "docs/tensorflow.md") == 5

    assert (tmp_path / "saved_model" / "saved_model.pb").exists()
    assert (tmp_path / "tensorflow.train.onnx").exists()
