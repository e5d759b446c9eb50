"""Models written as ONNX text, for tests of whole graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from onward.backends.reference import Evaluator
from onward.testing import OneNodeModel

HEADER = '<ir_version: 10, opset_import: ["" : {opset}, "ai.onnx.preview.training" : 1]>\n'


def parse(text: str, opset: int = 18) -> onnx.ModelProto:
    """Return the model of a graph in ONNX text."""
    proto = onnx.parser.parse_model(HEADER.replace("{opset}", str(opset)) + text)
    for index, node in enumerate(proto.graph.node):
        if not node.name:
            node.name = f"{node.op_type}_{index}"
    return proto


def model(text: str, opset: int = 18, **feeds: Any) -> OneNodeModel:
    """Return the model of a graph in ONNX text with values for its inputs, as the gradient tester takes it."""
    proto = parse(text, opset)
    arrays = {k: np.asarray(v) for k, v in feeds.items()}
    outputs = tuple(o.name for o in proto.graph.output)
    return OneNodeModel(proto, arrays, outputs, proto.graph.node[0])


def run(proto: onnx.ModelProto, **feeds: Any) -> dict[str, np.ndarray]:
    """Return the outputs of the reference evaluator."""
    return Evaluator(proto).run({k: np.asarray(v) for k, v in feeds.items()})
