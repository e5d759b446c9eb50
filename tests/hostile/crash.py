"""Kill training at every moment and prove that nothing is lost. `make crash` runs it in full.

1. `--kills N`: a writer of checkpoints is killed with SIGKILL, half of the times at a random moment and half of the
   times right before a write, fsync, rename, directory fsync or removal (each in turn). After each kill the newest
   checkpoint must verify, must hold exactly what was saved, and must not be older than the last one whose save had
   returned.
2. `--resumes N`: real runs (SGD, Adam, dropout, several epochs) are killed N times in all, at random moments, and taken
   up again each time; the state at the end must have the bytes of a run that was never interrupted.
3. `--terms N`: SIGTERM must end a run with exit code 0 within five seconds and with a checkpoint to go on from.

Processes are forked from one that has imported everything, so that a kill costs milliseconds.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime  # noqa: F401 -- imported before the fork, so that the children start at once
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import onward
from onward.storage import atomic as fsio
from onward.train.checkpoint import CheckpointDirectory
from onward.train.stored_model import StoredModel
from train.fake import linear_program

KEEP = 2


def fork(body: Callable[[], None]) -> int:
    """Run `body` in a child and return its process id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        body()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:  # noqa: BLE001 -- the child must never run on in the parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait_for(pid: int) -> int:
    """Return the exit code of the child, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# ---------------------------------------------------------------------- 1. kills while saving


def content(step: int, size: int) -> dict[str, np.ndarray]:
    """Return tensors that only this step has."""
    rng = np.random.Generator(np.random.Philox(key=step))
    return {"w": rng.random(size, dtype=np.float32), "step": np.array(step, np.int64)}


def save(directory: CheckpointDirectory, step: int, size: int, model: StoredModel) -> None:
    data = {"run": "crash", "steps": step, "backend": {}}
    directory.save(step, content(step, size), data, model)


def write_until_killed(path: Path, first: int, size: int, model: StoredModel, acknowledge: int) -> None:
    directory = CheckpointDirectory(path, keep=KEEP)
    for step in range(first, first + 1000):
        save(directory, step, size, model)
        os.write(acknowledge, step.to_bytes(4, "little"))


class KillAt:
    """Kills this process right before the n-th operation that changes the disk."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, operation: str, path: Path) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def count_operations(size: int, model: StoredModel) -> tuple[int, list[str]]:
    """Return how many operations two saves into a fresh directory and one that prunes take."""
    names: list[str] = []
    fsio.boundary = lambda operation, path: names.append(operation)
    with tempfile.TemporaryDirectory() as folder:
        directory = CheckpointDirectory(Path(folder) / "run", keep=KEEP)
        for step in range(1, KEEP + 2):
            save(directory, step, size, model)
    fsio.boundary = fsio._no_fault
    return len(names), names


def kill_writers(kills: int, seed: int) -> dict[str, int]:
    """Kill `kills` writers and return the counts; raises at the first checkpoint that is lost."""
    rng = random.Random(seed)
    model = StoredModel(None, linear_program())
    operations, names = count_operations(1 << 19, model)
    assert {"open", "write", "fsync", "rename", "fsync_dir", "remove"} <= set(names)
    result = {"kills": 0, "at_boundaries": 0, "stale_temps": 0, "not_yet_one": 0}
    with tempfile.TemporaryDirectory() as folder:
        path, last, at, number = Path(folder) / "run-0", 0, 0, 0
        while result["kills"] < kills:
            size = rng.choice([1 << 10, 1 << 17, 1 << 20])
            boundary = result["kills"] % 2 == 0
            if boundary:
                at = at % operations + 1
                if at == 1:  # the first operations of a directory that does not exist yet
                    number += 1
                    path, last = Path(folder) / f"run-{number}", 0
                size = 1 << 19
            reader, writer = os.pipe()
            hook = KillAt(at) if boundary else fsio._no_fault

            def body(hook=hook, path=path, last=last, size=size, writer=writer) -> None:
                fsio.boundary = hook
                write_until_killed(path, last + 1, size, model, writer)

            pid = fork(body)
            os.close(writer)
            if not boundary:
                time.sleep(rng.uniform(0.001, 0.06))
                os.kill(pid, signal.SIGKILL)
            code = wait_for(pid)
            assert code == -signal.SIGKILL, f"the writer ended with {code}"
            acknowledged = last
            while part := os.read(reader, 4096):
                acknowledged = int.from_bytes(part[-4:], "little")
            os.close(reader)
            result["kills"] += 1
            result["at_boundaries"] += boundary
            result["stale_temps"] += len(list(path.glob(fsio.TEMP_PREFIX + "*")))
            if not acknowledged and not CheckpointDirectory(path).step_files():
                result["not_yet_one"] += 1
                continue
            last = verify(path, acknowledged)
    return result


