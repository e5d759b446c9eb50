"""Loss scaling against `torch.amp.GradScaler`, and against no scaling where that must give the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import onward
from models import batch, perceptron
from onward.author.loss_scale import read_loss_scale, scale_losses
from onward.backends import open_session
from onward.errors import ArgumentError
from onward.model.serde import from_proto, to_proto

SCALE = "loss_scale"
STEPS = 36


def half_network() -> onnx.ModelProto:
    """Return `x` -> `out` with weights in float32 that is computed in float16, as PyTorch's autocast does."""
    rng = np.random.default_rng(0)
    weights = {"W0": rng.standard_normal((8, 16)) / 3, "W1": rng.standard_normal((16, 3)) / 4}
    nodes = [helper.make_node("Cast", [n], [f"{n}/half"], to=TensorProto.FLOAT16) for n in ("x", *weights)]
    nodes += [
        helper.make_node("MatMul", ["x/half", "W0/half"], ["z"]),
        helper.make_node("Relu", ["z"], ["a"]),
        helper.make_node("MatMul", ["a", "W1/half"], ["y"]),
        helper.make_node("Cast", ["y"], ["out"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(
        nodes,
        "half",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def half_batch(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((32, 8)).astype(np.float32),
        "labels": rng.standard_normal((32, 3)).astype(np.float32),
    }


def number(value: Any) -> float:
    return float(np.asarray(value))


class Peer:
    """A loop of PyTorch with `GradScaler`."""

    def __init__(self, model: onnx.ModelProto, loss: Any, optimizer: Any, scale: onward.LossScale) -> None:
        self.weights = {
            w.name: torch.tensor(numpy_helper.to_array(w), requires_grad=True) for w in model.graph.initializer
        }
        self.loss, self.optimizer = loss, optimizer(list(self.weights.values()))
        self.scaler = torch.amp.GradScaler(
            "cpu",
            init_scale=scale.initial,
            growth_factor=scale.growth_factor,
            backoff_factor=scale.backoff_factor,
            growth_interval=scale.growth_interval,
        )

    def step(self, feeds: dict[str, np.ndarray], clip: float | None = None) -> float:
        self.optimizer.zero_grad()
        loss = self.loss(self.weights, *(torch.tensor(v) for v in feeds.values()))
        self.scaler.scale(loss).backward()
        if clip is not None:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(list(self.weights.values()), clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()


def half_loss(w: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    hidden = (x.half() @ w["W0"].half()).relu()
    return ((hidden @ w["W1"].half()).float() - y).square().mean()


def single_loss(w: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    hidden = torch.addmm(w["b0"], x, w["W0"]).relu()
    return torch.nn.functional.cross_entropy(torch.addmm(w["b1"], hidden, w["W1"]), y)


# -- the oracle --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["reference", "torch", "jax"])
def test_trajectory_in_float16_is_that_of_grad_scaler(backend: str) -> None:
    scale = onward.LossScale(initial=2.0**24, growth_interval=4)  # overflows at once, and again and again as it grows
    peer = Peer(half_network(), half_loss, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), scale)
    optimizer = onward.SGD(0.1, momentum=0.9)
    trainer = onward.Trainer(
        onward.make_trainable(half_network(), loss="mse", optimizer=optimizer, loss_scale=scale), backend=backend
    )

    scales = []
    for step in range(STEPS):
        feeds = half_batch(step)
        expected = peer.step(feeds)
        loss = number(trainer.step(feeds)["loss"])
        scales.append(number(trainer.state[SCALE]))

        assert loss == pytest.approx(expected, rel=2e-3)
        assert scales[-1] == peer.scaler.get_scale(), step
        assert number(trainer.state[f"{SCALE}/good_steps"]) == peer.scaler._get_growth_tracker()

    changes = np.diff([2.0**24, *scales])
    assert (changes < 0).sum() >= 6, scales
    assert (changes > 0).sum() >= 3, scales
    assert number(trainer.state[f"{SCALE}/skipped"]) == (changes < 0).sum()
    for name, weight in peer.weights.items():
        np.testing.assert_allclose(trainer.state[name], weight.detach().numpy(), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(
    ("kind", "fused", "clip"), [("sgd", False, None), ("sgd", True, 0.05), ("adam", False, 0.05), ("adam", True, None)]
)
def test_trajectory_in_float32_with_overflows_is_that_of_grad_scaler(
    kind: str, fused: bool, clip: float | None
) -> None:
    scale = onward.LossScale(initial=2.0**60, growth_factor=8.0, backoff_factor=0.25, growth_interval=3)
    made = {
        "sgd": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), onward.SGD(0.1, momentum=0.9)),
        "adam": (lambda p: torch.optim.Adam(p, lr=1e-2), onward.optimizers.TorchAdam(1e-2)),
    }
    theirs, optimizer = made[kind]
    if clip is not None:
        kept = type(optimizer)  # clip_grad_norm_ adds 1e-6 to the norm
        optimizer = kept(
            **{k: v for k, v in vars(optimizer).items() if v is not None}
            | {"clip_global_norm": clip, "clip_epsilon": 1e-6}
        )
    peer = Peer(perceptron(), single_loss, theirs, scale)
    trainer = onward.Trainer(
        onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=optimizer, loss_scale=scale), fused=fused
    )

    for step in range(STEPS):
        feeds = batch(seed=step)
        if step % 5 == 2:  # a finite loss, whose scaled gradient is not finite
            feeds["x"] = feeds["x"] * np.float32(1e25)
        before = trainer.state
        expected = peer.step(feeds, clip)
        loss = number(trainer.step(feeds)["loss"])
        after = trainer.state

        assert np.isfinite(loss)
        assert loss == pytest.approx(expected, rel=1e-4)
        assert number(after[SCALE]) == peer.scaler.get_scale(), step
        if number(after[SCALE]) < number(before[SCALE]):
            kept_bytes = {n for n in after if not n.startswith(SCALE)}
            assert all(after[n].tobytes() == before[n].tobytes() for n in kept_bytes)
    assert number(trainer.state[f"{SCALE}/skipped"]) >= STEPS // 5
    for name, weight in peer.weights.items():
        np.testing.assert_allclose(trainer.state[name], weight.detach().numpy(), rtol=1e-4, atol=1e-5)


# -- where scaling must change nothing, and where it must --------------------------------------------------------------


@pytest.mark.parametrize("options", [{"native": True}, {"native": False}, {"fused": True}, {"backend": "reference"}])
@pytest.mark.parametrize("scale", [1024.0, "dynamic", onward.LossScale(16.0, growth_interval=5)])
def test_powers_of_two_change_no_bit_in_float32(scale: Any, options: dict[str, Any]) -> None:
    plain = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.Adam(1e-2))
    trainers = [onward.Trainer(plain, **options), onward.Trainer(plain, loss_scale=scale, **options)]

    losses = [[number(t.step(batch(seed=step))["loss"]) for step in range(12)] for t in trainers]

    assert losses[0] == losses[1]
    without, scaled = (t.state for t in trainers)
    assert [n for n in without if without[n].tobytes() != scaled[n].tobytes()] == []


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_gradients_that_vanish_in_float16_train_with_a_scale(backend: str) -> None:
    def trained(**options: Any) -> tuple[float, float, float]:
        loss = 1e-8 * onward.losses.MSE()  # d loss / d out is below 6e-8, the smallest number of float16
        model = onward.make_trainable(half_network(), loss=loss, optimizer=onward.SGD(1e7), **options)
        trainer = onward.Trainer(model, backend=backend)
        before, feeds = trainer.state["W0"], half_batch(0)
        losses = [number(trainer.step(feeds)["loss"]) for _ in range(20)]
        return losses[0], losses[-1], float(np.abs(trainer.state["W0"] - before).max())

    first, last, moved = trained()
    assert (last, moved) == (first, 0.0)
    for scale in ("dynamic", 65536.0):
        first, last, moved = trained(loss_scale=scale)
        assert last < 0.6 * first
        assert moved > 0.01


# -- with what else a training has -------------------------------------------------------------------------------------


def test_a_bad_batch_is_left_out_of_an_accumulated_update() -> None:
    optimizer = onward.SGD(0.1, accumulate=3)
    plain = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=optimizer)
    scaled = onward.Trainer(plain, loss_scale=onward.LossScale(2.0**60))
    without = onward.Trainer(plain)

    for step in range(7):
        feeds = batch(seed=step)
        if step == 1:
            scaled.step({**feeds, "x": feeds["x"] * np.float32(1e25)})
        else:
            scaled.step(feeds)
            without.step(feeds)

    for name in without.state:
        np.testing.assert_array_equal(scaled.state[name], without.state[name])


def test_running_statistics_of_a_skipped_step_are_those_of_pytorch() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
    example = torch.tensor(batch()["x"])
    model = onward.from_torch(
        module,
        loss=torch.nn.CrossEntropyLoss(),
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        example_inputs=(example,),
        example_targets=torch.tensor(batch()["labels"]),
    )
    trainer = onward.Trainer(model, loss_scale=onward.LossScale(3e38))
    scaler = torch.amp.GradScaler("cpu", init_scale=3e38)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    (mean,) = (n for n in trainer.state if n.endswith("running_mean"))

    for step in range(4):
        feeds = batch(seed=step)
        scaler.scale(
            torch.nn.functional.cross_entropy(module(torch.tensor(feeds["x"])), torch.tensor(feeds["labels"]))
        ).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        trainer.step(dict(zip(trainer.input_names, feeds.values(), strict=True)))
        assert number(trainer.state[trainer.program.first.loss_scale]) == scaler.get_scale()

    np.testing.assert_allclose(trainer.state[mean], module[1].running_mean.numpy(), rtol=1e-5, atol=1e-6)


def test_each_phase_has_a_scale_of_its_own() -> None:
    phases = [onward.Phase(train="W1", epochs=1), onward.Phase(train="*", epochs=1)]
    model = onward.make_trainable(
        perceptron(), loss="cross_entropy", optimizer="sgd", phases=phases, loss_scale="dynamic"
    )

    program = onward.compile(model)

    scales = [entry.loss_scale for entry in program.entries.values()]
    assert len(set(scales)) == 2
    assert all(program.state[n] == 65536.0 for n in scales)


def test_weights_of_samples_go_with_a_scaled_loss() -> None:
    plain = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer="sgd")
    data = batch(64)
    weights = np.linspace(0, 2, 64).astype(np.float32)

    states = []
    for scale in (None, 1024.0):
        trainer = onward.Trainer(plain, loss_scale=scale)
        trainer.fit(data["x"], data["labels"], sample_weight=weights, batch_size=16, progress="none")
        states.append(trainer.state)

    assert all(states[0][n].tobytes() == states[1][n].tobytes() for n in states[0])


@pytest.mark.parametrize(
    "options", [{"profile": "portable"}, {"core": True}, {"store": "float16"}, {"recompute": "auto"}, {"split": True}]
)
def test_other_ways_to_compile_skip_alike(options: dict[str, Any]) -> None:
    scale = onward.LossScale(2.0**60, growth_interval=2)
    plain = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.Adam(1e-2))
    usual = onward.Trainer(onward.compile(plain, loss_scale=scale))
    other = onward.Trainer(onward.compile(plain, loss_scale=scale, **options))

    for step in range(8):
        feeds = batch(seed=step)
        if step % 3 == 1:
            feeds["x"] = feeds["x"] * np.float32(1e25)
        usual.step(feeds)
        other.step(feeds)

    assert number(usual.state[f"{SCALE}/skipped"]) == 3
    for name, value in usual.state.items():
        np.testing.assert_allclose(other.state[name], value, rtol=1e-4, atol=1e-6)


