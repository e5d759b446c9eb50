"""The native kernels that go over rows give the gradients of PyTorch and of the plain graph."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import onward
from backends.kernels import run_kernels
from onward.backends import open_session
from onward.backends.onnxruntime.native import library
from onward.backends.onnxruntime.session import _rewritten

pytestmark = pytest.mark.skipif(library.compiler() is None, reason="this machine has no C compiler")

SHAPES = [(1, 1), (1, 7), (7, 1), (3, 7), (5, 100), (64, 512), (33, 1000), (1024, 256), (2, 30522)]
KERNELS = """
  n, mean, inverse = ai.onward.native.NormalizeRows <sizes: ints = [EPSILON]> (X, scale, bias)
  a, b, c = ai.onward.native.NormalizeRowsBack <sizes: ints = [0]> (X, scale, mean, inverse, dY)
  d, e, f = ai.onward.native.NormalizeRowsAddedBack <sizes: ints = [0]> (X, scale, mean, inverse, dY, more)
  s = Softmax (X)
  g = ai.onward.native.SoftmaxBack <sizes: ints = [0]> (dY, s)
  r = Relu (X)
  h = ai.onward.native.ReluBack <sizes: ints = [0]> (dY, r)
  i, j = ai.onward.native.ReluSumBack <sizes: ints = [1]> (dY, r)
  k = ai.onward.native.SumRows <sizes: ints = [0]> (X)
  l, m = ai.onward.native.CrossEntropy <sizes: ints = [-100, SEED]> (X, labels)
"""
OUTPUTS = ("n", *"abcdefghijklm")


def run(feeds: dict[str, np.ndarray], threads: int = 2) -> dict[str, np.ndarray]:
    """Return the results of all kernels by name."""
    bits = {"EPSILON": np.float32(1e-3), "SEED": np.float32(0.5)}
    text = KERNELS
    for name, number in bits.items():
        text = text.replace(name, str(number.view(np.int32)))
    inputs = "float[R,C] X, float[R,C] dY, float[R,C] more, float[C] scale, float[C] bias, int64[R] labels"
    outputs = ", ".join(f"float[] {name}" for name in OUTPUTS)
    head = '<ir_version: 8, opset_import: ["": 18, "ai.onward.native": 1]>'
    model = onnx.parser.parse_model(f"{head} rows ({inputs}) => ({outputs}) {{{text}}}")
    return dict(zip(OUTPUTS, run_kernels(model, feeds, threads), strict=True))


def feeds_of(rows: int, columns: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rows + columns)
    feeds = {n: rng.standard_normal((rows, columns), dtype=np.float32) for n in ("X", "dY", "more")}
    labels = rng.integers(0, columns, rows)
    labels[1::3] = -100
    vectors = {n: rng.standard_normal(columns, dtype=np.float32) for n in ("scale", "bias")}
    return feeds | vectors | {"labels": labels}


def by_torch(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what the kernels must give, by PyTorch in double precision."""
    wide = {n: torch.from_numpy(a).double() if a.dtype == np.float32 else torch.from_numpy(a) for n, a in feeds.items()}
    X, scale, bias = (wide[n].requires_grad_() for n in ("X", "scale", "bias"))
    n = torch.nn.functional.layer_norm(X, X.shape[-1:], scale, bias, 1e-3)
    found = {"n": n}
    for names, dY in (("abc", wide["dY"]), ("def", wide["dY"] + wide["more"])):
        found |= dict(zip(names, torch.autograd.grad(n, (X, scale, bias), dY, retain_graph=True), strict=True))
    found["g"] = torch.autograd.grad(torch.softmax(X, -1), X, wide["dY"])[0]
    found["h"] = found["i"] = torch.autograd.grad(torch.relu(X), X, wide["dY"])[0]
    found["j"], found["k"] = found["h"].sum(0), X.sum(0)
    found["l"] = torch.nn.functional.cross_entropy(X, wide["labels"])
    found["m"] = torch.autograd.grad(found["l"], X)[0] * 0.5
    return {name: value.detach().numpy() for name, value in found.items()}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_kernel_gives_what_pytorch_gives(shape: tuple[int, int]) -> None:
    feeds = feeds_of(*shape)

    found, wanted = run(feeds), by_torch(feeds)

    for name, value in found.items():
        assert value.shape == wanted[name].shape
        # A row of one column is its own mean: X - mean is rounding, and the gradient 0.
        scale = max(np.abs(wanted[name]).max(), 1e-3 if shape[1] > 1 else 1.0)
        np.testing.assert_allclose(value, wanted[name], rtol=0, atol=1e-5 * scale, err_msg=name)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    feeds = feeds_of(301, 333)

    one, two = run(feeds, 1), run(feeds, 2)

    for name, value in one.items():
        np.testing.assert_array_equal(two[name], value, err_msg=name)


