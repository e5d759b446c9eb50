"""The order of axes: an explicit permutation with every value, so transposes remain only where two orders meet."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

import onward
from models import stock_session

tf = pytest.importorskip("tensorflow")

from backends.deep_networks import mobilenet_v2, resnet18  # noqa: E402
from backends.tensorflow_models import batches, trained, with_weights  # noqa: E402
from onward.backends.tensorflow.interpreter import Interpreter  # noqa: E402


def transposes(function: Any) -> list[list[int]]:
    """Return the permutations of the Transpose operators that depend on the arguments of a `tf.function`."""
    graph = function.get_concrete_function().graph
    found = []
    reached = {t.ref() for t in graph.inputs[: len(function.input_signature)]}
    for operation in graph.get_operations():  # in the order in which they were made
        if any(t.ref() in reached for t in operation.inputs):
            reached |= {t.ref() for t in operation.outputs}
            if operation.type == "Transpose":
                found.append(tf.get_static_value(operation.inputs[1]).tolist())
    return found


@pytest.mark.parametrize("name", ["resnet", "mobilenet"])
def test_no_transposition_remains_behind_the_first(name: str) -> None:
    module, report = onward.to_tensorflow(trained(name), report=True)

    assert [len(places) for places in report.values()] == [1, 1]  # the image, which the caller has in ONNX's order
    assert all("Conv" in place for places in report.values() for place in places)
    assert transposes(module.infer) == [[0, 2, 3, 1]]


@pytest.mark.parametrize("network", [resnet18, mobilenet_v2])
def test_between_the_image_and_the_last_pooling_nothing_is_transposed(network: Any) -> None:
    torch.manual_seed(0)
    x, labels = torch.randn(2, 3, 32, 32), torch.tensor([0, 3])
    source = network()
    model = onward.from_torch(
        source, loss="cross_entropy", optimizer=onward.SGD(0.1), example_inputs=(x,), example_targets=labels
    )

    module, report = onward.to_tensorflow(model, report=True)

    assert [len(places) for places in report.values()] == [1, 1]
    assert transposes(module.infer) == [[0, 2, 3, 1]]
    np.testing.assert_allclose(module(x.numpy()), source.eval()(x).detach(), rtol=1e-4, atol=1e-6)


def run(text: str, shapes: dict[str, tuple[int, ...]], x: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return the output on TensorFlow and on ONNX Runtime, and the nodes that transposed."""
    model = with_weights(f'<ir_version: 10, opset_import: ["" : 20]>\n{text}', shapes)
    interpreter = Interpreter(ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(model)).graph, 20)
    (expected,) = stock_session(model).run(None, {"x": x})
    (found,) = interpreter.run({"x": tf.constant(x)}).values()
    return found.numpy(), expected, interpreter.moves.places


def image(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


EQUAL = {"w": (4, 4, 1, 1), "v": (4, 4, 1, 1), "c": (4, 1, 1), "r": (4,), "full": (4, 4, 4, 4), "slope": (4, 1, 1),
         "s": (4,), "o": (4,), "m": (4,), "vv": (4,)}  # fmt: skip
BODIES = {
    "a channel": "b = Add(a, c) y = Conv(b, v)",
    "a row": "b = Add(a, r) y = Conv(b, v)",
    "a whole tensor": "b = Mul(full, a) y = Conv(b, v)",
    "slopes": "b = PRelu(a, slope) y = Conv(b, v)",
    "the softmax over channels": "b = Softmax <axis = 1> (a) y = Conv(b, v)",
    "the softmax over rows": "b = Softmax <axis = -1> (a) y = Conv(b, v)",
    "a sum over rows": "axes = Constant <value_ints = [-1]> () b = ReduceSum(a, axes) d = Mul(a, b) y = Conv(d, v)",
    "a sum that drops channels": "axes = Constant <value_ints = [1]> () y = ReduceSum <keepdims = 0> (a, axes)",
    "a join of channels": "b = Concat <axis = 1> (a, x) d, e = Split <axis = 1, num_outputs = 2> (b) y = Conv(d, v)",
    "a join of rows": "b = Concat <axis = 3> (x, a) d, e = Split <axis = -1, num_outputs = 2> (b) y = Conv(e, v)",
    "pads": "p = Constant <value_ints = [0, 1, 0, 2, 0, 0, 1, 0]> () b = Pad(a, p) y = Relu(b)",
    "a turned image": "b = Transpose <perm = [0, 1, 3, 2]> (a) y = Conv(b, v)",
    "turned there and back": "b = Transpose <perm = [0, 2, 3, 1]> (a) d = Relu(b) "
    "e = Transpose <perm = [0, 3, 1, 2]> (d) y = Conv(e, v)",
    "two orders": "b = Transpose <perm = [3, 2, 1, 0]> (a) d = Add(a, b) y = Conv(d, v)",
    "statistics": "b = BatchNormalization(a, s, o, m, vv) d = InstanceNormalization(b, s, o) y = Conv(d, v)",
    "a shape": "b = Shape <start = 1, end = 2> (a) d = Expand(c, b) y = Add(a, d)",
    "a flat image": "b = Flatten(a) y = Relu(b)",
    "a larger image": "f = Constant <value_floats = [1.0, 1.0, 2.0, 1.0]> () b = Resize <mode = \"linear\"> (a, , f) "
    "y = Conv(b, v)",
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_with_all_sizes_equal_nothing_can_be_guessed_and_nothing_is_mixed_up(body: str) -> None:
    text = f"net (float[4,4,4,4] x) => (float[A,B,C,D] y) {{ a = Conv(x, w) {body} }}"
    rank = 3 if "keepdims = 0" in body else 2 if "Flatten" in body else 4
    text = text.replace("[A,B,C,D]", f"[{','.join('ABCD'[:rank])}]")

    found, expected, _ = run(text, EQUAL, image(4, 4, 4, 4))

    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_inverse_pairs_cancel() -> None:
    """A network that was exported from TensorFlow: the image comes with the channels last."""
    text = """net (float[N,8,8,3] x) => (float[N,A,B,C] y) {
        a = Transpose <perm = [0, 3, 1, 2]> (x) b = Conv(a, w) c = Relu(b) d = Conv(c, v)
        y = Transpose <perm = [0, 2, 3, 1]> (d)
    }"""

    found, expected, places = run(text, {"w": (4, 3, 3, 3), "v": (5, 4, 1, 1)}, image(2, 8, 8, 3))

    assert places == []
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_transposition_happens_once_for_all_readers() -> None:
    text = """net (float[N,3,4,4] x) => (float[N,M] y) {
        a = Conv(x, w) b = Flatten(a) c = Flatten(a) y = Add(b, c)
    }"""

    _, _, places = run(text, {"w": (4, 3, 1, 1)}, image(2, 3, 4, 4))

    assert len(places) == 2  # the image and `a`


def test_parameters_and_state_stay_in_onnx_order() -> None:
    model = trained("resnet")
    module = onward.to_tensorflow(model)
    module.train_step(*batches("resnet", [3])[0].values())

    for name, value in onward.compile(model).state.items():
        assert module.state[name].shape == value.shape


def test_indices_that_nothing_reads_cost_nothing() -> None:
    """A compiled step asks MaxPool for its indices, which only the written backward pass reads."""
    module = onward.to_tensorflow(trained("cnn"), mode="training")

    operations = {o.type for o in module.train_step.get_concrete_function().graph.get_operations()}

    assert {"MaxPool", "MaxPoolGrad"} <= operations
    assert "ArgMax" not in operations
