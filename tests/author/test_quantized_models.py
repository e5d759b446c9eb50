"""Models that ONNX Runtime's quantizer wrote: float weights train, integers become floats and integers again."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper, parser
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

import onward
from onward.author.quantized_weights import QuantizedWeightsWarning
from onward.errors import ArgumentError, NotDifferentiable
from onward.runtime import integer_products_saturate

RNG = np.random.default_rng(5)


def f32(*shape: int, fan: int = 1) -> np.ndarray:
    return (RNG.normal(size=shape) / np.sqrt(fan)).astype(np.float32)


def network(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items())
    return onnx.shape_inference.infer_shapes(model)


PERCEPTRON = network(
    """net (float[N, 8] x) => (float[N, 3] y)
    { h = MatMul(x, W1) b = Add(h, B1) a = Relu(b) z = MatMul(a, W2) y = Add(z, B2) }""",
    W1=f32(8, 16, fan=8), B1=f32(16, fan=9), W2=f32(16, 3, fan=16), B2=f32(3, fan=9),
)  # fmt: skip
CONVOLUTIONS = network(
    """net (float[N, 2, 8, 8] x) => (float[N, 3] y) {
        h = Conv <pads = [1, 1, 1, 1], kernel_shape = [3, 3]> (x, W1, B1) a = Relu(h)
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
        c = Conv <kernel_shape = [3, 3]> (p, W2, B2)
        g = GlobalAveragePool(c) f = Flatten(g) y = Gemm(f, W3, B3)
    }""",
    W1=f32(4, 2, 3, 3, fan=18), B1=f32(4, fan=9), W2=f32(6, 4, 3, 3, fan=36), B2=f32(6, fan=9), W3=f32(6, 3, fan=6),
    B3=f32(3, fan=9),
)  # fmt: skip
RECURRENT = network(
    """net (float[T, N, 5] x) => (float[T, N, 8] y) {
        h = LSTM <hidden_size = 4, direction = "bidirectional"> (x, W, R, B)
        t = Transpose <perm = [0, 2, 1, 3]> (h) s = Constant <value_ints = [0, 0, -1]> () y = Reshape(t, s)
    }""",
    W=f32(2, 16, 5, fan=5), R=f32(2, 16, 4, fan=4), B=f32(2, 32, fan=9),
)  # fmt: skip
SHAPES = {"x": {2: (6, 8), 4: (6, 2, 8, 8), 3: (5, 2, 5)}}


def data(model: onnx.ModelProto, seed: int = 0) -> np.ndarray:
    rank = len(model.graph.input[0].type.tensor_type.shape.dim)
    return np.random.default_rng(seed).normal(size=SHAPES["x"][rank]).astype(np.float32)


class Calibration(CalibrationDataReader):
    def __init__(self, model: onnx.ModelProto) -> None:
        self._batches: Iterator[dict[str, np.ndarray]] = iter([{"x": data(model, seed)} for seed in range(4)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._batches, None)


def dynamic(**options: object) -> Callable[[onnx.ModelProto, str], None]:
    return lambda model, path: quantize_dynamic(model, path, **options)


def static(quant_format: QuantFormat, **options: object) -> Callable[[onnx.ModelProto, str], None]:
    return lambda model, path: quantize_static(model, path, Calibration(model), quant_format=quant_format, **options)


# Without VNNI, ONNX Runtime's products of uint8 and int8 overflow in silence: 7 bits do not.
SAFE = {"reduce_range": integer_products_saturate()}
INT8 = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
SCHEMES: dict[str, tuple[onnx.ModelProto, Callable[[onnx.ModelProto, str], None]]] = {
    "MatMulInteger": (PERCEPTRON, dynamic(**SAFE)),
    "MatMulInteger uint8": (PERCEPTRON, dynamic(weight_type=QuantType.QUInt8)),
    "MatMulInteger per channel": (PERCEPTRON, dynamic(per_channel=True, **SAFE)),
    "MatMulInteger of 7 bits": (PERCEPTRON, dynamic(reduce_range=True)),
    "ConvInteger": (CONVOLUTIONS, dynamic(weight_type=QuantType.QUInt8)),
    "DynamicQuantizeLSTM": (RECURRENT, dynamic(**SAFE)),
    "DynamicQuantizeLSTM per channel": (RECURRENT, dynamic(per_channel=True, **SAFE)),
    "QDQ": (CONVOLUTIONS, static(QuantFormat.QDQ, **SAFE)),
    "QDQ int8": (CONVOLUTIONS, static(QuantFormat.QDQ, **INT8, **SAFE)),
    "QDQ per channel": (CONVOLUTIONS, static(QuantFormat.QDQ, per_channel=True, **INT8, **SAFE)),
    "QDQ of a perceptron": (PERCEPTRON, static(QuantFormat.QDQ, **SAFE)),
    "QOperator": (CONVOLUTIONS, static(QuantFormat.QOperator, **SAFE)),
    "QOperator per channel": (CONVOLUTIONS, static(QuantFormat.QOperator, per_channel=True, **SAFE)),
}
RATES = {id(PERCEPTRON): 0.05, id(CONVOLUTIONS): 0.05, id(RECURRENT): 2.0}
by_scheme = pytest.mark.parametrize("name", list(SCHEMES))


@pytest.fixture
def quantized(name: str, tmp_path: Path) -> onnx.ModelProto:
    model, quantize = SCHEMES[name]
    path = tmp_path / "quantized.onnx"
    quantize(model, str(path))
    return onnx.load(path)


def run(model: onnx.ModelProto, x: np.ndarray, *, fused: bool = True) -> np.ndarray:
    """Return the output on ONNX Runtime. Fused, it multiplies integers where the file multiplies their floats."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not fused:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    return np.asarray(y)


