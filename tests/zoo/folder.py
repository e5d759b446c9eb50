"""Take every `.onnx` file below some folders through the stages of `examine.py`, with made-up inputs.

    python tests/zoo/folder.py FOLDER [FOLDER …] [--results results.jsonl] [--seconds S]

For the test databases of other projects, of which a checkout has hundreds of small files, and for your own. Nothing is
expected of a file: what ONNX Runtime does not run, and what holds no weights, is counted and left; every other miss is
printed. Results are kept in a file, line by line, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import onnx
from examine import Examination, _all_nodes, _session  # imported once, before the children are made

_TYPES = {
    "tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16", "tensor(bool)": "bool",
    "tensor(string)": "object", **{f"tensor({t})": t for t in ("int64", "int32", "int8", "uint8")},
}  # fmt: skip
_SIZES = (2, 1, 4, 16, 64)  # of an open dimension, in the order in which they are tried
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16)


def examined(path: Path) -> dict[str, Any]:
    """Return what became of one file: why it is left, or the stages."""
    try:
        model = onnx.load(str(path), load_external_data=False)
        session = _session(str(path))
    except Exception as error:  # noqa: BLE001  # a file that ONNX Runtime refuses is none of ours
        return {"left": "ONNX Runtime refuses it", "reason": f"{type(error).__name__}: {error}"[:300]}
    if not _has_weights(model):
        return {"left": "it holds no weights"}
    if any(i.type not in _TYPES for i in session.get_inputs()):
        return {"left": "an input is no tensor of numbers or text"}
    for size in _SIZES:
        inputs = {
            i.name: {
                "dtype": _TYPES[i.type],
                "shape": [d if isinstance(d, int) and d > 0 else size for d in i.shape or ()],
            }
            for i in session.get_inputs()
        }
        attempt = Examination(path, {"inputs": inputs})
        with attempt.stage("runs"):
            attempt.session = session
            attempt._draw(None)
        if attempt.ok("runs"):
            with contextlib.redirect_stdout(io.StringIO()):
                return {"inputs": inputs, "stages": Examination(path, {"inputs": inputs}).run()}
    return {"left": "it does not run with made-up inputs", "reason": attempt.found["runs"].get("reason", "")[:300]}


def _has_weights(model: onnx.ModelProto) -> bool:
    if any(t.data_type in _FLOATS for t in model.graph.initializer):
        return True
    return any(n.op_type == "Constant" or n.domain == "ai.onnx.ml" for n in _all_nodes(model.graph))


def in_a_child(path: Path, seconds: int) -> dict[str, Any]:
    """Examine a file in a process of its own, which it may take down."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(seconds)
        resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with os.fdopen(write, "w") as pipe:
            json.dump(examined(path), pipe, default=str)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if status == 0 else {"ended": f"the process ended with status {status}"}


def misses(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each stage that a file missed, with the reason. Having nothing to train is none."""
    if "ended" in found:
        yield "ended", found["ended"]
    for stage, result in found.get("stages", {}).items():
        if isinstance(result, dict) and not result["ok"] and "error[A111]" not in result.get("reason", ""):
            yield stage, ("foreign exception: " if "foreign" in result else "") + result.get("reason", "?")


def main() -> int:
    """Examine the files; return 1 if one missed a stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--results", type=Path, default=Path("results.jsonl"))
    parser.add_argument("--seconds", type=int, default=240)
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.results.read_text().splitlines()] if given.results.exists() else []
    known = {row["file"]: row for row in rows}
    counts: collections.Counter[str] = collections.Counter()
    for path in sorted(p for folder in given.folders for p in folder.rglob("*.onnx")):
        if str(path) not in known:
            known[str(path)] = {"file": str(path), **in_a_child(path, given.seconds)}
            with given.results.open("a") as results:
                results.write(json.dumps(known[str(path)]) + "\n")
        found = known[str(path)]
        missed = list(misses(found))
        counts["a stage was missed" if missed else found.get("left", "everything as it should be")] += 1
        for stage, reason in missed:
            print(f"{path}: {stage}: {' '.join(reason.split())[:400]}", flush=True)
    print("\n".join(f"{count:6} {what}" for what, count in counts.most_common()))
    return int("a stage was missed" in counts)


if __name__ == "__main__":
    sys.exit(main())
