"""Train files with `to_keras`, and compare with other runtimes. As a script: on the backend of KERAS_BACKEND.

    KERAS_BACKEND=tensorflow python to_keras_runs.py FOLDER [CASE ...]

prints one line of JSON: the largest errors of each case, and what became of a saved model.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

import onward
from backends.tensorflow_models import batches as network_batches
from backends.tensorflow_models import trained, with_weights

Feeds = dict[str, np.ndarray]

HEAD = '<ir_version: 10, opset_import: ["" : 20]>\n'
TWO = """net (float[N,6] a, float[N,4] b) => (float[N,3] logits, float[N,2] values) {
    h0 = Gemm(a, wa)
    h1 = Tanh(h0)
    h2 = Gemm(b, wb)
    h3 = Concat <axis = 1> (h1, h2)
    logits = Gemm(h3, head)
    values = Gemm(h3, tail)
}"""


@dataclasses.dataclass
class Case:
    """A training model, its batches, and the runtime to compare it with."""

    model: onward.TrainingModel
    batches: Callable[[list[int]], list[Feeds]]
    oracle: str = "onnxruntime"


def network(name: str, dtype: type = np.float32, optimizer: Any = None) -> Case:
    oracle = "onnxruntime" if dtype == np.float32 else "torch"
    return Case(trained(name, dtype, optimizer), lambda sizes: network_batches(name, sizes, dtype), oracle)


def between() -> Case:
    """Clipping, accumulation, an average of the weights, a schedule and a penalty, all of them nodes of the file."""
    rate = onward.schedules.Cosine(1e-2, steps=30)
    optimizer = onward.AdamW(rate, weight_decay=0.1, clip_global_norm=0.5, accumulate=3, ema=0.9, epsilon=1e-4)
    return network("transformer", optimizer=optimizer)


def frozen() -> Case:
    from backends.tensorflow_models import network as onnx_network

    model = onward.make_trainable(
        onnx_network("transformer"), loss="cross_entropy", optimizer=onward.SGD(0.1), train=["head", "offset"]
    )
    return Case(model, lambda sizes: network_batches("transformer", sizes))


def two() -> Case:
    """Two inputs, two outputs, two losses of which one is weighted: two targets."""
    proto = with_weights(HEAD + TWO, {"wa": (6, 5), "wb": (4, 5), "head": (10, 3), "tail": (10, 2)})
    model = onward.make_trainable(
        proto,
        loss={"logits": "cross_entropy", "values": (onward.losses.MSE(), 0.5)},
        optimizer=onward.Adam(1e-2, epsilon=1e-4),
    )

    def batches(sizes: list[int]) -> list[Feeds]:
        rng = np.random.default_rng(2)
        targets = [n for n in model.targets if "logits" in n or n == "labels"]
        (labels,) = targets or model.targets[:1]
        (values,) = [n for n in model.targets if n != labels]
        return [
            {
                "a": rng.standard_normal((n, 6)).astype(np.float32),
                "b": rng.standard_normal((n, 4)).astype(np.float32),
                labels: rng.integers(0, 3, n),
                values: rng.standard_normal((n, 2)).astype(np.float32),
            }
            for n in sizes
        ]

    return Case(model, batches)


CASES: dict[str, Callable[[], Case]] = {
    "cnn": lambda: network("cnn"),
    "cnn64": lambda: network("cnn", np.float64),
    "lstm": lambda: network("lstm", optimizer=onward.optimizers.RMSprop(1e-3)),
    "transformer64": lambda: network("transformer", np.float64, onward.optimizers.TorchAdamW(1e-3)),
    "between": between,
    "frozen": frozen,
    "two": two,
}


def set_type(case: Case) -> None:
    """Let Keras and JAX compute in the type of the case."""
    wide = case.oracle == "torch"
    keras.config.set_floatx("float64" if wide else "float32")
    if keras.backend.backend() == "jax":
        import jax

        jax.config.update("jax_enable_x64", wide)


def train(model: Any, source: onward.TrainingModel, feeds: Feeds) -> float:
    """Return the loss of one step; without the reset it would be a running mean."""
    model.reset_metrics()
    x, y = ({n: feeds[n] for n in names} for names in (source.inputs, source.targets))
    one_x, one_y = (next(iter(v.values())) if len(v) == 1 else v for v in (x, y))
    return float(np.ravel(model.train_on_batch(one_x, one_y, return_dict=True)["loss"])[0])


def numbers(model: Any) -> dict[str, np.ndarray]:
    """Return all variables by their ONNX names."""
    found = {n: np.asarray(keras.ops.convert_to_numpy(v.value)) for n, v in model.onnx_variables.items()}
    return {**found, **{n: model.optimizer.numbers(n) for n in model.optimizer.state}}


def distance(state: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    worst = 0.0
    for name, value in wanted.items():
        ours, theirs = state[name].astype(np.float64), value.astype(np.float64)
        worst = max(worst, float(np.linalg.norm(ours - theirs)) / max(float(np.linalg.norm(theirs)), 1e-9))
    return worst


def errors(case: Case, steps: int = 50) -> dict[str, float]:
    """Return the largest errors of losses, state and predictions after `steps` steps, the last batch smaller."""
    set_type(case)
    theirs = onward.Trainer(case.model, backend=case.oracle)
    feeds = case.batches([6] * (steps + 2) + [3])
    for batch in feeds[:3]:
        theirs.step(batch)
    model = onward.to_keras(theirs.to_model())  # half-trained
    worst = 0.0
    for batch in feeds[3:]:
        wanted = float(theirs.step(batch)["loss"])
        worst = max(worst, abs(train(model, case.model, batch) - wanted) / abs(wanted))
    batch = feeds[0]
    inputs = {n: batch[n] for n in case.model.inputs}
    given = next(iter(inputs.values())) if len(inputs) == 1 else inputs
    found = model.predict(given, verbose=0)
    found = found if isinstance(found, dict) else {case.model.outputs[0]: found}
    outputs = theirs.session.infer(inputs)
    model.reset_metrics()
    targets = {n: batch[n] for n in case.model.targets}
    one = next(iter(targets.values())) if len(targets) == 1 else targets
    loss = float(np.ravel(model.evaluate(given, one, verbose=0, return_dict=True)["loss"])[0])
    wanted = float(theirs.session.evaluate(batch)["loss"])
    return {
        "losses": worst,
        "state": distance(numbers(model), theirs.session.get_state()),
        "predictions": distance(found, {n: outputs[n] for n in found}),
        "evaluation": abs(loss - wanted) / abs(wanted),
    }


# -- saving ----------------------------------------------------------------------------------------------------------

LOADED = """
import json, sys
import numpy as np
import onward
import keras
from frontends.keras import to_keras_runs as runs
case = runs.network("cnn", optimizer=onward.Adam(1e-2, epsilon=1e-4))
model = keras.saving.load_model(sys.argv[1])
again = onward.from_keras(model)
trainer = onward.Trainer(again)
batches = case.batches([6] * 8)[4:]
ours = [runs.train(model, case.model, b) for b in batches]
print(json.dumps({"losses": ours, "class": type(model).__name__, "parameters": sorted(again.parameters)}))
"""


def saved_and_loaded(folder: Path) -> dict[str, Any]:
    """Return the losses of a model that is saved after four steps and loaded in another process, and of one alone."""
    case = network("cnn", optimizer=onward.Adam(1e-2, epsilon=1e-4))
    set_type(case)
    batches = case.batches([6] * 8)
    model = onward.to_keras(case.model)
    for batch in batches[:4]:
        train(model, case.model, batch)
    model.save(folder / "net.keras")
    alone = [train(model, case.model, batch) for batch in batches[4:]]
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", LOADED, str(folder / "net.keras")]
    done = subprocess.run(command, capture_output=True, text=True, env=path, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {"alone": alone, **json.loads(done.stdout.strip().splitlines()[-1])}


def main(folder: Path, *names: str) -> None:
    found: dict[str, Any] = {}
    for name in names or CASES:
        found[name] = errors(CASES[name]())
        print(name, found[name], file=sys.stderr)
    found["saved"] = saved_and_loaded(folder)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
