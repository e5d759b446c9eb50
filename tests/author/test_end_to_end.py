"""Authored models, compiled and run on stock onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from onward import losses, optimizers, samples, schedules
from onward.author import make_trainable
from onward.check import check
from onward.model.inference import to_inference

RNG = np.random.default_rng(21)
X = RNG.normal(size=(64, 3)).astype(np.float32)
T = np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]], 1).astype(np.float32)


@pytest.mark.parametrize("name", sorted(optimizers.NAMES))
def test_every_optimizer_trains_on_stock_onnxruntime(steps, name: str) -> None:
    rate = 1.0 if name == "adadelta" else 0.01  # Adadelta finds its own pace, of which the rate is a multiple
    optimizer = optimizers.by_name(name, learning_rate=rate)
    train = "W*" if name == "muon" else "*"  # Muon is for matrices
    model = make_trainable(samples.perceptron(hidden=16), loss="mse", optimizer=optimizer, train=train)
    running = steps(model)

    found = [float(running.step({"x": X, "labels": T})["loss"]) for _ in range(60)]

    assert found[-1] < 0.9 * found[0]


class Perceptron(torch.nn.Module):
    def __init__(self, weights) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterDict({k: torch.tensor(v.copy()) for k, v in weights.items()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = self.weights
        return torch.relu(x @ w["W1"] + w["b1"]) @ w["W2"] + w["b2"]


def test_clipping_accumulation_groups_and_a_schedule_together_equal_pytorch(steps) -> None:
    optimizer = optimizers.TorchAdamW(
        schedules.Warmup(schedules.Cosine(0.02, steps=8, end=0.1), steps=3, start=0.1),
        weight_decay=0.1,
        clip_global_norm=0.3,
        accumulate=2,
        groups={"b*": {"weight_decay": 0.0, "learning_rate": 0.05}},
    )
    model = make_trainable(samples.perceptron(), loss=losses.Huber(), optimizer=optimizer)
    running = steps(model)
    net = Perceptron({k: v.const_value.numpy() for k, v in model.parameters.items()})
    w = net.weights
    theirs = torch.optim.AdamW(
        [{"params": [w["W1"], w["W2"]]}, {"params": [w["b1"], w["b2"]], "lr": 0.05, "weight_decay": 0.0}],
        lr=0.02,
        weight_decay=0.1,
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(theirs, optimizer.learning_rate.factor)

    for step in range(20):
        batch = slice(4 * (step % 8), 4 * (step % 8) + 4)
        running.step({"x": X[batch], "labels": T[batch]})
        loss = torch.nn.functional.huber_loss(net(torch.from_numpy(X[batch])), torch.from_numpy(T[batch]))
        (loss / 2).backward()
        if step % 2:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
            theirs.step()
            scheduler.step()
            theirs.zero_grad()

    for name, value in w.items():
        np.testing.assert_allclose(running.state[name], value.detach().numpy(), rtol=2e-4, atol=2e-5, err_msg=name)


def test_a_frozen_weight_does_not_move(steps) -> None:
    model = make_trainable(samples.perceptron(), loss="mse", optimizer="adam", freeze="W1")
    before = model.frozen["W1"].const_value.numpy().copy()
    running = steps(model)

    running.step({"x": X, "labels": T})

    after = {
        t.name: t
        for t in to_inference(
            model, {k: v for k, v in running.state.items() if k in model.initializers()}
        ).graph.initializer
    }
    np.testing.assert_array_equal(np.frombuffer(after["W1"].raw_data, np.float32).reshape(3, 4), before)
    assert "W1" not in running.step_graph.replaces.values()


def test_two_outputs_train_together(steps, build) -> None:
    proto = build(
        "m (float[N, 3] x) => (float[N, 2] a, float[N, 2] b) { h = MatMul(x, W) a = Tanh(h) b = MatMul(h, V) }",
        W=RNG.normal(size=(3, 2)).astype(np.float32), V=RNG.normal(size=(2, 2)).astype(np.float32),
    )  # fmt: skip
    model = make_trainable(proto, loss={"a": "mse", "b": (losses.L1(), 0.5)}, optimizer=optimizers.Momentum(0.05))
    running = steps(model)
    feeds = {"x": X, "labels/a": T, "labels/b": T}

    outputs = running.step(feeds)

    expected = ((outputs["a"] - T) ** 2).mean() + 0.5 * np.abs(outputs["b"] - T).mean()
    np.testing.assert_allclose(outputs["loss"], expected, rtol=1e-5)
    assert [float(running.step(feeds)["loss"]) for _ in range(30)][-1] < outputs["loss"]


def test_ctc_learns_to_spell(steps, build) -> None:
    proto = build(
        "m (float[N, T, 6] x) => (float[N, T, 4] y) { h = MatMul(x, W) b = Add(h, c) y = LogSoftmax <axis = -1> (b) }",
        W=0.1 * RNG.normal(size=(6, 4)).astype(np.float32), c=np.array([0.1, 0.0, 0.2, 0.0], np.float32),
    )  # fmt: skip
    model = make_trainable(proto, loss=losses.CTC(time_axis=1), optimizer=optimizers.TorchAdam(0.05))
    running = steps(model)
    feeds = {
        "x": RNG.normal(size=(3, 8, 6)).astype(np.float32),
        "labels": np.array([[1, 2], [3, 3], [2, 0]]),
        "labels/output_lengths": np.array([8, 7, 6]),
        "labels/label_lengths": np.array([2, 2, 1]),
    }

    found = [float(running.step(feeds)["loss"]) for _ in range(60)]

    assert check(model.proto(), pedantic=True).findings == ()
    assert found[-1] < 0.3 * found[0]
