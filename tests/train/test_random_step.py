"""Dropout masks go on where they were when a half-trained model goes through a file to another runtime."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest

import onward
from onward.model.roles import RANDOM_STEP_ENTRY, random_step

TEXT = """<ir_version: 8, opset_import: ["": 18]>
net (float[N, 6] x) => (float[N, 3] y) {
    h = MatMul (x, A)
    r = Relu (h)
    rate = Constant <value = float {0.5}> ()
    on = Constant <value = bool {1}> ()
    d = Dropout (r, rate, on)
    y = MatMul (d, B)
}"""


def data(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {"x": rng.standard_normal((8, 6)).astype(np.float32), "labels": rng.integers(0, 3, 8)}


@pytest.fixture(scope="module")
def model() -> onward.TrainingModel:
    proto = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(0)
    for name, shape in (("A", (6, 16)), ("B", (16, 3))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal(shape, np.float32), name))
    return onward.make_trainable(proto, loss="cross_entropy", optimizer=onward.SGD(0.05))


def losses(trainer: onward.Trainer, steps: range) -> list[float]:
    return [float(trainer.step(data(step))["loss"]) for step in steps]


@pytest.fixture(scope="module")
def halves(model: onward.TrainingModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """A file after three steps, and the losses of the next three without a file."""
    trainer = onward.Trainer(model)
    losses(trainer, range(3))
    path = tmp_path_factory.mktemp("half") / "half.train.onnx"
    onward.save(trainer.to_model(), path)
    return path, losses(trainer, range(3, 6))


@pytest.mark.parametrize("backend", ["onnxruntime", "reference", "torch", "jax"])
def test_a_run_from_a_file_draws_the_masks_of_the_uninterrupted_run(backend: str, halves: tuple[Path, list[float]]):
    if backend in ("torch", "jax"):
        pytest.importorskip(backend)
    path, wanted = halves

    found = losses(onward.Trainer(path, backend=backend), range(3, 6))

    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_the_masks_matter_here(model: onward.TrainingModel, halves: tuple[Path, list[float]]):
    path, wanted = halves
    anew = onward.load(path)
    del anew.ir.metadata_props[RANDOM_STEP_ENTRY]

    found = losses(onward.Trainer(anew), range(3, 6))

    assert not np.allclose(found, wanted, rtol=1e-3)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_to_torch_goes_on_with_the_masks_of_the_file(halves: tuple[Path, list[float]]):
    import torch

    path, wanted = halves
    module, _ = onward.to_torch(path)
    module.train()
    batch = data(3)

    found = module.loss(torch.tensor(batch["x"]), torch.tensor(batch["labels"]))

    assert found.item() == pytest.approx(wanted[0], rel=1e-5)


def test_to_jax_goes_on_with_the_masks_of_the_file(halves: tuple[Path, list[float]]):
    pytest.importorskip("jax")
    path, wanted = halves

    fn, params, state = onward.to_jax(path)

    assert float(fn(params, state, data(3))[0]) == pytest.approx(wanted[0], rel=1e-5)


def test_a_checkpoint_that_is_read_as_a_model_holds_the_number_too(model: onward.TrainingModel, tmp_path: Path):
    trainer = onward.Trainer(model)
    losses(trainer, range(3))
    trainer.save_checkpoint(tmp_path / "run")
    wanted = losses(trainer, range(3, 6))

    found = losses(onward.Trainer(onward.load(tmp_path / "run")), range(3, 6))

    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_new_run_begins_anew_and_inference_holds_no_number(halves: tuple[Path, list[float]]):
    trainer = onward.Trainer(halves[0])
    assert trainer.state["random/step"] == 3

    trainer.initialize()

    assert trainer.state["random/step"] == 0
    assert RANDOM_STEP_ENTRY not in {p.key for p in onward.to_inference(halves[0]).metadata_props}


@pytest.mark.parametrize("text", ["", "-3", "2.5", "²", "9" * 400])
def test_an_entry_that_is_no_number_is_one_of_a_model_that_never_trained(text: str, halves: tuple[Path, list[float]]):
    changed = onward.load(halves[0])
    changed.ir.metadata_props[RANDOM_STEP_ENTRY] = text

    assert random_step(changed) == 0