@pytest.mark.parametrize("column", [0, 20, 34])
def test_nan_stays_nan(column: int) -> None:
    feeds = feeds_of(3, 35)
    feeds["X"][0, column] = np.nan
    feeds["dY"][2, column] = np.nan
    feeds["labels"][:] = 1

    found = run(feeds)

    assert np.isnan(found["l"])
    for name in "nam":
        assert np.isnan(found[name][0]).all()
    for name in "adg":
        assert np.isnan(found[name][2]).all()
    for name in "hi":
        assert np.isnan(found[name][2, column])
    for name in "bcefjk":
        assert np.isnan(found[name][column])


def test_no_label_that_counts_gives_nan_and_no_gradient() -> None:
    feeds = feeds_of(4, 5) | {"labels": np.full(4, -100)}

    found = run(feeds)

    assert np.isnan(found["l"])
    assert not found["m"].any()


def test_a_label_beyond_the_classes_is_refused() -> None:
    feeds = feeds_of(4, 5) | {"labels": np.array([0, 1, 5, 2])}

    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.Fail, match="not the number of a class"):
        run(feeds)


# -- in a network ------------------------------------------------------------------------------------------------------

WIDTH, HIDDEN, CLASSES, LENGTH = 12, 21, 5, 7
NETWORK = f"""<ir_version: 8, opset_import: ["": 18]>
network (float[N,{LENGTH},{WIDTH}] x) => (float[N,{CLASSES}] logits) <int64[1] axes = {{1}}> {{
  start = LayerNormalization <axis = -1, epsilon = 0.001> (x, scale0, bias0)
  turned = Transpose <perm = [0, 2, 1]> (start)
  scores = MatMul (start, turned)
  attention = Softmax <axis = -1> (scores)
  mixed = MatMul (attention, start)
  rest = Add (start, mixed)
  n = LayerNormalization <axis = 2, epsilon = 0.001> (rest, scale1, bias1)
  z = MatMul (n, W1)
  zb = Add (z, b1)
  a = Relu (zb)
  y = MatMul (a, W2)
  yb = Add (y, b2)
  sum = Add (n, yb)
  last = LayerNormalization <axis = -1, epsilon = 0.001> (sum, scale2, bias2)
  pooled = ReduceMean <keepdims = 0> (last, axes)
  logits = Gemm (pooled, W3, b3)
}}"""
NATIVE = {"SoftmaxBack", "ReluSumBack", "SumRows", "CrossEntropy"}
NORMALIZATIONS = ("LayerNormalization", "NormalizeRows", "NormalizeRowsBack", "NormalizeRowsAddedBack")


