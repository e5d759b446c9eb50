"""Write docs/trajectories.md: how far 50 training steps outside of PyTorch are from 50 steps inside.

    python docs/generate_trajectories.py [--steps 50] [--reference-seconds 60]

The reference backend is slow; it stops after `--reference-seconds` per model, and the page says after how many steps.
"""

from __future__ import annotations

import argparse
import copy
import functools
import platform
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

HEAD = """# Trajectories

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

## float32, {steps} steps

| model | optimizer | ONNX Runtime: loss | state | torch backend: loss | state | back in PyTorch: loss | state |
|---|---|---|---|---|---|---|---|
"""
MIDDLE = """

## float64

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
    (Path(__file__).parent / "trajectories.md").write_text(f"{text}\n\nMeasured with {versions}.\n")


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
    main(**vars(parser.parse_args()))