def trainable(model: onnx.ModelProto, rate: float = 0.1, **options: object) -> onward.TrainingModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QuantizedWeightsWarning)
        return onward.make_trainable(model, loss="mse", optimizer=onward.SGD(rate), **options)


def operators(model: onnx.ModelProto) -> collections.Counter[str]:
    return collections.Counter(n.op_type for n in model.graph.node if n.op_type not in ("Constant", "Reshape"))


def losses(trainer: onward.Trainer, x: np.ndarray, y: np.ndarray, steps: int) -> list[float]:
    return [float(trainer.step({"x": x, "labels": y})["loss"]) for _ in range(steps)]


# -- weights stay integers -------------------------------------------------------------------------------------------


@by_scheme
def test_by_default_the_float_weights_of_a_quantized_model_train(name: str, quantized: onnx.ModelProto) -> None:
    x = data(quantized)
    if name.startswith(("QDQ", "QOperator")):
        # Weights and biases are all integers.
        with pytest.raises(ArgumentError, match=r"hint: dequantize=True makes floats of weights"):
            trainable(quantized)
        return

    trainer = onward.Trainer(trainable(quantized, rate=RATES[id(SCHEMES[name][0])]))
    found = losses(trainer, x, 0.5 * run(quantized, x), 20)

    assert found[-1] < 0.5 * found[0]
    assert all(np.any(v != onward_initial) for v, onward_initial in _changes(trainer, quantized))


def _changes(trainer: onward.Trainer, quantized: onnx.ModelProto) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    before = {i.name: numpy_helper.to_array(i) for i in quantized.graph.initializer}
    for name, value in trainer.parameters.items():
        yield value, before[name]


def test_integers_that_are_not_trained_are_counted(tmp_path: Path) -> None:
    quantize_dynamic(PERCEPTRON, tmp_path / "q.onnx")

    with pytest.warns(
        QuantizedWeightsWarning, match=r"A121.*2 weights stored as integers will not be trained"
    ) as caught:
        onward.make_trainable(tmp_path / "q.onnx", loss="mse")

    assert "`W1_quantized`, `W2_quantized`" in str(caught[0].message)
    assert "hint: dequantize=True makes floats of them" in str(caught[0].message)


# -- weights become floats -------------------------------------------------------------------------------------------


@by_scheme
def test_dequantized_weights_are_parameters_and_the_model_computes_the_same(
    name: str, quantized: onnx.ModelProto
) -> None:
    x = data(quantized)
    source = SCHEMES[name][0]

    model = trainable(quantized, dequantize=True)

    weights = {i.name: numpy_helper.to_array(i) for i in source.graph.initializer if i.data_type == 1}
    assert set(model.parameters) == set(weights)
    for parameter, value in model.parameters.items():
        assert value.const_value is not None
        found = value.const_value.numpy()
        assert np.abs(found - weights[parameter]).max() < np.abs(weights[parameter]).max() / 50
    expected = run(quantized, x)
    error = np.abs(run(onward.to_inference(model), x) - expected).max()
    assert error < 0.05 * np.abs(expected).max()