def verify(path: Path, acknowledged: int) -> int:
    """Return the step of the newest checkpoint, proved to be whole, right and not older than `acknowledged`."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a damaged file would be passed over with a warning: that counts as a loss
        directory = CheckpointDirectory(path)
        found = directory.load()
        directory.load_model(found)
    assert acknowledged <= found.step <= acknowledged + 1, f"step {found.step} after {acknowledged} was saved"
    expected = content(found.step, found.tensors["w"].size)
    for name, array in expected.items():
        assert found.tensors[name].tobytes() == array.tobytes(), f"`{name}` of step {found.step} differs"
    return found.step


# ---------------------------------------------------------------------- 2. kills while training


def network(dropout: bool) -> onnx.ModelProto:
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.normal(size=shape) * 0.3).astype(np.float32), name)

    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Dropout", ["r", "ratio"], ["d"]) if dropout else helper.make_node("Identity", ["r"], ["d"]),
        helper.make_node("Gemm", ["d", "w2", "b2"], ["y"]),
    ]
    weights = [weight("w1", 16, 64), weight("b1", 64), weight("w2", 64, 4), weight("b2", 4)]
    weights += [numpy_helper.from_array(np.float32(0.3), "ratio")] * dropout
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def samples() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.Generator(np.random.Philox(key=5))
    x = rng.normal(size=(250, 16)).astype(np.float32)
    return x, np.argmax(x[:, :4] + 0.3 * rng.normal(size=(250, 4)), axis=1)


VARIANTS: dict[str, Callable[[], onward.TrainingModel]] = {
    "sgd": lambda: onward.make_trainable(network(False), loss="cross_entropy", optimizer=onward.SGD(0.05)),
    "adam": lambda: onward.make_trainable(network(False), loss="cross_entropy", optimizer=onward.Adam(1e-2)),
    "dropout": lambda: onward.make_trainable(network(True), loss="cross_entropy", optimizer=onward.Adam(1e-2)),
}


def run_to_the_end(program: onward.Program, path: Path, started: int | None, every: int, seed: int) -> None:
    """Begin or resume the run in `path`, train to its end and write the digest of the state."""
    from onward.train import FunctionCallback, ReduceOnPlateau

    def tell(run: object, logs: object) -> None:
        if started is not None:
            os.write(started, b".")

    callbacks = [ReduceOnPlateau("loss", patience=2, factor=0.5, min_delta=0.01), FunctionCallback(on_step_end=tell)]
    common = {"callbacks": callbacks, "checkpoint_every": every, "metrics": ["accuracy"], "progress": "none"}
    if CheckpointDirectory(path).step_files():
        trainer = onward.Trainer.resume(path)
        trainer.fit(*samples(), **common)
    else:
        trainer = onward.Trainer(program, threads=1)
        trainer.fit(*samples(), epochs=12, batch_size=16, seed=seed, checkpoint=path, **common)
    state = trainer.state
    digest = hashlib.sha256(b"".join(n.encode() + state[n].tobytes() for n in sorted(state))).hexdigest()
    (path / "digest").write_text(digest)


def kill_runs(kills: int, seed: int, runs: int | None = None) -> dict[str, int]:
    """Kill `kills` times over at least 20 runs (fewer when there are fewer kills); all must end with equal bytes."""
    rng = random.Random(seed)
    runs = runs or max(min(20, kills // 3), 1)
    programs = {name: onward.compile(make()) for name, make in VARIANTS.items()}
    result = {"runs": 0, "kills": 0, "resumes": 0}
    with tempfile.TemporaryDirectory() as folder:
        expected: dict[tuple[str, int], str] = {}
        for number in range(runs):
            name = list(VARIANTS)[number % len(VARIANTS)]
            order = number % 2
            if (name, order) not in expected:
                whole = Path(folder) / f"whole-{name}-{order}"
                code = wait_for(fork(lambda n=name, p=whole, s=order: run_to_the_end(programs[n], p, None, 10**9, s)))
                assert code == 0, f"the whole run ended with {code}"
                expected[name, order] = (whole / "digest").read_text()
            path = Path(folder) / f"run-{number}"
            wanted = kills * (number + 1) // runs - kills * number // runs
            every = rng.choice([1, 3, 7, 20])
            killed = kill_one_run(programs[name], path, wanted, every, order, rng)
            assert killed["kills"] == wanted, f"the run ended before it was killed {wanted} times"
            found = (path / "digest").read_text()
            assert found == expected[name, order], f"run {number} ({name}) ended with other bytes"
            result["runs"] += 1
            result["kills"] += killed["kills"]
            result["resumes"] += killed["resumes"]
    return result


def kill_one_run(program: onward.Program, path: Path, wanted: int, every: int, seed: int, rng: random.Random) -> dict:
    result = {"kills": 0, "resumes": 0}
    while True:
        result["resumes"] += bool(CheckpointDirectory(path).step_files())
        reader, writer = os.pipe()
        pid = fork(lambda r=reader, w=writer: (os.close(r), run_to_the_end(program, path, w, every, seed)))
        os.close(writer)
        if result["kills"] < wanted:
            if rng.random() < 0.8:  # somewhere in the training; else while it starts or loads
                for _ in range(rng.randint(1, 1 + 12 * 16 // (wanted + 2))):
                    if not os.read(reader, 1):
                        break
            time.sleep(rng.uniform(0, 0.004))
            os.kill(pid, signal.SIGKILL)
        code = wait_for(pid)
        os.close(reader)
        if code == -signal.SIGKILL:
            result["kills"] += 1
            continue
        assert code == 0, f"a resumed run ended with {code}"
        return result


# ---------------------------------------------------------------------- 3. SIGTERM


def terminate_runs(times: int, seed: int) -> dict[str, float]:
    """Send SIGTERM to `times` runs; each must save and exit with 0 within five seconds."""
    rng = random.Random(seed)
    program = onward.compile(VARIANTS["adam"]())
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(times):
            path = Path(folder) / f"run-{number}"
            reader, writer = os.pipe()
            pid = fork(lambda p=path, w=writer: run_to_the_end(program, p, w, 10**9, 0))
            os.close(writer)
            steps = rng.randint(1, 100)
            for _ in range(steps):
                os.read(reader, 1)
            began = time.monotonic()
            os.kill(pid, signal.SIGTERM)
            code = wait_for(pid)
            slowest = max(slowest, time.monotonic() - began)
            os.close(reader)
            assert code == 0, f"SIGTERM ended the run with {code}"
            assert slowest < 5.0, f"SIGTERM took {slowest:.1f} s"
            saved = CheckpointDirectory(path).load().step
            assert saved >= steps, f"saved at step {saved}, though {steps} were done"
    return {"terms": times, "slowest_seconds": round(slowest, 3)}


def main(arguments: list[str] | None = None) -> int:
    """Run the parts and print one line each; the exit code is 0 when nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--resumes", type=int, default=200)
    parser.add_argument("--terms", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    if options.kills:
        print(f"killed while saving: {kill_writers(options.kills, options.seed)}, 0 unusable checkpoints", flush=True)
    if options.resumes:
        print(f"killed while training: {kill_runs(options.resumes, options.seed)}, all bytes equal", flush=True)
    if options.terms:
        print(f"terminated: {terminate_runs(options.terms, options.seed)}, all saved and left with 0", flush=True)
    print(f"{time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
