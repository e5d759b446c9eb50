"""The recipe for a wake word: openwakeword itself hears the new word with the tuned file."""

from __future__ import annotations

import re
from pathlib import Path

import onnx

from zoo.packages import run_recipe

PACKAGES = ["openwakeword==0.5.1", "espeakng-loader==0.2.4", "tqdm==4.67.1"]


def test_openwakeword_hears_the_new_word_of_speakers_that_were_held_out(tmp_path: Path) -> None:
    tuned = tmp_path / "hey_onward.onnx"

    printed = run_recipe("wake_word.py", PACKAGES, "--clips", "120", "--held-out", "20", "--output", str(tuned))

    found = re.findall(r"^(before|after): hears the word in ([\d.]+)% .* and in ([\d.]+)% of", printed, re.MULTILINE)
    (_, recall_before, _), (_, recall, accepts) = [(when, float(a), float(b)) for when, a, b in found]
    assert recall_before <= 20, printed
    assert recall >= 80, printed
    assert accepts <= 25, printed
    assert [n.op_type for n in onnx.load(tuned).graph.node][-1] == "Sigmoid"
