"""What IREE 3.13 does not compile, written in another way where all sizes are known.

- Windows that leave a part of their input unread, where there is just one on an axis. A Conv of 3 elements over 4 gives
  one result with a stride of 2, and never reads the fourth. IREE takes the axis with one result away, and then finds 4
  elements where it needs 3. So what is not read is cut off before.
- Pad with the elements of the tensor itself (`reflect`, `edge`, `wrap`): of large pads the compiler makes wrong sizes,
  or it does not end. A Gather with constant indices reads the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onward.backends.iree.writing import Values, replace_nodes, written

_WINDOWS = ("Conv", "MaxPool", "AveragePool", "LpPool")
Sizes = Mapping[str, Sequence[int]]


def rewrite_sized(model: onnx.ModelProto) -> bool:
    """Write such nodes in another way, in place; return whether there were any.

    The values of `model` have known sizes; those of the values that are added are not known yet.
    """
    nodes = written(model.graph, _written)
    if nodes is not None:
        replace_nodes(model.graph, nodes)
    return nodes is not None


def _written(node: onnx.NodeProto, values: Values) -> list[onnx.NodeProto] | None:
    if node.op_type in _WINDOWS:
        return _cut(node, values.sizes)
    return _gathered(node, values.sizes, values.constants) if node.op_type == "Pad" else None


def _constant(name: str, values: Sequence[int] | np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(values, np.int64)))


def _gathered(node: onnx.NodeProto, sizes: Sizes, known: Mapping[str, onnx.TensorProto]) -> list[onnx.NodeProto] | None:
    """Return a Pad with elements of the tensor as Gathers; None for one with a constant, or of unknown size."""
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    mode = given.get("mode", b"constant").decode()
    size = sizes.get(node.input[0], ())
    axes_given = len(node.input) > 3 and bool(node.input[3])
    if mode == "constant" or not size or 0 in size or ("pads" not in given and node.input[1] not in known):
        return None
    if axes_given and node.input[3] not in known:
        return None
    pads = list(given["pads"]) if "pads" in given else numpy_helper.to_array(known[node.input[1]]).tolist()  # opset 2
    axes = numpy_helper.to_array(known[node.input[3]]).tolist() if axes_given else range(len(size))
    made: list[onnx.NodeProto] = []
    value, count = node.input[0], len(pads) // 2
    for place, axis in enumerate(axes):
        before, after = pads[place], pads[count + place]
        if not before and not after:
            continue
        index = np.pad(
            np.arange(size[axis])[max(0, -before) : size[axis] - max(0, -after)],
            (max(0, before), max(0, after)),
            mode=mode,
        )
        name = f"{node.output[0]}/axis{axis}"
        made += [
            _constant(f"{name}/index", index),
            helper.make_node("Gather", [value, f"{name}/index"], [name], axis=axis),
        ]
        value = name
    return [*made, helper.make_node("Identity", [value], list(node.output))]


def _cut(node: onnx.NodeProto, sizes: Sizes) -> list[onnx.NodeProto] | None:
    """Return what replaces a node; None if it reads everything, or has several windows."""
    size, results = sizes.get(node.input[0], ())[2:], sizes.get(node.output[0], ())[2:]
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    kernel = list(given.get("kernel_shape") or (sizes.get(node.input[1], ())[2:] if node.op_type == "Conv" else ()))
    rank = len(size)
    if not (rank == len(results) == len(kernel)) or 0 in size:
        return None
    same = given.get("auto_pad", b"NOTSET").startswith(b"SAME")  # then a window is padded only where it is the larger
    pads = [0] * (2 * rank) if same else list(given.get("pads", [0] * (2 * rank)))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, given.get("dilations", [1] * rank), strict=True)]
    ends, unread = list(size), 0
    shrinks = node.op_type in ("MaxPool", "AveragePool") and reach == kernel and not given.get("count_include_pad", 0)
    for axis in range(rank):
        over = pads[axis] + size[axis] + pads[rank + axis] - reach[axis]
        if results[axis] != 1 or over <= 0:
            continue
        unread += over
        if shrinks:  # IREE's pools have the same pads at both ends
            kernel[axis] = ends[axis] = min(size[axis], kernel[axis] - pads[axis])
            pads[axis] = pads[rank + axis] = 0
            continue
        cut = max(0, over - pads[rank + axis])
        pads[rank + axis] -= over - cut
        ends[axis] -= cut
    if not unread or (same and any(r > s for r, s in zip(reach, size, strict=True))):
        return None
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    kept = [a for a in node.attribute if a.name not in ("pads", "auto_pad", "kernel_shape")]
    del copy.attribute[:]
    copy.attribute.extend(
        [*kept, *(helper.make_attribute(k, v) for k, v in (("pads", pads), ("kernel_shape", kernel)))]
    )
    if ends == list(size):
        return [copy]
    short, axes = f"{node.output[0]}/read", [2 + axis for axis in range(rank)]
    bounds = {"starts": [0] * rank, "ends": ends, "axes": axes}
    constants = [_constant(f"{short}/{k}", v) for k, v in bounds.items()]
    copy.input[0] = short
    return [*constants, helper.make_node("Slice", [node.input[0], *(f"{short}/{k}" for k in bounds)], [short]), copy]
