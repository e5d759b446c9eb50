"""Files that Onward wrote before it had roles and recipes: training files, checkpoints, programs."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import onward

FILES = Path(__file__).parent / "before_roles"


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((64, 4)).astype(np.float32), rng.integers(0, 3, 64)


@pytest.mark.parametrize("run", ["run", "program_run"])
def test_a_run_resumes_to_its_end(tmp_path: Path, run: str) -> None:
    """Of a training model with dropout, and of a program with moving averages: two epochs then, two more now.

    Other versions of the runtime round differently, so the numbers are compared with a tolerance; the next test
    compares the graphs exactly.
    """
    shutil.copytree(FILES / run, tmp_path / "run")
    trainer = onward.Trainer.resume(tmp_path / "run", allow_changes=True)

    trainer.fit(*data(), epochs=4, progress=False)

    with np.load(FILES / f"{run}_after.npz") as expected:
        assert set(expected.files) == set(trainer.state)
        for name in expected.files:
            np.testing.assert_allclose(trainer.state[name], expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("run", ["run", "program_run"])
def test_a_run_compiles_to_the_graphs_of_then(run: str) -> None:
    trainer = onward.Trainer.resume(FILES / run, allow_changes=True)

    assert trainer._resumed is not None
    stored = trainer._resumed.data["backend"]["describe"]["compiled program"]
    assert trainer._describe()["compiled program"] == stored


def test_what_has_no_roles_is_still_known() -> None:
    model = onward.load(FILES / "average.onnx")
    trainer = onward.Trainer(model, threads=1)

    assert trainer.learning_rate_names == ("learning_rate",)
    assert trainer.program.averages == {p: f"ema/{p}" for p in model.parameters}
    assert trainer.to_inference(average=True).graph.initializer


def test_both_entries_evaluate_in_inference_mode() -> None:
    trainer = onward.Trainer(FILES / "two_entries.onnx", threads=1)
    rng = np.random.default_rng(0)
    x, target = (rng.standard_normal((32, n)).astype(np.float32) for n in (4, 3))

    first = trainer.evaluate({"x": x, "labels": target}, entry="train")
    second = trainer.evaluate({"x": x, "labels2": target}, entry="second")

    y = trainer.predict(x)
    assert list(first.values()) == list(second.values()) == [pytest.approx(float(((y - target) ** 2).mean()), rel=1e-6)]


def test_a_program_loads_and_runs() -> None:
    program = onward.Program.load(FILES / "program")
    x, labels = data()

    outputs = onward.Trainer(program, threads=1).step({"x": x, "labels": labels, "labels2": labels})

    assert list(program.entries) == ["train", "second"]
    assert program.learning_rates == ("learning_rate", "learning_rate_2")
    assert {"loss", "loss2"} <= set(outputs)
