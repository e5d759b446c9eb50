"""Cases of autodiff/rules/quantization.py. Straight-through gradients: tests/rules/test_quantization.py."""

from __future__ import annotations

import numpy as np

from cases import array, case

STEPS = np.array([[-128, 0, 7], [127, -3, 50]], np.int8)
TYPES = (np.float32, np.float16)  # the standard has no double here


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
]  # fmt: skip
