"""Products of matrices by the native kernels, alone and in a network, for their tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

import onward
from backends.kernels import run_kernels
from onward.backends import open_session
from onward.backends.onnxruntime.native.products import UseNativeProducts
from onward.model import serde
from onward.passes.base import Unit

ONE, HALF = (int(np.float32(x).view(np.int32)) for x in (1, 0.5))
OFF = 1e-6  # of the largest element; float32 products of these depths differ by as much


def product(
    A: np.ndarray, B: np.ndarray, bias: np.ndarray | None = None, *, turned: tuple[int, int] = (0, 0), relu: int = 0,
    scale: int = ONE, threads: int = 2,
) -> np.ndarray:  # fmt: skip
    """Return what the kernel makes of two tensors."""
    feeds = {"A": A, "B": B} | ({} if bias is None else {"c": bias})
    inputs = ", ".join(f"float[{','.join(map(str, a.shape))}] {name}" for name, a in feeds.items())
    name = "Multiply" if bias is None else "MultiplyBiased"
    sizes = f"{turned[0]},{turned[1]},{relu},{scale},{threads}"
    text = f"C = ai.onward.native.{name} <sizes: ints = [{sizes}]> ({', '.join(feeds)})"
    head = '<ir_version: 8, opset_import: ["": 18, "ai.onward.native": 1]>'
    model = onnx.parser.parse_model(f"{head} g ({inputs}) => (float[] C) {{{text}}}")
    return run_kernels(model, feeds, threads)[0]


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape, dtype=np.float32)


def off(found: np.ndarray, right: np.ndarray) -> float:
    assert found.shape == right.shape
    return float(np.abs(found - right).max(initial=0) / np.abs(right).max(initial=1e-30))


def rewritten(text: str, inputs: str, outputs: str, *, tiles: bool) -> list[str]:
    """Return the operators of a graph after the rewrite, with the first three numbers of `sizes`."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g ({inputs}) => ({outputs}) {{{text}}}')
    unit = Unit(serde.load(onnx.shape_inference.infer_shapes(model)), name="step", trains=True)
    UseNativeProducts(2, tiles=tiles).run(unit)
    return [f"{n.op_type}{list(n.attributes.get_ints('sizes', ()))[:3] or ''}" for n in unit.graph]


def losses_of_a_network(inputs: int, hidden: int, last: int, sizes: Sequence[int]) -> list[list[float]]:
    """Return the losses of a perceptron over batches of these sizes, six times, with native kernels and without."""
    random = np.random.default_rng(0)
    shapes = ((inputs, hidden), (last, hidden), (last, 10))
    weights = [random.standard_normal(shape, dtype=np.float32) / 9 for shape in shapes]
    text = """a = MatMul (x, w)
      b = Add (a, c)
      h = Relu (b)
      g = Gemm <transB = 1> (h, v)
      r = Tanh (g)
      y = MatMul (r, u)"""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> g (float[n,{inputs}] x) => (float[n,10] y) {{{text}}}'
    )
    for name, array in zip("wvuc", [*weights, np.zeros(hidden, np.float32)], strict=True):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    program = onward.compile(onward.make_trainable(model, loss="cross_entropy", optimizer=onward.Adam(1e-3)))
    batches = [
        {"x": random.standard_normal((size, inputs), dtype=np.float32), "labels": random.integers(0, 10, size)}
        for size in sizes
    ]
    losses = []
    for native in (True, False):
        session = open_session(program, "onnxruntime", threads=2, fused=False, native=native)
        feeds = [dict(zip(program.input_names, batch.values(), strict=True)) for batch in batches * 6]
        losses.append([float(session.step(batch)["loss"]) for batch in feeds])
    return losses
