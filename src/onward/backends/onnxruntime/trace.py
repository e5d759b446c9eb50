"""Compute every value of a graph, in the order of its nodes, to locate the origin of a NaN."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime

from onward.errors import named_nodes


def trace(model: onnx.ModelProto, values: Mapping[str, np.ndarray]) -> list[tuple[str, str, np.ndarray]] | None:
    """Return (name, place, array) of every value in the order of the nodes; None if the graph cannot be run here.

    This explains an error that has already happened. So a graph that ONNX Runtime refuses gives no explanation, and not
    a second error.
    """
    places = {
        out: place + f" ({node.op_type})" * bool(node.name)
        for node, place in zip(model.graph.node, named_nodes(model.graph.node), strict=True)
        for out in node.output
        if out
    }
    traced = onnx.ModelProto()
    traced.CopyFrom(model)
    existing = {o.name for o in traced.graph.output}
    traced.graph.output.extend(onnx.ValueInfoProto(name=n) for n in places if n not in existing)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(traced.SerializeToString(), options, providers=["CPUExecutionProvider"])
        wanted = [i.name for i in session.get_inputs()]
        if any(name not in values for name in wanted):
            return None
        results = session.run(list(places), {name: np.asarray(values[name]) for name in wanted})
    except Exception:  # noqa: BLE001  # ONNX Runtime's errors share no base class; the NaN itself is reported anyway
        return None
    return [
        (name, place, array)
        for (name, place), array in zip(places.items(), results, strict=True)
        if isinstance(array, np.ndarray)
    ]
