"""Cases of autodiff/rules/creation.py."""

from __future__ import annotations

import numpy as np

from cases import array, case

TWO_VALUES = array(2, seed=3)
NOT_HALF = (np.float64, np.float32)  # Range has float16 from opset 27 on

CASES = [
    case("Range", "ordinary", start=np.array(0.25), limit=np.array(4.6), delta=np.array(0.75), dtypes=NOT_HALF),
    case("Range", "descending", start=np.array(2.0), limit=np.array(-1.2), delta=np.array(-0.5), dtypes=NOT_HALF),
    case("Range", "empty", kind="edge", start=np.array(1.0), limit=np.array(0.3), delta=np.array(0.5), dtypes=NOT_HALF),
    case("Range", "limit does not matter", kind="special", start=np.array(0.0), limit=np.array(1.7),
         delta=np.array(0.5), dtypes=NOT_HALF, expected={"start": 4.0, "limit": 0.0, "delta": 6.0}),
    case("OneHot", "ordinary", indices=np.array([[0, 2], [1, 3]]), depth=np.array(4), values=TWO_VALUES),
    case("OneHot", "axis", indices=np.array([0, 2, 1]), depth=np.array([3]), values=TWO_VALUES, axis=0),
    case("OneHot", "negative and out of range", kind="edge", indices=np.array([-1, 7, 1]), depth=np.array(3),
         values=TWO_VALUES, axis=-1),
    case("OneHot", "infinite off value", kind="special", indices=np.array([0]), depth=np.array(3),
         values=np.array([np.inf, 1.0]), expected={"values": [2.0, 1.0]}),
]  # fmt: skip