def test_weights_behind_dequantize_linear_give_exactly_the_same_numbers() -> None:
    model = network(
        """net (float[N, 4] x) => (float[N, 3] y)
        { w = DequantizeLinear <axis = 1> (W_quantized, W_scale, W_zero_point) y = MatMul(x, w) }""",
        W_quantized=RNG.integers(-128, 127, (4, 3)).astype(np.int8),
        W_scale=np.array([0.1, 0.02, 0.7], np.float32),
        W_zero_point=np.array([0, 5, -100], np.int8),
    )
    x = f32(6, 4)

    made = trainable(model, dequantize=True)

    assert list(made.parameters) == ["W"]
    np.testing.assert_array_equal(run(onward.to_inference(made), x), run(model, x, fused=False))
    again = onward.to_inference(made, quantize=True)
    assert {i.name: i.data_type for i in again.graph.initializer} == {
        "W_quantized": onnx.TensorProto.INT8, "W_scale": onnx.TensorProto.FLOAT, "W_zero_point": onnx.TensorProto.INT8,
    }  # fmt: skip
    for before, after in zip(model.graph.initializer, again.graph.initializer, strict=True):
        np.testing.assert_allclose(numpy_helper.to_array(after), numpy_helper.to_array(before), rtol=1e-6)


@pytest.mark.parametrize("between", ["Relu", ""], ids=["dequantized first", "multiplied as integers"])
def test_an_embedding_of_integers_is_trained_and_looked_up_as_integers_again(between: str, tmp_path: Path) -> None:
    text = f"r = {between}(h) y = MatMul(r, W)" if between else "y = MatMul(h, W)"
    model = network(
        f"net (int64[N] ids) => (float[N, 3] y) {{ h = Gather(table, ids) {text} }}", table=f32(10, 4), W=f32(4, 3)
    )
    quantize_dynamic(model, tmp_path / "q.onnx", **SAFE)
    quantized = onnx.load(tmp_path / "q.onnx")
    feeds = {"ids": np.array([3, 1, 4, 1, 5, 9])}

    made = trainable(quantized, rate=0.5, dequantize=True)

    def outputs(proto: onnx.ModelProto) -> np.ndarray:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        return np.asarray(session.run(None, feeds)[0])

    assert set(made.parameters) == {"table", "W"}
    expected = outputs(quantized)
    assert np.abs(outputs(onward.to_inference(made)) - expected).max() < 0.03 * np.abs(expected).max()
    again = onward.to_inference(made, quantize=True)
    if between:  # else the product comes back as one of DequantizeLinear
        assert operators(again) == operators(quantized)
    before, after = ({i.name: numpy_helper.to_array(i) for i in m.graph.initializer} for m in (quantized, again))
    for name in ("table_quantized", "W_quantized"):
        np.testing.assert_array_equal(after[name], before[name])
    np.testing.assert_allclose(outputs(again), expected, rtol=1e-2, atol=1e-2)
    trainer = onward.Trainer(made)
    found = [float(trainer.step({**feeds, "labels": 0.5 * expected})["loss"]) for _ in range(10)]
    assert found[-1] < 0.5 * found[0]


