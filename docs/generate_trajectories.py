"""Write docs/trajectories.md: how far 50 training steps outside of a framework are from 50 steps inside.

    python docs/generate_trajectories.py [--steps 50] [--reference-seconds 60]   # PyTorch's part
    python docs/generate_trajectories.py --of jax                                # that of JAX
    KERAS_BACKEND=jax python docs/generate_trajectories.py --of keras
    KERAS_BACKEND=tensorflow python docs/generate_trajectories.py --of tensorflow

The reference backend is slow; it stops after `--reference-seconds` per model, and the page says after how many steps.
Keras and TensorFlow are in the environment of `make test-frameworks`.
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib.metadata
import itertools
import platform
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

HEAD = """## PyTorch

Written by `python docs/generate_trajectories.py`; `tests/frontends/test_trajectories.py` checks that
these models stay within 1e-4 in float32 and 1e-9 in float64. Each model makes three steps in PyTorch, is converted with
`onward.from_torch`, optimizer state included, and PyTorch and Onward make the same {steps} steps from there.

Each run has two numbers: the largest relative difference of any *loss*; and after the last step, the largest distance
‖ours − PyTorch's‖ / ‖PyTorch's‖ of any *parameter or buffer*. (Single elements have no such bound: an element near zero
may be the difference of larger numbers.)

The bias of the keys in the decoder is not compared. It adds the same number to every score of a row, which Softmax
cancels, so its exact gradient is zero and the computed one is rounding noise. Adam with its epsilon of 1e-8 turns that
noise into full steps. No output depends on this bias; a test shows that, too.

- *ONNX Runtime*: `onward.Trainer(model)`, with the backward pass and the optimizer as plain ONNX operators;
- *torch backend*: `onward.Trainer(model, backend="torch")`, with torch's autograd, and the file's optimizer on torch's
  kernels;
- *back in PyTorch*: `onward.to_torch(model)`, with torch's autograd and torch's own optimizer on the imported graph;
- *reference*: `onward.Trainer(model, backend="reference")`, with every operator as the standard defines it, in numpy.

### float32, {steps} steps

| model | optimizer | ONNX Runtime: loss | state | torch backend: loss | state | back in PyTorch: loss | state |
|---|---|---|---|---|---|---|---|
"""
MIDDLE = """

### float64

*no kernel*: ONNX Runtime's CPU has no float64 kernel for the operator named.

