"""CTC against `torch.nn.functional.ctc_loss`: values, and gradients through the Scan."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from onward import losses

RNG = np.random.default_rng(17)
T, N, C, S = 7, 4, 5, 3
LOGITS = RNG.normal(size=(T, N, C)) * 2
SCORES = F.log_softmax(torch.from_numpy(LOGITS), 2).numpy()
LABELS = np.array([[1, 2, 3], [4, 4, -1], [2, -1, -1], [3, 1, 3]])
TIMES, COUNTS = np.array([7, 6, 3, 7]), np.array([3, 2, 1, 3])


def expected(scores, times=TIMES, counts=COUNTS, **options) -> torch.Tensor:
    return F.ctc_loss(
        scores, torch.from_numpy(np.maximum(LABELS, 0)), torch.from_numpy(times), torch.from_numpy(counts), **options
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ctc_equals_torch(run, reduction: str) -> None:
    found = run(losses.CTC(reduction=reduction), [SCORES], [LABELS, TIMES, COUNTS])

    np.testing.assert_allclose(found, expected(torch.from_numpy(SCORES), reduction=reduction).numpy(), rtol=1e-9)


def test_time_may_be_the_second_axis(run) -> None:
    found = run(losses.CTC(time_axis=1), [SCORES.transpose(1, 0, 2).copy()], [LABELS, TIMES, COUNTS])

    np.testing.assert_allclose(found, expected(torch.from_numpy(SCORES)).numpy(), rtol=1e-9)


def test_the_output_may_be_logits(run, run_gradient) -> None:
    batches_first = LOGITS.transpose(1, 0, 2).copy()

    loss_of_logits, given = losses.CTC(time_axis=1, logits=True), ([batches_first], [LABELS, TIMES, COUNTS])

    found = run(loss_of_logits, *given)
    slope = run_gradient(loss_of_logits, *given, on="onnxruntime")

    logits = torch.from_numpy(LOGITS.copy()).requires_grad_()
    loss = expected(F.log_softmax(logits, 2))
    loss.backward()
    np.testing.assert_allclose(found, loss.detach().numpy(), rtol=1e-9)
    np.testing.assert_allclose(slope, logits.grad.numpy().transpose(1, 0, 2), rtol=1e-6, atol=1e-9)


def test_another_class_may_be_the_blank(run) -> None:
    labels = np.array([[0, 1, 2], [3, 3, 0], [1, 0, 0], [2, 0, 2]])

    found = run(losses.CTC(blank=4), [SCORES], [labels, TIMES, COUNTS])

    theirs = F.ctc_loss(*(torch.from_numpy(a) for a in (SCORES, labels, TIMES, COUNTS)), blank=4)
    np.testing.assert_allclose(found, theirs.numpy(), rtol=1e-9)


def test_labels_of_no_length_leave_the_blanks(run) -> None:
    counts = np.array([0, 2, 0, 3])

    found = run(losses.CTC(reduction="none"), [SCORES], [LABELS, TIMES, counts])

    np.testing.assert_allclose(
        found, expected(torch.from_numpy(SCORES), counts=counts, reduction="none").numpy(), rtol=1e-9
    )


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_an_impossible_alignment_is_infinite_or_zero(run, zero_infinity: bool) -> None:
    times = np.array([2, 2, 3, 7])  # three labels in two steps; two equal labels in two steps

    found = run(losses.CTC(reduction="none", zero_infinity=zero_infinity), [SCORES], [LABELS, times, COUNTS])

    theirs = expected(torch.from_numpy(SCORES), times=times, reduction="none", zero_infinity=zero_infinity)
    np.testing.assert_allclose(found, theirs.numpy(), rtol=1e-9)
    assert found[0] == (0.0 if zero_infinity else np.inf)


def test_onnxruntime_runs_it_in_float32(run) -> None:
    found = run(losses.CTC(), [SCORES.astype(np.float32)], [LABELS, TIMES, COUNTS], on="onnxruntime")

    np.testing.assert_allclose(found, expected(torch.from_numpy(SCORES)).numpy(), rtol=1e-5)


def test_the_gradient_equals_autograd(run_gradient) -> None:
    found = run_gradient(losses.CTC(), [SCORES], [LABELS, TIMES, COUNTS], on="onnxruntime")

    # PyTorch's own gradient is that of the logits through log_softmax, whatever its input: compare behind log_softmax.
    logits = torch.from_numpy(LOGITS.copy()).requires_grad_()
    expected(F.log_softmax(logits, 2)).backward()
    through = found - np.exp(SCORES) * found.sum(2, keepdims=True)
    np.testing.assert_allclose(through, logits.grad.numpy(), rtol=1e-6, atol=1e-9)


def test_impossible_alignments_counted_as_zero_have_no_gradient(run_gradient) -> None:
    times = np.array([2, 2, 3, 7])

    found = run_gradient(losses.CTC(zero_infinity=True), [SCORES], [LABELS, times, COUNTS], on="onnxruntime")

    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found[:, :2], 0.0)
