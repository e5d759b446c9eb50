"""Training in phases: what each trains, how long, how fast, and that a run resumes inside of any of them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper, parser

import onward
from onward import Phase
from onward.errors import ArgumentError
from onward.train import Callback

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 4)).astype(np.float32)
Y = (X @ RNG.normal(size=(4, 3))).argmax(1)
PHASES = [
    Phase(train=["W2", "b2"], epochs=1, learning_rate=0.05),
    Phase(train="*2", epochs=2, learning_rate=0.01),
    Phase(epochs=1),
]


def network() -> onward.TrainingModel:
    return onward.samples.perceptron(inputs=4, hidden=8, outputs=3)


def in_phases(**options: object) -> onward.TrainingModel:
    options = {"loss": "cross_entropy", "optimizer": onward.Adam(1e-3), "phases": PHASES, **options}
    return onward.make_trainable(network(), **options)


def fit(trainer: onward.Trainer, **options: object) -> object:
    return trainer.fit(X, Y, batch_size=8, progress="none", **options)


class States(Callback):
    """Keeps the parameters after each epoch."""

    def __init__(self) -> None:
        self.found: list[dict[str, np.ndarray]] = []

    def on_epoch_end(self, run: object, logs: object) -> None:
        self.found.append(run.trainer.parameters)


def test_each_phase_trains_its_weights_for_its_epochs_at_its_rate() -> None:
    trainer, states = onward.Trainer(in_phases()), States()
    start = trainer.parameters

    history = fit(trainer, callbacks=[states])

    steps = [start, *states.found]
    changed = [{n for n in start if (a[n] != b[n]).any()} for a, b in itertools.pairwise(steps)]
    assert changed == [{"W2", "b2"}, {"W2", "b2"}, {"W2", "b2"}, {"W1", "b1", "W2", "b2"}]
    np.testing.assert_allclose(history["learning_rate"], [0.05, 0.01, 0.01, 1e-3], rtol=1e-6)
    assert history.columns[:3] == ["epoch", "step", "loss"]
    assert not [c for c in history.columns if "/" in c]


def test_a_phase_gives_the_numbers_of_a_training_of_its_own() -> None:
    """The second phase equals a new training of the same weights, from where the first phase ended."""
    trainer, states = onward.Trainer(in_phases()), States()
    fit(trainer, callbacks=[states], epochs=3)
    alone = onward.make_trainable(network(), loss="cross_entropy", optimizer=onward.Adam(0.01), train="*2")
    other = onward.Trainer(alone)
    other.set_state({n: states.found[0][n] for n in ("W2", "b2")})

    order = onward.Trainer(alone)  # the data of epochs 2 and 3 in their order
    batches = _batches(order, epochs=3)[1:]
    for batch in [b for epoch in batches for b in epoch]:
        other.step(batch)

    for name in ("W2", "b2"):
        np.testing.assert_array_equal(trainer.parameters[name], other.parameters[name])


def _batches(trainer: onward.Trainer, epochs: int) -> list[list[dict[str, np.ndarray]]]:
    """Return the batches that `fit` feeds."""
    found: list[list[dict[str, np.ndarray]]] = [[] for _ in range(epochs)]
    session = trainer.session
    step = session.step

    def record(feeds: dict[str, np.ndarray], *, entry: str | None = None) -> dict[str, np.ndarray]:
        found[trainer._run.position.epoch].append({n: feeds[n].copy() for n in trainer.input_names})
        return step(feeds, entry=entry)

    session.step = record  # type: ignore[method-assign]
    fit(trainer, epochs=epochs)
    return found


@pytest.mark.parametrize("stop", [2, 5, 8, 13, 17])
def test_a_run_resumes_inside_of_any_phase(stop: int, tmp_path: Path) -> None:
    whole = onward.Trainer(in_phases())
    history = fit(whole)

    class Stop(Callback):
        def on_step_end(self, run: object, logs: object) -> None:
            if logs["step"] == stop:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(onward.Trainer(in_phases()), checkpoint=tmp_path, checkpoint_every=1, callbacks=[Stop()])
    resumed = onward.Trainer.resume(tmp_path)
    # The interrupt comes before the checkpoint of its own step.
    assert resumed.phase == f"train-{1 + ((stop - 1) >= 5) + ((stop - 1) >= 15)}"
    again = fit(resumed)

    assert again["loss"] == history["loss"]
    for name, value in whole.state.items():
        np.testing.assert_array_equal(resumed.state[name], value, err_msg=name)


def test_phases_survive_a_file_and_a_program(tmp_path: Path) -> None:
    onward.save(in_phases(), tmp_path / "phases.onnx")
    onward.compile(tmp_path / "phases.onnx").save(tmp_path / "program")

    losses = [
        fit(onward.Trainer(source))["loss"] for source in (in_phases(), tmp_path / "phases.onnx", tmp_path / "program")
    ]

    assert losses[0] == losses[1] == losses[2]
    assert len(losses[0]) == 4
    manifest = json.loads((tmp_path / "program" / "manifest.json").read_text())
    assert manifest["phases"] == {"train-1": 1, "train-2": 2, "train-3": 1}
    assert onward.check(tmp_path / "phases.onnx").ok


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_phases_run_on_every_backend(backend: str) -> None:
    expected = fit(onward.Trainer(in_phases()))["loss"]

    found = fit(onward.Trainer(in_phases(), backend))["loss"]

    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_frozen_batch_normalisation_stays_frozen_until_its_phase() -> None:
    proto = parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]> g (float[N, 4] x) => (float[N, 3] y) {
            h = MatMul(x, W1) n = BatchNormalization(h, scale, bias, mean, variance) r = Relu(n) y = MatMul(r, W2)
        }"""
    )
    shapes = {"W1": (4, 8), "scale": (8,), "bias": (8,), "mean": (8,), "W2": (8, 3)}
    weights = {n: RNG.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    weights["variance"] = RNG.uniform(0.5, 2, 8).astype(np.float32)
    proto.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items())
    model = onward.make_trainable(
        proto, loss="cross_entropy", optimizer="sgd", phases=[Phase(train="W2"), Phase(train="*")]
    )
    trainer = onward.Trainer(model)

    fit(trainer, epochs=1)
    np.testing.assert_array_equal(trainer.state["mean"], weights["mean"])
    trainer = onward.Trainer(model)
    fit(trainer)

    assert (trainer.state["mean"] != weights["mean"]).any()


