"""Kill a process that saves a model over and over, and look what is on the disk.

`python tests/hostile/kill_saves.py 100` prints how many times the file was the old model, the new one, and neither.
With external data too: a model must never point at the data of another.
"""

from __future__ import annotations

import collections
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

import numpy as np
from onnx import helper, numpy_helper

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src")]

from onward.errors import OnwardError  # noqa: E402  # found through the path above
from onward.model import serde  # noqa: E402

SIZE = 300_000


def model(fill: float):
    """Return a model whose weights are all `fill`, and whose name says so."""
    weights = numpy_helper.from_array(np.full(SIZE, fill, np.float32), "W")
    return helper.make_model(helper.make_graph([], f"fill {fill:g}", [], [], [weights]), ir_version=10)


def outcome(path: pathlib.Path) -> str:
    try:
        loaded = serde.load(path)
    except OnwardError as error:
        return f"BROKEN {error.code}"
    found = np.unique(loaded.graph.initializers["W"].const_value.numpy())
    if len(found) != 1 or loaded.graph.name != f"fill {found[0]:g}":
        return "MIXED"
    return loaded.graph.name or ""


def main(kills: int) -> int:
    rng = random.Random(0)
    outcomes: collections.Counter[str] = collections.Counter()
    models = [model(1), model(2)]
    for external in (False, True):
        with tempfile.TemporaryDirectory() as name:
            path = pathlib.Path(name) / "m.onnx"
            serde.save(models[0], path, external_data=external)
            for _ in range(kills):
                child = os.fork()
                if not child:
                    turn = 0
                    while True:
                        turn += 1
                        serde.save(models[turn % 2], path, external_data=external)
                time.sleep(rng.uniform(0.0, 0.12))
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                outcomes[outcome(path)] += 1
                used = {path.name, *(e.value for e in _locations(path))}
                for stray in pathlib.Path(name).iterdir():
                    if stray.name not in used:
                        outcomes["(stray file)"] += 1
                        stray.unlink()
    for what, count in sorted(outcomes.items()):
        print(f"{count:>6}  {what}")
    return 1 if any(o.startswith(("BROKEN", "MIXED")) for o in outcomes) else 0


def _locations(path: pathlib.Path):
    proto = serde.read_proto(path, external_data=False)
    return [e for t in proto.graph.initializer for e in t.external_data if e.key == "location"]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
