"""PyTorch and Onward from the same start: every loss, parameter and buffer compared."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import onward
from frontends.runs import assert_same_state, batches, onward_step, start, torch_step
from frontends.zoo import ZOO, Subject

by_subject = pytest.mark.parametrize("subject", ZOO, ids=str)


def weights_of(trainer: onward.Trainer, model: onward.TrainingModel) -> dict[str, np.ndarray]:
    """The state, and what is frozen."""
    return {**{n: v.const_value.numpy() for n, v in model.frozen.items()}, **trainer.state}


@by_subject
def test_onnxruntime_goes_on_where_pytorch_was(subject: Subject) -> None:
    module, optimizer, model = start(subject)
    trainer = onward.Trainer(model, threads=1)
    expected, actual = [], []

    for inputs, targets in batches(subject, 50):
        expected.append(torch_step(module, optimizer, subject.loss, inputs, targets))
        actual.append(onward_step(trainer, inputs, targets))

    np.testing.assert_allclose(actual, expected, rtol=subject.rtol)
    assert_same_state(weights_of(trainer, model), module, subject.rtol * 10)


@by_subject
def test_a_model_comes_back_to_pytorch_and_goes_on(subject: Subject) -> None:
    module, optimizer, model = start(subject)
    back, its_optimizer = onward.to_torch(model)
    back.train()
    expected, actual = [], []

    for inputs, targets in batches(subject, 20):
        expected.append(torch_step(module, optimizer, subject.loss, inputs, targets))
        actual.append(torch_step(back, its_optimizer, subject.loss, inputs, targets))

    np.testing.assert_allclose(actual, expected, rtol=subject.rtol)
    assert type(its_optimizer) is type(optimizer)
    tensors = {n: t.detach().numpy() for n, t in back.named_tensors().items()}
    assert_same_state(tensors, module, subject.rtol * 10)


@by_subject
def test_the_file_is_valid_and_has_the_names_of_the_module(subject: Subject) -> None:
    module, _, model = start(subject)

    report = onward.check(model)

    assert report.ok, report.render()
    assert set(model.parameters) == {n for n, p in module.named_parameters() if p.requires_grad}


@by_subject
def test_the_state_dict_fits_both_ways(subject: Subject) -> None:
    module, _, model = start(subject)
    back, _ = onward.to_torch(model)
    first = {n for n, _ in [*module.named_parameters(), *module.named_buffers()]}

    state = back.state_dict()

    assert set(state) == first  # tied weights have one name
    module.load_state_dict(state, strict=first == set(module.state_dict()))
    back.load_state_dict(state, strict=True)


@by_subject
def test_evaluation_agrees(subject: Subject) -> None:
    module, _, model = start(subject)
    back, _ = onward.to_torch(model)
    inputs, _ = batches(subject, 1, seed=7)[0]

    with torch.no_grad():
        expected, actual = module.eval()(*inputs), back.eval()(*inputs)

    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
