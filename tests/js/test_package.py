"""The npm package `@onward/train`: its own tests; Node.js, Chromium and Python continue each other's training."""

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
from once import once
from whole import WHOLE

PLAIN = {"threads": 1, "fused": False, "native": False}  # the graphs that JavaScript runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every program, with its batches and what native ONNX Runtime makes of them."""
    packages.node_modules()
    return once(tmp_path_factory, "programs", write_programs)[0]


def write_programs(folder: Path) -> list[float]:
    """Write every program, and of one the state after 125 steps in Python; return its losses of 130 steps."""
    for name in programs.PROGRAMS:
        programs.write(name, folder)
    trainer = onward.Trainer(onward.Program.load(folder / "dropout" / "program"), **PLAIN)
    losses = [loss_of(trainer, step) for step in range(125)]
    trainer.save_state(folder / "dropout" / "python.safetensors")
    trainer.save_checkpoint(folder / "dropout" / "run")
    return losses + [loss_of(trainer, step) for step in range(125, 130)]


def test_its_own_tests_pass(folder: Path) -> None:
    done = subprocess.run(
        ["npm", "test", "--silent"], cwd=packages.JS, capture_output=True, text=True, timeout=300,
        env={**os.environ, "ONWARD_PROGRAMS": str(folder)},
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert "# fail 0" in done.stdout


# ---------------------------------------------------------------------- the same jobs in Node.js and in Chromium

SAMPLES = ["linear", "digits", "mnist", "dropout", "two_entries"]
EXPORTED = ["dropout", "digits", "doubles"]
WAYS = [(t, i) for t in (1, 2) for i in (False, True)] if WHOLE else [(1, False), (2, True)]  # threads, COOP and COEP
Results = dict[str, dict[str, Any]]


def training(place: str) -> dict[str, dict[str, Any]]:
    """Return the jobs of 20 steps on each sample, by name."""
    ways = WAYS if place == "chromium" else [(1, False)]
    steps = {"steps": programs.STEPS}
    return {
        f"{n}, {t} threads, {i}": {"name": n, "threads": t, "isolated": i, **steps} for n in SAMPLES for t, i in ways
    }


@pytest.fixture(scope="module")
def native(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of 130 steps in Python; the state after 125 of them is stored, as one file and as a step of a run."""
    losses: list[float] = once(tmp_path_factory, "programs", write_programs)[1]
    return losses


@pytest.fixture(scope="module", params=["node", "chromium"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def made(place: str, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What JavaScript made of all jobs: Chromium is started once for all of them."""
    found: Results = once(tmp_path_factory, f"made in {place}", lambda _: run_jobs(place, folder))[1]
    return found


def run_jobs(place: str, folder: Path) -> Results:
    at = "" if place == "chromium" else str(folder)
    goes_on = {"name": "dropout", "from": 125}
    jobs = training(place) | {
        "first": {"name": "dropout", "steps": 125, "checkpoint": True},
        "state": {**goes_on, "steps": 5, "restore": f"{at}/dropout/python.safetensors"},
        "step of a run": {**goes_on, "steps": 1, "restore": f"{at}/dropout/run/step-00000125.safetensors"},
        **{f"export {n}": {"name": n, "steps": 3, "export": True, "infer": True} for n in EXPORTED},
    }
    for job in jobs.values():
        job |= {"source": f"{at}/{job['name']}/program/", "batches": f"{at}/{job['name']}/batches.safetensors"}
    given = list(jobs.values())
    results = packages.in_node(given) if place == "node" else packages.in_chromium(given, folder)
    assert [r["error"] for r in results if "error" in r] == []
    return dict(zip(jobs, results, strict=True))


def loss_of(trainer: onward.Trainer, step: int) -> float:
    return float(trainer.step(batch(seed=step % programs.STEPS))["loss"])


def test_losses_are_those_of_native_onnx_runtime(made: Results, place: str, folder: Path) -> None:
    for key, job in training(place).items():
        result, needed = made[key], programs.read_expected(folder / job["name"])["losses"]

        assert result["selfTest"] is True
        if place == "chromium":  # only an isolated page has more than one thread
            used = job["threads"] if job["isolated"] else 1
            assert (result["isolated"], result["threads"]) == (job["isolated"], used), key
        assert [list(x) for x in result["losses"]] == [list(x) for x in needed]
        found, expected = ([v for x in losses for v in x.values()] for losses in (result["losses"], needed))
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=key)


def test_python_goes_on_where_javascript_stopped(
    made: Results, folder: Path, native: list[float], tmp_path: Path
) -> None:
    first = made["first"]
    (tmp_path / "checkpoint.safetensors").write_bytes(base64.b64decode(first["checkpoint"]))
    trainer = onward.Trainer(onward.Program.load(folder / "dropout" / "program"), **PLAIN)

    trainer.load_state(tmp_path / "checkpoint.safetensors")

    assert trainer.steps == first["steps"] == 125
    np.testing.assert_allclose([x["train"] for x in first["losses"]], native[:125], rtol=1e-6)
    np.testing.assert_allclose([loss_of(trainer, step) for step in range(125, 130)], native[125:], rtol=1e-6)


def test_javascript_goes_on_where_python_stopped(made: Results, native: list[float]) -> None:
    for key, count in (("state", 5), ("step of a run", 1)):
        assert made[key]["before"] == 125
        np.testing.assert_allclose([x["train"] for x in made[key]["losses"]], native[125 : 125 + count], rtol=1e-6)


@pytest.mark.parametrize("name", EXPORTED)
def test_the_exported_model_is_valid_and_gives_what_was_inferred(made: Results, name: str, tmp_path: Path) -> None:
    result, path = made[f"export {name}"], tmp_path / "exported.onnx"
    program, data = programs.PROGRAMS[name]()
    inputs = {s.name: data[0][s.name] for s in program.inputs}

    path.write_bytes(base64.b64decode(result["onnx"]))

    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert onward.check(path).ok
    assert [i.name for i in model.graph.input] == list(inputs)
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    for output, values in zip(session.get_outputs(), session.run(None, inputs), strict=True):
        scale = np.abs(values).max()
        np.testing.assert_allclose(result["outputs"][output.name], values.ravel(), rtol=0, atol=2e-6 * scale)
    stored = {p.key: p.value for p in program.infer.metadata_props}
    assert {p.key: p.value for p in model.metadata_props} == stored
    assert name != "dropout" or json.loads(stored["onward.preparation"])["classes"] == ["rose", "tülip", "daisy"]