| model | reference: steps | loss | state | ONNX Runtime: steps | loss | state |
|---|---|---|---|---|---|---|
"""


def main(steps: int, reference_seconds: float) -> None:
    import onnxruntime
    import torch
    from torch.onnx._internal._lazy_import import onnxscript_apis

    import onward
    from frontends.runs import batches, onward_step, start, torch_step, weights_of
    from frontends.special_runs import RUNS, gan_run
    from frontends.zoo import ZOO
    from onward.errors import BackendError

    torch.set_num_threads(1)
    onnxscript_apis.get_torchlib_ops = functools.lru_cache(maxsize=1)(onnxscript_apis.get_torchlib_ops)
    single, double = [], []
    for subject in ZOO:
        module, optimizer, model = start(subject)
        data = batches(subject, steps)
        cells = [subject.name, type(optimizer).__name__]
        for backend in ("onnxruntime", "torch"):
            trainer = onward.Trainer(model, backend=backend)
            take = functools.partial(onward_step, trainer)
            _, errors = _run(subject, (module, optimizer), data, take, lambda t=trainer, m=model: weights_of(t, m))
            cells += errors
        back, its_optimizer = onward.to_torch(model)
        back.train()
        take = functools.partial(torch_step, back, its_optimizer, subject.loss)
        tensors = functools.partial(_tensors, back)
        cells += _run(subject, (module, optimizer), data, take, tensors)[1]
        single.append(f"| {' | '.join(cells)} |")
        print(single[-1], file=sys.stderr, flush=True)

        module, optimizer, model = start(subject, torch.float64)
        data = batches(subject, steps, dtype=torch.float64)
        cells = [subject.name]
        for backend, seconds in (("reference", reference_seconds), ("onnxruntime", 1e9)):
            trainer = onward.Trainer(model, backend=backend)
            take = functools.partial(onward_step, trainer)
            held = functools.partial(weights_of, trainer, model)
            try:
                count, errors = _run(subject, (module, optimizer), data, take, held, seconds)
                cells += [str(count), *errors]
            except BackendError as error:
                kernel = re.search(r"implementation for (\w+)\(|(\w+) operator does not support double", str(error))
                if backend != "onnxruntime" or kernel is None:
                    raise
                cells += [f"no kernel: {kernel[1] or kernel[2]}", "", ""]
        double.append(f"| {' | '.join(cells)} |")
        print(double[-1], file=sys.stderr, flush=True)
    for name, (optimizers, run) in RUNS.items():
        found = run(steps, torch.float32, ["onnxruntime", "torch", *(["back"] if run is gan_run else [])])
        cells = [text for side in ("onnxruntime", "torch", "back") for text in _shown(found.get(side))]
        single.append(f"| {name} | {optimizers} | {' | '.join(cells)} |")
        kernels = ["reference", *(["onnxruntime"] if run is gan_run else [])]
        found = run(steps, torch.float64, kernels)
        there = [str(steps), *_shown(found["onnxruntime"])] if "onnxruntime" in found else ["no kernel: Conv", "", ""]
        double.append(f"| {name} | {' | '.join([str(steps), *_shown(found['reference']), *there])} |")
        print(single[-1], double[-1], sep="\n", file=sys.stderr, flush=True)
    versions = f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}, Python {platform.python_version()}"
    text = HEAD.format(steps=steps) + "\n".join(single) + MIDDLE + "\n".join(double)
    _write("torch", f"{text}\n\nMeasured with {versions}.\n")


# -- JAX, Keras and TensorFlow ---------------------------------------------------------------------------------------

STARTS = {"fresh": 0, "half-trained": 7}
LIMITS = {"float32": 1e-5, "float64": 1e-10}
KERNELS = "ONNX Runtime has no kernel for float64 convolutions, Erf and Sinh"
OPTAX = {
    "linear": "adagrad", "mlp": "clip_by_global_norm, adamw with a schedule", "cnn": "sgd, Nesterov",
    "depthwise": "adam", "two": "adam", "lstm": "rmsprop", "gru": "nadam", "transformer": "adam", "linen": "adam",
    "nnx": "lion", "equinox": "adamw",
}  # fmt: skip
CAUSES = {
    ("jax", "mlp", "float64"): "optax computes the rate of this schedule in 32 bits, which two libraries round "
    "differently in the last bit (`tests/frontends/jax/test_trajectories.py` shows that it is the schedule)",
}
"""Where a run may differ by more than the limit, and why."""
PARTS = {
    "jax": (
        "JAX",
        "the user's own loop with optax, jitted; `tests/frontends/jax/jax_models.py` has the models, `linen` and `nnx` "
        "are flax's (nnx: a ResNet)",
        ("jax", "optax", "flax", "equinox"),
    ),
    "keras": (
        "Keras",
        "`train_on_batch` of Keras on JAX; `tests/frontends/keras/keras_models.py` has the models. Keras on TensorFlow "
        "rounds Python numbers to 32 bits in float64 (`tests/frontends/tensorflow/test_keras_float64.py` shows it)",
        ("keras", "jax"),
    ),
    "tensorflow": (
        "TensorFlow",
        "a loop with GradientTape and an optimizer of Keras; `tests/frontends/tensorflow/tf_models.py` has the models",
        ("tensorflow-cpu", "keras", "tf2onnx"),
    ),
}


def frameworks(of: str, steps: int) -> None:
    """Write the part of one framework: a row for each model, type and start."""
    title, reference, packages = PARTS[of]
    cases = _cases(of)
    rows: list[str] = []
    for name, dtype, start in itertools.product(cases, LIMITS, STARTS):
        optimizer, backend, errors = cases[name](dtype, STARTS[start], steps)
        loss, state = errors.pop("losses"), max(errors.values())
        cause = CAUSES.get((of, name, dtype), "") if max(loss, state) > LIMITS[dtype] else ""
        if max(loss, state) > LIMITS[dtype] and not cause:
            raise SystemExit(f"{of}, {name}, {dtype}, {start}: {loss:.1e} and {state:.1e} without a known cause")
        cells = [name, optimizer, dtype, start, backend, *_shown([loss, state]), cause]
        rows.append(f"| {' | '.join(cells)} |")
        print(rows[-1], file=sys.stderr, flush=True)
        installed = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in packages)
        _write(
            of,
            f"## {title}, {steps} steps\n\nThe last of the batches is smaller. The reference is {reference}. "
            f"The limits are 1e-5 in float32 and 1e-10 in float64; {KERNELS}, so these models run on another backend. "
            "*state*: parameters, statistics and the optimizer's state, each relative to its largest element.\n\n"
            "| model | optimizer | type | start | backend | loss | state | above the limit because |\n"
            f"|---|---|---|---|---|---|---|---|\n{chr(10).join(rows)}\n\nMeasured with {installed}.\n",
        )


def _cases(of: str) -> dict[str, Callable[[str, int, int], tuple[str, str, dict[str, float]]]]:
    """Return what trains each model of a framework on both sides: optimizer, backend, errors."""
    if of == "jax":
        import jax

        from frontends.jax.jax_models import CASES as models
        from frontends.jax.jax_runs import errors as compared

        def run_jax(name: str, dtype: str, before: int, steps: int) -> tuple[str, str, dict[str, float]]:
            double = dtype == "float64"
            backend = "jax" if double and name in ("cnn", "depthwise", "linen", "nnx", "transformer") else "onnxruntime"
            jax.config.update("jax_enable_x64", double)
            found = compared(models[name](np.dtype(dtype).type), before=before, steps=steps, backend=backend)
            return OPTAX[name], backend, found

        return {name: functools.partial(run_jax, name) for name in models}
    if of == "keras":
        import keras

        from frontends.keras.keras_models import CASES as keras_models
        from frontends.keras.keras_models import set_type
        from frontends.keras.keras_runs import errors as keras_errors
        from frontends.keras.test_trajectories import backend as backend_of

        def run_keras(name: str, dtype: str, before: int, steps: int) -> tuple[str, str, dict[str, float]]:
            set_type(dtype)
            keras.utils.set_random_seed(0)
            case, backend = keras_models[name](), backend_of(name, dtype)
            found = keras_errors(case, before=before, steps=steps, backend=backend)
            return type(case.model.optimizer).__name__, backend, found

        return {name: functools.partial(run_keras, name) for name in keras_models}
    import keras
    import tensorflow as tf

    from frontends.tensorflow.tf_models import CASES as tf_models
    from frontends.tensorflow.tf_runs import errors as tf_errors

    def run_tensorflow(name: str, dtype: str, before: int, steps: int) -> tuple[str, str, dict[str, float]]:
        tf.random.set_seed(0)
        double = dtype == "float64"
        backend = "torch" if double and name in ("normed", "attention") else "onnxruntime"
        optimizer = keras.optimizers.Adagrad(0.25, epsilon=0.125) if double else keras.optimizers.SGD(0.05, 0.9)
        found = tf_errors(tf_models[name](dtype), optimizer, before=before, steps=steps, backend=backend)
        return type(optimizer).__name__, backend, found

    return {name: functools.partial(run_tensorflow, name) for name in tf_models}


def _write(part: str, text: str) -> None:
    """Replace one part of the page, between its markers; a new part goes to the end."""
    path = Path(__file__).parent / "trajectories.md"
    page = path.read_text() if path.exists() else ""
    begin, end = f"<!-- {part}: begin -->\n", f"<!-- {part}: end -->\n"
    if begin in page:
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}{text}{end}{rest.partition(end)[2]}"
    else:
        page = f"{page.rstrip()}\n\n{begin}{text}{end}".lstrip()
    path.write_text(page)


# -- what all share --------------------------------------------------------------------------------------------------


def _tensors(module: Any) -> dict[str, Any]:
    return {n: t.detach().numpy() for n, t in module.named_tensors().items()}


def _run(
    subject: Any,
    theirs: tuple[Any, Any],
    data: Sequence[Any],
    take: Callable[..., float],
    state: Callable[[], dict[str, Any]],
    seconds: float = 1e9,
) -> tuple[int, list[str]]:
    """Make the steps on both sides and return their number and the two errors as text."""
    from frontends.runs import distances, torch_step, worst

    module, optimizer = copy.deepcopy(theirs)
    expected, actual = [], []
    begin = time.monotonic()
    for inputs, targets in data:
        expected.append(torch_step(module, optimizer, subject.loss, inputs, targets))
        actual.append(take(inputs, targets))
        if time.monotonic() - begin > seconds:
            break
    errors = (worst(actual, expected), max(distances(state(), module, subject.undetermined).values()))
    return len(actual), _shown(errors)


def _shown(errors: Sequence[float] | None) -> list[str]:
    return ["compared with", "this"] if errors is None else ["0" if e == 0 else f"{e:.0e}" for e in errors]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--reference-seconds", type=float, default=60)
    parser.add_argument("--of", choices=["torch", *PARTS], default="torch")
    given = parser.parse_args()
    if given.of == "torch":
        main(given.steps, given.reference_seconds)
    else:
        frameworks(given.of, given.steps)
