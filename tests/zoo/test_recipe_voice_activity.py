"""The recipe for a voice activity detector: silero_vad itself is right more often near a machine, and elsewhere too."""

from __future__ import annotations

import re
from pathlib import Path

from whole import WHOLE
from zoo.packages import run_recipe

PACKAGES = ["silero-vad==6.2.3", "espeakng-loader==0.2.4"]


def test_silero_vad_hears_speech_beside_a_machine_and_forgets_nothing(tmp_path: Path) -> None:
    size = ["--clips", "48", "--held-out", "24"] if WHOLE else ["--clips", "24", "--held-out", "10"]
    size += ["--epochs", "2"]

    printed = run_recipe("voice_activity.py", PACKAGES, *size, "--output", str(tmp_path / "workshop_vad.onnx"))

    rows = re.findall(r"^(\w+) clips, (\w+): ([\d.]+)% of .* F1 ([\d.]+)$", printed, re.MULTILINE)
    accuracy = {(kind, when): float(percent) for kind, when, percent, _ in rows}
    f1 = {(kind, when): float(number) for kind, when, _, number in rows}
    assert accuracy["new", "after"] >= accuracy["new", "before"] + (8 if WHOLE else 3), printed  # it saw half as much
    assert f1["new", "after"] >= f1["new", "before"] + (0.05 if WHOLE else 0.02), printed
    assert accuracy["ordinary", "after"] >= accuracy["ordinary", "before"] - (1 if WHOLE else 3), printed
