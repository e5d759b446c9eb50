"""Batch normalisation that was folded into convolutions is put back: the same numbers, and then it trains."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from sklearn.datasets import load_digits

import onward
from onward.surgery.batch_norm import MadeUpStatisticsWarning, Statistics
from surgery.networks import network, run

IMAGE = np.random.default_rng(1).standard_normal((8, 3, 5, 5)).astype(np.float32)
SMALL = network(
    """a = Conv(x, K, k) r = Relu(a) b = Conv(r, L, l) s = Relu(b) g = GlobalAveragePool(s) f = Flatten(g)
    y = Gemm(f, W, c)""",
    {"K": (6, 3, 3, 3), "k": (6,), "L": (5, 6, 1, 1), "l": (5,), "W": (5, 4), "c": (4,)},
    "float[N, 3, 5, 5] x",
)


def test_the_network_gives_the_same_numbers_and_its_training_step_too() -> None:
    model = onward.make_trainable(SMALL, batch_norm="recover", calibration=IMAGE, optimizer=onward.SGD(0.0))
    labels = np.arange(8) % 4

    np.testing.assert_allclose(run(model, x=IMAGE), run(SMALL, x=IMAGE), rtol=1e-5, atol=1e-5)
    # On the batch of the calibration, batch statistics are the running ones: training starts at the same loss.
    plain = onward.Trainer(onward.make_trainable(SMALL)).step({"x": IMAGE, "labels": labels})["loss"]
    normalised = onward.Trainer(model).step({"x": IMAGE, "labels": labels})["loss"]
    assert float(normalised) == pytest.approx(float(plain), rel=1e-5)


def test_a_normalisation_stands_behind_each_convolution_and_has_its_bias() -> None:
    model = onward.make_trainable(SMALL, batch_norm="recover", calibration=IMAGE)

    assert [n.op_type for n in model.graph][:6] == [
        "Conv", "BatchNormalization", "Relu", "Conv", "BatchNormalization", "Relu"
    ]  # fmt: skip
    assert set(model.parameters) == {"K", "K.bn.weight", "K.bn.bias", "L", "L.bn.weight", "L.bn.bias", "W", "c"}
    assert {"K.bn.running_mean", "K.bn.running_var"} <= set(model.state)
    statistics = run(onward.surgery.cut(SMALL, "a"), x=IMAGE)
    bias = model.graph.initializers["K.bn.bias"].const_value.numpy()
    np.testing.assert_allclose(bias, statistics.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    variance = model.graph.initializers["K.bn.running_var"].const_value.numpy()
    np.testing.assert_allclose(variance, statistics.var((0, 2, 3)), rtol=1e-4)


@pytest.mark.parametrize(
    "batches", [[IMAGE], [IMAGE[:3], IMAGE[3:]], {"x": IMAGE}, [{"x": IMAGE[:1]}, {"x": IMAGE[1:]}]]
)
def test_the_statistics_do_not_depend_on_the_batches(batches: Any) -> None:
    whole = onward.make_trainable(SMALL, batch_norm="recover", calibration=IMAGE)

    parts = onward.make_trainable(SMALL, batch_norm="recover", calibration=batches)

    for name, value in whole.graph.initializers.items():
        assert value.const_value is not None
        other = parts.graph.initializers[name].const_value
        assert other is not None
        np.testing.assert_allclose(other.numpy(), value.const_value.numpy(), rtol=1e-5, atol=1e-6)


def test_statistics_of_batches_far_from_zero_are_exact() -> None:
    values = 1e4 + np.random.default_rng(0).standard_normal((100, 3))
    found = Statistics()
    for part in (values[:10], values[10:65], values[65:]):
        found.add(len(part), part.mean(0), part.var(0))

    np.testing.assert_allclose(found.variance, values.var(0), rtol=1e-9)
    np.testing.assert_allclose(found.mean, values.mean(0), rtol=1e-12)


def test_a_frozen_convolution_stays_as_it_is() -> None:
    model = onward.make_trainable(SMALL, batch_norm="recover", calibration=IMAGE, train="last:2")

    assert [n.op_type for n in model.graph].count("BatchNormalization") == 1
    assert set(model.parameters) == {"L", "L.bn.weight", "L.bn.bias", "W", "c"}
    np.testing.assert_allclose(run(model, x=IMAGE), run(SMALL, x=IMAGE), rtol=1e-5, atol=1e-5)


def test_without_data_the_numbers_stay_and_a_warning_says_what_is_missing() -> None:
    with pytest.warns(MadeUpStatisticsWarning, match=r"A135(.|\n)*calibration=images"):
        model = onward.make_trainable(SMALL, batch_norm="recover")

    np.testing.assert_allclose(run(model, x=IMAGE), run(SMALL, x=IMAGE), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"calibration": IMAGE[:, :2]}, "does not fit the inputs"),
        ({"calibration": {"z": IMAGE}}, "nothing for `x`"),
        ({"calibration": []}, "no batch"),
        ({"calibration": "images.npy"}, "'images.npy'"),
        ({"calibration": IMAGE[:0]}, "does not fit the inputs"),
        ({"calibration": np.full_like(IMAGE, np.nan)}, "not finite"),
        ({"calibration": IMAGE, "train": "head"}, "no convolution had its batch normalisation folded"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(onward.OnwardError, match=message) as error:
        onward.make_trainable(SMALL, batch_norm="recover", **arguments)

    assert error.value.code == "A134"


def test_an_input_of_unknown_size_needs_data() -> None:
    free = onnx.ModelProto()
    free.CopyFrom(SMALL)
    free.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "H"

    with pytest.raises(onward.OnwardError, match=r"no input can be made up for `x`(.|\n)*\[N, 3, H, 5\]"):
        onward.make_trainable(free, batch_norm="recover")


# ------------------------------------------------------------------ when it helps


def normalised_network(depth: int = 6, channels: int = 16) -> onnx.ModelProto:
    """Return a chain of Conv, BatchNormalization and Relu with a linear layer, for 8×8 images and 5 classes."""
    random = np.random.default_rng(0)
    nodes, weights, value, before = [], {}, "x", 1
    for i in range(depth):
        weights[f"c{i}.weight"] = random.standard_normal((channels, before, 3, 3)) * (2 / (9 * before)) ** 0.5
        weights |= {f"n{i}.s": np.ones(channels), f"n{i}.b": np.zeros(channels)}
        weights |= {f"n{i}.m": np.zeros(channels), f"n{i}.v": np.ones(channels)}
        nodes += [
            helper.make_node("Conv", [value, f"c{i}.weight"], [f"a{i}"], pads=[1] * 4),
            helper.make_node("BatchNormalization", [f"a{i}", *(f"n{i}.{k}" for k in "sbmv")], [f"b{i}"]),
            helper.make_node("Relu", [f"b{i}"], [f"r{i}"]),
        ]
        value, before = f"r{i}", channels
    weights |= {"fc.weight": 0.1 * random.standard_normal((channels, 5)), "fc.bias": np.zeros(5)}
    nodes += [
        helper.make_node("GlobalAveragePool", [value], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "fc.weight", "fc.bias"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", 1, ["N", 1, 8, 8])],
        [helper.make_tensor_value_info("y", 1, ["N", 5])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return what ONNX Runtime's own optimizer makes of the model: batch normalisation folded into convolutions."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(Path(folder, "folded.onnx"))
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def test_a_folded_network_learns_new_classes_with_a_large_rate_only_if_it_is_put_back() -> None:
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order, None] / 8 - 1).astype(np.float32)
    labels = digits.target[order].astype(np.int64)
    old = labels < 5
    base = onward.Trainer(onward.make_trainable(normalised_network(), optimizer=onward.Adam(3e-3)))
    base.fit(images[old], labels[old], epochs=3, batch_size=64, progress=False)
    file = folded(base.to_inference())
    assert "BatchNormalization" not in {n.op_type for n in file.graph.node}
    x, y = images[~old], labels[~old] - 5
    shown = {}

    for name, arguments in {"folded": {}, "recovered": {"batch_norm": "recover", "calibration": x[:256]}}.items():
        trainer = onward.Trainer(onward.make_trainable(file, classes=5, optimizer=onward.SGD(0.3), **arguments))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            trainer.fit(x[:600], y[:600], epochs=2, batch_size=32, progress=False)
        shown[name] = trainer.evaluate(x[600:], y[600:], metrics=["accuracy"])["accuracy"]

    assert shown["folded"] < 0.5
    assert shown["recovered"] > 0.8
