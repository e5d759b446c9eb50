"""SequenceMap as PyTorch's exporter writes it for hstack, vstack and atleast_1d to atleast_3d."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import torch

import onward
from autodiff.text_models import model, parse
from onward.testing import assert_gradients

# The body asks for the rank, in a value called `cond`; one branch never runs, and its result has another rank.
AT_LEAST_1D = """net (TYPE[SHAPE] a, TYPE[SHAPE] b) => (TYPE[L] y) {
    s = SequenceConstruct(a, b)
    t = SequenceMap(s) <body = f (v) => (w) {
        shape = Shape(v)
        rank = Size(shape)
        zero = Constant<value_int=0>()
        cond = Equal(rank, zero)
        w = If(cond) <
            then_branch = scalar () => (w1) { one = Constant<value_ints=[1]>() w1 = Reshape(v, one) },
            else_branch = other () => (w2) { w2 = Exp(v) }
        >
    }>
    minus = Constant<value_ints=[-1]>()
    first = Constant<value_int=0>()
    e = SequenceAt(t, first)
    j = ConcatFromSequence<axis=0>(t)
    p = Mul(e, e)
    q = Concat<axis=0>(p, j)
    y = Reshape(q, minus)
}"""
SHAPES = {"vectors": "3", "a fixed and a free size": "2, N", "free sizes": "M, N"}
ARRAYS = {
    name: (np.linspace(-1, 1, 3 if shape == "3" else 6).reshape(3 if shape == "3" else (2, 3)), np.array(0.3))
    for name, shape in SHAPES.items()
}


def at_least_1d(kind: str, shape: str) -> str:
    return AT_LEAST_1D.replace("TYPE", kind).replace("SHAPE", SHAPES[shape])


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_of_a_map_with_a_branch_that_never_runs(shape: str) -> None:
    a, shift = ARRAYS[shape]

    assert_gradients(model(at_least_1d("double", shape), a=a, b=a + shift), ["a", "b"])


@pytest.mark.parametrize("shape", SHAPES)
def test_onnxruntime_loads_and_runs_the_gradient(shape: str) -> None:
    """It makes a Loop of a SequenceMap, with values of its own called `cond_in`, and checks branches that never run."""
    a, shift = (v.astype(np.float32) for v in ARRAYS[shape])
    lowered = onward.gradient(parse(at_least_1d("float", shape)), of="y", wrt=["a", "b"])

    session = onnxruntime.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"])
    da, db = session.run(["grad/a", "grad/b"], {"a": a, "b": a + shift})

    np.testing.assert_allclose(da, 2 * np.exp(2 * a) + np.exp(a), rtol=1e-5)
    np.testing.assert_allclose(db, np.exp(a + shift), rtol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_torch_backend_runs_a_map_without_types(shape: str) -> None:
    a = torch.tensor(ARRAYS[shape][0], requires_grad=True)
    module, _ = onward.to_torch(parse(at_least_1d("double", shape)), mode="inference")

    y = module(a, a.detach())
    y.sum().backward()

    assert a.grad is not None
    torch.testing.assert_close(a.grad, 2 * (2 * a).exp() + a.exp())


def test_the_torch_backend_maps_over_an_empty_sequence_and_a_tensor() -> None:
    text = """net (float[2] a, float w) => (int64 n, float[2] y) {
        none = SequenceEmpty()
        nothing = SequenceMap(none) <body = f (v) => (u) { u = Exp(v) }>
        n = SequenceLength(nothing)
        s = SequenceConstruct(a, a)
        t = SequenceMap(s, s, w) <body = g (v, q, k) => (u) { p = Mul(v, q) u = Mul(p, k) }>
        one = Constant<value_int=1>()
        y = SequenceAt(t, one)
    }"""
    module, _ = onward.to_torch(parse(text), mode="inference")

    n, y = module(torch.tensor([1.0, 2.0]), torch.tensor(3.0))

    assert int(n) == 0
    assert y.tolist() == [3.0, 12.0]


def test_a_map_whose_input_has_no_type_never_ends_the_process() -> None:
    """onnx's own builder of the body reads the type of the input without asking whether there is one."""
    program = """
import onnx_ir as ir
from onward.autodiff.function_bodies import standard_body

element = ir.Value(name="v")
node = ir.Node("", "Exp", [element], num_outputs=1)
node.outputs[0].name = "w"
body = ir.Graph([element], node.outputs, nodes=[node], name="body")
untyped = ir.Node("", "SequenceMap", [ir.Value(name="s")], [ir.AttrGraph("body", body)], num_outputs=1)
untyped.outputs[0].name = "t"
print(standard_body(untyped, 18))
"""

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr


def test_a_branch_of_another_rank_gives_its_shape_to_no_other_value() -> None:
    """The gradient that arrives at an If is one value; each branch knows another shape of it."""
    text = """net (float[M, N] x) => (float[K] y) {
        shape = Shape(x)
        size = ReduceProd<keepdims=0>(shape)
        lone = Constant<value_int=1>()
        flat = Equal(size, lone)
        r = If(flat) <
            then_branch = t () => (r1) { to = Constant<value_ints=[1]>() r1 = Reshape(x, to) },
            else_branch = e () => (r2) { r2 = Identity(x) }
        >
        q = Mul(r, r)
        s = ReduceSum<keepdims=0>(q)
        one = Constant<value_ints=[1]>()
        y = Reshape(s, one)
    }"""
    lowered = onward.gradient(parse(text), of="y", wrt=["x"])
    session = onnxruntime.InferenceSession(lowered.SerializeToString(), providers=["CPUExecutionProvider"])

    for x in (np.full((1, 1), 3, np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)):
        (dx,) = session.run(["grad/x"], {"x": x})
        np.testing.assert_allclose(dx, 2 * x, rtol=1e-5)
