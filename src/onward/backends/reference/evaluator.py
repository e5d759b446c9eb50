"""Evaluate a plain ONNX model in numpy, as the standard defines it, in any floating-point type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from onward.backends.reference.ops import OPERATORS


class Evaluator:
    """Runs one model; `run(feeds)` returns the outputs by name."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._evaluator = _Corrected(_with_every_output_named(model))
        self.output_names = [o.name for o in model.graph.output]

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return every output of the model for `feeds`."""
        with np.errstate(all="ignore"):  # infinities and NaN are ordinary results in ONNX
            results = self._evaluator.run(None, dict(feeds))
        return dict(zip(self.output_names, results, strict=True))


class _Corrected(ReferenceEvaluator):
    """onnx's evaluator with our operators, also in function bodies, where onnx itself would not use them."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **{**keywords, "new_ops": OPERATORS})


def _with_every_output_named(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with a name for each unnamed output; the model itself if all have names.

    onnx 1.23 keeps the value of an output called "" and gives it to every later node whose optional input is "".
    """
    if not any(_has_unnamed_output(graph) for graph in [model.graph, *model.functions]):
        return model
    named = onnx.ModelProto()
    named.CopyFrom(model)
    for graph in [named.graph, *named.functions]:
        _name_outputs(graph, "unused")
    return named


def _subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [g for a in node.attribute for g in [*([a.g] if a.HasField("g") else []), *a.graphs]]


def _has_unnamed_output(graph: onnx.GraphProto | onnx.FunctionProto) -> bool:
    return any("" in node.output or any(_has_unnamed_output(g) for g in _subgraphs(node)) for node in graph.node)


def _name_outputs(graph: onnx.GraphProto | onnx.FunctionProto, prefix: str) -> None:
    for number, node in enumerate(graph.node):
        for index, name in enumerate(node.output):
            if not name:
                node.output[index] = f"{prefix}/{number}/{index}"
        for inner, sub in enumerate(_subgraphs(node)):
            _name_outputs(sub, f"{prefix}/{number}/{inner}")
