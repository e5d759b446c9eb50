"""JAX, Keras and TensorFlow against Onward, one CNN in all of them: `python benchmarks/frameworks.py [--docs]`.

Measures the capture of the network (`from_jax`, `from_keras`), and its training step in pairs, each pair in one process
and in turns, so that noise affects both:

    ONNX Runtime, captured from JAX     against  the same network through make_trainable
    to_jax                              against  hand-written JAX and optax
    to_tensorflow                       against  hand-written Keras on TensorFlow

All start from the same weights; the losses of the first steps are compared. Prints a table, and with `--docs` writes it
into docs/benchmarks.md. Needs JAX, Keras and TensorFlow: run it in the environment of `make test-frameworks`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from report import machine, write_section

HERE = Path(__file__).parent
BATCH, SIZE, CLASSES, RATE = 32, 32, 10, 1e-3
LAYERS = ((3, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2))  # channels in and out, stride
EPSILON = 1e-3
TURN = 0.4  # seconds
SAME_LOSS = 1e-3
Step = Callable[[int], float]


# -- the network, in every framework ---------------------------------------------------------------------------------


def weights() -> dict[str, np.ndarray]:
    """Return the weights: kernels HWIO, as JAX and Keras have them."""
    rng = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {}
    for i, (before, width, _) in enumerate(LAYERS):
        found[f"conv{i}"] = rng.standard_normal((3, 3, before, width)) * np.sqrt(2 / (9 * before))
        found[f"scale{i}"], found[f"bias{i}"] = np.ones(width), np.zeros(width)
    found["dense"] = rng.standard_normal((LAYERS[-1][1], CLASSES)) * 0.1
    found["offset"] = np.zeros(CLASSES)
    return {name: value.astype(np.float32) for name, value in found.items()}


def batches(count: int = 8) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return batches of images, channels last, and labels."""
    rng = np.random.default_rng(1)
    shape = (BATCH, SIZE, SIZE, LAYERS[0][0])
    return [
        (rng.standard_normal(shape).astype(np.float32), rng.integers(0, CLASSES, BATCH).astype(np.int32))
        for _ in range(count)
    ]


