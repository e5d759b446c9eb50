"""What the losses of detectors share: targets of a fixed size, grids of anchors, matching."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.arguments import is_number
from onward.errors import A101, ArgumentError, Diagnostic
from onward.graph.builder import Builder, Value
from onward.losses.base import LabelSpec, Loss, element_type, shape_of
from onward.losses.box_iou import Corners, corners, similarity

EPSILON = 1e-7


@dataclasses.dataclass(frozen=True)
class DetectionLoss(Loss):
    """A loss with two label inputs: classes int64 [N, M], where -1 is padding, and `boxes` [N, M, 4] as x₁ y₁ x₂ y₂.

    `pad_boxes` makes them of lists. The matching is part of the graph, so a program that trains without Python needs
    no other preparation.
    """

    def labels(self, outputs: Sequence[Value]) -> list[LabelSpec]:
        batch = shape_of(outputs[0], self)[0]
        return [
            LabelSpec(ir.DataType.INT64, (batch, None)),
            LabelSpec(element_type(outputs[0], self), (batch, None, 4), "boxes"),
        ]


@dataclasses.dataclass
class Truth:
    """The objects of each image as values of the graph, one of them padding, so that there is at least one."""

    classes: Value
    """int64 [N, M]; 0 where it is padding."""
    boxes: Value
    """[N, M, 4]; the unit box where it is padding, so that nothing divides by zero."""
    exists: Value
    """bool [N, M]."""

    @classmethod
    def of(cls, op: Builder, labels: Sequence[Value]) -> Truth:
        """Return the objects of the two label inputs."""
        classes = op.Pad(labels[0], [0, 0, 0, 1], -1)
        boxes = op.Pad(labels[1], [0, 0, 0, 0, 1, 0], op.constant(0.0, labels[1].dtype))
        exists = op.GreaterOrEqual(classes, 0)
        unit = op.constant(np.array([0.0, 0.0, 1.0, 1.0]), labels[1].dtype)
        return cls(op.Where(exists, classes, 0), op.Where(op.Unsqueeze(exists, [2]), boxes, unit), exists)

    def corners(self, op: Builder) -> Corners:
        """Return x₁, y₁, x₂, y₂, each [N, 1, M]: to be compared with priors or predictions, [N or 1, P, 1]."""
        return tuple(op.Transpose(v, perm=[0, 2, 1]) for v in corners(op, self.boxes, "xyxy"))  # type: ignore[return-value]

    def overlap(self, op: Builder, boxes: Corners) -> Value:
        """Return the IoU of boxes with each object, [N, P, M]; 0 with padding."""
        iou = similarity(op, boxes, self.corners(op), "iou", EPSILON)
        return op.Where(op.Unsqueeze(self.exists, [1]), iou, 0.0)


def pick(op: Builder, values: Value, index: Value) -> Value:
    """Return rows of `values` [N, M, K] at `index` [N, P]: [N, P, K]."""
    width = op.Shape(values, start=2, end=3)
    shape = op.Concat(op.Shape(index), width, axis=0)
    return op.GatherElements(values, op.Expand(op.Unsqueeze(index, [2]), shape), axis=1)


def holds(op: Builder, condition: Value, axis: int, keepdims: int = 0) -> Value:
    """Return whether a condition holds anywhere along an axis."""
    return op.Greater(op.ReduceMax(op.Cast(condition, to=ir.DataType.INT32), [axis], keepdims=keepdims), 0)


def pad_boxes(
    boxes: Sequence[Any], classes: Sequence[Any], most: int | None = None, dtype: Any = np.float32
) -> tuple[np.ndarray, np.ndarray]:
    """Return the labels of a detector for images with any number of objects: classes [N, M] and boxes [N, M, 4].

    Args:
        boxes: for each image, its boxes [objects, 4] as x₁ y₁ x₂ y₂.
        classes: for each image, the class numbers of its objects.
        most: M; by default, the largest number of objects. The rest is padding: class -1, box 0.

    >>> found, places = pad_boxes([[[0, 0, 2, 2]], []], [[3], []])
    >>> found.tolist(), places.shape
    ([[3], [-1]], (2, 1, 4))

    Raises:
        ArgumentError: the lists do not fit together; lists all images that do not.
    """
    problems = []
    if len(boxes) != len(classes):
        problems.append(
            Diagnostic(A101, "a different number of images", place="classes=", found=f"{len(classes)} and {len(boxes)}")
        )
    arrays = [np.asarray(b, np.float64).reshape(-1, 4) if np.size(b) % 4 == 0 else np.zeros((0, 4)) for b in boxes]
    numbers = [np.asarray(c).reshape(-1) for c in classes]
    largest = max([1, *(len(n) for n in numbers)]) if most is None else most
    for i, (box, number) in enumerate(zip(arrays, numbers, strict=False)):
        place = f"image {i}"
        if len(box) != len(number) or np.size(boxes[i]) % 4:
            found = f"{np.size(boxes[i])} numbers of boxes, {len(number)} classes"
            problems.append(Diagnostic(A101, "boxes and classes do not fit", place=place, found=found, needed="4 to 1"))
        elif len(number) > largest:
            problems.append(
                Diagnostic(A101, "too many objects", place=place, found=str(len(number)), needed=f"at most {largest}")
            )
        elif len(number) and (np.any(number < 0) or np.any(number != np.floor(number))):
            problems.append(
                Diagnostic(A101, "a class is not a number from 0", place=place, found=str(number.tolist())[:100])
            )
        elif not np.all(np.isfinite(box)) or np.any(box[:, 2:] < box[:, :2]):
            problems.append(
                Diagnostic(
                    A101,
                    "a box has its corners in the wrong order",
                    place=place,
                    found=str(box.tolist())[:100],
                    needed="finite x₁ ≤ x₂ and y₁ ≤ y₂",
                )
            )
    if problems:
        raise ArgumentError(problems)
    padded = np.full((len(numbers), largest), -1, np.int64)
    places = np.zeros((len(numbers), largest, 4), dtype)
    for i, (box, number) in enumerate(zip(arrays, numbers, strict=True)):
        padded[i, : len(number)], places[i, : len(number)] = number, box
    return padded, places


def grid_anchors(
    size: int | Sequence[int], strides: Sequence[int], shapes: Sequence[Sequence[Sequence[float]]]
) -> np.ndarray:
    """Return the anchors of all grids as centre and size, [A, 4], as parts of the image.

    A grid has ceil(size / stride) cells; anchors are in the order of grid, row, column, shape.

    Args:
        size: height and width of the image, or one number for both.
        strides: the size of a cell of each grid.
        shapes: for each grid, the (width, height) of each of its anchors in pixels.

    >>> grid_anchors(64, [32], [[(16, 16)]])[0].tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    height, width = image_size(size, "grid_anchors")
    found = []
    for stride, own in zip(strides, shapes, strict=True):
        y, x = np.mgrid[: -(-height // stride), : -(-width // stride)]
        centre = np.stack([(x + 0.5) * stride / width, (y + 0.5) * stride / height], -1).reshape(-1, 1, 2)
        sizes = np.asarray(own, np.float64)[None] / [width, height]
        both = np.broadcast_arrays(centre, sizes)
        found.append(np.concatenate(both, -1).reshape(-1, 4))
    return np.concatenate(found)


def image_size(size: Any, owner: str) -> tuple[int, int]:
    """Return the height and width of the image that a setting `size` means."""
    both = (size, size) if is_number(size) else tuple(size) if isinstance(size, Sequence) else ()
    if len(both) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in both):
        raise ArgumentError(
            Diagnostic(
                A101,
                f"`size` of `{owner}` is not the size of an image",
                found=repr(size),
                needed="whole numbers of pixels: (height, width), or one number for both",
            )
        )
    return both


def numbers(given: Any, name: str, owner: str, width: int) -> np.ndarray:
    """Return rows of numbers [A, width] from an array, nested lists or the path of an .npy file."""
    try:
        array = np.load(given) if isinstance(given, str | os.PathLike) else np.asarray(given, np.float64)
        array = np.asarray(array, np.float64)
    except (OSError, ValueError, TypeError) as error:
        raise ArgumentError(
            Diagnostic(A101, f"`{name}` of `{owner}` cannot be read", found=str(error)[:200], needed="an .npy file")
        ) from error
    if array.ndim != 2 or array.shape[1] != width or not len(array) or not np.all(np.isfinite(array)):
        raise ArgumentError(
            Diagnostic(
                A101,
                f"`{name}` of `{owner}` does not fit",
                found=f"shape {list(array.shape)}",
                needed=f"rows of {width} finite numbers",
            )
        )
    return array
