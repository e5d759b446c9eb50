"""Batch normalisation and dropout: inference keeps its nodes, the training step has its own."""

from __future__ import annotations

import io

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper

from author.small import f32
from onward import losses, optimizers
from onward.author import make_trainable
from onward.check import check
from onward.errors import ArgumentError
from onward.model.inference import to_inference

RNG = np.random.default_rng(5)


NORMALISED = """
m (float[N, 3] x) => (float[N, 2] y) {
    h = MatMul(x, W1)
    n = BatchNormalization <epsilon = 0.001, momentum = 0.75> (h, scale, bias, mean, var)
    a = Relu(n)
    y = MatMul(a, W2)
}
"""


def weights(**more: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "W1": f32(3, 4), "scale": 1 + 0.1 * f32(4), "bias": f32(4), "mean": np.zeros(4, np.float32),
        "var": np.ones(4, np.float32), "W2": f32(4, 2), **more,
    }  # fmt: skip


def algorithm(model) -> list:
    return list(model.entries[0].algorithm)


def test_what_comes_before_the_first_batch_norm_is_shared(build) -> None:
    model = make_trainable(build(NORMALISED, **weights()), loss="mse", optimizer="sgd")

    forward = [n for n in algorithm(model) if n.outputs[0].name.startswith("train/")]

    assert [n.op_type for n in forward] == ["BatchNormalization", "Relu", "MatMul"]
    assert forward[0].inputs[0].name == "h"


def test_running_statistics_are_bound_and_not_trained(build) -> None:
    model = make_trainable(build(NORMALISED, **weights()), loss="mse", optimizer="sgd")

    assert set(model.parameters) == {"W1", "W2", "scale", "bias"}
    assert set(model.state) == {"step", "mean", "var"}
    assert check(model.proto(), pedantic=True).findings == ()


def test_the_training_outputs_can_be_seen(build) -> None:
    model = make_trainable(build(NORMALISED, **weights()), loss="mse", optimizer="sgd")

    assert [v.name for v in model.entries[0].algorithm.outputs][:2] == ["loss", "train/y"]


def test_one_step_has_batch_statistics_and_moves_the_running_ones(build, steps) -> None:
    given = weights()
    model = make_trainable(build(NORMALISED, **given), loss="mse", optimizer=optimizers.SGD(0.0))
    x, t = f32(6, 3), f32(6, 2)

    running = steps(model)
    outputs = running.step({"x": x, "labels": t})

    h = x @ given["W1"]
    normal = (h - h.mean(0)) / np.sqrt(h.var(0) + 0.001) * given["scale"] + given["bias"]
    expected = np.maximum(normal, 0) @ given["W2"]
    np.testing.assert_allclose(outputs["loss"], ((expected - t) ** 2).mean(), rtol=1e-4)
    np.testing.assert_allclose(running.state["mean"], 0.25 * h.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(running.state["var"], 0.75 + 0.25 * h.var(0), rtol=1e-4)


def test_frozen_batch_norm_uses_the_running_statistics(build) -> None:
    model = make_trainable(build(NORMALISED, **weights()), loss="mse", optimizer="sgd", batch_norm="freeze")

    assert "BatchNormalization" not in [n.op_type for n in algorithm(model)]
    assert set(model.state) == {"step"}
    assert {"scale", "bias"} <= set(model.parameters)


def test_a_batch_norm_whose_weights_are_frozen_stays_frozen(build) -> None:
    model = make_trainable(build(NORMALISED, **weights()), loss="mse", optimizer="sgd", train="W2")

    assert set(model.state) == {"step"}


def test_always_trains_every_batch_norm(build) -> None:
    model = make_trainable(build(NORMALISED, **weights()), loss="mse", optimizer="sgd", train="W2", batch_norm="always")

    assert set(model.state) == {"step", "mean", "var"}


def test_statistics_that_an_exporter_merged_with_weights_are_separated(build) -> None:
    """Deduplication makes one initializer of a zero mean and a zero bias."""
    text = NORMALISED.replace("scale, bias, mean, var", "ones, zeros, zeros, ones")
    given = {k: v for k, v in weights().items() if k.startswith("W")}

    model = make_trainable(
        build(text, ones=np.ones(4, np.float32), zeros=np.zeros(4, np.float32), **given), loss="mse", optimizer="sgd"
    )

    assert {"ones", "zeros"} <= set(model.parameters)
    assert set(model.state) == {"step", "BatchNormalization/running_mean", "BatchNormalization/running_var"}
    assert check(model.proto(), pedantic=True).findings == ()


def test_a_batch_norm_used_twice_keeps_one_set_of_statistics(build, steps) -> None:
    text = """
    m (float[N, 4] x) => (float[N, 4] y) {
        a = BatchNormalization (x, scale, bias, mean, var)
        b = Relu(a)
        y = BatchNormalization (b, scale, bias, mean, var)
    }
    """
    given = {k: v for k, v in weights().items() if not k.startswith("W")}
    x = f32(6, 4)

    model = make_trainable(build(text, **given), loss="mse", optimizer=optimizers.SGD(0.0))
    running = steps(model)
    running.step({"x": x, "labels": x})

    first = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) * given["scale"] + given["bias"]
    expected = 0.9 * (0.1 * x.mean(0)) + 0.1 * np.maximum(first, 0).mean(0)
    assert set(model.state) == {"step", "mean", "var"}
    np.testing.assert_allclose(running.state["mean"], expected, rtol=1e-4, atol=1e-6)