def test_a_file_without_marks_of_onward_is_scaled_as_well() -> None:
    plain = to_proto(onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.Adam(1e-2)))
    for graph in (plain.graph, plain.training_info[0].algorithm):
        for value in (*graph.node, *graph.initializer, *graph.input, *graph.output, *graph.value_info):
            del value.metadata_props[:]
        del graph.metadata_props[:]
    trainers = [onward.Trainer(plain), onward.Trainer(plain, loss_scale="dynamic")]

    losses = [[number(t.step(batch(seed=step))["loss"]) for step in range(5)] for t in trainers]

    assert losses[0] == losses[1]
    assert trainers[1].program.loss == "loss"


def test_the_file_keeps_the_scale_and_is_valid(tmp_path: Any) -> None:
    model = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer="sgd", loss_scale="dynamic")
    onward.save(model, tmp_path / "net.onnx")

    onward.check(tmp_path / "net.onnx").raise_if_errors()
    trainer = onward.Trainer(tmp_path / "net.onnx", loss_scale="dynamic")  # it has it already

    trainer.set_state({SCALE: np.float32(8.0)})
    trainer.initialize()
    assert number(trainer.state[SCALE]) == 65536.0


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_weights_stay_finite_however_many_batches_were_bad() -> None:
    model = onward.make_trainable(half_network(), loss="mse", optimizer=onward.SGD(0.1), loss_scale="dynamic")
    session = open_session(onward.compile(model), "onnxruntime")  # a Trainer would stop at the first loss of NaN
    bad = {**half_batch(0), "x": np.full((32, 8), np.nan, np.float32)}

    for _ in range(170):
        session.step(bad)
    scale = number(session.get_state()[SCALE])
    session.step(half_batch(1))
    state = session.get_state()

    assert scale == 2.0**-100
    assert all(np.isfinite(a).all() for a in state.values())
    assert number(state[SCALE]) == scale


