"""Training on TensorFlow: the numbers of ONNX Runtime, whichever way gradients are found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onward
from models import batch, perceptron

tf = pytest.importorskip("tensorflow")

from backends.tensorflow_models import NETWORKS, batches, trained, with_weights  # noqa: E402
from backends.test_torch_kinks import OPERATORS, TEXT  # noqa: E402
from onward.backends import open_session  # noqa: E402
from onward.backends.tensorflow.session import TensorFlowSession  # noqa: E402
from onward.compiler.compile import compile_model  # noqa: E402
from onward.errors import ArgumentError, BackendError  # noqa: E402

TOLERANCE = {np.float32: 1e-5, np.float64: 1e-10}


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm((a - b).astype(float)) / max(float(np.linalg.norm(b.astype(float))), 1e-12))


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", NETWORKS)
def test_fifty_steps_are_those_of_another_runtime(name: str, dtype: type) -> None:
    """ONNX Runtime has no convolution and no LSTM of 64 bits; PyTorch has."""
    oracle = "onnxruntime" if dtype == np.float32 else "torch"
    pytest.importorskip(oracle)
    model = trained(name, dtype)
    ours, theirs = (onward.Trainer(model, backend=b) for b in ("tensorflow", oracle))
    losses = []

    for feeds in batches(name, [6] * 49 + [3], dtype):
        losses.append([float(t.step(feeds)["loss"]) for t in (ours, theirs)])

    assert ours.session.describe()["gradients"] == {"train": "tape"}
    np.testing.assert_allclose(*np.array(losses).T, rtol=TOLERANCE[dtype])
    expected = theirs.session.get_state()
    far = {n: d for n, v in ours.session.get_state().items() if (d := distance(v, expected[n])) > TOLERANCE[dtype]}
    assert far == {}


@pytest.mark.parametrize("optimizer", [
    onward.Adam(1e-2, clip_global_norm=0.5), onward.AdamW(1e-2, weight_decay=0.1), onward.Adagrad(1e-2),
    onward.optimizers.RMSprop(1e-2), onward.optimizers.Lion(1e-3), onward.SGD(0.1, ema=0.9),
], ids=lambda o: type(o).__name__)  # fmt: skip
def test_optimizers_and_what_is_between_gradients_and_them(optimizer: onward.optimizers.Optimizer) -> None:
    """The whole algorithm graph runs, so clipping, decay and averages are honoured as nodes, not by name."""
    model = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=optimizer)
    trainers = [onward.Trainer(model, backend=b) for b in ("tensorflow", "onnxruntime")]

    for seed in range(8):
        for trainer in trainers:
            trainer.step(batch(seed=seed))

    ours, theirs = (t.session.get_state() for t in trainers)
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_checkpoint_of_one_backend_continues_on_the_other(tmp_path: Path) -> None:
    model = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.Adam(1e-2))
    first, whole = onward.Trainer(model, backend="tensorflow"), onward.Trainer(model, backend="onnxruntime")
    for seed in range(3):
        first.step(batch(seed=seed))
        whole.step(batch(seed=seed))
    first.save_checkpoint(tmp_path / "run")

    second, third = (onward.Trainer(tmp_path / "run", backend=b) for b in ("onnxruntime", "tensorflow"))

    losses = [float(t.step(batch(seed=3))["loss"]) for t in (whole, second, third)]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-6)


def test_written_and_taped_gradients_agree_traced_and_eager() -> None:
    program = compile_model(trained("cnn"), split=True)
    (feeds,) = batches("cnn", [4])
    ways = [{"gradients": "tape"}, {"gradients": "graph"}, {"compile": False}]
    sessions = [TensorFlowSession(program, **way) for way in ways]

    outputs = [s.step(feeds) for s in sessions]

    assert [s.describe()["gradients"]["train"] for s in sessions] == ["tape", "graph", "tape"]
    for session, output in zip(sessions[1:], outputs[1:], strict=True):
        np.testing.assert_allclose(output["loss"], outputs[0]["loss"], rtol=1e-6)
        for name, value in session.get_state().items():
            np.testing.assert_allclose(value, sessions[0].get_state()[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("row", [[-1, 0, 1, 1], [0, 0, 0, 0], [2, 1, -1, 2]])
def test_the_tape_gives_the_gradient_of_the_rule_at_a_kink(name: str, row: list[float]) -> None:
    model = onnx.parser.parse_model(TEXT.format(OPERATORS[name]))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "S"))
    made = onward.make_trainable(model, loss="l1", optimizer=onward.SGD(1.0), train=["S"])
    feeds = {"x": np.array([row], np.float32), "labels": np.full((1, 4), -100, np.float32)}
    trainers = [onward.Trainer(made, backend="tensorflow", compile=False), onward.Trainer(made, backend="onnxruntime")]

    for trainer in trainers:
        trainer.step(feeds)

    assert trainers[0].session.describe()["gradients"] == {"train": "tape"}
    found, expected = (trainer.parameters["S"] for trainer in trainers)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


LOOP = """<ir_version: 10, opset_import: ["" : 20]>
net (float[N,3] x) => (float[N,3] y) {
    steps = Constant <value_int = STEPS> ()
    yes = Constant <value = bool {1}> ()
    sum = ReduceSum <keepdims = 0> (x)
    zero = Constant <value = float {0.0}> ()
    positive = Greater(sum, zero)
    z = Loop (steps, yes, x) <body = step (int64 i, bool on, float[N,3] v) => (bool go, float[N,3] u) {
        go = Identity(on) m = MatMul(v, W) u = Tanh(m) }>
    y = If (positive) <then_branch = yes () => (float[N,3] a) { a = MatMul(z, V) },
                       else_branch = no () => (float[N,3] b) { b = MatMul(z, U) }>
}"""


@pytest.mark.parametrize("steps", [3, 40], ids=["written out", "while_loop"])
def test_loops_and_branches_are_traced_and_differentiated(steps: int) -> None:
    text = LOOP.replace("STEPS", str(steps))
    proto = with_weights(text, {"W": (3, 3), "V": (3, 3), "U": (3, 3)})
    model = onward.make_trainable(proto, loss="mse", optimizer=onward.SGD(0.1))
    trainers = [onward.Trainer(model, backend=b) for b in ("tensorflow", "onnxruntime")]
    rng = np.random.default_rng(0)

    for sign in (1, -1, 1):
        feeds = {n: rng.random((4, 3), np.float32) for n in ("x", "labels")}
        feeds["x"] *= sign
        for trainer in trainers:
            trainer.step(feeds)

    for name, value in trainers[1].parameters.items():
        np.testing.assert_allclose(trainers[0].parameters[name], value, rtol=1e-5, atol=1e-6)


def test_a_kernel_that_fails_names_the_graph() -> None:
    model = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.SGD(0.1))
    session = open_session(compile_model(model, split=True), "tensorflow")

    with pytest.raises(BackendError, match="failed in the step train graph: .*label value of 7") as caught:
        session.step({**batch(), "labels": np.full(16, 7)})

    assert caught.value.code == "B301"
    assert "SoftmaxCrossEntropyLoss" in str(caught.value)


def test_an_unknown_way_to_differentiate_lists_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match="auto, graph, tape"):
        TensorFlowSession(compile_model(trained("cnn"), split=True), gradients="numeric")


@pytest.mark.parametrize("name", onward.samples.SAMPLES)
def test_the_self_test_of_a_program_passes(name: str, tmp_path: Path) -> None:
    onward.compile(onward.samples.build(name)).save(tmp_path)

    trainer = onward.Trainer(tmp_path, backend="tensorflow")

    assert trainer.program.self_test is not None
