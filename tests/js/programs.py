"""Programs for the tests of `@onward/train`, each with batches and with what native ONNX Runtime makes of them.

`python tests/js/programs.py DIR` writes for each program DIR/NAME/program, DIR/NAME/batches.safetensors (tensors
"<batch>/<input>") and DIR/NAME/expected.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from safetensors.numpy import save_file

import onward
from models import batch, dropout_network, perceptron
from onward.backends import open_session
from onward.backends.base import Session
from onward.model.class_names import set_class_names

Batches = list[dict[str, np.ndarray]]
STEPS = 20


def sample(name: str, shape: tuple[int, ...]) -> tuple[onward.Program, Batches]:
    rng = np.random.default_rng(0)
    rows = shape[0]
    data = [{"images": rng.random(shape, np.float32), "labels": rng.integers(0, 10, rows)} for _ in range(STEPS)]
    return onward.compile(onward.samples.build(name)), data


def linear() -> tuple[onward.Program, Batches]:
    rng = np.random.default_rng(0)
    data = [{"X": (x := rng.normal(size=(8, 1)).astype(np.float32)), "labels": 3 * x} for _ in range(STEPS)]
    return onward.compile(onward.samples.build("linear")), data


def batches(count: int = STEPS) -> Batches:
    return [batch(seed=i) for i in range(count)]


def dropout() -> tuple[onward.Program, Batches]:
    model = onward.make_trainable(dropout_network(), loss="cross_entropy", optimizer=onward.Adam(1e-2))
    set_class_names(model, ["rose", "tülip", "daisy"])
    return onward.compile(model), batches()


def two_entries() -> tuple[onward.Program, Batches]:
    """Return a program with two training entries, which train the same weights in turn, and batches for both."""
    model = onward.make_trainable(
        dropout_network(), loss="cross_entropy", optimizer=onward.Adam(1e-2), train=["W1", "b1"]
    )
    width = int(model.graph.outputs[0].shape[1])
    model = onward.make_trainable(
        model, loss="mse", optimizer=onward.SGD(1e-2), train="*1*", entry="second",
        loss_name="second_loss", label="goal",
    )  # fmt: skip
    rng = np.random.default_rng(0)
    data = [{**b, "goal": rng.normal(size=(len(b["labels"]), width)).astype(np.float32)} for b in batches()]
    return onward.compile(model), data


def scheduled() -> tuple[onward.Program, Batches]:
    rate = onward.schedules.Warmup(onward.schedules.Cosine(1e-2, steps=15), steps=4)
    model = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.optimizers.Adam(rate))
    return onward.compile(model), batches()


def phases() -> tuple[onward.Program, Batches]:
    parts = [onward.Phase(train=["W1", "b1"], epochs=1, learning_rate=0.05), onward.Phase(epochs=1)]
    model = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.Adam(1e-3), phases=parts)
    return onward.compile(model), batches()


def doubles() -> tuple[onward.Program, Batches]:
    """Return a program in float64, whose weights have names that JavaScript sorts as numbers."""
    model = renamed(perceptron(dtype=np.float64), {"W0": "12", "b0": "7", "W1": "100", "b1": "é/1"})
    data = [{**b, "x": b["x"].astype(np.float64)} for b in batches()]
    return onward.compile(onward.make_trainable(model, loss="cross_entropy", optimizer=onward.Adam(1e-2))), data


def halves() -> tuple[onward.Program, Batches]:
    model = onward.make_trainable(perceptron(dtype=np.float16), loss="cross_entropy", optimizer=onward.SGD(1e-1))
    return onward.compile(model), [{**b, "x": b["x"].astype(np.float16)} for b in batches()]


def renamed(model: onnx.ModelProto, names: dict[str, str]) -> onnx.ModelProto:
    for tensor in model.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in model.graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]
    return model


PROGRAMS: dict[str, Callable[[], tuple[onward.Program, Batches]]] = {
    "linear": linear,
    "digits": lambda: sample("digits", (16, 1, 8, 8)),
    "mnist": lambda: sample("mnist", (8, 1, 28, 28)),
    "dropout": dropout,
    "two_entries": two_entries,
    "scheduled": scheduled,
    "phases": phases,
    "doubles": doubles,
    "halves": halves,
}


def losses(session: Session, data: Batches, entry: str | None = None) -> list[dict[str, float]]:
    """Return the loss of each entry, step by step."""
    names = {n: e.loss for n, e in session.program.entries.items() if entry in (None, n)}
    return [{n: float(out[loss]) for n, loss in names.items()} for out in (session.step(b, entry=entry) for b in data)]


def expected(program: onward.Program, data: Batches) -> dict[str, Any]:
    """Return what native ONNX Runtime gives: losses from the stored state, then results of the trained state."""
    session = open_session(program, "onnxruntime", threads=1, fused=False, native=False)
    entry = next(iter(program.phases), None)
    inputs = {s.name: data[0][s.name] for s in program.inputs}
    found: dict[str, Any] = {"entry": entry, "losses": losses(session, data, entry)}
    found["evaluate"] = float(session.evaluate(data[0])[program.loss])
    found["infer"] = {n: np.asarray(v, np.float64).ravel().tolist() for n, v in session.infer(inputs).items()}
    session.initialize(7)
    found["initialized"] = losses(session, data[:3], entry)
    return found


def write(name: str, folder: Path) -> None:
    """Write one program with its batches and what is expected of it."""
    program, data = PROGRAMS[name]()
    write_program(program, data, folder / name)


def write_program(program: onward.Program, data: Batches, folder: Path, self_test: Any = True) -> None:
    program.save(folder / "program", self_test=self_test)
    save_batches(data, folder / "batches.safetensors")
    (folder / "expected.json").write_text(json.dumps(expected(program, data)))


def save_batches(data: Batches, path: Path) -> None:
    save_file({f"{i}/{n}": np.asarray(v, order="C") for i, b in enumerate(data) for n, v in b.items()}, path)


def read_expected(folder: Path) -> dict[str, Any]:
    """Return what `write` stored of native ONNX Runtime's results."""
    found: dict[str, Any] = json.loads((folder / "expected.json").read_text())
    return found


if __name__ == "__main__":
    for name in PROGRAMS:
        write(name, Path(sys.argv[1]))
