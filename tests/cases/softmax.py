"""Cases of autodiff/rules/softmax.py."""

from __future__ import annotations

import numpy as np

from cases import array, case

CASES = [
    case("Softmax", "last axis", input=array(2, 3), torch=lambda input: input.softmax(-1)),
    case("Softmax", "axis 0", kind="edge", input=array(4, 3), axis=0, torch=lambda input: input.softmax(0)),
    case("Softmax", "axis -2", kind="edge", input=array(2, 3, 2), axis=-2, torch=lambda input: input.softmax(-2)),
    case("Softmax", "size 1", kind="edge", input=array(2, 1), torch=lambda input: input.softmax(-1)),
    case("Softmax", "empty", kind="edge", input=array(0, 3), torch=lambda input: input.softmax(-1)),
    case("Softmax", "large", kind="special", input=np.array([[1000.0, 0.0, -1000.0]]),
         torch=lambda input: input.softmax(-1), expected={"input": [[0, 0, 0]]}, atol=1e-12),
    case("LogSoftmax", "last axis", input=array(2, 3), torch=lambda input: input.log_softmax(-1)),
    case("LogSoftmax", "axis 1 of 3", kind="edge", input=array(2, 3, 2), axis=1,
         torch=lambda input: input.log_softmax(1)),
    case("LogSoftmax", "axis 0", kind="edge", input=array(4, 3), axis=0, torch=lambda input: input.log_softmax(0)),
    case("LogSoftmax", "empty", kind="edge", input=array(0, 3), torch=lambda input: input.log_softmax(-1)),
    case("LogSoftmax", "large", kind="special", input=np.array([[1000.0, 0.0, -1000.0]]),
         torch=lambda input: input.log_softmax(-1), expected={"input": [[-2, 1, 1]]}, atol=1e-12),
    case("Hardmax", "flat", input=array(2, 3)),
    case("Hardmax", "axis 0", kind="edge", input=array(2, 3), axis=0),
    case("Hardmax", "ties", kind="special", input=np.zeros((2, 3)), expected={"input": np.zeros((2, 3))}),
]  # fmt: skip
