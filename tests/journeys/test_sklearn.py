"""Journey: a pipeline of scikit-learn, as an ONNX file, goes on learning; the example runs as it is in the docs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

pytest.importorskip("skl2onnx")
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "finetune_sklearn.py"


def test_the_example_improves_both_classifiers_and_keeps_their_operators(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(EXAMPLE), "--epochs", "12", "--folder", str(tmp_path)]

    own = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=own, check=False)

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["logistic", "boosting"]
    for line in lines:
        before, after = (float(v) for v in line.split("customers ")[1].split(",")[0].split(" -> "))
        assert after > before + 0.05
        assert line.endswith("the same operators")
    kinds = {n.op_type for n in onnx.load(tmp_path / "boosting_tuned.onnx").graph.node if n.domain == "ai.onnx.ml"}
    assert kinds >= {"Imputer", "Scaler", "OneHotEncoder", "TreeEnsembleClassifier"}
