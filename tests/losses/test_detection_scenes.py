"""The losses of detectors on the scenes where matching goes wrong, beside the loops of oracle.py.

Each loss is one graph, which all scenes run through; the value and the gradient of every output are compared.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from losses import oracle
from losses.conftest import _model as loss_model
from onward import losses
from onward.compiler.derivatives import gradient

SIZE, STRIDES, CLASSES, MOST = 32, (8, 16), 3, 5
SHAPES = [[(6.0, 7.0), (12.0, 9.0)], [(14.0, 22.0)]]
PRIORS = losses.grid_anchors(SIZE, [8, 16], [[(9, 9), (6, 12)], [(18, 20)]])
CELLS = oracle.grid(SIZE, STRIDES)

# The objects of two images: (class, x1, y1, x2, y2) in pixels.
SCENES: dict[str, tuple[list[tuple[float, ...]], list[tuple[float, ...]]]] = {
    "nothing in any image": ([], []),
    "nothing in one image": ([(1, 3, 4, 17, 15)], []),
    "one object is the whole image": ([(0, 0, 0, 32, 32)], [(2, 3, 5, 11, 12)]),
    "boxes touch the border": (
        [(0, 0, 0, 9, 7), (1, 22, 0, 32, 13), (2, 0, 20, 12, 32), (0, 25, 24, 32, 32)],
        [(1, 0, 11, 32, 19)],
    ),
    "objects overlap": (
        [(0, 4, 4, 20, 20), (1, 6, 5, 21, 19), (2, 5, 7, 18, 22)],
        [(2, 9, 9, 23, 30), (0, 1, 2, 31, 30)],
    ),
    "one object inside another, the same centre": ([(0, 4, 4, 28, 28), (1, 12, 12, 20, 20)], [(2, 8, 9, 20, 31)]),
    "the same class twice in one cell": ([(1, 9, 9, 15, 15), (1, 8.5, 9.5, 14, 15.5)], [(0, 2, 2, 8, 8)]),
    "two classes at the same place": ([(0, 9, 10, 23, 25), (2, 9, 10, 23, 25)], []),
    "objects smaller than a cell": ([(2, 10, 10, 11.5, 11), (0, 29, 2, 31, 3.5)], [(1, 15.5, 15.5, 16.5, 16.5)]),
    "the centre on a corner of cells": ([(1, 8, 8, 24, 24)], [(0, 12, 12, 20, 20)]),
    "thin ones": ([(0, 0, 15, 32, 17), (1, 14, 0, 16.5, 32)], [(2, 3, 3, 4, 30)]),
    "as many objects as there is room for": (
        [(0, 1, 1, 9, 9), (1, 11, 2, 20, 12), (2, 3, 14, 13, 30), (0, 16, 15, 30, 31), (1, 21, 0, 31, 11)],
        [(2, 2, 2, 30, 30), (1, 4, 4, 12, 12), (0, 18, 5, 27, 13), (2, 5, 17, 13, 28), (1, 17, 18, 29, 27)],
    ),
}  # fmt: skip


def labels(scene: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes and boxes, padded by hand."""
    classes, boxes = np.full((2, MOST), -1), np.zeros((2, MOST, 4))
    for image, objects in enumerate(SCENES[scene]):
        for place, (kind, *box) in enumerate(objects):
            classes[image, place], boxes[image, place] = kind, box
    return classes, boxes


def raw(rng: np.random.Generator, count: int, channels: int) -> np.ndarray:
    return rng.normal(size=(2, count, channels)) * 0.7


def decoded(rng: np.random.Generator) -> np.ndarray:
    """Return boxes in pixels around the cells, so that several are candidates of an object, and logits."""
    middle = np.array([[(x + 0.5) * s, (y + 0.5) * s] for x, y, s, _, _ in CELLS])
    centres = middle + rng.normal(size=(2, len(CELLS), 2)) * 2
    return np.concatenate([centres, rng.uniform(6, 24, (2, len(CELLS), 2)), raw(rng, len(CELLS), CLASSES)], 2)


