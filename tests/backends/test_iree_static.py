"""Graphs with known sizes: what the IREE backend hands to its compiler computes the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from backends.iree_models import MODELS
from onward.backends.iree.static import static_model, static_program
from onward.compiler.compile import compile_model
from onward.compiler.program import PlainGraph
from onward.errors import ArgumentError, BackendError
from onward.model import serde
from onward.runtime import evaluate


def plain(text: str) -> PlainGraph:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    return PlainGraph("g", serde.load(model).ir)


def test_shapes_become_constants():
    graph = plain(
        """g (float[N, 6] x) => (float[A, B] y) { s = Shape(x)  two = Constant <value_ints = [2]> ()
        zero = Constant <value_ints = [0]> ()  n = Gather(s, zero)  m = Mul(n, two)
        rest = Constant <value_ints = [-1]> ()
        shape = Concat <axis = 0> (m, rest)  y = Reshape(x, shape) }"""
    )

    model = static_model(graph, {"x": (4, 6)})

    assert [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim] == [8, 3]
    assert {n.op_type for n in model.graph.node} == {"Constant", "Reshape"}


SCAN = """g (float[S, 2] s0, float[2, T, 3] a, float[T, 3] b) => (float[S, 2] s, float[T, 3] p, float[3, T] q) {
    s, p, q = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0],
        scan_output_axes = [0, 1], scan_output_directions = [0, 1],
        body = body (float[1, 2] s, float[2, 3] a, float[3] b) => (float[1, 2] t, float[3] p, float[3] q) {
            two = Constant <value_float = 2.0> ()  m = MatMul(s, a)  axes = Constant <value_ints = [0]> ()
            flat = Squeeze(m, axes)  p = Add(flat, b)  q = Mul(p, two)  half = ReduceMean <keepdims = 1> (m)
            t = Add(s, half) }> (s0, a, b) }"""


def test_a_scan_of_known_length_is_written_out():
    graph = plain(SCAN)
    rng = np.random.default_rng(0)
    feeds = {
        "s0": rng.standard_normal((1, 2)).astype(np.float32),
        "a": rng.standard_normal((2, 5, 3)).astype(np.float32),
        "b": rng.standard_normal((5, 3)).astype(np.float32),
    }

    model = static_model(graph, {n: v.shape for n, v in feeds.items()})

    assert "Scan" not in {n.op_type for n in model.graph.node}
    (needed,) = evaluate(serde.serialize(graph.proto()), [feeds])
    (found,) = evaluate(serde.serialize(model), [feeds])
    for right, value in zip(needed, found, strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-6)


def test_a_size_that_depends_on_data_is_an_error():
    graph = plain("g (float[N] x) => (int64[1, M] y) { y = NonZero(x) }")

    with pytest.raises(BackendError, match="the size of `y` depends on data"):
        static_model(graph, {"x": (4,)})


def test_a_program_for_one_size_computes_the_same():
    program = compile_model(MODELS["lstm"](), profile="portable")

    static = static_program(program, 3, {})

    assert [s.shape for s in (*static.inputs, *static.targets)] == [(3, 6, 5), (3,)]
    rng = np.random.default_rng(0)
    feeds = {**program.settings, **program.state, "x": rng.standard_normal((3, 6, 5)).astype(np.float32)}
    feeds["labels"] = np.array([0, 2, 1])
    results = []
    for each in (program, static):
        step = each.first.step
        (outputs,) = evaluate(serde.serialize(step.proto()), [{n: feeds[n] for n in step.input_names}], threads=1)
        results.append(dict(zip(step.output_names, outputs, strict=True)))
    for name, value in results[0].items():
        np.testing.assert_allclose(results[1][name], value, rtol=2e-5, atol=1e-6, err_msg=name)


def test_missing_and_wrong_sizes_are_all_named():
    program = compile_model(MODELS["linear"](), profile="portable")

    with pytest.raises(ArgumentError) as caught:
        static_program(program, None, {"time": 3})

    text = str(caught.value)
    assert "batches of any size" in text
    assert "no free size is called `time`" in text


LOOP = """g (float[1, 2] s0, float[T, 2] a) => (float[1, 2] s, float[T, 2] p) {
    shape = Shape(a)  zero = Constant <value_int = 0> ()  count = Gather(shape, zero)
    go = Constant <value = bool {1}> ()
    s, p = Loop <body = body (int64 i, bool g, float[1, 2] s) => (bool g2, float[1, 2] t, float[2] p) {
            g2 = Identity(g)  p = Gather(a, i)  t = Add(s, p) }> (count, go, s0) }"""


def test_a_loop_of_known_length_is_written_out():
    graph = plain(LOOP)
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in {"s0": (1, 2), "a": (5, 2)}.items()}

    model = static_model(graph, {n: v.shape for n, v in feeds.items()})

    assert "Loop" not in {n.op_type for n in model.graph.node}
    (needed,) = evaluate(serde.serialize(graph.proto()), [feeds])
    (found,) = evaluate(serde.serialize(model), [feeds])
    for right, value in zip(needed, found, strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-6)


def test_a_loop_that_ends_by_its_condition_stays():
    graph = plain(LOOP.replace("g2 = Identity(g)", "g2 = Not(g)").replace("float[T, 2] p)", "float[U, 2] p)"))

    with pytest.raises(BackendError, match="the size of .*`p` depends on data"):
        static_model(graph, {"s0": (1, 2), "a": (5, 2)})


def test_sizes_follow_from_known_floats():
    graph = plain(
        """g (float[N, 3] x) => (float[A, B] y) { s = Shape(x)  f = Cast <to = 1> (s)
        half = Constant <value_floats = [1.5, 2.0]> ()  m = Mul(f, half)  w = Floor(m)  size = Cast <to = 7> (w)
        two = Constant <value_float = 2.0> ()  y = Expand(two, size) }"""
    )

    model = static_model(graph, {"x": (3, 3)})

    assert [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim] == [4, 6]
