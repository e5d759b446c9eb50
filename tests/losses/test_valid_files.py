"""Losses that read outputs of special shapes give files in which the strictest check finds nothing."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onward
from onward import losses

PRIORS = np.array([[0.3, 0.3, 0.2, 0.2], [0.6, 0.6, 0.4, 0.4], [0.5, 0.5, 0.9, 0.9]])
CASES = {
    "dice": (losses.Dice(activation="softmax", targets="index", ignore_index=9), ["y[N, 3, 8, 8]"]),
    "tversky": (losses.Tversky(gamma=0.75), ["y[N, 3, 8, 8]"]),
    "iou": (losses.IoU(skip_empty=True), ["y[N, 5, 4]"]),
    "giou": (losses.GIoU(), ["y[N, 4]"]),
    "diou": (losses.DIoU(), ["y[N, 4]"]),
    "ciou": (losses.CIoU(format="cxcywh"), ["y[N, 4]"]),
    "ssd": (losses.SSD(anchors=PRIORS), ["y[N, 3, 4]", "z[N, 3, 6]"]),
    "yolo": (losses.YOLO(size=32, strides=(16,)), ["y[N, 4, 7]"]),
    "yolo without objectness": (
        losses.YOLO(size=32, strides=(16, 32), objectness=False),
        ["y[N, 6, 2, 2]", "z[N, 6, 1, 1]"],
    ),
    "anchor_yolo": (losses.AnchorYOLO(size=32, strides=(16,), anchors=[[(9, 9)]]), ["y[N, 7, 2, 2]"]),
    "info_nce": (losses.InfoNCE(), ["y[N, 6]", "z[N, 6]"]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_file_is_valid(name: str) -> None:
    loss, outputs = CASES[name]
    names = [text.partition("[")[0] for text in outputs]
    inputs = ", ".join(f"float[{text.partition('[')[2]} in_{n}" for n, text in zip(names, outputs, strict=True))
    results = ", ".join(f"float[{text.partition('[')[2]} {n}" for n, text in zip(names, outputs, strict=True))
    body = " ".join(f"{n} = Mul(in_{n}, w)" for n in names)
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> net ({inputs}) => ({results}) {{ {body} }}'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1.5], np.float32), "w"))

    made = onward.make_trainable(model, loss=loss, output=names, optimizer="sgd", train="w")

    assert onward.check(made.proto(), pedantic=True).findings == ()
