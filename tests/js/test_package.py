"""The npm package `@onward/train`: its own tests, and that Node.js, Chromium and Python continue each other's training."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import onward
from js import packages, programs
from models import batch
from whole import WHOLE

THREADS = {"threads": 1, "fused": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every program, with its batches and what native ONNX Runtime makes of them."""
    packages.node_modules()
    made = tmp_path_factory.mktemp("programs")
    for name in programs.PROGRAMS:
        programs.write(name, made)
    return made


def test_its_own_tests_pass(folder: Path) -> None:
    done = subprocess.run(
        ["npm", "test", "--silent"], cwd=packages.JS, capture_output=True, text=True, timeout=300,
        env={**os.environ, "ONWARD_PROGRAMS": str(folder)},
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "# fail 0" in done.stdout


def job(folder: Path | None, name: str, **more: Any) -> dict[str, Any]:
    """Return a job on a program: for Node.js with the folder, for Chromium with None."""
    at = f"/{name}" if folder is None else str(folder / name)
    return {"source": f"{at}/program/", "batches": f"{at}/batches.safetensors", "name": name, **more}


def run(place: str, folder: Path, jobs: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Run jobs in Node.js or in Chromium."""
    if place == "node":
        results = packages.in_node([job(folder, name, **more) for name, more in jobs])
    else:
        results = packages.in_chromium([job(None, name, **more) for name, more in jobs], folder)
    assert [r["error"] for r in results if "error" in r] == []
    return results


def loss_of(trainer: onward.Trainer, step: int) -> float:
    return float(trainer.step(batch(seed=step % programs.STEPS))["loss"])


@pytest.mark.parametrize("place", ["node", "chromium"])
def test_python_goes_on_where_javascript_stopped_and_the_reverse(folder: Path, place: str, tmp_path: Path) -> None:
    program = onward.Program.load(folder / "dropout" / "program")
    whole = onward.Trainer(program, **THREADS)
    losses = [loss_of(whole, step) for step in range(130)]
    half = onward.Trainer(program, **THREADS)
    for step in range(125):
        loss_of(half, step)
    half.save_state(folder / "dropout" / "python.safetensors")
    at = folder if place == "node" else Path("/")
    step_file = half.save_checkpoint(folder / "dropout" / f"run-{place}")

    first, second, third = run(
        place,
        folder,
        [
            ("dropout", {"steps": 125, "checkpoint": True}),
            ("dropout", {"steps": 5, "from": 125, "restore": str(at / "dropout" / "python.safetensors")}),
            ("dropout", {"steps": 1, "from": 125, "restore": str(at / step_file.relative_to(folder))}),
        ],
    )

    (tmp_path / "checkpoint.safetensors").write_bytes(base64.b64decode(first["checkpoint"]))
    resumed = onward.Trainer(program, **THREADS)
    resumed.load_state(tmp_path / "checkpoint.safetensors")
    assert resumed.steps == first["steps"] == second["before"] == third["before"] == 125
    np.testing.assert_allclose([x["train"] for x in first["losses"]], losses[:125], rtol=1e-6)
    np.testing.assert_allclose([loss_of(resumed, step) for step in range(125, 130)], losses[125:], rtol=1e-6)
    np.testing.assert_allclose([x["train"] for x in second["losses"]], losses[125:], rtol=1e-6)
    np.testing.assert_allclose(third["losses"][0]["train"], losses[125], rtol=1e-6)


def check_export(folder: Path, name: str, result: dict[str, Any], tmp_path: Path) -> None:
    """Judge the model that JavaScript wrote: by onnx, by `onward check`, and by running it."""
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(base64.b64decode(result["onnx"]))
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert onward.check(path).ok
    program, data = programs.PROGRAMS[name]()
    specs = {s.name: data[0][s.name] for s in program.inputs}
    assert [i.name for i in model.graph.input] == list(specs)
    native = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    for output, values in zip(native.get_outputs(), native.run(None, specs), strict=True):
        scale = np.abs(values).max()
        np.testing.assert_allclose(result["outputs"][output.name], values.ravel(), rtol=0, atol=2e-6 * scale)
    stored = {p.key: p.value for p in program.infer.metadata_props}
    assert {p.key: p.value for p in model.metadata_props} == stored
    assert name != "dropout" or json.loads(stored["onward.preparation"])["classes"] == ["rose", "tülip", "daisy"]


@pytest.mark.parametrize("place", ["node", "chromium"])
def test_the_exported_model_is_valid_and_gives_what_javascript_inferred(
    folder: Path, place: str, tmp_path: Path
) -> None:
    names = ["dropout", "digits", "doubles"]

    results = run(place, folder, [(name, {"steps": 3, "export": True, "infer": True}) for name in names])

    for name, result in zip(names, results, strict=True):
        check_export(folder, name, result, tmp_path)


SAMPLES = ["linear", "digits", "mnist", "dropout", "two_entries"]


def test_chromium_gives_the_losses_of_native_onnx_runtime(folder: Path) -> None:
    ways = [(1, False), (2, True)] if not WHOLE else [(t, i) for t in (1, 2) for i in (False, True)]
    jobs = [(n, {"steps": programs.STEPS, "threads": t, "isolated": i}) for n in SAMPLES for t, i in ways]

    results = run("chromium", folder, jobs)

    for (name, asked), result in zip(jobs, results, strict=True):
        expected = programs.read_expected(folder / name)["losses"]
        assert result["isolated"] == asked["isolated"]
        assert [list(x) for x in result["losses"]] == [list(x) for x in expected]
        found, needed = ([v for x in losses for v in x.values()] for losses in (result["losses"], expected))
        np.testing.assert_allclose(found, needed, rtol=1e-6, err_msg=f"{name}, {asked}")
