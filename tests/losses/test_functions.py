"""Functions that become losses: over torch tensors, and of onnxscript."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnxscript import FLOAT, script
from onnxscript import opset18 as op

import onward
from onward import losses, samples
from onward.errors import ArgumentError, OnwardError

RNG = np.random.default_rng(41)
Y, CLASSES, NUMBERS = (
    RNG.normal(size=(4, 2)).astype(np.float32),
    np.array([0, 1, 1, 0]),
    RNG.normal(size=(4, 2)).astype(np.float32),
)
X = RNG.normal(size=(5, 3)).astype(np.float32)


def soft_margin(y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    sign = 2.0 * F.one_hot(t, 2) - 1.0
    return F.softplus(-sign * y).pow(1.5).mean() + 0.1 * y.abs().logsumexp(1).mean()


def start(model: onward.TrainingModel, labels: np.ndarray) -> float:
    trainer = onward.Trainer(model)
    return float(trainer.step(dict(zip(trainer.input_names, [X, labels], strict=True)))["loss"])


def predict(model: onward.TrainingModel) -> np.ndarray:
    return np.asarray(onward.Trainer(model).predict(X))


def test_a_torch_function_is_a_loss_of_any_batch_size(run, run_gradient) -> None:
    loss = losses.from_torch(soft_margin, Y, CLASSES)
    net = samples.perceptron()

    model = onward.make_trainable(net, loss=loss)

    assert model.targets == ["labels"]
    labels = np.array([0, 1, 0, 1, 1])
    y = torch.tensor(predict(model))
    assert start(model, labels) == pytest.approx(float(soft_margin(y, torch.from_numpy(labels))), rel=1e-5)


def test_an_object_of_torch_is_a_loss() -> None:
    loss = losses.from_torch(torch.nn.CrossEntropyLoss(label_smoothing=0.2), Y, CLASSES)

    model = onward.make_trainable(samples.perceptron(), loss=loss)

    ours = onward.make_trainable(samples.perceptron(), loss=losses.CrossEntropy(label_smoothing=0.2))
    labels = np.array([0, 1, 0, 1, 1])
    assert start(model, labels) == pytest.approx(start(ours, labels), rel=1e-5)


def test_without_an_example_the_shapes_of_the_model_are_one() -> None:
    model = onward.make_trainable(
        samples.perceptron(), loss=losses.from_torch(soft_margin), label={"t": ("int64", ["N"])}
    )

    assert model.targets == ["t"]
    assert np.isfinite(start(model, np.array([0, 1, 0, 1, 1])))


def test_several_outputs_are_a_list() -> None:
    loss = losses.from_torch(lambda y, t: (y[0] * t[0]).mean() + (y[1] - t[1]).square().mean(), [Y, Y], [NUMBERS, Y])

    assert loss.num_outputs == 2
    assert repr(loss) == "TorchLoss(<lambda>)"


def test_a_loss_without_targets_reads_the_outputs_alone() -> None:
    model = onward.make_trainable(
        samples.perceptron(), loss=losses.from_torch(lambda y: y.square().mean(), Y), label=None
    )

    assert model.targets == []


def test_a_torch_function_can_be_part_of_a_sum_and_of_distillation() -> None:
    loss = losses.from_torch(lambda y, t: (y - t).abs().pow(3).mean(), Y, NUMBERS)

    model = onward.make_trainable(samples.perceptron(), loss=0.5 * loss + losses.MSE())

    labels = RNG.normal(size=(5, 2)).astype(np.float32)
    y = predict(model)
    expected = 0.5 * (np.abs(y - labels) ** 3).mean() + ((y - labels) ** 2).mean()
    assert start(model, labels) == pytest.approx(expected, rel=1e-5)
    taught = onward.make_trainable(
        samples.perceptron(), teacher=samples.perceptron(), loss=losses.Distillation(loss=loss), label="numbers"
    )
    assert taught.targets == ["numbers"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda y, t: (y - y.detach() * t).square().mean(), "the gradient of output 0 is off by"),
        (lambda y, t: (y - t).square(), "found: a tensor of shape [4, 2]"),
        (lambda y, t: t.mean(), "the loss does not depend on the outputs"),
        (lambda y, t: y.nonsense(), "the function fails on the example: AttributeError"),
        (lambda y, t: y.mean() if y.sum() > 0 else t.mean() + y.mean(), "PyTorch cannot capture the loss `<lambda>`"),
        (lambda y, t: float(y.sum()), "found: float"),
        (torch.nn.MSELoss, "the loss is not a function"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_cannot_be_exported_is_refused_at_once(function, message: str) -> None:
    with pytest.raises(OnwardError) as caught:
        losses.from_torch(function, Y, NUMBERS)

    assert message in str(caught.value)


def test_an_example_of_one_sample_is_refused() -> None:
    with pytest.raises(ArgumentError, match="an example of one sample cannot show which sizes are free"):
        losses.from_torch(soft_margin, Y[:1], CLASSES[:1])


def test_a_wrong_export_is_found(monkeypatch) -> None:
    """Test the tester: a graph whose value or gradient is off by a thousandth is refused."""
    from onward.frontends.torch import capture, function_loss

    real = capture.export

    def off(module, *rest):
        loss = module.loss
        module.loss = lambda *values: 1.001 * loss(*values)
        try:
            return real(module, *rest)
        finally:
            module.loss = loss

    monkeypatch.setattr(function_loss.capture, "export", off)
    with pytest.raises(ArgumentError, match=r"error\[A215\]: its graph gives other numbers than the function"):
        losses.from_torch(soft_margin, Y, CLASSES)


def test_without_torch_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "onward.frontends.torch.function_loss", raising=False)
    monkeypatch.delitem(sys.modules, "onward.frontends.torch", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(OnwardError, match=r"pip install 'onward\[torch\]'"):
        losses.from_torch(soft_margin)


@script()
def cube_error(y: FLOAT["N", 2], t: FLOAT["N", 2]):  # noqa: F821, UP037
    """mean |y - t|³"""
    d = op.Abs(y - t)
    return op.ReduceMean(d * d * d, keepdims=0)


def test_a_function_of_onnxscript_is_a_loss() -> None:
    model = onward.make_trainable(samples.perceptron(), loss=cube_error, label={"t": ("float32", ["N", 2])})

    labels = RNG.normal(size=(5, 2)).astype(np.float32)
    y = predict(model)
    assert start(model, labels) == pytest.approx((np.abs(y - labels) ** 3).mean(), rel=1e-5)
    assert onward.check(model).ok