def test_blocks_of_four_bits_become_floats_and_blocks_again() -> None:
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]> net (float[N, 5] x) => (float[N, 3] y)
        { w = DequantizeLinear <axis = 0, block_size = 2> (q, s) y = MatMul(x, w) }"""
    )
    integers = RNG.integers(-7, 8, (5, 3))
    integers[0] = 7
    scales = RNG.uniform(0.1, 1.0, (3, 3)).astype(np.float32)
    flat = helper.make_tensor("q", onnx.TensorProto.INT4, [5, 3], integers.reshape(-1))
    model.graph.initializer.extend([flat, numpy_helper.from_array(scales, "s")])
    x = f32(6, 5)

    made = trainable(model, dequantize=True)

    assert list(made.parameters) == ["w"]
    np.testing.assert_array_equal(run(onward.to_inference(made), x), run(model, x, fused=False))
    again = onward.to_inference(made, quantize=True)
    np.testing.assert_allclose(run(again, x, fused=False), run(model, x, fused=False), rtol=1e-5, atol=1e-5)
    assert again.graph.initializer[0].data_type == onnx.TensorProto.INT4


@by_scheme
def test_a_dequantized_model_trains_and_its_gradient_is_that_of_the_float_model(
    name: str, quantized: onnx.ModelProto
) -> None:
    x = data(quantized)
    y = 0.5 * run(quantized, x)
    model = trainable(quantized, rate=RATES[id(SCHEMES[name][0])], dequantize=True)
    plain = trainable(SCHEMES[name][0], rate=RATES[id(SCHEMES[name][0])])
    assert onward.check(model).ok

    trainer, other = onward.Trainer(model), onward.Trainer(plain)
    start, start_plain = trainer.parameters, other.parameters
    found = losses(trainer, x, y, 1)
    losses(other, x, y, 1)

    step = np.concatenate([(trainer.parameters[n] - start[n]).reshape(-1) for n in sorted(start)])
    expected = np.concatenate([(other.parameters[n] - start_plain[n]).reshape(-1) for n in sorted(start)])
    # The models differ by the error of quantization, and so do their gradients.
    assert np.linalg.norm(step - expected) < 0.15 * np.linalg.norm(expected)
    found += losses(trainer, x, y, 20)
    assert found[-1] < 0.6 * found[0]


def test_the_gradient_of_a_dequantized_layer_agrees_with_finite_differences(tmp_path: Path) -> None:
    quantize_dynamic(PERCEPTRON, tmp_path / "q.onnx", per_channel=True, **SAFE)
    x = data(PERCEPTRON)
    y = np.zeros((6, 3), np.float32)
    model = trainable(onnx.load(tmp_path / "q.onnx"), rate=1.0, dequantize=True)
    trainer = onward.Trainer(model)
    start = trainer.parameters
    trainer.step({"x": x, "labels": y})
    gradient = {n: start[n].astype(np.float64) - v for n, v in trainer.parameters.items()}

    def loss(size: float) -> float:
        moved = {n: (start[n] + size * g).astype(np.float32) for n, g in gradient.items()}
        return float(np.mean((run(onward.to_inference(model, moved), x).astype(np.float64) - y) ** 2))

    squared = sum(float((g**2).sum()) for g in gradient.values())
    slope = (loss(1e-2) - loss(-1e-2)) / 2e-2

    np.testing.assert_allclose(slope, squared, rtol=2e-3)


# -- and integers again ----------------------------------------------------------------------------------------------


@by_scheme
def test_weights_that_did_not_change_become_the_same_integers_at_the_same_places(
    name: str, quantized: onnx.ModelProto, tmp_path: Path
) -> None:
    x = data(quantized)
    onward.save(trainable(quantized, dequantize=True), tmp_path / "train.onnx")

    again = onward.to_inference(tmp_path / "train.onnx", quantize=True)

    onnx.checker.check_model(again)
    np.testing.assert_allclose(run(again, x), run(quantized, x), rtol=1e-5, atol=1e-6)
    assert [v.name for v in again.graph.input] == [v.name for v in quantized.graph.input]
    assert [v.name for v in again.graph.output] == [v.name for v in quantized.graph.output]
    if not name.startswith("QOperator"):  # comes back as QuantizeLinear and DequantizeLinear
        assert operators(again) == operators(quantized)
    before = {i.name: numpy_helper.to_array(i) for i in quantized.graph.initializer}
    after = {i.name: numpy_helper.to_array(i) for i in again.graph.initializer}
    weights = [n for n, a in before.items() if n.endswith("_quantized") and a.dtype.itemsize == 1]
    assert weights
    for weight in weights:
        np.testing.assert_array_equal(after[weight], before[weight])
        assert after[weight].dtype == before[weight].dtype
    assert not any("onward" in p.key for i in again.graph.value_info for p in i.metadata_props)


@by_scheme
def test_trained_weights_are_quantized_with_new_scales(name: str, quantized: onnx.ModelProto) -> None:
    x = data(quantized)
    y = 0.5 * run(quantized, x)
    trainer = onward.Trainer(trainable(quantized, rate=RATES[id(SCHEMES[name][0])], dequantize=True))
    losses(trainer, x, y, 30)

    again = trainer.to_inference(quantize=True)

    before, after = np.mean((run(quantized, x) - y) ** 2), np.mean((run(again, x) - y) ** 2)
    assert after < 0.6 * before
    expected = run(trainer.to_inference(), x)
    assert np.abs(run(again, x) - expected).max() < 0.08 * np.abs(expected).max()  # a few steps of 7 bits


def test_a_weight_that_grows_out_of_its_range_gets_a_larger_scale(tmp_path: Path) -> None:
    quantize_dynamic(PERCEPTRON, tmp_path / "q.onnx", weight_type=QuantType.QUInt8)
    model = trainable(onnx.load(tmp_path / "q.onnx"), dequantize=True)
    w = np.linspace(-3, 9, 48, dtype=np.float32).reshape(16, 3)

    again = onward.to_inference(model, {"W2": w}, quantize=True)

    stored = {i.name: numpy_helper.to_array(i).astype(np.float64) for i in again.graph.initializer}
    floats = (stored["W2_quantized"] - stored["W2_zero_point"]) * stored["W2_scale"]
    np.testing.assert_allclose(floats, w, rtol=0, atol=0.51 * 12 / 255)


# -- mistakes --------------------------------------------------------------------------------------------------------


def test_a_model_that_was_never_quantized_cannot_be_quantized_again() -> None:
    with pytest.raises(ArgumentError, match=r"A119.*no weight of the model was stored as integers"):
        onward.to_inference(trainable(PERCEPTRON), quantize=True)


@pytest.mark.parametrize(
    ("domain", "op_type"), [("com.microsoft", "QMoE"), ("onnx.brevitas", "Quant"), ("my.ops", "QLinearMagic")]
)
def test_operators_without_a_float_form_are_refused_before_the_first_step(domain: str, op_type: str) -> None:
    node = helper.make_node(op_type, ["x", "W"], ["h"], name="odd", domain=domain)
    add = helper.make_node("Add", ["h", "B"], ["y"])
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node, add], "g", [info("x", 1, [2, 3])], [info("y", 1, [2, 3])],
        [numpy_helper.from_array(np.ones((3, 3), np.uint8), "W"), numpy_helper.from_array(f32(3), "B")],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(domain, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)

    with pytest.raises(ArgumentError) as caught:
        trainable(model, dequantize=True)

    assert f"error[A120]: cannot dequantize `{op_type}` ({domain}): Onward knows no float form of it" in str(
        caught.value
    )
    assert "at node `odd`" in str(caught.value)
    known = domain == "com.microsoft"
    assert f"hint: {'without dequantize=True' if known else 'export the model with QuantizeLinear'}" in str(
        caught.value
    )


def test_a_product_of_integers_that_stays_integer_is_refused() -> None:
    model = network("net (uint8[N, 4] x) => (int32[N, 3] y) { y = MatMulInteger(x, W) }", W=np.ones((4, 3), np.uint8))

    with pytest.raises(ArgumentError, match=r"cannot dequantize `MatMulInteger` .*not scaled back to floats"):
        trainable(model, dequantize=True)


def test_a_model_with_training_entries_is_not_dequantized() -> None:
    with pytest.raises(ArgumentError, match="a model with training entries cannot be dequantized"):
        trainable(trainable(PERCEPTRON), dequantize=True, entry="second")


def test_an_operator_of_a_domain_that_the_file_forgot_to_import_is_refused_with_its_name() -> None:
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17, "qonnx.custom_op.general" : 1]>
        net (float[N, 4] x) => (float[N, 4] y)
        { h = qonnx.custom_op.general.Quant(x, s) y = Mul(h, w) z = qonnx.custom_op.general.Quant(w, s) }"""
    )
    model.graph.initializer.extend([numpy_helper.from_array(f32(4), "w"), numpy_helper.from_array(f32(1), "s")])
    del model.opset_import[1]

    with pytest.raises(ArgumentError, match=r"cannot dequantize `Quant` \(qonnx\.custom_op\.general\)"):
        trainable(model, dequantize=True)
    with pytest.raises(NotDifferentiable, match="no gradient rule for `Quant`"):
        onward.compile(trainable(model, train="s"))


@pytest.mark.parametrize("gemm", ["Gemm <transB = 1> (x, W, B)", "Gemm(x, W, B)"])
def test_onnxruntimes_quantizer_takes_what_to_inference_writes(gemm: str, tmp_path: Path) -> None:
    """The quantizer transposes W and leaves its value_info as it was, so there must be none."""
    shape = (3, 8) if "transB" in gemm else (8, 3)
    model = network(f"net (float[N, 8] x) => (float[N, 3] y) {{ y = {gemm} }}", W=f32(*shape), B=f32(3))
    onnx.save(onward.to_inference(trainable(model)), tmp_path / "tuned.onnx")

    quantize_dynamic(tmp_path / "tuned.onnx", tmp_path / "q.onnx", weight_type=QuantType.QUInt8)

    x = f32(6, 8)
    expected = run(onnx.load(tmp_path / "tuned.onnx"), x)
    assert np.abs(run(onnx.load(tmp_path / "q.onnx"), x) - expected).max() < 0.05 * np.abs(expected).max()