def test_a_single_step_is_one_of_the_first_phase() -> None:
    trainer = onward.Trainer(in_phases())
    before = trainer.parameters

    outputs = trainer.step({"x": X[:8], "labels": Y[:8]})

    assert np.isfinite(outputs["loss"])
    assert {n for n, v in trainer.parameters.items() if (v != before[n]).any()} == {"W2", "b2"}


def test_one_phase_can_be_chosen_by_name() -> None:
    trainer = onward.Trainer(in_phases())
    before = trainer.parameters

    history = fit(trainer, entry="train-3")

    assert len(history) == 1
    assert (trainer.parameters["W1"] != before["W1"]).any()


# -- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"phases": []}, r"phases is .*needed: a list of Phase"),
        ({"phases": "head"}, r"phases is .*needed: a list of Phase"),
        ({"phases": [{"train": "W2"}]}, r"phases\[0\] is .*needed: an onward.Phase"),
        ({"train": "W2"}, r"each phase says what it trains, so train= has no meaning beside phases="),
        ({"phases": [Phase(train="no_such")]}, r"`no_such` matches no weight of the model"),
    ],
)
def test_wrong_phases_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"(?s){message}"):
        in_phases(**options)


@pytest.mark.parametrize("options", [{"epochs": 0}, {"epochs": 1.5}, {"learning_rate": -1.0}, {"learning_rate": "x"}])
def test_wrong_settings_of_a_phase_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ArgumentError, match="of `Phase` is out of range"):
        Phase(**options)


@pytest.mark.parametrize("text", ["head", "=1", "head=", "head=x", "head=1@", "head=1@fast", ""])
def test_a_phase_of_the_command_line_that_is_none(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"is not a phase(?s:.*)WEIGHTS=EPOCHS"):
        Phase.parse(text)


def test_phases_of_the_command_line() -> None:
    assert Phase.parse("a.*,b.*=3") == Phase(train=["a.*", "b.*"], epochs=3)
    assert Phase.parse("last:2=3@0.1") == Phase(train="last:2", epochs=3, learning_rate=0.1)


# -- with a new head, and layer by layer ------------------------------------------------------------------------------


def test_a_new_head_first_and_then_all() -> None:
    phases = [Phase(train="head", epochs=1), Phase(train="last:2", epochs=1)]
    model = onward.make_trainable(network(), classes=["a", "b", "c", "d", "e"], phases=phases)
    trainer, states = onward.Trainer(model), States()

    history = fit(trainer, callbacks=[states], metrics=["accuracy"])

    first, second = states.found
    assert {n for n in first if (first[n] != second[n]).any()} == set(first)
    assert [e.name for e in model.entries] == ["train-1", "train-2"]
    assert all(0 <= a <= 1 for a in history["accuracy"])
    assert trainer.to_inference().graph.output[0].type.tensor_type.shape.dim[1].dim_value == 5


def test_layer_decay_slows_early_layers_down() -> None:
    """SGD: the change of a weight is the rate times its gradient, which does not depend on the decay."""
    changes = {}
    for decay in (None, 0.5):
        model = onward.make_trainable(network(), optimizer=onward.SGD(0.1, layer_decay=decay))
        trainer = onward.Trainer(model)
        before = trainer.parameters
        trainer.step({"x": X[:8], "labels": Y[:8]})
        changes[decay] = {n: v - before[n] for n, v in trainer.parameters.items()}

    for name, factor in {"W1": 0.5, "b1": 0.5, "W2": 1.0, "b2": 1.0}.items():
        np.testing.assert_allclose(changes[0.5][name], factor * changes[None][name], rtol=1e-4, atol=1e-7)


def test_layer_decay_multiplies_the_rates_of_groups_and_follows_to_torch() -> None:
    groups = {"b*": {"learning_rate": 0.01, "weight_decay": 0.0}}
    optimizer = onward.optimizers.TorchAdam(0.1, weight_decay=0.01, layer_decay=0.5, groups=groups)

    _, torch_optimizer = onward.to_torch(onward.make_trainable(network(), optimizer=optimizer))

    rates = sorted((round(g["lr"], 6), g["weight_decay"]) for g in torch_optimizer.param_groups)
    assert rates == [(0.005, 0.0), (0.01, 0.0), (0.05, 0.01), (0.1, 0.01)]


@pytest.mark.parametrize("decay", [0.0, 1.5, -1, "x"])
def test_a_wrong_layer_decay_is_refused(decay: object) -> None:
    with pytest.raises(ArgumentError, match="`layer_decay` of `SGD` is out of range"):
        onward.SGD(0.1, layer_decay=decay)
