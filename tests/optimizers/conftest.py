from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from onward.graph.builder import Builder, Names
from onward.model.training_model import TrainingModel
from onward.optimizers import Optimizer
from onward.optimizers.base import FunctionLibrary
from onward.optimizers.emit import emit_update, initializer
from onward.passes.base import NO_GRADIENTS, Unit
from onward.passes.optimizers import LowerOptimizers

OPSET = 18


class Run:
    """An optimizer's update alone: parameters and gradients in, parameters and state out, step after step.

    `lowered` runs ONNX's optimizer operators as the plain operators that compile_model makes of them: onnx's own
    reference of Adam computes in other types.
    """

    def __init__(self, optimizer: Optimizer, parameters: Mapping[str, np.ndarray], lowered: bool = False) -> None:
        values = {name: initializer(name, array) for name, array in parameters.items()}
        gradients = {name: ir.Value(name=f"grad/{name}", type=v.type, shape=v.shape) for name, v in values.items()}
        op = Builder(OPSET, Names([*values, *(g.name or "" for g in gradients.values())]))
        library = FunctionLibrary(OPSET)
        update = emit_update(optimizer, op, {values[n]: gradients[n] for n in values}, library)
        self.settings = {v.name or "": v.const_value.numpy() for v in update.settings}
        self.state = {v.name or "": v.const_value.numpy() for v in update.state} | dict(parameters)
        self.names = {name: new.name or "" for name, new in update.bindings.items()}
        inputs = [*values.values(), *gradients.values(), *update.state, *update.settings]
        imports = {"": OPSET, "ai.onnx.preview.training": 1, "onward.optimizers": 1}
        imports |= {f.domain: 1 for f in library.functions}
        graph = ir.Graph(inputs, list(update.bindings.values()), nodes=op.nodes, opset_imports=imports, name="update")
        self.model = ir.Model(graph, ir_version=8, functions=library.functions)
        self.proto = ir.serde.serialize_model(self.model)
        onnx.checker.check_model(self.proto, full_check=True)
        plain = ir.serde.deserialize_model(self.proto)
        if lowered:
            LowerOptimizers()(Unit(TrainingModel(plain), facts={NO_GRADIENTS}))
        self._evaluator = ReferenceEvaluator(ir.serde.serialize_model(plain))

    def step(self, gradients: Mapping[str, np.ndarray], **settings: float) -> None:
        feeds = {**self.state, **{f"grad/{n}": g for n, g in gradients.items()}}
        for name, value in self.settings.items():
            feeds[name] = np.asarray(settings.get(name, value), value.dtype)
        outputs = dict(zip([o.name for o in self.proto.graph.output], self._evaluator.run(None, feeds), strict=True))
        for name, new in self.names.items():
            assert outputs[new].dtype == self.state[name].dtype, name
            assert outputs[new].shape == self.state[name].shape, name
            self.state[name] = outputs[new]

    def operators(self) -> list[str]:
        return [node.op_type for node in self.model.graph]


@pytest.fixture
def run() -> Callable[[Optimizer, Mapping[str, np.ndarray]], Run]:
    return Run


@pytest.fixture
def gradients() -> Sequence[np.ndarray]:
    """Fifty gradients of different sizes, some of them zero."""
    rng = np.random.default_rng(11)
    scale = np.array([[1.0, 1e-3, 10.0], [0.1, 1e-6, 2.0]])
    made = [rng.normal(size=(2, 3)) * scale for _ in range(50)]
    made[7] = np.zeros((2, 3))
    return made


@pytest.fixture
def start() -> np.ndarray:
    return np.array([[0.5, -1.0, 2.0], [0.0, 3.0, -0.25]])
