"""Cases of autodiff/rules/quantization.py. Straight-through gradients: tests/rules/test_quanti*.py."""

from __future__ import annotations

import numpy as np

from cases import array, case
from cases.text import text_case

STEPS = np.array([[-128, 0, 7], [127, -3, 50]], np.int8)
TYPES = (np.float32, np.float16)  # the standard has no double here
# DynamicQuantizeLinear knows only float32; its scale is linear almost everywhere, so that large steps are exact enough.
SCALE = """net (double[{}] x) => (double y)
    {{ f = Cast <to=1> (x) q, s, z = DynamicQuantizeLinear (f) y = Cast <to=11> (s) }}"""
COARSE = {"step": 1.0, "rtol": 3e-6}


def scales(*shape: int) -> np.ndarray:
    return array(*shape, low=0.1, high=0.5)


CASES = [
    case("DequantizeLinear", "one scale", x=STEPS, x_scale=np.array(0.3), x_zero_point=np.array(5, np.int8),
         constants=["x", "x_zero_point"], dtypes=TYPES),
    case("DequantizeLinear", "steps at run time, no zero point", x=STEPS, x_scale=np.array(0.3), dtypes=TYPES),
    case("DequantizeLinear", "one scale as a vector", kind="edge", x=STEPS, x_scale=np.array([0.3]), dtypes=TYPES,
         constants=["x"]),
    case("DequantizeLinear", "per axis", x=STEPS, x_scale=scales(3), x_zero_point=np.array([1, 2, 3], np.int8),
         constants=["x", "x_zero_point"], dtypes=TYPES),
    case("DequantizeLinear", "axis 0", kind="edge", x=STEPS, x_scale=scales(2), axis=0, dtypes=TYPES),
    case("DequantizeLinear", "negative axis", kind="edge", x=STEPS[:, None], x_scale=scales(2), axis=-3, dtypes=TYPES),
    case("DequantizeLinear", "blocks", x=np.arange(16, dtype=np.uint8).reshape(2, 8), x_scale=scales(2, 4),
         block_size=2, axis=1, dtypes=TYPES),
    case("DequantizeLinear", "blocks, the last one short", kind="edge",
         x=np.arange(15, dtype=np.uint8).reshape(5, 3), x_scale=scales(3, 3), axis=0, block_size=2, dtypes=TYPES),
    case("DequantizeLinear", "at the ends of the range", kind="special", x=np.array([-128, 127], np.int8),
         x_scale=np.array(1.0), constants=["x"], expected={"x_scale": -1.0}, dtypes=TYPES),
    text_case("DynamicQuantizeLinear", "its scale", SCALE.format("2,3"), **COARSE,
              x=np.array([[-9.0, 0.5, 7.25], [3.0, -1.5, 2.0]])),
    text_case("DynamicQuantizeLinear", "its scale, all positive", SCALE.format("3"), kind="edge", **COARSE,
              x=np.array([3.5, 8.0, 5.0])),
    text_case("DynamicQuantizeLinear", "its scale, a scalar", SCALE.replace("[{}]", "").format(), kind="edge", **COARSE,
              x=np.array(-7.0)),
    text_case("DynamicQuantizeLinear", "its scale, ties and zeros", SCALE.format("4"), kind="special",
              x=np.array([3.0, -1.0, 0.0, 3.0]), expected={"x": np.array([0.5, -1.0, 0.0, 0.5]) / 255}),
    text_case("DynamicQuantizeLinear", "its scale, all zero", SCALE.format("3"), kind="special", x=np.zeros(3),
              expected={"x": np.zeros(3)}),
]  # fmt: skip
