"""The loss of an evaluation does not depend on the batch size, whatever the loss divides by."""

from __future__ import annotations

import json

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward import losses
from onward.train import Trainer
from train.test_backends import network, samples

X, Y = samples(50, seed=3)
IGNORED = np.where(np.arange(50) % 3 == 0, -1, Y)
ROWS = np.random.default_rng(5).dirichlet(np.ones(4), size=50).astype(np.float32)
SIZES = (1, 2, 7, 16, 49, 50, 256)  # 7, 16 and 49 leave a smaller last batch
WEIGHT = [0.1, 5.0, 1.0, 0.0]
BOXES = np.where(np.arange(50)[:, None] % 7 < 3, 0.0, np.abs(ROWS) + 0.1).astype(ROWS.dtype)


def penalty(op, logits, labels):
    return op.Add(op.SoftmaxCrossEntropyLoss(logits, labels, reduction="sum"), 3.0)


def root(op, logits, labels):
    difference = op.Sub(logits, labels)
    return op.Sqrt(op.ReduceMean(op.Mul(difference, difference), keepdims=0))


def batch_share(op, logits, labels):
    """Something over pairs of samples, which no sum over batches gives."""
    return op.ReduceMean(op.MatMul(logits, op.Transpose(logits, perm=[1, 0])), keepdims=0)


CASES = {
    "mean": (losses.CrossEntropy(), Y),
    "sum": (losses.CrossEntropy(reduction="sum"), Y),
    "class weights": (losses.CrossEntropy(weight=WEIGHT), Y),
    "class weights, sum": (losses.CrossEntropy(weight=WEIGHT, reduction="sum"), Y),
    "ignored": (losses.CrossEntropy(ignore_index=-1), IGNORED),
    "ignored, sum": (losses.CrossEntropy(ignore_index=-1, reduction="sum"), IGNORED),
    "ignored, class weights": (losses.CrossEntropy(ignore_index=-1, weight=WEIGHT), IGNORED),
    "smoothed": (losses.CrossEntropy(label_smoothing=0.1), Y),
    "smoothed, ignored, class weights": (
        losses.CrossEntropy(label_smoothing=0.1, ignore_index=-1, weight=WEIGHT),
        IGNORED,
    ),
    "smoothed, sum": (losses.CrossEntropy(label_smoothing=0.1, reduction="sum"), Y),
    "probabilities, class weights": (losses.CrossEntropy(targets="probability", weight=WEIGHT), ROWS),
    "focal, ignored": (losses.Focal(ignore_index=-1), IGNORED),
    "focal, ignored, class weights": (losses.Focal(ignore_index=-1, alpha=WEIGHT), IGNORED),
    "boxes, some without area": (losses.GIoU(format="cxcywh", skip_empty=True), BOXES),
    "mse": (losses.MSE(), ROWS),
    "mse, sum": (losses.MSE(reduction="sum"), ROWS),
    "kl, batchmean": (losses.KLDiv(reduction="batchmean"), ROWS),
    "a mean and a sum": (losses.MSE() + 0.1 * losses.L1(reduction="sum"), ROWS),
    "a mean and a weighted mean": (losses.CrossEntropy() + 2.0 * losses.CrossEntropy(weight=WEIGHT), Y),
}


def make(loss, **more):
    return onward.make_trainable(network(), loss=loss, optimizer=onward.SGD(0.1), **more)


@pytest.fixture(params=["onnxruntime", "reference"])
def backend(request):
    return request.param


@pytest.mark.parametrize(("loss", "labels"), CASES.values(), ids=CASES)
def test_the_loss_does_not_depend_on_the_batch_size(loss, labels, backend):
    trainer = Trainer(make(loss), backend=backend)
    program = trainer.program
    whole = float(trainer.session.evaluate({"x": X, "labels": labels})[program.loss])

    found = {size: trainer.evaluate(X, labels, batch_size=size)["loss"] for size in SIZES}

    assert found == {size: pytest.approx(whole, rel=1e-6) for size in SIZES}


