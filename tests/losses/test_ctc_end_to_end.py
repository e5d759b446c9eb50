"""CTC from labels of different lengths to text: training, greedy decoding, the character error rate."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F

import onward
from onward import losses
from onward.errors import ArgumentError, DataError
from onward.train.metrics import CharacterErrorRate, get_metric

RNG = np.random.default_rng(53)


def recogniser(features: int = 6, classes: int = 5) -> onnx.ModelProto:
    """x[N, T, features] -> y[N, T, classes]: each step alone."""
    model = onnx.parser.parse_model(
        f"""
    <ir_version: 8, opset_import: ["": 18]>
    net (float[N, T, {features}] x) => (float[N, T, {classes}] y) {{ y = MatMul(x, W) }}"""
    )
    weight = RNG.normal(size=(features, classes)).astype(np.float32) * 0.1
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "W"))
    return model


@pytest.mark.parametrize("blank", [0, 4])
@pytest.mark.parametrize("seed", range(6))
def test_any_lengths_give_the_loss_and_gradient_of_pytorch(run, run_gradient, blank: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, steps, most = int(rng.integers(1, 5)), int(rng.integers(6, 14)), int(rng.integers(1, 5))
    logits = rng.normal(size=(n, steps, 5)) * 3
    letters = [c for c in range(5) if c != blank]
    labels = rng.choice(letters, size=(n, most))
    counts = rng.integers(0, most + 1, size=n)
    times = rng.integers(max(1, 2 * most), steps + 1, size=n) if 2 * most < steps else np.full(n, steps)
    padded = np.where(np.arange(most) < counts[:, None], labels, -1)
    loss = losses.CTC(blank=blank, time_axis=1, logits=True)

    found = run(loss, [logits], [padded, times, counts], on="onnxruntime")
    slope = run_gradient(loss, [logits], [padded, times, counts], on="onnxruntime")

    tensor = torch.from_numpy(logits).requires_grad_()
    expected = F.ctc_loss(
        F.log_softmax(tensor, 2).transpose(0, 1), *(torch.from_numpy(a) for a in (labels, times, counts)), blank=blank
    )
    expected.backward()
    np.testing.assert_allclose(found, expected.detach(), rtol=1e-8)
    np.testing.assert_allclose(slope, tensor.grad, rtol=1e-6, atol=1e-9)


def test_a_network_learns_to_read_words_of_different_lengths() -> None:
    """Each letter is two steps of its own feature, with a gap: the error rate falls from about 1 to 0."""
    words = [[1, 2], [3], [4, 4, 1], [2, 3, 4]]
    x = np.zeros((4, 12, 6), np.float32)
    for i, word in enumerate(words):
        for j, letter in enumerate(word):
            x[i, 4 * j : 4 * j + 2, letter] = 1
    x[..., 0] = x.sum(-1) == 0
    labels = np.array([w + [-1] * (3 - len(w)) for w in words])
    feeds = {
        "x": x,
        "labels": labels,
        "labels/output_lengths": np.full(4, 12),
        "labels/label_lengths": np.array([len(w) for w in words]),
    }
    model = onward.make_trainable(recogniser(), loss=losses.CTC(time_axis=1, logits=True), optimizer=onward.Adam(0.1))
    trainer = onward.Trainer(model)
    before = trainer.evaluate(feeds, metrics=["cer"])["cer"]

    values = [float(trainer.step(feeds)["loss"]) for _ in range(60)]

    assert values[-1] < 0.1 * values[0]
    assert before > 0.5
    assert trainer.evaluate(feeds, metrics=["cer"])["cer"] == 0
    assert losses.ctc_decode(np.asarray(trainer.predict(x))) == words


def trained_reader(blank: int = 0) -> onward.Trainer:
    loss = losses.CTC(blank=blank, time_axis=1, logits=True)
    return onward.Trainer(onward.make_trainable(recogniser(), loss=loss, optimizer=onward.Adam(0.1)))


@pytest.mark.parametrize("padding", [-1, 4])
@pytest.mark.parametrize("as_batches", [False, True])
def test_lengths_that_the_data_does_not_have_are_derived(padding: int, as_batches: bool) -> None:
    """The oracle is the loss of PyTorch with the lengths given."""
    x = RNG.normal(size=(5, 9, 6)).astype(np.float32)
    counts = np.array([3, 1, 0, 2, 3])
    labels = np.where(np.arange(3) < counts[:, None], RNG.integers(0, 4, (5, 3)), padding)
    trainer = trained_reader(blank=4)
    data = [{"x": x, "labels": labels}] if as_batches else {"x": x, "labels": labels}

    found = trainer.evaluate(data)["loss"]

    scores = F.log_softmax(torch.from_numpy(np.asarray(trainer.predict(x))).double(), 2).transpose(0, 1)
    times, sizes = torch.full((5,), 9), torch.from_numpy(counts)
    expected = F.ctc_loss(scores, torch.from_numpy(np.maximum(labels, 0)), times, sizes, blank=4)
    assert found == pytest.approx(float(expected), rel=1e-5)
    trainer.fit(data, epochs=2, progress=False)


def test_arrays_by_position_need_no_lengths_either() -> None:
    x, labels = RNG.normal(size=(5, 9, 6)).astype(np.float32), np.array([[1, 2], [3, -1], [4, 1], [2, 0], [1, 1]])

    history = trained_reader().fit(x, labels, epochs=2, metrics=["cer"], progress=False)

    assert np.isfinite(history["loss"]).all()


def test_labels_behind_the_padding_are_refused_before_the_first_step() -> None:
    """Letters are often numbered from 0, which is the blank."""
    x, labels = np.zeros((40, 9, 6), np.float32), np.ones((40, 3), int)
    labels[37] = 2, 0, 1
    trainer = trained_reader()

    with pytest.raises(DataError, match="T116") as caught:
        trainer.fit(x, labels, epochs=1, batch_size=4, shuffle=False, progress=False)

    assert trainer.steps == 0
    (problem,) = caught.value.diagnostics
    assert (problem.found, "as in Keras" in problem.hint) == ("2, 0, 1 (row 37 of the batch)", True)
    assert "`labels/label_lengths` (N,)" in problem.needed


def test_the_error_rate_has_the_blank_and_the_axis_of_the_loss() -> None:
    """Class 4 is the blank, and there are as many steps as samples."""
    words = [[0, 1], [2], [3, 3]]
    x = np.zeros((3, 3, 6), np.float32)
    trainer = trained_reader(blank=4)
    labels = np.array([w + [-1] * (2 - len(w)) for w in words])

    found = trainer.evaluate({"x": x, "labels": labels}, metrics=["cer"])["cer"]

    decoded = losses.ctc_decode(np.asarray(trainer.predict(x)), blank=4)
    wanted = sum(edits(a, b) for a, b in zip(decoded, words, strict=True)) / 5
    assert found == pytest.approx(wanted)
    assert found != pytest.approx(1.0) or decoded == [[]] * 3


@pytest.mark.parametrize(
    ("ending", "reads"), [("y = Softmax(z)", "z"), ("y = LogSoftmax(z)", "y"), ("y = Identity(z)", "y")]
)
@pytest.mark.parametrize("time_first", [False, True])
def test_the_word_ctc_finds_time_and_logits(ending: str, reads: str, time_first: bool) -> None:
    order = "perm = [1, 0, 2]" if time_first else "perm = [0, 1, 2]"
    shape = "7, N" if time_first else "N, 7"
    proto = onnx.parser.parse_model(f"""
    <ir_version: 8, opset_import: ["": 18]>
    net (float[N, 7, 6] x) => (float[{shape}, 5] y) {{
        t = Transpose <{order}> (x)
        z = MatMul(t, W)
        {ending}
    }}""")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(RNG.normal(size=(6, 5)).astype(np.float32), "W"))
    x, labels = RNG.normal(size=(4, 7, 6)).astype(np.float32), np.array([[1, 2], [3, -1], [4, 4], [1, 3]])

    trainer = onward.Trainer(onward.make_trainable(proto, loss="ctc"))

    scores = np.einsum("ntf,fc->tnc", x, onnx.numpy_helper.to_array(proto.graph.initializer[0]))
    expected = F.ctc_loss(
        F.log_softmax(torch.from_numpy(scores), 2), torch.from_numpy(np.maximum(labels, 0)),
        torch.full((4,), 7), torch.tensor([2, 1, 2, 2]),
    )  # fmt: skip
    assert trainer.evaluate(x, labels)["loss"] == pytest.approx(float(expected), rel=1e-5)


def test_decoding_drops_repeats_and_blanks_and_what_is_past_the_end() -> None:
    best = np.array([[1, 1, 0, 1, 2, 2], [0, 0, 3, 3, 0, 3]])
    scores = np.eye(4)[best]

    assert losses.ctc_decode(scores) == [[1, 1, 2], [3, 3]]
    assert losses.ctc_decode(scores.transpose(1, 0, 2), time_axis=0) == [[1, 1, 2], [3, 3]]
    assert losses.ctc_decode(scores, lengths=[3, 5]) == [[1], [3]]
    assert losses.ctc_decode(scores, blank=1) == [[0, 2], [0, 3, 0, 3]]
    assert losses.ctc_decode(np.zeros((2, 0, 4))) == [[], []]


def edits(a: list[int], b: list[int]) -> int:
    """The recursive definition of Levenshtein."""
    if not a or not b:
        return len(a) + len(b)
    return min(edits(a[1:], b) + 1, edits(a, b[1:]) + 1, edits(a[1:], b[1:]) + (a[0] != b[0]))


def test_the_error_rate_counts_edits_over_all_labels() -> None:
    metric = get_metric("cer")
    total = count = 0
    for _ in range(20):
        scores = RNG.random((3, 7, 4))
        label = RNG.integers(-1, 4, size=(3, 4))
        metric.update(scores, label)
        for found, row in zip(losses.ctc_decode(scores), label, strict=True):
            wanted = [int(v) for v in row if v > 0]
            total, count = total + edits(found, wanted), count + len(wanted)

    assert metric.compute() == pytest.approx(total / count, rel=1e-12)
    fresh = CharacterErrorRate()
    fresh.set_state(metric.get_state())
    assert fresh.compute() == metric.compute()


def test_time_may_be_the_first_axis_and_the_blank_another_class() -> None:
    best = np.array([[3, 0, 1], [3, 2, 2]])  # of two samples; class 3 is the blank
    metric = CharacterErrorRate(blank=3)

    metric.update(np.eye(4)[best].transpose(1, 0, 2), np.array([[0, 1], [2, 3]]))

    assert metric.compute() == 0
    assert metric.time_axis == 0


def test_the_error_rate_of_no_labels_is_nan() -> None:
    assert np.isnan(CharacterErrorRate().compute())


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda: CharacterErrorRate(time_axis=2), ArgumentError, "time_axis is 2"),
        (lambda: CharacterErrorRate().update(np.zeros((3, 3, 4)), np.ones((3, 2), int)), DataError, "time_axis=1"),
        (lambda: CharacterErrorRate().update(np.zeros((3, 5)), np.ones((3, 2), int)), DataError, "metric `cer` cannot"),
        (lambda: CharacterErrorRate().update(np.zeros((3, 5, 4)), np.ones((3, 2))), DataError, "integer labels (N, S)"),
    ],
)
def test_what_cannot_be_compared_is_refused(act, error, message: str) -> None:
    with pytest.raises(error) as caught:
        act()

    assert message in str(caught.value)
