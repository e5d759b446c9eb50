"""Scatters that add 16-bit floats do so in float32, which ONNX Runtime can and which loses no digits."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper

import onward
from autodiff.text_models import parse

EMBEDDING = "net (float16[5, 2] w, int64[N] i) => (float16[N, 2] y) { y = Gather(w, i) }"
REFLECTED = """net (float16[1, 4] w) => (float16[M, K] y) {
    pads = Constant<value_ints = [0, 2, 0, 1]>()
    y = Pad<mode = "reflect">(w, pads)
}"""
POOLED = "net (float16[1, 1, 6] w) => (float16[A, B, C] y) { y = MaxPool<kernel_shape = [3], strides = [1]>(w) }"
MODELS = {
    "embedding": (EMBEDDING, {"w": np.ones((5, 2)), "i": np.array([1, 1, 3])}, [0, 0, 2, 2, 0, 0, 1, 1, 0, 0]),
    "reflected pad": (REFLECTED, {"w": np.ones((1, 4))}, [1, 2, 3, 1]),
    "overlapping pooling": (POOLED, {"w": np.array([[[1, 2, 9, 3, 4, 5]]])}, [0, 0, 3, 0, 0, 1]),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_float16_model_has_a_gradient_on_onnxruntime(name: str) -> None:
    text, feeds, expected = MODELS[name]
    feeds = {n: a.astype(np.float16) if n == "w" else a for n, a in feeds.items()}
    lowered = onward.gradient(parse(text), of="y", wrt=["w"])

    session = onnxruntime.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"])
    (gradient,) = session.run(["grad/w"], feeds)

    assert gradient.dtype == np.float16
    np.testing.assert_array_equal(gradient.ravel(), expected)


def test_many_small_gradients_of_one_row_do_not_get_lost() -> None:
    """In float16, 2048 + 1 is 2048."""
    lowered = onward.gradient(parse(EMBEDDING), of="y", wrt=["w"])
    session = onnxruntime.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"])

    (gradient,) = session.run(["grad/w"], {"w": np.ones((5, 2), np.float16), "i": np.zeros(4000, np.int64)})

    assert gradient[0].tolist() == [4000.0, 4000.0]


def test_a_float16_embedding_trains() -> None:
    proto = parse(EMBEDDING)
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(1, 11, dtype=np.float16).reshape(5, 2), "w"))
    del proto.graph.input[0]
    model = onward.make_trainable(proto, loss="mse", optimizer=onward.SGD(0.1))
    trainer = onward.Trainer(model)
    batch = {"i": np.array([0, 0, 2]), trainer.input_names[1]: np.zeros((3, 2), np.float16)}

    losses = [float(trainer.step(batch)["loss"]) for _ in range(3)]

    assert losses[2] < losses[1] < losses[0]
