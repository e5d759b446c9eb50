"""OpenVINO on the CPU, in the precision of the file: its CPU plugin may otherwise choose bfloat16."""
# packages: openvino==2026.4.0 onnx==1.23.2

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import openvino

PACKAGES = ["openvino"]


def supports_device(device: str) -> bool:
    return device == "CPU"


class Prepared:
    def __init__(self, model: onnx.ModelProto) -> None:
        core = openvino.Core()
        read = core.read_model(model.SerializeToString())
        exact = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        self.compiled = core.compile_model(read, "CPU", exact)
        self.names = [i.name for i in model.graph.input]
        self.outputs = [o.name for o in model.graph.output]

    def run(self, inputs: Any) -> tuple[Any, ...]:
        feeds = {n: np.asarray(v) for n, v in zip(self.names, inputs, strict=True)}
        known = {name for i in self.compiled.inputs for name in i.names}
        found = self.compiled({n: v for n, v in feeds.items() if n in known})
        return tuple(np.array(found[name]) for name in self.outputs)


def prepare(model: onnx.ModelProto, device: str = "CPU", **_: Any) -> Prepared:
    return Prepared(model)
