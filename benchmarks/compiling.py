"""How long compilation takes: `onward.compile` of training models, whole and split.

    python benchmarks/compiling.py [--rounds 5] [--json compiling.json]

Prints the best of several rounds, in milliseconds of processor time, and what a training step of 10,000 nodes takes
from the ONNX model to the first loss (the goal is 5 s). To compare two versions of Onward, run it with PYTHONPATH set
to the `src` of each in turn.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import networks
import numpy as np
import onnx

import onward


def trainable(proto: onnx.ModelProto) -> onward.TrainingModel:
    """Return the network with its own output as the loss, and Adam."""
    return onward.make_trainable(
        proto, loss=lambda op, output, labels: output, label=None, loss_name="total", optimizer="adam"
    )


NETWORKS: dict[str, Callable[[], onward.TrainingModel]] = {
    "digits": lambda: onward.samples.build("digits"),
    "ResNet-50, folded": lambda: trainable(networks.resnet50(width=8, normalized=False)[0]),
    "BERT, 12 layers": lambda: trainable(networks.bert(hidden=48)[0]),
    "chain of 2,000": lambda: trainable(networks.chain(2_000)[0]),
}


def measure(model: onward.TrainingModel, rounds: int, *, split: bool) -> float:
    """Return the shortest time of several compilations, in seconds of processor time."""
    found = []
    for _ in range(rounds):
        began = time.process_time()
        onward.compile(model, split=split)
        found.append(time.process_time() - began)
    return min(found)


def build_time() -> dict[str, float]:
    """Return the seconds of processor time of each stage until a step of about 10,000 nodes has run once."""
    from onward.backends import open_session

    proto = networks.chain(1_050)[0]
    feeds = {"x": np.ones((4, 8), np.float32)}
    began = time.process_time()
    model = trainable(proto)
    made = time.process_time()
    program = onward.compile(model)
    compiled = time.process_time()
    open_session(program, "onnxruntime", threads=1).step(feeds)
    ran = time.process_time()
    nodes = len(program.entries["train"].step.model.graph)
    return {"nodes": nodes, "make": made - began, "compile": compiled - made, "session": ran - compiled,
            "all": ran - began}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the numbers")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    results = {}
    print(f"{'network':<20}{'whole':>10}{'split':>10}   (ms, {onward.__file__})")
    for name, build in NETWORKS.items():
        model = build()
        whole, split = (measure(model, arguments.rounds, split=s) for s in (False, True))
        results[name] = {"whole": whole, "split": split}
        print(f"{name:<20}{whole * 1e3:>10.1f}{split * 1e3:>10.1f}")
    found = [build_time() for _ in range(2)][-1]  # the first one imports
    results["10,000 nodes"] = found
    stages = ", ".join(f"{stage} {found[stage]:.2f} s" for stage in ("make", "compile", "session"))
    print(f"a step of {found['nodes']:,} nodes: {stages}; together {found['all']:.2f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
