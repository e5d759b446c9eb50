"""The recipe `examples/recipes/ocr_alphabet.py`, with fewer steps, on the real rapidocr, which reads the tuned file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fetch import cache
from onnx import numpy_helper

ROOT = Path(__file__).parents[2]
# rapidocr, and of what it needs only what Onward's own environment does not have: numpy, pillow and onnxruntime are
# those of the tests.
PACKAGES = (
    "rapidocr==3.10.0", "opencv-python-headless==5.0.0.93", "pyclipper==1.4.0", "shapely==2.2.0", "omegaconf==2.4.0",
    "pyyaml==6.0.3", "tqdm==4.70.1", "colorlog==6.12.0", "requests==2.34.2", "urllib3==2.8.0", "idna==3.20",
    "certifi==2026.10.18", "charset-normalizer==3.5.2",
)  # fmt: skip

WORDS = ["გამარჯობა", "საქართველო", "თბილისი", "მადლობა", "წიგნი", "ყვავილი"]


@pytest.fixture(scope="module")
def rapidocr() -> Path:
    """The folder with rapidocr, installed once into the cache of the zoo."""
    for needed in ("matplotlib", "PIL"):
        pytest.importorskip(needed)
    folder = cache() / "rapidocr-3.10.0"
    if folder.exists():
        return folder
    with tempfile.TemporaryDirectory(dir=cache()) as new:
        installed = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps",
             "--only-binary=:all:", "--target", f"{new}/packages", *PACKAGES],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        if installed.returncode:
            pytest.skip(f"pip cannot install rapidocr here: {installed.stderr[-300:]}")
        Path(new, "packages").rename(folder)
    return folder


@pytest.mark.slow
def test_rapidocr_reads_an_alphabet_that_it_was_taught(rapidocr: Path, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / "recipes" / "ocr_alphabet.py", "--output", tmp_path, "--steps", "24",
         "--held-out", "24"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(rapidocr)]), "PYTHONUTF8": "1"},
        capture_output=True, encoding="utf-8", timeout=600, check=False,
    )  # fmt: skip

    assert run.returncode == 0, run.stderr
    characters = [float(share) for share in re.findall(r"([\d.]+)% of the characters", run.stdout)]
    before, after = characters[:2], characters[2:]
    assert len(after) == 2, run.stdout
    assert max(before) < 15, run.stdout
    assert min(after) > 85, run.stdout
    page = run.stdout.partition("page.png")[2]  # which the detector cuts into words; 24 steps leave a letter wrong
    assert sum(word in page for word in WORDS) >= 4, run.stdout
    original = onnx.load(rapidocr / "rapidocr" / "models" / "PP-OCRv6_rec_small.onnx")
    tuned = onnx.load(tmp_path / "recogniser.onnx")
    changed = changed_weights(original, tuned)
    assert {"linear_8.w_0", "linear_8.b_0"} <= changed
    assert all(name.startswith("linear_") for name in changed), changed  # the convolutions are frozen
    alphabet = (tmp_path / "keys.txt").read_text(encoding="utf-8").splitlines()
    assert [d.dim_value for d in tuned.graph.output[0].type.tensor_type.shape.dim][2] == len(alphabet) + 2


def changed_weights(before: onnx.ModelProto, after: onnx.ModelProto) -> set[str]:
    """Return the names of the weights whose numbers are not the same."""
    old, new = ({t.name: numpy_helper.to_array(t) for t in m.graph.initializer} for m in (before, after))
    weights = {name for name, array in old.items() if array.dtype == np.float32}
    assert weights <= set(new)
    return {name for name in weights if not np.array_equal(old[name], new[name])}
