from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from author.small import MLP, f32
from onward.compiler.compile import compile_model
from onward.model.training_model import TrainingModel

Build = Callable[..., onnx.ModelProto]


@pytest.fixture
def build() -> Build:
    """Make a model from ONNX's text form; weights are given as arrays."""

    def build_(text: str, opset: int = 18, ir_version: int = 8, **weights: np.ndarray) -> onnx.ModelProto:
        header = f'<ir_version: {ir_version}, opset_import: ["" : {opset}]>'
        proto = onnx.parser.parse_model(header + text)
        for name, array in weights.items():
            proto.graph.initializer.append(numpy_helper.from_array(array, name))
        onnx.checker.check_model(proto)
        return proto

    return build_


@pytest.fixture
def mlp(build: Build) -> onnx.ModelProto:
    """Two matrices with a Relu between them."""
    return build(MLP, W1=f32(3, 4), W2=f32(4, 2))


class Steps:
    """A training model compiled and run on stock onnxruntime."""

    def __init__(self, model: TrainingModel) -> None:
        self.program = compile_model(model)
        self.step_graph = next(iter(self.program.entries.values())).step
        self.state = dict(self.program.state)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            self.step_graph.proto().SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["MatmulTransposeFusion"],  # which older runtimes have no float64 kernel for
        )

    def step(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        known = {**self.program.settings, **self.state, **feeds}
        inputs = {i.name: known[i.name] for i in self.session.get_inputs()}
        names = [o.name for o in self.session.get_outputs()]
        outputs = dict(zip(names, self.session.run(None, inputs), strict=True))
        for output, name in self.step_graph.replaces.items():
            self.state[name] = outputs[output]
        return outputs


@pytest.fixture
def steps() -> Callable[[TrainingModel], Steps]:
    return Steps
