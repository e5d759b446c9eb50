"""The losses of the trade where formulas break: nothing to find, everything found, huge logits, boxes of no area."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import onward
from onward import losses
from onward.errors import ArgumentError, DataError

F = np.float32
PRIORS = losses.grid_anchors(32, [8, 16], [[(9, 9)], [(18, 20)]])
NOTHING = np.full((2, 3), -1), np.zeros((2, 3, 4), F)
HUGE = np.array([-1e4, -800.0, -30.0, 0.0, 30.0, 800.0, 1e4], F)


def both(run, run_gradient, loss, outputs, labels) -> tuple[float, np.ndarray]:
    """Return value and gradient on ONNX Runtime in float32; neither may be NaN or infinite."""
    value = run(loss, outputs, labels, on="onnxruntime")
    slope = run_gradient(loss, outputs, labels, on="onnxruntime")
    assert np.isfinite(value).all()
    assert np.isfinite(slope).all()
    return float(value), slope


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 3.3])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_binary_focal_is_finite_for_any_logit(run, run_gradient, gamma: float, label: float) -> None:
    value, slope = both(run, run_gradient, losses.BinaryFocal(gamma=gamma), [HUGE], [np.full(7, label, F)])

    assert value > 0
    wrong = slope[0] if label else slope[-1]
    assert abs(wrong) > 0.01, "a wrong and certain prediction has a slope"
    right = slope[-1] if label else slope[0]
    assert right == 0


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 3.3])
def test_focal_is_finite_for_any_logit(run, run_gradient, gamma: float) -> None:
    logits = np.stack([HUGE, HUGE[::-1], 0 * HUGE], 1).astype(F)

    value, _ = both(run, run_gradient, losses.Focal(gamma=gamma), [logits], [np.array([0, 1, 2, 0, 1, 2, 0])])

    assert value > 0


def test_focal_of_ignored_labels_only_is_zero(run, run_gradient) -> None:
    value, slope = both(run, run_gradient, losses.Focal(ignore_index=9), [np.ones((3, 4), F)], [np.full(3, 9)])

    assert value == 0
    assert not slope.any()


REGIONS = [
    losses.Dice(),
    losses.Dice(smooth=0.0),
    losses.Tversky(),
    losses.Tversky(gamma=0.75),
    losses.Tversky(gamma=2),
]


@pytest.mark.parametrize("loss", REGIONS, ids=str)
@pytest.mark.parametrize("truth", [0.0, 1.0])
@pytest.mark.parametrize("logit", [-1e4, 0.0, 1e4])
def test_empty_and_full_masks_are_finite(run, run_gradient, loss, truth: float, logit: float) -> None:
    shape = (2, 1, 4, 4)

    value, _ = both(run, run_gradient, loss, [np.full(shape, logit, F)], [np.full(shape, truth, F)])

    if (logit > 0) == bool(truth) and logit:
        assert value == pytest.approx(0, abs=1e-6), "a perfect prediction costs nothing, an empty one too"
    else:
        assert value > 0.05


@pytest.mark.parametrize("loss", [losses.IoU(), losses.GIoU(), losses.DIoU(), losses.CIoU()], ids=str)
@pytest.mark.parametrize(
    "pair",
    [
        ([0, 0, 1, 1], [0, 0, 1, 1]), ([0, 0, 0, 0], [0, 0, 0, 0]), ([0, 0, 0, 1], [0, 0, 1, 1]),
        ([5, 5, 6, 6], [0, 0, 1, 1]), ([0, 0, 1e4, 1e4], [0, 0, 1, 1]), ([1, 1, 0, 0], [0, 0, 1, 1]),
    ],
    ids=["equal", "points", "no width", "apart", "huge", "inverted"],
)  # fmt: skip
def test_boxes_of_any_kind_are_finite(run, run_gradient, loss, pair) -> None:
    value, _ = both(run, run_gradient, loss, [np.array([pair[0]], F)], [np.array([pair[1]], F)])

    if pair[0] == pair[1] and any(pair[0]):
        assert value == pytest.approx(0, abs=1e-5)


def test_padded_boxes_do_not_count(run, run_gradient) -> None:
    boxes = np.array([[0, 0, 2, 2], [3, 3, 5, 5], [1, 1, 2, 2]], F)
    label = np.array([[0, 0, 1, 2], [0, 0, 0, 0], [0, 0, 0, 0]], F)

    value, slope = both(run, run_gradient, losses.IoU(skip_empty=True), [boxes], [label])

    assert value == pytest.approx(0.5)
    assert not slope[1:].any()


DETECTORS = {
    "ssd": (losses.SSD(anchors=PRIORS), [(2, 20, 4), (2, 20, 4)], 1 / 32),
    "ssd of decoded boxes": (losses.SSD(anchors=PRIORS, boxes="xyxy", logits=False), [(2, 20, 4), (2, 20, 4)], 1 / 32),
    "yolo": (losses.YOLO(size=32, strides=(8, 16)), [(2, 20, 8)], 1),
    "yolo of probabilities": (losses.YOLO(size=32, strides=(8, 16), logits=False), [(2, 20, 8)], 1),
    "yolo without objectness": (losses.YOLO(size=32, strides=(8, 16), objectness=False), [(2, 20, 8)], 1),
    "anchor_yolo": (
        losses.AnchorYOLO(size=32, strides=(8, 16), anchors=[[(9, 9)], [(18, 20)]]), [(2, 20, 8)], 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1000.0])
def test_a_batch_without_objects_is_finite(run, run_gradient, name: str, scale: float) -> None:
    loss, shapes, _ = DETECTORS[name]
    outputs = predictions(shapes, scale, probabilities="probab" in name or "decoded" in name)

    value, slope = both(run, run_gradient, loss, outputs, list(NOTHING))

    assert value >= 0
    if name.startswith("ssd"):
        assert value == 0, "background counts only beside matched anchors"
    elif scale:
        assert slope.any(), "the background is learnt"


@pytest.mark.parametrize("name", DETECTORS)
def test_labels_of_no_room_are_an_empty_batch(run, run_gradient, name: str) -> None:
    loss, shapes, _ = DETECTORS[name]
    outputs = predictions(shapes, 1.0, probabilities="probab" in name or "decoded" in name)

    found, _ = both(run, run_gradient, loss, outputs, [np.zeros((2, 0), np.int64), np.zeros((2, 0, 4), F)])

    assert found == pytest.approx(both(run, run_gradient, loss, outputs, list(NOTHING))[0])


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1000.0])
def test_equal_outside_and_degenerate_objects_are_finite(run, run_gradient, name: str, scale: float) -> None:
    loss, shapes, unit = DETECTORS[name]
    outputs = predictions(shapes, scale, probabilities="probab" in name or "decoded" in name)
    boxes = np.array([[[4, 4, 12, 12], [4, 4, 12, 12], [9, 9, 9, 9]], [[40, 40, 50, 50], [0, 0, 32, 32], [0, 5, 9, 5]]])

    value, _ = both(run, run_gradient, loss, outputs, [np.array([[0, 1, 2], [0, 1, 2]]), (boxes * unit).astype(F)])

    assert value > 0


@pytest.mark.parametrize("name", DETECTORS)
def test_padding_changes_nothing(run, name: str) -> None:
    loss, shapes, unit = DETECTORS[name]
    outputs = predictions(shapes, 1.0, probabilities="probab" in name or "decoded" in name)
    objects = [[[3, 4, 17, 15], [10, 6, 29, 30]], [[8, 9, 20, 31]]], [[1, 0], [2]]

    few, many = (losses.pad_boxes(*objects, most=most) for most in (None, 9))

    values = [run(loss, outputs, [c, b * F(unit)], on="onnxruntime") for c, b in (few, many)]
    np.testing.assert_allclose(*values, rtol=1e-6)


def predictions(shapes, scale: float, *, probabilities: bool) -> list[np.ndarray]:
    made = [(np.random.default_rng(3).normal(size=shape) * scale).astype(F) for shape in shapes]
    if probabilities:
        made[-1] = np.concatenate([made[-1][..., :4], 1 / (1 + np.exp(-made[-1][..., 4:].clip(-80, 80)))], -1).astype(F)
        if len(made) == 2:
            made[1] = np.exp(made[1].clip(-50, 0)).astype(F)
    return made


@pytest.mark.parametrize(
    "loss",
    [
        losses.NTXent(), losses.SupervisedContrastive(), losses.BatchTriplet(), losses.BatchTriplet(mining="semi_hard"),
        losses.BatchTriplet(mining="all"), losses.BatchTriplet(normalize=True), losses.BatchTriplet(squared=True),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize(
    ("groups", "vanishes"),
    [([0, 1, 2, 3], True), ([0, 0, 0, 0], False), ([0, 0, -1, -1], False), ([-1, -1, -1, -1], True), ([7], True)],
)
def test_groups_of_any_kind_are_finite(run, run_gradient, loss, groups: list[int], vanishes: bool) -> None:
    for vectors in (np.eye(4, 6)[: len(groups)], np.zeros((len(groups), 6)), np.full((len(groups), 6), 1e4)):
        value, _ = both(run, run_gradient, loss, [vectors.astype(F)], [np.array(groups)])

        assert not vanishes or value == 0


def test_info_nce_of_one_pair_and_of_zero_vectors_is_finite(run, run_gradient) -> None:
    assert both(run, run_gradient, losses.InfoNCE(), [np.ones((1, 4), F)] * 2, [])[0] == 0
    assert both(run, run_gradient, losses.InfoNCE(), [np.zeros((3, 4), F)] * 2, [])[0] == pytest.approx(np.log(3))


# ------------------------------------------------------------------ mistakes


def value(*shape: int | str, name: str = "y") -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: losses.Focal(alpha=0.25), "hint: for two classes with one logit, use BinaryFocal"),
        (lambda: losses.Focal(gamma=-1), "`gamma` of `Focal` is out of range"),
        (lambda: losses.BinaryFocal(alpha=2), "`alpha` of `BinaryFocal` is out of range"),
        (lambda: losses.BinaryFocal(alpha=[0.1]), "`alpha` of `BinaryFocal` is out of range"),
        (lambda: losses.Dice(activation="relu"), "no such activation `relu`"),
        (lambda: losses.Dice(ignore_index=1), "`ignore_index` needs index targets"),
        (lambda: losses.Dice(axis=None, targets="index"), "index targets need a class axis"),
        (lambda: losses.Dice().labels([value("N", 3)]), "output `y` does not hold regions"),
        (lambda: losses.Dice(activation="softmax").labels([value("N", 1, 8, 8)]), "is 1 everywhere"),
        (lambda: losses.Tversky(gamma=0), "`gamma` of `Tversky` is out of range"),
        (lambda: losses.GIoU(format="yxyx"), "no such format of boxes `yxyx`"),
        (lambda: losses.CIoU().labels([value("N", 5)]), "output `y` does not hold boxes"),
        (lambda: losses.InfoNCE(temperature=0), "`temperature` of `InfoNCE` is out of range"),
        (lambda: losses.NTXent().labels([value("N", 3, 4)]), "does not hold one vector per sample"),
        (lambda: losses.BatchTriplet(mining="soft"), "no such way of mining `soft`"),
        (lambda: losses.SSD(anchors="no.npy"), "`anchors` of `SSD` cannot be read"),
        (lambda: losses.SSD(anchors=[[1, 2]]), "needed: rows of 4 finite numbers"),
        (lambda: losses.SSD(anchors=[[0, 0, 0, 1]]), "`anchors` of `SSD` have no area"),
        (lambda: losses.SSD(anchors=PRIORS, variances=1), "`variances` of `SSD` are not two numbers"),
        (
            lambda: losses.SSD(anchors=PRIORS).labels([value("N", 20, 2), value("N", 19, 4)]),
            "does not hold the scores of 20 anchors",
        ),
        (lambda: losses.YOLO(size="x"), "`size` of `YOLO` is not the size of an image"),
        (lambda: losses.YOLO(size=32, strides=()), "`strides` of `YOLO` is out of range"),
        (lambda: losses.YOLO(size=32, axis=0), "`axis` of `YOLO` is out of range"),
        (lambda: losses.YOLO(size=32).labels([value("N", 20, 8)]), "needed: 21 predictions on axis 1"),
        (lambda: losses.YOLO(size=32).labels([value("N", 21, 5)]), "1 x (5 + classes) channels"),
        (lambda: losses.YOLO(size=32).labels([value("N", 8, 4, 4)]), "or one for each of the strides"),
        (lambda: losses.AnchorYOLO(size=32), "`anchors` of `AnchorYOLO` do not fit the grids"),
        (lambda: losses.AnchorYOLO(size=32, strides=[8], anchors=[[(0, 1)]]), "has no area"),
    ],
)  # fmt: skip
def test_a_wrong_setting_says_what_is_right(make, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make()

    assert message in str(caught.value)


def test_boxes_that_do_not_fit_are_listed_image_by_image() -> None:
    with pytest.raises(ArgumentError) as caught:
        losses.pad_boxes(
            [[[0, 0, 1, 1]], [[2, 2, 1, 1]], [[0, 0, 1, 1]], [[0, 0, 1, 1]] * 3, [1, 2, 3]],
            [[0, 1], [0], [-1], [0, 0, 0], [1]],
            most=2,
        )

    text = str(caught.value)
    for part in ("image 0", "wrong order\n  at image 1", "image 2", "too many objects\n  at image 3", "image 4"):
        assert part in text


def test_heads_of_several_outputs_are_one_list_of_predictions(run) -> None:
    rng = np.random.default_rng(5)
    heads = [rng.normal(size=(2, 8, n, n)).astype(F) for n in (4, 2)]
    labels = list(losses.pad_boxes([[[3, 4, 17, 15]], []], [[1], []]))

    for loss, split in (
        (losses.YOLO(size=32, strides=(8, 16)), heads),
        (losses.AnchorYOLO(size=32, strides=(8, 16), anchors=[[(9, 9)], [(18, 20)]]), heads),
    ):
        joined = np.concatenate([h.reshape(2, 8, -1).transpose(0, 2, 1) for h in split], 1)
        found = [run(loss, given, labels, on="onnxruntime") for given in (split, [joined])]
        np.testing.assert_allclose(*found, rtol=1e-5)
    channels_first = losses.YOLO(size=32, strides=(8, 16), axis=1)
    np.testing.assert_allclose(
        run(channels_first, [joined.transpose(0, 2, 1).copy()], labels, on="onnxruntime"),
        run(losses.YOLO(size=32, strides=(8, 16)), [joined], labels, on="onnxruntime"),
    )


def test_anchors_of_a_head_are_the_slow_axis_of_its_channels(run) -> None:
    rng = np.random.default_rng(6)
    head = rng.normal(size=(1, 2 * 7, 4, 4)).astype(F)
    labels = list(losses.pad_boxes([[[3, 4, 17, 15]]], [[1]]))
    loss = losses.AnchorYOLO(size=32, strides=(8,), anchors=[[(9, 9), (14, 11)]])

    joined = head.reshape(1, 2, 7, 16).transpose(0, 1, 3, 2).reshape(1, 32, 7)

    np.testing.assert_allclose(
        run(loss, [head], labels, on="onnxruntime"), run(loss, [joined], labels, on="onnxruntime"), rtol=1e-5
    )


@pytest.mark.parametrize("label", [-1, 3])
@pytest.mark.parametrize("loss", [losses.Dice, losses.Tversky])
def test_a_label_that_is_no_class_is_never_left_out_in_silence(run, loss, label: int) -> None:
    logits, labels = np.zeros((2, 3, 2, 2), F), np.array([[[0, 1], [2, 0]], [[1, 1], [0, label]]])

    whole = loss(activation="softmax", targets="index")
    assert np.isnan(run(whole, [logits], [labels], on="onnxruntime"))
    part = loss(activation="softmax", targets="index", ignore_index=label)
    left_out = run(part, [logits], [labels], on="onnxruntime")
    assert np.isfinite(left_out)


@pytest.mark.parametrize("axis", [1, -1])
def test_focal_refuses_a_label_below_zero(axis: int) -> None:
    model = onward.make_trainable(onward.samples.perceptron(), loss=losses.Focal(axis=axis))
    trainer = onward.Trainer(model)
    x = np.zeros((2, trainer.program.inputs[0].shape[1]), F)

    with pytest.raises(DataError, match="holds class -1"):
        trainer.step(dict(zip(trainer.input_names, (x, np.array([0, -1])), strict=True)))
