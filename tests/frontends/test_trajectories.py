"""PyTorch and Onward from the same start: every loss, parameter and buffer compared."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import onward
from frontends.runs import TOLERANCE, assert_same_state, batches, distances, onward_step, start, torch_step, weights_of
from frontends.zoo import ZOO, Mlp, Subject
from onward.errors import BackendError
from whole import sample

by_subject = pytest.mark.parametrize("subject", ZOO, ids=str)
# Models with an operator for which ONNX Runtime's CPU has no float64 kernel.
NO_KERNEL = {
    "convolutions with batch normalisation": "Conv",
    "residual network, stem frozen": "Conv",
    "depthwise convolutions": "Conv",
    "u-net": "Conv",
    "transformer encoder": "Erf",
    "decoder with tied embedding": "Erf",
    "lstm": "LSTM",
    "gru": "GRU",
}
# Steps in float64 here; docs/generate_trajectories.py makes 50. The reference backend is written for exactness.
STEPS, FEWER_STEPS = 10, 3
SLOW_ON_THE_REFERENCE = ("residual network, stem frozen", "lstm", "gru", "transformer encoder")
LONG = (
    "gru",
    "transformer encoder",
)  # a third of the time; the decoder has attention too, and the LSTM is a recurrence


@by_subject
def test_onnxruntime_goes_on_where_pytorch_was(subject: Subject) -> None:
    module, optimizer, model = start(subject)
    trainer = onward.Trainer(model, threads=1)
    expected, actual = [], []

    for inputs, targets in batches(subject, 50):
        expected.append(torch_step(module, optimizer, subject.loss, inputs, targets))
        actual.append(onward_step(trainer, inputs, targets))

    np.testing.assert_allclose(actual, expected, rtol=TOLERANCE[torch.float32])
    assert_same_state(weights_of(trainer, model), module, TOLERANCE[torch.float32], subject.undetermined)


def check_float64(subject: Subject, backend: str, count: int) -> None:
    module, optimizer, model = start(subject, torch.float64)
    trainer = onward.Trainer(model, backend=backend)
    expected, actual = [], []

    for inputs, targets in batches(subject, count, dtype=torch.float64):
        expected.append(torch_step(module, optimizer, subject.loss, inputs, targets))
        actual.append(onward_step(trainer, inputs, targets))

    np.testing.assert_allclose(actual, expected, rtol=TOLERANCE[torch.float64])
    assert_same_state(weights_of(trainer, model), module, TOLERANCE[torch.float64], subject.undetermined)


@pytest.mark.parametrize("subject", sample(ZOO, [s for s in ZOO if s.name not in LONG]), ids=str)
def test_float64_on_the_reference_backend_is_pytorchs_to_nine_digits(subject: Subject) -> None:
    check_float64(subject, "reference", FEWER_STEPS if subject.name in SLOW_ON_THE_REFERENCE else STEPS)


@pytest.mark.parametrize("subject", [s for s in ZOO if s.name not in NO_KERNEL], ids=str)
def test_float64_on_onnxruntime_is_pytorchs_to_nine_digits(subject: Subject) -> None:
    check_float64(subject, "onnxruntime", STEPS)


@pytest.mark.parametrize("subject", [s for s in ZOO if s.name in NO_KERNEL], ids=str)
def test_a_float64_kernel_that_onnxruntime_does_not_have_is_named(subject: Subject) -> None:
    kernel = NO_KERNEL[subject.name]

    with pytest.raises(BackendError, match=rf"implementation for {kernel}\(|{kernel} operator does not support double"):
        check_float64(subject, "onnxruntime", 1)


@by_subject
def test_a_model_comes_back_to_pytorch_and_goes_on(subject: Subject) -> None:
    module, optimizer, model = start(subject)
    back, its_optimizer = onward.to_torch(model)
    back.train()
    expected, actual = [], []

    for inputs, targets in batches(subject, 20):
        expected.append(torch_step(module, optimizer, subject.loss, inputs, targets))
        actual.append(torch_step(back, its_optimizer, subject.loss, inputs, targets))

    np.testing.assert_allclose(actual, expected, rtol=TOLERANCE[torch.float32])
    assert type(its_optimizer) is type(optimizer)
    tensors = {n: t.detach().numpy() for n, t in back.named_tensors().items()}
    assert_same_state(tensors, module, TOLERANCE[torch.float32], subject.undetermined)


def test_a_parameter_that_is_off_by_a_thousandth_is_noticed() -> None:
    module = Mlp()
    tensors = {n: p.detach().numpy().copy() for n, p in module.named_parameters()}
    tensors["net.2.bias"] *= 1.001

    assert distances(tensors, module)["net.2.bias"] == pytest.approx(1e-3, rel=1e-3)
    with pytest.raises(AssertionError, match=r"net\.2\.bias"):
        assert_same_state(tensors, module, TOLERANCE[torch.float32])


def test_the_bias_of_the_keys_has_no_effect_on_the_outputs() -> None:
    """Why `undetermined` may leave it out."""
    subject = next(s for s in ZOO if s.undetermined)
    module, _, _ = start(subject, torch.float64)
    (name, (first, last)), *_ = subject.undetermined.items()
    inputs, _ = batches(subject, 1)[0]
    before = module(*inputs)

    with torch.no_grad():
        module.get_parameter(name)[first:last] += 1.0

    torch.testing.assert_close(module(*inputs), before, rtol=1e-12, atol=1e-12)


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


@by_subject
def test_the_written_backward_pass_of_a_module_is_autograds(subject: Subject) -> None:
    model = start(subject)[2]
    ((inputs, targets),) = batches(subject, 1)
    modules = [onward.to_torch(model, gradients=way)[0].train() for way in ("autograd", "graph")]

    losses = [module.loss(*inputs, targets) for module in modules]
    for loss in losses:
        (2 * loss).backward()

    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
    expected, found = (dict(module.named_parameters()) for module in modules)
    scale = max(float(p.grad.abs().max()) for p in expected.values() if p.grad is not None)
    for name, parameter in expected.items():
        if parameter.grad is not None:
            torch.testing.assert_close(found[name].grad, parameter.grad, rtol=1e-4, atol=1e-5 * scale)
    for name, buffer in modules[0].named_buffers():
        torch.testing.assert_close(dict(modules[1].named_buffers())[name], buffer, rtol=1e-4, atol=1e-5)
