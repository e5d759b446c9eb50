"""What `tune=` chooses and gains: for the layers of several networks, and for a whole training step of each.

    python benchmarks/tuning.py [--networks lenet mobilenet] [--batch 32] [--threads 2] [--rounds 40] [--json FILE]

Every gradient is measured anew, in a folder of its own, not in the user's cache. Prints for each gradient that has
several forms the time of each, the one that was taken, and its gain over the usual one. Then the step of the usual and
of the tuned program run in turn on stock sessions, so that what else the machine does meets both alike: the median of
each, and the median of the quotients of neighbouring runs.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from portable import NETWORKS as SMALL
from portable import convolutional, measure

import onward
from onward.compiler.tuning import Tuner

NETWORKS: dict[str, Callable[[], onward.TrainingModel]] = {
    "lenet": SMALL["mnist (LeNet)"],
    "mobilenet": lambda: convolutional(
        (3, 32, 32),
        [
            (32, 3, 1, 1), (32, 3, 1, 32), (64, 1, 1, 1), (64, 3, 2, 64), (128, 1, 1, 1), (128, 3, 1, 128),
            (128, 1, 1, 1), (128, 3, 2, 128), (256, 1, 1, 1), (256, 3, 1, 256), (256, 1, 1, 1),
        ],
    ),
    "resnet": lambda: convolutional(
        (3, 32, 32),
        [(64, 3, 1, 1), (64, 3, 1, 1), (128, 3, 2, 1), (128, 3, 1, 1), (256, 3, 2, 1), (256, 3, 1, 1), (512, 1, 1, 1)],
    ),
    "vgg with pools": lambda: convolutional(
        (3, 64, 64), [(32, 3, 1, 1), (2, 2, 0), (64, 3, 1, 1), (3, 2, 1), (128, 3, 1, 1), (2, 2, 0), (128, 5, 1, 1)]
    ),
}  # fmt: skip


def tuned(model: onward.TrainingModel, batch: int, threads: int) -> tuple[onward.Program, Tuner, float]:
    """Return the tuned program, what was found, and how long that took."""
    tuner = Tuner(batch, threads=threads)
    began = time.perf_counter()
    program = onward.compile(model, tune=tuner)
    return program, tuner, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path, help="write the numbers")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ONWARD_CACHE"] = folder
        for name in arguments.networks:
            model = NETWORKS[name]()
            usual = onward.compile(model)
            program, tuner, seconds = tuned(model, arguments.batch, arguments.threads)
            print(f"{name}: {len(tuner.found)} gradients with a choice, tuned in {seconds:.1f} s")
            for each in sorted(tuner.found, key=lambda t: -t.gain):
                times = sorted(each.seconds.items(), key=lambda item: item[1])
                told = ", ".join(f"{form}{'*' * (form == each.form)} {1e3 * t:.3f} ms" for form, t in times)
                print(f"  {each.gain:5.2f}  {each.question.key}{' (disturbed)' * each.disturbed}")
                print(f"         {each.reason or told}")
            steps = measure([usual, program], arguments.batch, arguments.rounds, arguments.threads)
            before, after = (float(s) * 1e3 for s in np.median(steps, axis=0))
            gain = float(np.median(steps[:, 0] / steps[:, 1]))
            print(f"  a step: {before:.2f} ms as usual, {after:.2f} ms tuned, {gain:.2f} times as fast\n")
            results[name] = {
                "seconds_to_tune": seconds, "usual_ms": before, "tuned_ms": after, "gain": gain,
                "disturbed": sum(t.disturbed for t in tuner.found),
                "gradients": {t.question.key: {"form": t.form, "gain": t.gain, **t.seconds} for t in tuner.found},
            }  # fmt: skip
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
