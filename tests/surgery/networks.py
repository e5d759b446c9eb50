"""Small networks with every kind of head, as ONNX text."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime

import onward

CLASSES = ["ant", "bee", "cat", "dog"]  # what the networks here know, by the order of their outputs


def network(
    body: str,
    weights: Mapping[str, tuple[int, ...]],
    inputs: str = "float[N, 6] x",
    outputs: str = "float[N, 4] y",
    constants: Mapping[str, object] | None = None,
    opset: int = 18,
) -> onnx.ModelProto:
    """Return a model whose weights are drawn; `constants` are other initializers."""
    text = f'<ir_version: 8, opset_import: ["": {opset}]> net ({inputs}) => ({outputs}) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for name, shape in weights.items():
        array = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    for name, value in (constants or {}).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model: onnx.ModelProto | onward.TrainingModel, *names: str, **feeds: np.ndarray) -> np.ndarray:
    """Return the first output, or the outputs `names`, that ONNX Runtime computes."""
    proto = model if isinstance(model, onnx.ModelProto) else onward.to_inference(model)
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(list(names) or None, feeds)
    result: np.ndarray = found[0] if len(names) < 2 else found
    return result


def declared(model: onward.TrainingModel, name: str | None = None) -> list[object]:
    """Return the declared shape of an output in the written file, the first by default."""
    outputs = onward.to_inference(model).graph.output
    chosen = outputs[0] if name is None else next(o for o in outputs if o.name == name)
    return [d.dim_value or d.dim_param for d in chosen.type.tensor_type.shape.dim]