@pytest.mark.parametrize(
    ("loss", "label"),
    [(penalty, {"labels": ("int64", ["N"])}), (root, {"labels": ("float32", ["N", 4])})],
    ids=["a sum and a constant", "a root of a mean"],
)
def test_the_loss_of_your_own_does_not_depend_on_it_where_it_is_made_of_sums(loss, label):
    trainer = Trainer(make(loss, label=label))
    labels = Y if loss is penalty else ROWS
    whole = float(trainer.session.evaluate({"x": X, "labels": labels})["loss"])

    found = [trainer.evaluate(X, labels, batch_size=size)["loss"] for size in SIZES]

    assert found == [pytest.approx(whole, rel=1e-6)] * len(SIZES)


def test_pairs_of_samples_are_a_black_box_and_batches_count_by_their_samples():
    trainer = Trainer(make(batch_share, label={"labels": ("int64", ["N"])}))

    found = trainer.evaluate(X, Y, batch_size=20)["loss"]

    parts = [float(trainer.session.evaluate({"x": X[p], "labels": Y[p]})["loss"]) for p in _slices(20)]
    assert found == pytest.approx((20 * parts[0] + 20 * parts[1] + 10 * parts[2]) / 50)
    assert trainer.program.first.totals is None


def _slices(size):
    return [slice(start, start + size) for start in range(0, 50, size)]


def test_a_batch_in_which_every_label_is_ignored_counts_nothing():
    trainer = Trainer(make(losses.CrossEntropy(ignore_index=-1)))
    labels = np.where(np.arange(50) < 10, -1, Y)

    found = trainer.evaluate(X, labels, batch_size=10)["loss"]

    assert found == pytest.approx(trainer.evaluate(X[10:], Y[10:])["loss"], rel=1e-6)


def test_plain_means_need_no_totals():
    assert onward.compile(make("cross_entropy")).first.totals is None
    assert onward.compile(make("mse")).first.totals is None
    assert onward.compile(make(losses.MSE() + 0.5 * losses.L1())).first.totals is None


def test_the_outputs_behind_the_loss_are_not_shown():
    trainer = Trainer(make(losses.CrossEntropy(weight=WEIGHT)))

    assert set(trainer.evaluate(X, Y, metrics=["accuracy"])) == {"loss", "accuracy"}


def test_a_saved_program_evaluates_alike(tmp_path):
    program = onward.compile(make(losses.CrossEntropy(weight=WEIGHT)))
    program.save(tmp_path)

    loaded = Trainer(tmp_path)

    assert loaded.evaluate(X, Y, batch_size=7)["loss"] == pytest.approx(loaded.evaluate(X, Y)["loss"], rel=1e-6)
    roles = json.loads((tmp_path / "manifest.json").read_text())["graphs"]["evaluate"]["outputs"]
    assert [o["role"] for o in roles] == ["loss", "output", "total", "total"]


def test_validation_after_an_epoch_gives_the_loss_over_all_samples():
    trainer = Trainer(make(losses.CrossEntropy(weight=WEIGHT)))

    history = trainer.fit(X, Y, batch_size=32, validation_data=(np.tile(X, (3, 1)), np.tile(Y, 3)), progress="none")

    assert history["val_loss"][0] == pytest.approx(trainer.evaluate(X, Y)["loss"], rel=1e-5)


def half_network():
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.normal(size=(8, 4)).astype(np.float16), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["logits"])],
        "half",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["N", 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT16, ["N", 4])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_sums_of_half_precision_do_not_overflow():
    model = onward.make_trainable(
        half_network(), loss=losses.CrossEntropy(weight=[1000.0] * 4), optimizer=onward.SGD(0.1)
    )
    trainer = Trainer(model, backend="reference")

    found = trainer.evaluate(np.tile(X, (8, 1)), np.tile(Y, 8), batch_size=400)["loss"]

    assert found == pytest.approx(trainer.evaluate(X, Y, batch_size=1)["loss"], rel=2e-3)


@pytest.mark.parametrize("loss", [losses.CrossEntropy(), losses.CrossEntropy(weight=WEIGHT)], ids=["mean", "weights"])
def test_the_search_for_totals_leaves_no_node_behind(loss, monkeypatch):
    from onward.compiler import recipes

    seen = []
    whole = recipes.loss_totals

    def watch(combined, value):
        found = whole(combined, value)
        seen.append(combined)
        return found

    monkeypatch.setattr(recipes, "loss_totals", watch)
    onward.compile(make(loss))

    graph = seen[0].graph
    values = [*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)]
    assert all(user.graph is graph for value in values for user, _ in value.uses())
