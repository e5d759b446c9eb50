"""The numpy oracle where onnx's own evaluator goes wrong."""

from __future__ import annotations

import numpy as np
from onnx import parser

from onward.backends.reference import Evaluator

MODEL = """
    <ir_version: 10, opset_import: ["" : 18]>
    net (float[3] x, int64[2] pads) => (int64[3] order, float[4] y) {
        three = Constant <value_ints = [3]> ()
        "", order = TopK <axis = 0> (x, three)
        y = Pad (x, pads, "")
    }"""
FEEDS = {"x": np.array([5.0, 6.0, 7.0], np.float32), "pads": np.array([0, 1])}


def test_an_unnamed_output_is_not_read_as_an_absent_input() -> None:
    y = Evaluator(parser.parse_model(MODEL)).run(FEEDS)["y"]

    assert y.tolist() == [5.0, 6.0, 7.0, 0.0]