def test_a_fixed_scale_beyond_float16_is_refused_for_a_loss_in_float16() -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "W"], ["y"])],
        "half",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["N", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["N", 2])],
        [numpy_helper.from_array(np.full((3, 2), 0.1, np.float16), "W")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)

    with pytest.raises(ArgumentError, match="is float16, which ends at 65504"):
        onward.make_trainable(model, loss="cross_entropy", loss_scale=65536.0)


@pytest.mark.parametrize("asked", ["dynamik", 0, -1.0, float("inf"), float("nan"), True, [2]])
def test_what_is_no_scale_is_refused(asked: Any) -> None:
    with pytest.raises(ArgumentError, match="loss_scale is"):
        read_loss_scale(asked)


@pytest.mark.parametrize(
    "settings", [{"growth_factor": 1.0}, {"backoff_factor": 1.0}, {"growth_interval": 0}, {"initial": 0.0}]
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="out of range"):
        onward.LossScale(**settings)


def test_another_scale_than_that_of_the_file_is_refused() -> None:
    model = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer="sgd", loss_scale="dynamic")

    with pytest.raises(ArgumentError, match="already scales its loss") as error:
        onward.Trainer(model, loss_scale=1024.0)

    assert error.value.diagnostics[0].code == "A143"
    assert "dynamic from 65536: × 2 after 2000 good steps" in str(error.value)


def test_a_model_without_training_and_a_program_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no training entry whose loss"):
        scale_losses(from_proto(perceptron()), onward.LossScale())
    program = onward.compile(onward.make_trainable(perceptron(), loss="cross_entropy", optimizer="sgd"))
    with pytest.raises(ArgumentError, match="a Program cannot scale its loss otherwise"):
        onward.Trainer(program, loss_scale="dynamic")


@pytest.mark.parametrize("convert", [onward.to_torch, onward.to_jax])
def test_a_framework_does_not_take_a_scaled_loss_along(convert: Any) -> None:
    model = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer="sgd", loss_scale="dynamic")

    with pytest.raises(ArgumentError, match="cannot take a scaled loss along"):
        convert(model)