def test_computed_statistics_are_refused_with_a_way_out(build) -> None:
    text = NORMALISED.replace("h = MatMul", "moved = Add(mean, mean) h = MatMul").replace(
        "bias, mean, var", "bias, moved, var"
    )

    with pytest.raises(ArgumentError) as caught:
        make_trainable(build(text, **weights()), loss="mse")

    assert "error[A116]: the running statistics of a batch normalisation are computed, not stored" in str(caught.value)
    assert 'hint: pass batch_norm="freeze"' in str(caught.value)


DROPPED = """
m (float[N, 3] x) => (float[N, 2] y) {
    h = MatMul(x, W1)
    d = Dropout(h, ratio)
    a = Relu(d)
    e = Dropout(a, ratio)
    y = MatMul(e, W2)
}
"""


def test_dropout_drops_in_training_and_not_in_inference(build) -> None:
    proto = build(DROPPED, W1=f32(3, 4), W2=f32(4, 2), ratio=np.array(0.25, np.float32))

    model = make_trainable(proto, loss="mse", optimizer="sgd")

    dropouts = [n for n in algorithm(model) if n.op_type == "Dropout"]
    assert [n.attributes["seed"].as_int() for n in dropouts] == [1, 2]
    assert all(bool(n.inputs[2].const_value.numpy()) for n in dropouts)
    assert [n.op_type for n in model.graph] == [n.op_type for n in proto.graph.node]
    assert all(len(n.inputs) == 2 for n in model.graph if n.op_type == "Dropout")
    assert check(model.proto(), pedantic=True).findings == ()


def test_dropout_in_training_changes_the_loss_from_step_to_step(build, steps) -> None:
    proto = build(DROPPED, W1=f32(3, 40), W2=f32(40, 2), ratio=np.array(0.5, np.float32))
    model = make_trainable(proto, loss="mse", optimizer=optimizers.SGD(0.0))
    batch = {"x": f32(8, 3), "labels": f32(8, 2)}

    running = steps(model)
    found = [float(running.step(batch)["loss"]) for _ in range(4)]

    assert len(set(found)) == 4


def test_a_ratio_of_zero_needs_no_training_forward(build) -> None:
    text = DROPPED.replace("h = MatMul", "ratio = Constant <value = float {0.0}> () h = MatMul")

    model = make_trainable(build(text, W1=f32(3, 4), W2=f32(4, 2)), loss="mse", optimizer="sgd")

    assert "Dropout" not in [n.op_type for n in algorithm(model)]


