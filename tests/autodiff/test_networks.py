"""Whole networks: valid, the same with unknown sizes, right along a random direction, and small."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from onward.compiler.derivatives import gradient

sys.path.append(str(Path(__file__).parent.parent.parent / "benchmarks"))
import networks

RNG = np.random.default_rng(0)
LENGTH = 5
FEEDS = {
    "ResNet": {
        "images": RNG.normal(size=(2, 3, 32, 32)).astype(np.float32),
        "labels": np.array([3, 5]),
    },
    "BERT": {
        "tokens": RNG.integers(0, 1000, (2, LENGTH)),
        "positions": np.tile(np.arange(LENGTH), (2, 1)),
        "mask": np.zeros((2, 1, 1, LENGTH), np.float32),
        "labels": RNG.integers(0, 1000, (2, LENGTH)),
    },
}
STATIC = {
    "ResNet": networks.resnet50(batch=2, image=32, width=4, normalized=False),
    "BERT": networks.bert(layers=2, hidden=16, heads=2, batch=2, length=LENGTH),
}
UNKNOWN = {
    "ResNet": networks.resnet50(batch="N", image=32, width=4, normalized=False),
    "BERT": networks.bert(layers=2, hidden=16, heads=2, batch="B", length="L"),
}


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in model.graph.output], session.run(None, feeds), strict=True))


@pytest.fixture(scope="module", params=["ResNet", "BERT"])
def network(request: pytest.FixtureRequest) -> str:
    return request.param


def test_gradient_graph_passes_the_checker_with_known_and_unknown_sizes(network: str) -> None:
    for model, parameters in (STATIC[network], UNKNOWN[network]):
        lowered = gradient(model, of=model.graph.output[0].name, wrt=parameters)

        onnx.checker.check_model(lowered, full_check=True)


def test_gradient_is_the_same_with_unknown_sizes(network: str) -> None:
    (model, parameters), (unknown, _) = STATIC[network], UNKNOWN[network]
    loss = model.graph.output[0].name

    expected = run(gradient(model, of=loss, wrt=parameters), FEEDS[network])
    actual = run(gradient(unknown, of=loss, wrt=parameters), FEEDS[network])

    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-3, atol=1e-6, err_msg=name)


def test_gradient_agrees_with_the_slope_along_a_random_direction(network: str) -> None:
    model, parameters = STATIC[network]
    loss = model.graph.output[0].name
    grads = run(gradient(model, of=loss, wrt=parameters), FEEDS[network])
    direction = {p: RNG.normal(size=grads[f"grad/{p}"].shape).astype(np.float32) for p in parameters}
    slope = sum(float((grads[f"grad/{p}"].astype(np.float64) * direction[p]).sum()) for p in parameters)

    def moved(step: float) -> float:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        for tensor in copy.graph.initializer:
            if tensor.name in direction:
                value = onnx.numpy_helper.to_array(tensor) + np.float32(step) * direction[tensor.name]
                tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
        return float(run(copy, FEEDS[network])[loss])

    step = 1e-3
    np.testing.assert_allclose((moved(step) - moved(-step)) / (2 * step), slope, rtol=0.02)


def test_bert_takes_at_most_three_backward_nodes_for_one_forward_node() -> None:
    model, parameters = networks.bert(layers=12, hidden=24, heads=2)

    lowered = gradient(model, of=model.graph.output[0].name, wrt=parameters)

    forward = len(model.graph.node)
    assert sum(n.op_type != "Constant" for n in lowered.graph.node[forward:]) <= 3 * forward


@pytest.mark.parametrize("batch", [8, "N"], ids=["batch known", "batch unknown"])
def test_resnet_takes_at_most_three_backward_nodes_for_one_forward_node_as_functions(batch: int | str) -> None:
    model, parameters = networks.resnet50(batch=batch, width=8)

    lowered = gradient(model, of=model.graph.output[0].name, wrt=parameters, functions=True)

    forward = len(model.graph.node)
    assert sum(n.op_type != "Constant" for n in lowered.graph.node[forward:]) <= 3 * forward


def test_functions_give_the_numbers_of_the_plain_nodes(network: str) -> None:
    model, parameters = STATIC[network]
    loss = model.graph.output[0].name

    expected = run(gradient(model, of=loss, wrt=parameters), FEEDS[network])
    actual = run(gradient(model, of=loss, wrt=parameters, functions=True), FEEDS[network])

    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-3, atol=1e-6, err_msg=name)


def test_time_is_linear_in_the_size() -> None:
    import time

    def seconds(size: int) -> float:
        model, parameters = networks.chain(size)
        start = time.process_time()
        gradient(model, of=model.graph.output[0].name, wrt=parameters)
        return time.process_time() - start

    seconds(100)
    small, large = min(seconds(400) for _ in range(3)), min(seconds(3200) for _ in range(2))

    assert large < 8 * small * 3  # a quadratic step would take 64 times as long
