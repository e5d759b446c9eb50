"""Corrected Loop and Scan."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx.reference.op_run import OpRun


def _empty(info: onnx.ValueInfoProto, axis: int = 0) -> np.ndarray:
    """Return the scan output of zero iterations: an empty array of the declared type and shape."""
    tensor = info.type.tensor_type
    dims = [d.dim_value if d.HasField("dim_value") else 0 for d in tensor.shape.dim]
    dims.insert(axis if axis >= 0 else len(dims) + 1 + axis, 0)
    return np.zeros(dims, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type or onnx.TensorProto.FLOAT))


def _body(node: onnx.NodeProto) -> onnx.GraphProto:
    graph: onnx.GraphProto = next(a.g for a in node.attribute if a.name == "body")
    return graph


class Loop(OpRun):
    """onnx 1.23 never enters a loop without a condition, and stacks scan outputs with vstack: wrong below rank 2."""

    def need_context(self) -> bool:
        return True

    def _run(
        self,
        M: Any = None,
        cond: Any = None,
        *args: Any,
        context: Any = None,
        body: Any = None,
        attributes: Any = None,
        bindings: Any = None,
    ) -> tuple[Any, ...]:
        graph = _body(self.onnx_node)
        names = [i.name for i in graph.input]
        carried = list(args)
        scans: list[list[Any]] = [[] for _ in graph.output[1 + len(carried) :]]
        limit = None if M is None else int(np.asarray(M).reshape(-1)[0])
        going = True if cond is None else bool(np.asarray(cond).reshape(-1)[0])
        step = 0
        while going and (limit is None or step < limit):
            feeds = dict(context or {})
            feeds.update(zip(names, [np.array(step, np.int64), np.array(going), *carried], strict=True))
            results = body.run(None, feeds, attributes=attributes)
            going = bool(np.asarray(results[0]).reshape(-1)[0])
            carried = list(results[1 : 1 + len(carried)])
            for scan, value in zip(scans, results[1 + len(carried) :], strict=True):
                scan.append(np.asarray(value))
            step += 1
        infos = graph.output[1 + len(carried) :]
        stacked = [np.stack(s) if s else _empty(info) for s, info in zip(scans, infos, strict=True)]
        return self._check_and_fix_outputs((*carried, *stacked))


class Scan(OpRun):
    """onnx 1.23 supports neither axes nor directions nor scan outputs of zero steps."""

    def need_context(self) -> bool:
        return True

    def _run(
        self,
        *args: Any,
        context: Any = None,
        body: Any = None,
        num_scan_inputs: Any = None,
        scan_input_axes: Any = None,
        scan_input_directions: Any = None,
        scan_output_axes: Any = None,
        scan_output_directions: Any = None,
        attributes: Any = None,
        bindings: Any = None,
    ) -> tuple[Any, ...]:
        graph = _body(self.onnx_node)
        scanned = int(num_scan_inputs)
        names = [i.name for i in graph.input]
        states = list(args[: len(args) - scanned])
        infos = graph.output[len(states) :]
        in_axes = list(scan_input_axes or [0] * scanned)
        in_directions = list(scan_input_directions or [0] * scanned)
        out_axes = list(scan_output_axes or [0] * len(infos))
        out_directions = list(scan_output_directions or [0] * len(infos))
        sources = [np.moveaxis(a, axis, 0) for a, axis in zip(args[len(states) :], in_axes, strict=True)]
        sources = [s[::-1] if direction else s for s, direction in zip(sources, in_directions, strict=True)]
        scans: list[list[Any]] = [[] for _ in infos]
        for step in range(len(sources[0])):
            feeds = dict(context or {})
            feeds.update(zip(names, [*states, *(np.asarray(s[step]) for s in sources)], strict=True))
            results = body.run(None, feeds, attributes=attributes)
            states = list(results[: len(states)])
            for scan, value in zip(scans, results[len(states) :], strict=True):
                scan.append(np.asarray(value))
        stacked = [
            np.stack(s[::-1] if direction else s, axis=axis) if s else _empty(info, axis)
            for s, direction, axis, info in zip(scans, out_directions, out_axes, infos, strict=True)
        ]
        return self._check_and_fix_outputs((*states, *stacked))


OPERATORS: list[type[OpRun]] = [Loop, Scan]
