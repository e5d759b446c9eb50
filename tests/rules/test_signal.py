"""What the cases cannot say of Fourier transforms."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph import shapes
from onward.model import serde
from onward.testing import one_node_model


def test_an_stft_without_attribute_is_inferred_to_be_one_sided() -> None:
    model = one_node_model(
        "STFT",
        signal=np.ones((1, 8, 1)),
        frame_step=np.array(2),
        frame_length=np.array(4),
        constants=["frame_step", "frame_length"],
    )
    loaded: ir.Model = serde.from_proto(model.proto).ir

    shapes.infer_shapes(loaded)

    assert shapes.static_shape(loaded.graph.outputs[0]) == (1, 3, 3, 2)
