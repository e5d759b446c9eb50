"""Cases of autodiff/rules/slicing.py."""

from __future__ import annotations

import numpy as np
import torch as _torch

from cases import array, case

END = np.iinfo(np.int64).max


def ints(*values):
    return np.array(values, dtype=np.int64)


def _pad(mode, *widths):
    return lambda data, pads, **_: _torch.nn.functional.pad(data, widths, mode=mode)


CASES = [
    case("Slice", "constant", data=array(4, 5), starts=ints(1, 0), ends=ints(3, -1), axes=ints(0, 1),
         constants=["starts", "ends", "axes"], torch=lambda data: data[1:3, 0:-1]),
    case("Slice", "at run time", data=array(4, 5), starts=ints(1, -3), ends=ints(3, END), axes=ints(-1, 0),
         torch=lambda data, starts, ends, axes: data[-3:, 1:3]),
    case("Slice", "no axes", data=array(4, 3), starts=ints(1, 0), ends=ints(4, 2)),
    case("Slice", "no axes constant", data=array(4, 3), starts=ints(1, 0), ends=ints(4, 2),
         constants=["starts", "ends"]),
    case("Slice", "no axes, fewer than there are", data=array(4, 3, 2), starts=ints(1), ends=ints(3)),
    case("Slice", "no axes by steps, fewer than there are", data=array(4, 3, 2), starts=ints(1), ends=ints(4),
         steps=ints(2)),
    case("Slice", "steps", data=array(7, 3), starts=ints(0, 1), ends=ints(6, END), axes=ints(0, 1), steps=ints(2, 1),
         torch=lambda data, starts, ends, axes, steps: data[0:6:2, 1:]),
    case("Slice", "backwards", data=array(5, 3), starts=ints(-1), ends=ints(-END), axes=ints(0), steps=ints(-1),
         constants=["starts", "ends", "axes", "steps"], torch=lambda data: data.flip(0)),
    case("Slice", "backwards by two", data=array(2, 6), starts=ints(4), ends=ints(0), axes=ints(1), steps=ints(-2)),
    case("Slice", "every second", data=array(5, 4), starts=ints(1, 0), ends=ints(END, END), axes=ints(1, 0),
         steps=ints(2, 2), constants=["starts", "ends", "axes", "steps"], torch=lambda data: data[::2, 1::2]),
    case("Slice", "one axis by steps", data=array(5, 4), starts=ints(3, 0), ends=ints(-END, END), axes=ints(0, 1),
         steps=ints(-2, 1), constants=["starts", "ends", "axes", "steps"]),
    case("Slice", "steps beyond the end", kind="edge", data=array(3), starts=ints(2), ends=ints(END), axes=ints(0),
         steps=ints(5)),
    case("Slice", "unit steps", kind="edge", data=array(2, 6), starts=ints(-9), ends=ints(3), axes=ints(1),
         steps=ints(1), constants=["steps"]),
    case("Slice", "far outside", kind="edge", data=array(4), starts=ints(-100), ends=ints(100), axes=ints(0)),
    case("Slice", "empty", kind="edge", data=array(4, 2), starts=ints(3), ends=ints(1), axes=ints(0)),
    case("Slice", "empty constant", kind="edge", data=array(4, 2), starts=ints(3), ends=ints(1), axes=ints(0),
         constants=["starts", "ends", "axes"]),
    case("Slice", "all of it", kind="edge", data=array(4, 2), starts=ints(0), ends=ints(END), axes=ints(0),
         constants=["starts", "ends", "axes"]),
    case("Slice", "infinite", kind="special", data=np.array([np.inf, 1.0, 2.0]), starts=ints(1), ends=ints(3),
         expected={"data": [0.0, 1.0, 1.0]}),
    case("Pad", "constant", data=array(2, 3), pads=ints(1, 0, 2, 1), constant_value=array(),
         torch=lambda data, pads, constant_value: _torch.cat(
             [constant_value.expand(1, 4), _torch.cat([data, constant_value.expand(2, 1)], 1),
              constant_value.expand(2, 4)])),
    case("Pad", "constant pads", data=array(2, 3), pads=ints(1, 0, 2, 1), constants=["pads"],
         torch=lambda data: _torch.nn.functional.pad(data, (0, 1, 1, 2))),
    case("Pad", "axes", data=array(2, 3, 2), pads=ints(1, 2), axes=ints(-2), constant_value=array(seed=4)),
    case("Pad", "negative", kind="edge", data=array(4, 3), pads=ints(-1, 2, 1, -1), constant_value=array()),
    case("Pad", "nothing", kind="edge", data=array(2, 3), pads=ints(0, 0, 0, 0), constant_value=array()),
    case("Pad", "empty data", kind="edge", data=array(0, 2), pads=ints(1, 0, 1, 0), constant_value=array()),
    case("Pad", "reflect", data=array(1, 2, 4), pads=ints(0, 0, 2, 0, 0, 3), mode="reflect",
         torch=_pad("reflect", 2, 3)),
    case("Pad", "reflect constant pads", data=array(4, 3), pads=ints(1, 2, 2, 0), mode="reflect", constants=["pads"]),
    case("Pad", "edge", data=array(1, 2, 3), pads=ints(0, 0, 2, 0, 0, 1), mode="edge", torch=_pad("replicate", 2, 1)),
    case("Pad", "reflect one side", kind="edge", data=array(4, 3), pads=ints(0, 2, 0, 0), mode="reflect",
         constants=["pads"]),
    case("Pad", "edge constant pads", data=array(3, 2), pads=ints(2, 0, 1, 3), mode="edge", constants=["pads"]),
    case("Pad", "wrap constant pads", data=array(3, 2), pads=ints(2, 1, 3, 0), mode="wrap", constants=["pads"]),
    case("Pad", "reflect on axes", data=array(3, 2, 4), pads=ints(3, 1, 0, 1), axes=ints(-1, 0), mode="reflect",
         constants=["pads", "axes"]),
    case("Pad", "reflect has no use for a value", kind="edge", data=array(4), pads=ints(1, 2), constant_value=array(),
         mode="reflect"),
    case("Pad", "edge on axes", kind="edge", data=array(2, 3), pads=ints(2, 1), mode="edge", axes=ints(0)),
    case("Pad", "wrap", data=array(1, 2, 4), pads=ints(0, 0, 3, 0, 0, 2), mode="wrap", torch=_pad("circular", 3, 2)),
    case("Pad", "wrap and cut", kind="edge", data=array(4, 3), pads=ints(1, -1, 0, 2), mode="wrap"),
    case("Pad", "infinite", kind="special", data=np.array([np.inf, 1.0]), pads=ints(1, 1),
         constant_value=np.array(2.0), expected={"data": [1.0, 1.0], "constant_value": 2.0}),
    case("CenterCropPad", "both", input_data=array(5, 2), shape=ints(2, 5)),
    case("CenterCropPad", "constant shape", input_data=array(4, 3), shape=ints(3, 4), constants=["shape"]),
    case("CenterCropPad", "axes", kind="edge", input_data=array(2, 5, 2), shape=ints(3, 2), axes=[2, -2]),
    case("CenterCropPad", "same", kind="edge", input_data=array(2, 3), shape=ints(2, 3)),
    case("CenterCropPad", "infinite", kind="special", input_data=np.array([np.inf, 1.0, 2.0]), shape=ints(1),
         expected={"input_data": [0.0, 1.0, 0.0]}),
]  # fmt: skip
