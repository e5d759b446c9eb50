"""Small networks for sites."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

import onward


def picture_of_one_thing(ending: str) -> onward.Program:
    """Return a program that says of a picture how likely one thing is, as a logit or behind a Sigmoid."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
        glasses (float[N, 6, 6, 3] x) => (float[N, 1] y) {{
            f = Flatten (x)
            l = MatMul (f, W)
            y = {ending} (l)
        }}""")
    weights = np.random.default_rng(0).normal(0, 0.05, (108, 1)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "W"))
    loss = "bce" if ending == "Sigmoid" else "bce_with_logits"
    return onward.compile(onward.make_trainable(model, loss=loss, optimizer=onward.SGD(0.1)))