LOSSES = {
    "ssd": (
        losses.SSD(anchors=PRIORS),
        lambda rng: [raw(rng, len(PRIORS), 4), raw(rng, len(PRIORS), CLASSES + 1)],
        lambda p, s, c, b: oracle.ssd(p, s, c, b / SIZE, torch.from_numpy(PRIORS)),
    ),
    "yolo without anchors, objectness": (
        losses.YOLO(size=SIZE, strides=STRIDES),
        lambda rng: [raw(rng, len(CELLS), 5 + CLASSES)],
        lambda x, c, b: oracle.yolox(x, c, b, SIZE, STRIDES),
    ),
    "yolo without anchors, aligned": (
        losses.YOLO(
            size=SIZE, strides=STRIDES, objectness=False, decoded=True, box_weight=7.5, class_weight=0.5, topk=4
        ),
        lambda rng: [decoded(rng)],
        lambda x, c, b: oracle.yolov8(x, c, b, SIZE, STRIDES, topk=4),
    ),
    "yolo with anchors": (
        losses.AnchorYOLO(size=SIZE, strides=STRIDES, anchors=SHAPES, ignore=0.3),
        lambda rng: [raw(rng, 36, 5 + CLASSES)],
        lambda x, c, b: oracle.yolov3(x, c, b, SIZE, STRIDES, SHAPES, ignore=0.3),
    ),
}


@functools.cache
def evaluator(name: str) -> ReferenceEvaluator:
    """Return onnx's own evaluator of the loss and of its gradient for each output."""
    loss, make, _ = LOSSES[name]
    outputs = make(np.random.default_rng(0))
    proto = loss_model(loss, outputs, list(labels("nothing in any image")))
    return ReferenceEvaluator(gradient(proto, of="loss", wrt=[f"output{i}" for i in range(len(outputs))]))


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_every_gradient_are_those_of_the_loops(name: str, scene: str) -> None:
    _, make, function = LOSSES[name]
    classes, boxes = labels(scene)
    given = boxes / SIZE if name == "ssd" else boxes
    for seed in (1, 2):
        outputs = make(np.random.default_rng(seed))

        feeds = {f"output{i}": a for i, a in enumerate(outputs)} | {"label0": classes, "label1": given}
        wanted = ["loss", *(f"grad/output{i}" for i in range(len(outputs)))]
        value, *slopes = evaluator(name).run(wanted, feeds)

        tensors = [torch.from_numpy(a).requires_grad_() for a in outputs]
        expected = function(*tensors, torch.from_numpy(classes), torch.from_numpy(boxes))
        expected.backward()
        np.testing.assert_allclose(value, expected.item(), rtol=1e-9, atol=1e-12)
        for slope, tensor in zip(slopes, tensors, strict=True):
            found = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            np.testing.assert_allclose(slope, found, rtol=1e-7, atol=1e-11)
            assert slope.any() or not any(SCENES[scene]), "a scene with objects teaches every output"


PAIRS = {
    "apart": ([1, 1, 4, 5], [7, 8, 9, 12]),
    "apart in one direction": ([1, 1, 4, 5], [7, 2, 9, 4]),
    "a common part": ([1, 1, 6, 5], [3, 2, 9, 8]),
    "inside": ([2, 3, 4, 5], [1, 1, 9, 8]),
    "around": ([1, 1, 9, 8], [2, 3, 4, 5]),
    "a cross": ([0, 4, 10, 6], [4, 0, 6.5, 9]),
    "the same centre": ([2, 2, 8, 6], [3, 1, 7, 7]),
    "a common edge": ([1, 1, 4, 5], [4, 2, 9, 8]),
    "a common corner": ([1, 1, 4, 5], [4, 5, 9, 8]),
    "two equal sides": ([1, 1, 4, 5], [1, 1, 9, 8]),
    "equal": ([1, 1, 4, 5], [1, 1, 4, 5]),
    "thin": ([1, 1, 1.01, 9], [0.9, 2, 1.2, 8]),
}


@pytest.mark.parametrize("kind", ["iou", "giou", "diou", "ciou"])
def test_boxes_of_every_relation_have_pytorchs_value_and_gradient(kind: str) -> None:
    boxes, target = (np.array([pair[i] for pair in PAIRS.values()], float) for i in (0, 1))
    proto = loss_model(losses.NAMES[kind](reduction="sum"), [boxes], [target])

    value, slope = ReferenceEvaluator(gradient(proto, of="loss", wrt=["output0"])).run(
        ["loss", "grad/output0"], {"output0": boxes, "label0": target}
    )

    tensor = torch.from_numpy(boxes).requires_grad_()
    expected = (1 - oracle.box_likeness(tensor, torch.from_numpy(target), kind)).sum()
    expected.backward()
    np.testing.assert_allclose(value, expected.item(), rtol=1e-12)
    for name, found, wanted in zip(PAIRS, slope, tensor.grad, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12, err_msg=name)