def test_dropout_inside_a_branch_drops_too(build) -> None:
    text = """
    m (float[N, 2] x, bool c) => (float[N, 2] y) {
        h = MatMul(x, W)
        y = If (c) <
            then_branch = a () => (float[N, 2] ty) { ty = Dropout(h) },
            else_branch = b () => (float[N, 2] ey) { ey = Identity(h) }
        >
    }
    """

    model = make_trainable(build(text, W=f32(2, 2)), loss="mse", optimizer="sgd")

    (branch,) = [n for n in algorithm(model) if n.op_type == "If"]
    (dropout,) = [n for n in branch.attributes["then_branch"].as_graph() if n.op_type == "Dropout"]
    assert dropout.attributes["seed"].as_int() == 1
    assert len(dropout.inputs) == 3
    assert check(model.proto(), pedantic=True).findings == ()


def test_a_graph_left_in_training_mode_becomes_an_inference_graph(build) -> None:
    text = """
    m (float[N, 4] x) => (float[N, 4] y) {
        yes = Constant <value = bool {1}> ()
        n, m1, v1 = BatchNormalization <training_mode = 1> (x, scale, bias, mean, var)
        y = Dropout(n, ratio, yes)
    }
    """
    given = {k: v for k, v in weights().items() if not k.startswith("W")}

    model = make_trainable(build(text, ratio=np.array(0.5, np.float32), **given), loss="mse", optimizer="sgd")

    inference = to_inference(model)
    session = onnxruntime.InferenceSession(inference.SerializeToString(), providers=["CPUExecutionProvider"])
    x = f32(5, 4)
    expected = (x - given["mean"]) / np.sqrt(given["var"] + 1e-5) * given["scale"] + given["bias"]
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-6)


def test_batch_norm_hidden_in_a_function_trains() -> None:
    proto = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 18, "local" : 1]>
        m (float[N, 4] x) => (float[N, 4] y) { y = local.Norm(x, scale, bias, mean, var) }
        <domain: "local", opset_import: ["" : 18]>
        Norm (x, s, b, m, v) => (y) { y = BatchNormalization (x, s, b, m, v) }
        """
    )
    for name in ("scale", "bias", "mean", "var"):
        proto.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), name))

    model = make_trainable(proto, loss="mse", optimizer="sgd")

    assert set(model.state) == {"step", "mean", "var"}
    assert check(model.proto(), pedantic=True).findings == ()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.bn = torch.nn.BatchNorm2d(4)
        self.fc = torch.nn.Linear(4 * 4 * 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.flatten(torch.max_pool2d(torch.relu(self.bn(self.conv(x))), 2), 1))


@pytest.mark.filterwarnings("ignore")
def test_ten_steps_equal_pytorch_weights_and_running_statistics(steps) -> None:
    torch.manual_seed(0)
    net = Net()
    buffer = io.BytesIO()
    torch.onnx.export(
        net.eval(), (torch.zeros(2, 1, 8, 8),), buffer, dynamo=False, opset_version=18, do_constant_folding=False,
        training=torch.onnx.TrainingMode.PRESERVE, input_names=["x"], output_names=["y"],
        dynamic_axes={"x": {0: "N"}, "y": {0: "N"}},
    )  # fmt: skip
    model = make_trainable(
        buffer.getvalue(),
        loss=losses.CrossEntropy(),
        optimizer=optimizers.TorchAdam(1e-2),
        batch_norm="always",
        unbiased_variance=True,
    )
    theirs = torch.optim.Adam(net.train().parameters(), 1e-2)
    running = steps(model)

    for _ in range(10):
        x, t = f32(16, 1, 8, 8), RNG.integers(0, 3, 16)
        found = running.step({"x": x, "labels": t})["loss"]
        theirs.zero_grad()
        expected = torch.nn.functional.cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(t))
        expected.backward()
        theirs.step()

        np.testing.assert_allclose(found, expected.item(), rtol=2e-4)

    state = net.state_dict()
    assert len(model.parameters) == 5
    for name in [*model.parameters, "bn.running_mean", "bn.running_var"]:
        np.testing.assert_allclose(running.state[name], state[name].numpy(), rtol=1e-3, atol=1e-4, err_msg=name)