def channels_first(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def onnx_model() -> Any:
    """Return the network as a plain ONNX model, channels first."""
    import onnx

    lines, at = [], "x"
    tensors: dict[str, np.ndarray] = {}
    given = weights()
    for i, (_, width, stride) in enumerate(LAYERS):
        lines.append(
            f"c{i} = Conv <pads=[{2 - stride}, {2 - stride}, 1, 1], strides=[{stride}, {stride}]> ({at}, conv{i}) "
            f"b{i} = BatchNormalization <epsilon={EPSILON}, momentum=0.9> (c{i}, scale{i}, bias{i}, mean{i}, var{i}) "
            f"r{i} = Relu (b{i})"
        )
        at = f"r{i}"
        tensors[f"conv{i}"] = np.ascontiguousarray(given[f"conv{i}"].transpose(3, 2, 0, 1))
        tensors[f"scale{i}"], tensors[f"bias{i}"] = given[f"scale{i}"], given[f"bias{i}"]
        tensors[f"mean{i}"], tensors[f"var{i}"] = np.zeros(width, np.float32), np.ones(width, np.float32)
    lines.append(f"p = GlobalAveragePool ({at}) f = Flatten (p) logits = Gemm (f, dense, offset)")
    tensors["dense"], tensors["offset"] = given["dense"], given["offset"]
    text = f"""<ir_version: 8, opset_import: ["": 18]>
    cnn (float[N, {LAYERS[0][0]}, {SIZE}, {SIZE}] x) => (float[N, {CLASSES}] logits) {{ {" ".join(lines)} }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, n) for n, v in tensors.items())
    return model


class JaxNetwork:
    """The network in jax.numpy and lax, with optax's Adam."""

    def __init__(self) -> None:
        import jax.numpy as jnp
        import optax

        self.params = {name: jnp.asarray(value) for name, value in weights().items()}
        self.state = {}
        for i, (_, width, _) in enumerate(LAYERS):
            self.state[f"mean{i}"], self.state[f"var{i}"] = jnp.zeros(width), jnp.ones(width)
        self.optimizer = optax.adam(RATE)

    @staticmethod
    def forward(params: Any, state: Any, x: Any, train: bool) -> tuple[Any, Any]:
        import jax
        from jax import lax

        new = dict(state)
        for i, (_, _, stride) in enumerate(LAYERS):
            x = lax.conv_general_dilated(
                x, params[f"conv{i}"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            mean, var = state[f"mean{i}"], state[f"var{i}"]
            if train:
                mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
                new[f"mean{i}"] = 0.9 * state[f"mean{i}"] + 0.1 * mean
                new[f"var{i}"] = 0.9 * state[f"var{i}"] + 0.1 * var
            x = (x - mean) * (lax.rsqrt(var + EPSILON) * params[f"scale{i}"]) + params[f"bias{i}"]
            x = jax.nn.relu(x)
        return x.mean((1, 2)) @ params["dense"] + params["offset"], new

    def predict(self, params: Any, state: Any, batch: Any) -> Any:
        return self.forward(params, state, batch["x"], False)[0]

    def loss(self, params: Any, state: Any, batch: Any) -> tuple[Any, Any]:
        import optax

        logits, new = self.forward(params, state, batch["x"], True)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean(), new

    def capture(self) -> Any:
        import onward

        x, y = batches(1)[0]
        return onward.from_jax(
            self.loss,
            self.params,
            self.state,
            optimizer=self.optimizer,
            example_batch={"x": x, "y": y},
            predict=self.predict,
        )


def keras_model() -> Any:
    """Return the network in Keras, compiled."""
    import keras
    from keras import layers

    stack: list[Any] = [keras.Input((SIZE, SIZE, LAYERS[0][0]))]
    for _, width, stride in LAYERS:
        stack += [
            layers.Conv2D(width, 3, strides=stride, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9, epsilon=EPSILON),
            layers.ReLU(),
        ]
    model = keras.Sequential([*stack, layers.GlobalAveragePooling2D(), layers.Dense(CLASSES)])
    model.compile(
        optimizer=keras.optimizers.Adam(RATE), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    for variable, value in zip(model.trainable_variables, weights().values(), strict=True):
        variable.assign(value)
    return model


# -- what is compared ------------------------------------------------------------------------------------------------


def captured_on_onnxruntime() -> Step:
    import onward

    trainer = onward.Trainer(JaxNetwork().capture())
    data = batches()
    return lambda k: float(trainer.step(dict(zip(("x", "y"), data[k % len(data)], strict=True)))["loss"])


def authored_model() -> Any:
    import onward

    return onward.make_trainable(onnx_model(), loss="cross_entropy", optimizer=onward.Adam(RATE))


def authored_on_onnxruntime() -> Step:
    import onward

    model = authored_model()
    trainer = onward.Trainer(model)
    data = [{model.inputs[0]: channels_first(x), model.targets[0]: y.astype(np.int64)} for x, y in batches()]
    return lambda k: float(trainer.step(data[k % len(data)])["loss"])


def _jax_step(loss: Any, params: Any, state: Any, data: Any) -> Step:
    """Return a step of optax's Adam, jitted as one function whose state is donated."""
    import jax
    import optax

    optimizer = optax.adam(RATE)

    def train(held: Any, batch: Any) -> Any:
        params, state, moments = held
        (value, state), gradients = jax.value_and_grad(loss, has_aux=True)(params, state, batch)
        updates, moments = optimizer.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), state, moments), value

    jitted = jax.jit(train, donate_argnums=0)
    held = jax.tree.map(jax.numpy.array, (params, state, optimizer.init(params)))
    given = [jax.tree.map(jax.numpy.asarray, batch) for batch in data]

    def step(k: int) -> float:
        nonlocal held
        held, value = jitted(held, given[k % len(given)])
        return float(value)

    return step


def written_in_jax() -> Step:
    network = JaxNetwork()
    return _jax_step(network.loss, network.params, network.state, [{"x": x, "y": y} for x, y in batches()])


def to_jax_captured() -> Step:
    import onward

    fn, params, state = onward.to_jax(JaxNetwork().capture())
    return _jax_step(fn, params, state, [{"x": x, "y": y} for x, y in batches()])


def to_jax_authored() -> Step:
    import onward

    model = authored_model()
    fn, params, state = onward.to_jax(model)
    data = [{model.inputs[0]: channels_first(x), model.targets[0]: y.astype(np.int64)} for x, y in batches()]
    return _jax_step(fn, params, state, data)


def written_in_keras() -> Step:
    import tensorflow as tf

    model = keras_model()

    @tf.function
    def train(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = model.compute_loss(x, y, model(x, training=True))
        trained = model.trainable_variables
        model.optimizer.apply(tape.gradient(value, trained), trained)
        return value

    data = [(tf.constant(x), tf.constant(y)) for x, y in batches()]
    return lambda k: float(train(*data[k % len(data)]))


def to_tensorflow() -> Step:
    import tensorflow as tf

    import onward

    module = onward.to_tensorflow(authored_model())
    data = [(tf.constant(channels_first(x)), tf.constant(y.astype(np.int64))) for x, y in batches()]
    return lambda k: float(module.train_step(*data[k % len(data)])["loss"])


def to_tensorflow_captured() -> Step:
    import tensorflow as tf

    import onward

    module = onward.to_tensorflow(JaxNetwork().capture())
    data = [(tf.constant(x), tf.constant(y)) for x, y in batches()]
    return lambda k: float(module.train_step(*data[k % len(data)])["loss"])


GROUPS: dict[str, dict[str, Callable[[], Step]]] = {
    "onnxruntime": {"make_trainable": authored_on_onnxruntime, "captured from JAX": captured_on_onnxruntime},
    "jax": {
        "hand-written JAX": written_in_jax,
        "to_jax": to_jax_authored,
        "to_jax, captured from JAX": to_jax_captured,
    },
    "tensorflow": {
        "hand-written Keras": written_in_keras,
        "to_tensorflow": to_tensorflow,
        "to_tensorflow, captured from JAX": to_tensorflow_captured,
    },
}
"""The first of each group is what the others are compared with."""

GOAL = 1.2
CAPTURES = {"from_jax": "jax", "from_keras": "jax", "from_keras, model on TensorFlow": "tensorflow"}
CAPTURE_GOAL = 5.0  # seconds, without the child process


# -- workers: one process each ---------------------------------------------------------------------------------------


def compare(group: str, turns: int) -> dict[str, Any]:
    """Return, for each contender of a group, the seconds of its steps by turn, and its first losses."""
    steps = {name: make() for name, make in GROUPS[group].items()}
    losses = {name: [step(k) for k in range(3)] for name, step in steps.items()}
    counts, times = {}, {name: [] for name in steps}
    for name, step in steps.items():
        begin = time.perf_counter()
        for k in range(3, 8):
            step(k)
        counts[name] = max(3, round(TURN * 5 / (time.perf_counter() - begin)))
    for turn in range(turns):
        order = list(steps) if turn % 2 else list(reversed(steps))
        for name in order:
            measured = []
            for k in range(counts[name] + 1):
                begin = time.perf_counter()
                steps[name](k)
                measured.append(time.perf_counter() - begin)
            times[name].append(measured[1:])  # the first step runs on the caches of the other
    return {"times": times, "losses": losses}


def capture(name: str) -> dict[str, float]:
    """Return the seconds that a capture takes in a process that has imported its frameworks, and no more."""
    import onward

    if name == "from_jax":
        network = JaxNetwork()
        begin = time.perf_counter()
        network.capture()
    else:
        model = keras_model()
        begin = time.perf_counter()
        onward.from_keras(model)
    return {"seconds": time.perf_counter() - begin}


def ask(kind: str, name: str, turns: int, keras: str) -> dict[str, Any]:
    """Return what a worker in a process of its own measured."""
    command = [sys.executable, "-W", "ignore", __file__, "--worker", kind, name, str(turns)]
    environment = {**os.environ, "KERAS_BACKEND": keras, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installation has bytecode; a capture would compile 300 files
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{kind} {name} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# -- the report ------------------------------------------------------------------------------------------------------


def rows(group: str, found: dict[str, Any]) -> list[str]:
    """Return a row of the table for each contender; refuse a comparison of different networks."""
    first, *_ = GROUPS[group]
    reference = found["losses"][first]
    typical = {name: [statistics.median(turn) for turn in turns] for name, turns in found["times"].items()}
    lines = []
    for name, turns in found["times"].items():
        off = abs(found["losses"][name][0] / reference[0] - 1)
        if off > SAME_LOSS:
            raise SystemExit(f"{name} has another first loss: {found['losses'][name]} instead of {reference}")
        every = sorted(t * 1e3 for turn in turns for t in turn)
        low, middle, high = (every[round(q * (len(every) - 1))] for q in (0.25, 0.5, 0.75))
        ratios = sorted(a / b for a, b in zip(typical[name], typical[first], strict=True))
        ratio = statistics.median(ratios)
        verdict = "" if name == first else f"{ratio:.2f}" if ratio <= GOAL else f"**{ratio:.2f}: missed**"
        spread = "" if name == first else f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        lines.append(
            f"| {group} | {name} | {middle:.1f} | {low:.1f} to {high:.1f} | {verdict} | {spread} | {len(every)} |"
        )
    return lines


def report(captures: dict[str, list[float]], groups: dict[str, dict[str, Any]]) -> str:
    """Return the tables as a part of a page."""
    versions = ", ".join(
        f"{name} {importlib.metadata.version(package)}"
        for name, package in (
            ("ONNX Runtime", "onnxruntime"), ("JAX", "jax"), ("Keras", "keras"), ("TensorFlow", "tensorflow-cpu")
        )
    )  # fmt: skip
    lines = [
        f"{machine()}; {versions}. A CNN of {len(LAYERS)} convolutions with batch normalisation, images of {SIZE} × "
        f"{SIZE}, batch {BATCH}, Adam. A ratio is of medians, turn by turn; the goal is {GOAL}.",
        "",
        "| runs on | step | ms, median | middle half | × the first | of single turns | steps |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for group, found in groups.items():
        lines += rows(group, found)
    lines += ["", "| capture | s, median | all | goal |", "|---|---:|---:|---:|"]
    for name, seconds in captures.items():
        middle = statistics.median(seconds)
        apart = "TensorFlow" in name
        goal = "child process apart" if apart else f"{CAPTURE_GOAL:g}" + ("" if middle <= CAPTURE_GOAL else ": missed")
        lines.append(f"| {name} | {middle:.1f} | {', '.join(f'{s:.1f}' for s in seconds)} | {goal} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12, help="turns of each step")
    parser.add_argument("--repeats", type=int, default=3, help="processes in which each capture is measured")
    parser.add_argument("--groups", default=",".join(GROUPS), help="the groups of steps to measure")
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/benchmarks.md")
    parser.add_argument("--worker", nargs=3, metavar=("KIND", "NAME", "TURNS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        kind, name, turns = given.worker
        print(json.dumps(capture(name) if kind == "capture" else compare(name, int(turns))))
        return
    groups = {}
    for group in filter(None, given.groups.split(",")):
        groups[group] = ask("compare", group, given.turns, "tensorflow")
        print("\n".join(rows(group, groups[group])), flush=True)
    captures: dict[str, list[float]] = {name: [] for name in CAPTURES}
    for _ in range(given.repeats):
        for name, keras in CAPTURES.items():
            captures[name].append(ask("capture", name, 0, keras)["seconds"])
    text = report(captures, groups)
    print("\n" + text)
    if given.docs:
        write_section(HERE.parent / "docs" / "benchmarks.md", "frameworks", text)


if __name__ == "__main__":
    main()