def network() -> onnx.ModelProto:
    rng = np.random.default_rng(3)
    sizes: dict[str, int | tuple[int, ...]] = {
        "W1": (WIDTH, HIDDEN),
        "b1": HIDDEN,
        "W2": (HIDDEN, WIDTH),
        "b2": WIDTH,
        "W3": (WIDTH, CLASSES),
        "b3": CLASSES,
    }
    sizes |= {f"{name}{i}": WIDTH for name in ("scale", "bias") for i in range(3)}
    model = onnx.parser.parse_model(NETWORK)
    for name, size in sizes.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal(size, dtype=np.float32), name))
    return model


def network_by_torch(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    def normalized(value: torch.Tensor, i: int) -> torch.Tensor:
        return torch.nn.functional.layer_norm(value, (WIDTH,), weights[f"scale{i}"], weights[f"bias{i}"], 1e-3)

    start = normalized(x, 0)
    n = normalized(start + torch.softmax(start @ start.mT, -1) @ start, 1)
    y = torch.relu(n @ weights["W1"] + weights["b1"]) @ weights["W2"] + weights["b2"]
    return normalized(n + y, 2).mean(1) @ weights["W3"] + weights["b3"]


def batches() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(5)
    sizes = (6, 6, 1, 6, 3)
    return [
        {"x": rng.standard_normal((n, LENGTH, WIDTH), dtype=np.float32), "labels": rng.integers(0, CLASSES, n)}
        for n in sizes
    ]


def test_a_network_trains_as_the_plain_graph_and_pytorch_train_it() -> None:
    model = network()
    program = onward.compile(onward.make_trainable(model, loss="cross_entropy", optimizer=onward.SGD(0.1)))
    sessions = [open_session(program, "onnxruntime", threads=2, native=native) for native in (True, False)]
    arrays = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    weights = {n: torch.tensor(a, dtype=torch.float64, requires_grad=True) for n, a in arrays.items() if n != "axes"}
    optimizer = torch.optim.SGD(weights.values(), 0.1)

    for feeds in batches():
        losses = [float(s.step(feeds)["loss"]) for s in sessions]
        optimizer.zero_grad()
        scores = network_by_torch(weights, torch.from_numpy(feeds["x"]).double())
        loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(feeds["labels"]))
        loss.backward()
        optimizer.step()
        assert losses == pytest.approx([loss.item()] * 2, rel=1e-5)

    state, plain = (s.get_state() for s in sessions)
    for name, value in weights.items():
        np.testing.assert_allclose(state[name], value.detach().numpy(), rtol=2e-5, atol=2e-6, err_msg=name)
        np.testing.assert_allclose(state[name], plain[name], rtol=2e-5, atol=2e-6, err_msg=name)


def test_the_kernels_take_the_place_of_the_plain_operators() -> None:
    program = onward.compile(onward.make_trainable(network(), loss="cross_entropy", optimizer=onward.SGD(0.1)))
    graph = program.entries["train"].step

    operators = [n.op_type for n in _rewritten(graph, 2, native=True).graph]

    assert set(operators) >= NATIVE
    assert not {"Greater", "HardSigmoid", "SoftmaxCrossEntropyLoss", "ReduceSum", "Exp"} & set(operators)
    # The first normalisation reads the batch, whose gradient nobody wants; the last one has no residual to add.
    assert [operators.count(name) for name in NORMALIZATIONS] == [1, 2, 1, 1]


def test_an_output_that_a_kernel_reads_stays_an_output() -> None:
    model = network()
    model.graph.output.append(
        onnx.helper.make_tensor_value_info("attention", onnx.TensorProto.FLOAT, ["N", LENGTH, LENGTH])
    )
    program = onward.compile(
        onward.make_trainable(model, loss="cross_entropy", output="logits", optimizer=onward.SGD(0.1))
    )
    sessions = [open_session(program, "onnxruntime", native=native) for native in (True, False)]

    for feeds in batches():
        ours, plain = (s.step(feeds) for s in sessions)

        assert ours.keys() == plain.keys()
        for name, value in ours.items():
            np.testing.assert_allclose(value, plain[name], rtol=1e-5, atol=1e-6, err_msg=name)
