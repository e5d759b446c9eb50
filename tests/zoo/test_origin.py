"""The tuned files of strangers: the file as it was, with other weights, and ONNX Runtime's own numbers."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import onward
from onward.model.inference import converted_inference
from onward.model.serde import to_proto
from zoo.fetch import Unreachable, fetch, manifest, title

FILES = {
    "qonnx 1.0.0: model.onnx": "CNTK, operator set 8, weights are inputs",
    "speechmos 0.0.1.1: Run_1663915512_Stage_0.onnx": "operator set 9",
    "rapidocr-onnxruntime 1.4.4: ch_ppocr_mobile_v2.0_cls_infer.onnx": "PaddlePaddle: weights in Constant nodes",
    "silero-vad 6.2.3: silero_vad_half.onnx": "weights inside the branches of If",
    "playground 0.0.4: go1_policy.onnx": "two operator sets",
}


def structure(model: onnx.ModelProto) -> list[object]:
    """Return versions, inputs, outputs and nodes of a file."""
    nodes = [(n.name, n.op_type, list(n.input), list(n.output)) for n in model.graph.node]
    ends = [[v.name for v in values] for values in (model.graph.input, model.graph.output, model.graph.initializer)]
    return [model.ir_version, [(o.domain, o.version) for o in model.opset_import], ends, nodes]


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of weights without a gradient, or tied ones
@pytest.mark.parametrize("name", FILES)
def test_the_tuned_file_has_the_operators_of_the_file(name: str) -> None:
    entry = next(e for e in manifest() if title(e) == name)
    try:
        source = onnx.load(fetch(entry))
    except Unreachable as error:
        pytest.skip(f"no registry: {error}")
    rng = np.random.default_rng(0)
    model = onward.make_trainable(
        source, loss=lambda op, y, labels: op.ReduceMean(y, keepdims=0), label=None, output=source.graph.output[0].name
    )
    state = {}
    for weight, value in model.parameters.items():
        array = value.const_value.numpy()
        state[weight] = (array * rng.uniform(0.9, 1.1, array.shape)).astype(array.dtype)

    tuned = onward.to_inference(model, state)

    assert structure(tuned) == structure(source)
    feeds = {}
    for given, spec in entry["inputs"].items():
        kind = np.dtype(spec["dtype"])
        numbers = rng.normal(size=spec["shape"]) if kind.kind == "f" else np.full(spec["shape"], spec.get("value", 1))
        feeds[given] = numbers.astype(kind)
    converted = to_proto(converted_inference(model, state))
    moved = 0.0
    for found, wanted, before in zip(run(tuned, feeds), run(converted, feeds), run(source, feeds), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        moved = max(moved, float(np.abs(found - before).max()))
    assert moved > 1e-4, "the weights changed the outputs"
