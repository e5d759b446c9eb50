"""Cases of autodiff/rules/cumulative.py."""

from __future__ import annotations

import numpy as np
import torch as _torch

from cases import array, case

FIRST, LAST = np.array(0, np.int64), np.array(-1, np.int64)
NEW = "no kernel for CumProd"
POSITIVE = array(2, 4, low=0.5)

CASES = [
    case("CumSum", "ordinary", x=array(2, 4), axis=np.array(1, np.int64), torch=lambda x, axis: x.cumsum(1)),
    case("CumSum", "exclusive", x=array(3, 2), axis=FIRST, exclusive=1),
    case("CumSum", "reverse", x=array(3, 2), axis=FIRST, reverse=1, torch=lambda x, axis: x.flip(0).cumsum(0).flip(0)),
    case("CumSum", "both", kind="edge", x=array(3, 2), axis=LAST, reverse=1, exclusive=1),
    case("CumSum", "empty", kind="edge", x=array(0, 2), axis=FIRST),
    case("CumSum", "infinite", kind="special", x=np.array([1.0, np.inf]), axis=FIRST, expected={"x": [2.0, 1.0]}),
    case("CumProd", "ordinary", opset=26, x=POSITIVE, axis=LAST, onnxruntime=NEW, torch=lambda x, axis: x.cumprod(1)),
    case("CumProd", "exclusive", opset=26, x=array(3, 2), axis=FIRST, exclusive=1, onnxruntime=NEW),
    case("CumProd", "reverse", opset=26, x=array(3, 2), axis=FIRST, reverse=1, onnxruntime=NEW,
         torch=lambda x, axis: _torch.flip(_torch.flip(x, [0]).cumprod(0), [0])),
    case("CumProd", "both", kind="edge", opset=26, x=POSITIVE, axis=LAST, reverse=1, exclusive=1, onnxruntime=NEW),
    case("CumProd", "zeros", kind="special", opset=26, x=np.array([[2.0, 0.0, 3.0, 0.5], [1.5, 0.0, 0.0, 2.0]]),
         axis=LAST, onnxruntime=NEW, smooth=False, torch=lambda x, axis: x.cumprod(1)),
    case("CumProd", "one zero", kind="special", opset=26, x=np.array([2.0, 3.0, 0.0, 0.5, 4.0]), axis=FIRST,
         onnxruntime=NEW),
    case("CumProd", "zero, exclusive and reverse", kind="special", opset=26, x=np.array([2.0, 3.0, 0.0, 0.5, 4.0]),
         axis=FIRST, exclusive=1, reverse=1, onnxruntime=NEW),
]  # fmt: skip
