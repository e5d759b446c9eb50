"""The losses of the trade against PyTorch's formulas in oracle.py: values, gradients and finite differences."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch

from losses import oracle
from losses.conftest import _model as loss_model
from onward import losses

RNG = np.random.default_rng(23)
LOGITS, LABELS = RNG.normal(size=(7, 5)) * 2, np.array([0, 4, 2, 2, 1, 3, 0])
MASKS = RNG.normal(size=(2, 3, 4, 5)) * 2
TRUTH = (RNG.random(MASKS.shape) > 0.6).astype(np.float64)
PIXELS = RNG.integers(0, 3, size=(2, 4, 5))
BINARY = (RNG.random(LOGITS.shape) > 0.7).astype(np.float64)
SOFT = RNG.random(LOGITS.shape)
CORNERS = np.sort(RNG.random((9, 2, 2)), axis=1).reshape(9, 4)
OTHERS = np.sort(RNG.random((9, 2, 2)), axis=1).reshape(9, 4)
SIZES = np.concatenate([RNG.random((9, 2)), 0.1 + RNG.random((9, 2))], 1)
MORE = np.concatenate([RNG.random((9, 2)), 0.1 + RNG.random((9, 2))], 1)
VECTORS, SECOND = RNG.normal(size=(8, 6)), RNG.normal(size=(8, 6))
GROUPS = np.array([0, 1, 0, 2, 1, 2, 0, 5])

SIZE, STRIDES = 32, (8, 16)
OBJECTS = np.array([[1, 0, 2], [2, -1, -1]])
PLACES = np.array(
    [
        [[3.0, 4.0, 17.0, 15.0], [10.0, 6.0, 29.0, 30.0], [1.0, 20.0, 9.0, 27.0]],
        [[8.0, 9.0, 20.0, 31.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]],
    ]
)
RAW = RNG.normal(size=(2, 20, 8)) * 0.7
DECODED = np.concatenate(
    [
        np.array([[(x + 0.5) * s, (y + 0.5) * s] for x, y, s, _, _ in oracle.grid(SIZE, STRIDES)])[None].repeat(2, 0)
        + RNG.normal(size=(2, 20, 2)) * 2,
        RNG.uniform(8, 22, size=(2, 20, 2)),
        RNG.normal(size=(2, 20, 3)),
    ],
    2,
)
SHAPES = [[(6.0, 7.0), (12.0, 9.0)], [(14.0, 22.0)]]
ANCHORED = RNG.normal(size=(2, 36, 8)) * 0.5
PRIORS = losses.grid_anchors(SIZE, [8, 16], [[(9, 9), (6, 12)], [(18, 20)]])
OFFSETS, SCORES = RNG.normal(size=(2, len(PRIORS), 4)), RNG.normal(size=(2, len(PRIORS), 4))


def softmax(x):
    return torch.softmax(x, 1)


def one_hot(y, classes=3):
    return torch.nn.functional.one_hot(y, classes).movedim(-1, 1).double()


def like(kind, form=lambda b: b):
    return lambda a, b: (1 - oracle.box_likeness(form(a), form(b), kind)).mean()


CASES = {
    "focal": (losses.Focal(), [LOGITS], [LABELS], oracle.focal),
    "focal, gamma 0.5 and weights": (
        losses.Focal(gamma=0.5, alpha=[1.0, 2.0, 0.5, 1.5, 3.0], ignore_index=2), [LOGITS], [LABELS],
        lambda x, y: oracle.focal(x, y, 0.5, [1.0, 2.0, 0.5, 1.5, 3.0], 2),
    ),
    "focal, gamma 3.5, pixels, classes last": (
        losses.Focal(gamma=3.5, axis=-1), [np.moveaxis(MASKS, 1, -1).copy()], [PIXELS],
        lambda x, y: oracle.focal(x, y, 3.5, axis=-1),
    ),
    "focal, gamma 0": (losses.Focal(gamma=0.0), [LOGITS], [LABELS], torch.nn.functional.cross_entropy),
    "binary_focal": (losses.BinaryFocal(), [LOGITS], [BINARY], lambda x, y: oracle.sigmoid_focal(x, y).mean()),
    "binary_focal, soft labels": (
        losses.BinaryFocal(gamma=1.5, alpha=None), [LOGITS], [SOFT],
        lambda x, y: oracle.sigmoid_focal(x, y, 1.5, None).mean(),
    ),
    "binary_focal of probabilities": (
        losses.BinaryFocal(logits=False, alpha=0.6), [SOFT], [BINARY],
        lambda x, y: oracle.sigmoid_focal(torch.logit(x), y, alpha=0.6).mean(),
    ),
    "dice": (losses.Dice(), [MASKS], [TRUTH], lambda x, y: oracle.dice(x.sigmoid(), y)),
    "dice, batch, squared": (
        losses.Dice(batch=True, squared=True, smooth=0.3), [MASKS], [TRUTH],
        lambda x, y: oracle.dice(x.sigmoid(), y, 0.3, True, True),
    ),
    "dice, softmax, classes, no background": (
        losses.Dice(activation="softmax", targets="index", background=False), [MASKS], [PIXELS],
        lambda x, y: oracle.dice(softmax(x)[:, 1:], one_hot(y)[:, 1:]),
    ),
    "dice, ignored pixels": (
        losses.Dice(activation="softmax", targets="index", ignore_index=1), [MASKS], [PIXELS],
        lambda x, y: oracle.dice(softmax(x) * (y != 1)[:, None], one_hot(y) * (y != 1)[:, None]),
    ),
    "dice, no class axis": (
        losses.Dice(axis=None, activation="none", smooth=0.0), [TRUTH[:, 0] * 0.5 + 0.2], [TRUTH[:, 1]],
        lambda x, y: oracle.dice(x[:, None], y[:, None], 0.0),
    ),
    "dice, classes last": (
        losses.Dice(axis=-1), [np.moveaxis(MASKS, 1, -1).copy()], [np.moveaxis(TRUTH, 1, -1).copy()],
        lambda x, y: oracle.dice(x.sigmoid().movedim(-1, 1), y.movedim(-1, 1)),
    ),
    "tversky": (
        losses.Tversky(alpha=0.3, beta=0.7), [MASKS], [TRUTH], lambda x, y: oracle.tversky(x.sigmoid(), y, 0.3, 0.7),
    ),
    "focal tversky": (
        losses.Tversky(alpha=0.3, beta=0.7, gamma=0.75, batch=True), [MASKS], [TRUTH],
        lambda x, y: oracle.tversky(x.sigmoid(), y, 0.3, 0.7, 0.75, batch=True),
    ),
    "iou": (losses.IoU(), [CORNERS], [OTHERS], like("iou")),
    "giou": (losses.GIoU(), [CORNERS], [OTHERS], like("giou")),
    "diou": (losses.DIoU(), [CORNERS], [OTHERS], like("diou")),
    "ciou": (losses.CIoU(), [CORNERS], [OTHERS], like("ciou")),
    "ciou, centre and size": (
        losses.CIoU(format="cxcywh"), [SIZES], [MORE], like("ciou", oracle.as_corners),
    ),
    "giou, corner and size": (
        losses.GIoU(format="xywh"), [SIZES], [MORE],
        like("giou", lambda b: torch.cat([b[:, :2], b[:, :2] + b[:, 2:]], 1)),
    ),
    "info_nce": (losses.InfoNCE(temperature=0.3), [VECTORS, SECOND], [], lambda a, b: oracle.info_nce(a, b, 0.3)),
    "info_nce, one direction": (
        losses.InfoNCE(symmetric=False), [VECTORS, SECOND], [], lambda a, b: oracle.info_nce(a, b, symmetric=False),
    ),
    "nt_xent": (losses.NTXent(), [VECTORS], [GROUPS], oracle.nt_xent),
    "supervised_contrastive": (losses.SupervisedContrastive(), [VECTORS], [GROUPS], oracle.supervised_contrastive),
    "batch_triplet": (
        losses.BatchTriplet(margin=2.0), [VECTORS], [GROUPS], lambda x, y: oracle.batch_triplet(x, y, 2.0),
    ),
    "batch_triplet, semi-hard": (
        losses.BatchTriplet(margin=2.0, mining="semi_hard"), [VECTORS], [GROUPS],
        lambda x, y: oracle.batch_triplet(x, y, 2.0, "semi_hard"),
    ),
    "batch_triplet, all": (
        losses.BatchTriplet(margin=0.5, mining="all"), [VECTORS], [GROUPS],
        lambda x, y: oracle.batch_triplet(x, y, 0.5, "all"),
    ),
    "ssd": (
        losses.SSD(anchors=PRIORS), [OFFSETS, SCORES], [OBJECTS, PLACES / SIZE],
        lambda p, s, c, b: oracle.ssd(p, s, c, b, torch.from_numpy(PRIORS)),
    ),
    "ssd, another threshold": (
        losses.SSD(anchors=PRIORS, threshold=0.3, negatives=1.5, variances=(0.2, 0.1)), [OFFSETS, SCORES],
        [OBJECTS, PLACES / SIZE],
        lambda p, s, c, b: oracle.ssd(p, s, c, b, torch.from_numpy(PRIORS), 0.3, 1.5, (0.2, 0.1)),
    ),
    "yolo with objectness": (
        losses.YOLO(size=SIZE, strides=STRIDES), [RAW], [OBJECTS, PLACES],
        lambda x, c, b: oracle.yolox(x, c, b, SIZE, STRIDES),
    ),
    "yolo without objectness": (
        losses.YOLO(
            size=SIZE, strides=STRIDES, objectness=False, decoded=True, box_weight=7.5, class_weight=0.5, topk=4
        ), [DECODED], [OBJECTS, PLACES],
        lambda x, c, b: oracle.yolov8(x, c, b, SIZE, STRIDES, topk=4),
    ),
    "anchor_yolo": (
        losses.AnchorYOLO(size=SIZE, strides=STRIDES, anchors=SHAPES, ignore=0.3), [ANCHORED], [OBJECTS, PLACES],
        lambda x, c, b: oracle.yolov3(x, c, b, SIZE, STRIDES, SHAPES, ignore=0.3),
    ),
}  # fmt: skip


def expected(case: str) -> tuple[float, list[np.ndarray]]:
    _, outputs, labels, function = CASES[case]
    tensors = [torch.from_numpy(np.array(a)).requires_grad_() for a in outputs]
    value = function(*tensors, *(torch.from_numpy(np.array(a)) for a in labels))
    value.backward()
    return float(value.detach()), [t.grad.numpy() for t in tensors]


def backend_of(case: str) -> str:
    """Return where a case runs in float64.

    ONNX Runtime has no Atan in float64, which the CIoU reads, and it fuses MatMul and Mul into one node whose factor is
    a float32 (1e-8 off for a temperature of 0.3): those cases run on onnx's own evaluator.
    """
    return "reference" if "ciou" in case or "yolo" in case or case == "info_nce" else "onnxruntime"


def check(case: str, run, run_gradient, on: str) -> None:
    loss, outputs, labels, _ = CASES[case]
    value, slopes = expected(case)

    found = run(loss, outputs, labels, on=on)
    slope = run_gradient(loss, outputs, labels, on=on)

    assert found.shape == ()
    np.testing.assert_allclose(found, value, rtol=1e-6)
    np.testing.assert_allclose(slope, slopes[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_value_and_gradient_are_those_of_pytorch(run, run_gradient, case: str) -> None:
    check(case, run, run_gradient, backend_of(case))


# The formulas of CIoU and YOLO hold values that the gradient takes as constants: finite differences do not.
DIFFERENTIABLE = [case for case in CASES if "ciou" not in case and "yolo" not in case]


@pytest.mark.parametrize("case", DIFFERENTIABLE)
def test_the_gradient_equals_finite_differences_of_onnxruntime(run_gradient, case: str) -> None:
    loss, outputs, labels, _ = CASES[case]
    session = onnxruntime.InferenceSession(
        loss_model(loss, outputs, labels).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    direction, step = RNG.normal(size=outputs[0].shape), 1e-6

    def value(moved: np.ndarray) -> float:
        feeds = {f"output{i}": a for i, a in enumerate([moved, *outputs[1:]])}
        return float(session.run(None, feeds | {f"label{i}": a for i, a in enumerate(labels)})[0])

    slope = float((run_gradient(loss, outputs, labels, on="onnxruntime") * direction).sum())

    difference = (value(outputs[0] + step * direction) - value(outputs[0] - step * direction)) / (2 * step)
    np.testing.assert_allclose(slope, difference, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("case", CASES)
def test_an_error_of_a_thousandth_is_found(run, run_gradient, case: str) -> None:
    loss, outputs, labels, _ = CASES[case]
    wrong = 1.001 * loss

    with pytest.raises(AssertionError):
        np.testing.assert_allclose(run(wrong, outputs, labels, on=backend_of(case)), expected(case)[0], rtol=1e-6)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(
            run_gradient(wrong, outputs, labels, on=backend_of(case)), expected(case)[1][0], rtol=1e-6, atol=1e-9
        )


@pytest.mark.parametrize("case", CASES)
def test_float32_and_a_free_batch_run_on_onnxruntime(case: str) -> None:
    """The same model, at two batch sizes: each gives what the oracle gives for that batch."""
    loss, outputs, labels, function = CASES[case]
    proto = loss_model(loss, [a.astype(np.float32) for a in outputs], [_single(a) for a in labels])
    for value in proto.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del proto.graph.value_info[:]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for size in (len(outputs[0]), 1):
        given = [[a[:size] for a in arrays] for arrays in (outputs, labels)]
        feeds = {f"output{i}": a.astype(np.float32) for i, a in enumerate(given[0])}
        feeds |= {f"label{i}": _single(a) for i, a in enumerate(given[1])}

        found = session.run(None, feeds)[0]

        value = function(*(torch.from_numpy(np.array(a)) for a in [*given[0], *given[1]]))
        np.testing.assert_allclose(found, float(value), rtol=2e-4, atol=1e-5)


def _single(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype == np.float64 else array


def test_every_new_loss_has_a_case() -> None:
    covered = {type(loss) for loss, *_ in CASES.values()}
    new = {"focal", "binary_focal", "dice", "tversky", "iou", "giou", "diou", "ciou", "info_nce", "nt_xent"}
    new |= {"supervised_contrastive", "batch_triplet", "ssd", "yolo", "anchor_yolo"}

    assert {losses.NAMES[n] for n in new} <= covered
