"""Sequences: ragged tensors at the boundary of a module, TensorArrays in loops whose length is not known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import onward
from onward.errors import ArgumentError

tf = pytest.importorskip("tensorflow")

HEAD = '<ir_version: 10, opset_import: ["" : 20]>\n'

# Each element of a sequence, multiplied by a matrix; and all of them, one after the other.
MAPPED = """net (seq(float[K,3]) rows) => (seq(float[K,2]) mapped, float[M,2] joined, int64 count)
<float[3,2] W = {1, 2, 3, 4, 5, 6}> {
    mapped = SequenceMap <body = each (float[K,3] row) => (float[K,2] out) { out = MatMul(row, W) }> (rows)
    joined = ConcatFromSequence <axis = 0> (mapped)
    count = SequenceLength(rows)
}"""
# A loop over the rows of x that collects those whose sum is positive: how many is not known before.
LOOP = """net (float[N,3] x, int64 trips) => (seq(float[1,3]) kept, float[M,3] joined) {
    on = Constant <value = bool {1}> ()
    empty = SequenceEmpty <dtype = 1> ()
    kept = Loop <body = step (int64 i, bool c, seq(float[1,3]) before) => (bool c2, seq(float[1,3]) after) {
        c2 = Identity(c)
        row = Gather <axis = 0> (x, i)
        axis = Constant <value_ints = [0]> ()
        one = Unsqueeze(row, axis)
        twice = Add(one, one)
        after = SequenceInsert(before, twice)
    }> (trips, on, empty)
    joined = ConcatFromSequence <axis = 0> (kept)
}"""
SPLIT = """net (float[N,4] x, int64[P] sizes) => (seq(float[K,4]) parts, float[L,4] last, seq(float[K,4]) others) {
    parts = SplitToSequence <axis = 0> (x, sizes)
    end = Constant <value = int64 {-1}> ()
    last = SequenceAt(parts, end)
    first = Constant <value = int64 {0}> ()
    shorter = SequenceErase(parts, first)
    others = SequenceInsert(shorter, last, first)
}"""

BRANCHES = """net (float[N,3] x, bool long) => (seq(float[N,3]) chosen) {
    chosen = If <then_branch = a () => (seq(float[N,3]) two) { two = SequenceConstruct(x, x) },
                 else_branch = b () => (seq(float[N,3]) one) { y = Neg(x)
                                                              one = SequenceConstruct(y) }> (long)
}"""

MEAN = """net (seq(float[K,3]) rows) => (float[1,2] y) <float[3,2] W = {1, 2, 3, 4, 5, 6}> {
    mapped = SequenceMap <body = each (float[K,3] row) => (float[K,2] out) { out = MatMul(row, W) }> (rows)
    joined = ConcatFromSequence <axis = 0> (mapped)
    axis = Constant <value_ints = [0]> ()
    y = ReduceMean <keepdims = 1> (joined, axis)
}"""


def rows(*lengths: int, width: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((n, width)).astype(np.float32) for n in lengths]


def ragged(arrays: list[np.ndarray]) -> Any:
    return tf.RaggedTensor.from_row_lengths(np.concatenate(arrays), [len(a) for a in arrays])


def same(found: Any, wanted: list[np.ndarray]) -> None:
    assert isinstance(found, tf.RaggedTensor)
    assert found.nrows() == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-6)


def test_a_sequence_goes_in_and_out_as_a_ragged_tensor(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(HEAD + MAPPED)
    module = onward.to_tensorflow(proto, ragged=True)
    tf.saved_model.save(module, str(tmp_path / "saved"))
    loaded = tf.saved_model.load(str(tmp_path / "saved"))

    for lengths in ([2, 1, 4], [3], [1, 1]):
        given = rows(*lengths)
        mapped = [row @ np.arange(1, 7, dtype=np.float32).reshape(3, 2) for row in given]
        for called in (module, loaded):
            found = called(ragged(given))
            same(found[0], mapped)
            np.testing.assert_allclose(found[1].numpy(), np.concatenate(mapped), rtol=1e-6)
            assert int(found[2]) == len(given)


def test_a_sequence_is_refused_without_the_option() -> None:
    with pytest.raises(ArgumentError, match=r"takes sequences(.|\n)*`rows`(.|\n)*ragged=True"):
        onward.to_tensorflow(onnx.parser.parse_model(HEAD + MAPPED))


@pytest.mark.parametrize("trips", [1, 3, 20])
def test_a_sequence_grows_in_a_loop_of_unknown_length(trips: int) -> None:
    proto = onnx.parser.parse_model(HEAD + LOOP)
    module = onward.to_tensorflow(proto, ragged=True)
    x = rows(20)[0]

    kept, joined = module(x, trips)

    same(kept, [2 * x[i : i + 1] for i in range(trips)])
    np.testing.assert_allclose(joined.numpy(), 2 * x[:trips], rtol=1e-6)


def test_such_a_loop_is_differentiable() -> None:
    module = onward.to_tensorflow(onnx.parser.parse_model(HEAD + LOOP), ragged=True)
    x = tf.Variable(rows(5)[0])

    with tf.GradientTape() as tape:
        joined = module(x, 3)[1]
        value = tf.reduce_sum(joined * joined)

    wanted = np.where(np.arange(5)[:, None] < 3, 8 * x.numpy(), 0)
    np.testing.assert_allclose(tf.convert_to_tensor(tape.gradient(value, x)).numpy(), wanted, rtol=1e-5)


def test_pieces_of_sizes_that_are_data() -> None:
    proto = onnx.parser.parse_model(HEAD + SPLIT)
    module = onward.to_tensorflow(proto, ragged=True)
    x = rows(6, width=4)[0]

    for sizes in ([1, 2, 3], [4, 2]):
        wanted = ReferenceEvaluator(proto).run(None, {"x": x, "sizes": np.array(sizes)})
        parts, last, others = module(x, np.array(sizes))
        same(parts, wanted[0])
        np.testing.assert_array_equal(last.numpy(), wanted[1])
        same(others, wanted[2])


def test_branches_may_give_sequences_of_different_lengths() -> None:
    module = onward.to_tensorflow(onnx.parser.parse_model(HEAD + BRANCHES), ragged=True)
    (x,) = rows(2)

    same(module(x, True), [x, x])
    same(module(x, False), [-x])


def test_a_model_of_sequences_trains() -> None:
    model = onward.make_trainable(onnx.parser.parse_model(HEAD + MEAN), loss="mse", optimizer=onward.SGD(0.1))
    module = onward.to_tensorflow(model, ragged=True)
    W = np.arange(1, 7, dtype=np.float64).reshape(3, 2)
    target = np.array([[1.0, -1.0]], np.float32)

    for lengths in ([2], [2, 1], [2, 1, 3]):
        given = rows(*lengths)
        loss = float(module.train_step(ragged(given), target)["loss"])
        mean = np.concatenate(given).mean(0, keepdims=True)
        error = mean @ W - target
        assert loss == pytest.approx(float((error**2).mean()), rel=1e-5)
        W = W - 0.1 * mean.T @ (2 * error / error.size)

    np.testing.assert_allclose(module.state["W"].numpy(), W, rtol=1e-5)
