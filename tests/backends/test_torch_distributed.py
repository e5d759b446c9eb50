"""Two processes that torchrun starts, against one process on the same batches."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import onward
from models import batch, perceptron
from onward.errors import ArgumentError
from whole import WHOLE, sample

ROOT = Path(__file__).parent.parent.parent
OPTIONS = [{}, {"gradients": "graph"}, {"shard": True}]

WORKER_THAT_DIES_ONCE = """
import os, sys
import onward
from onward.train import Callback

class Dies(Callback):
    def on_step_end(self, run, logs):
        if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and logs["step"] == 8:
            os._exit(9)

model, data, checkpoints = sys.argv[1:]
from pathlib import Path
if list(Path(checkpoints).glob("step-*")):
    trainer = onward.Trainer.resume(checkpoints)
    assert 6 <= trainer.steps <= 8, trainer.steps
else:
    trainer = onward.Trainer(model, backend="torch", threads=1)
trainer.fit(data, epochs=2, batch_size=24, callbacks=[Dies()], checkpoint=checkpoints, checkpoint_every=3,
            progress="none")
if trainer.is_writer:
    onward.save(trainer.to_model(), model + ".trained.onnx")
"""


WORKER_WITH_STATISTICS_AND_DROPOUT = """
import sys
import numpy as np
import onward

folder, shard = sys.argv[1], sys.argv[2] == "shard"
options = {"shard": True} if shard else {}
trainer = onward.Trainer(folder + "/net.onnx", backend="torch", threads=1, **options)
rng = np.random.default_rng(0)
losses = []
for step in range(8):
    size = 1 if step == 3 else 7  # one sample: the second process alone has work
    feeds = {"x": rng.normal(size=(size, 1, 6, 6)).astype(np.float32), "labels": rng.integers(0, 3, size)}
    outputs = trainer.session.step(feeds)
    assert outputs["train/logits"].shape == (size, 3), outputs["train/logits"].shape
    losses.append(outputs["loss"])
held = sum(getattr(v, "tensor", v).nbytes for v in trainer.session._state.values())
np.savez(f"{folder}/rank{trainer.session._group.rank if trainer.session._group else 0}.npz", **trainer.state,
         losses=np.array(losses), held=np.array(held))
"""


WORKER_THAT_COUNTS_WHAT_IT_READS = """
import json, os, sys
import numpy as np
import onward
from onward.train.data import ColumnSource

class Counting:
    def __init__(self, array):
        self.array, self.rows = array, 0

    dtype = property(lambda self: self.array.dtype)
    shape = property(lambda self: self.array.shape)

    def take(self, indices):
        taken = self.array[indices]
        self.rows += len(taken)
        return taken

folder = sys.argv[1]
data = np.load(folder + "/data.npz")
columns = {name: Counting(data[name]) for name in data.files}
trainer = onward.Trainer(folder + "/model.onnx", backend="torch", threads=1)
history = trainer.fit(ColumnSource(columns), epochs=2, batch_size=24, metrics=["accuracy"], progress="none")
_, module = trainer.session._forward["train"]
found = {"rows": {n: c.rows for n, c in columns.items()}, "engine": type(module).__name__,
         "losses": [loss for _, loss in history.step_losses], "accuracy": [e["accuracy"] for e in history.epochs]}
with open(f"{folder}/counted{os.environ.get('RANK', 'alone')}.json", "w") as file:
    json.dump(found, file)
"""

WORKER_WITH_BRANCHES = """
import os, sys
import numpy as np
import onward

folder = sys.argv[1]
trainer = onward.Trainer(folder + "/branches.onnx", backend="torch", threads=1)
rng = np.random.default_rng(0)
losses = []
for step in range(6):
    x = rng.normal(size=(5, 3)).astype(np.float32) + (3 if step % 2 else -3)
    outputs = trainer.session.step({"x": x, "labels": rng.normal(size=(5, 1)).astype(np.float32)})
    losses.append(float(outputs["loss"]))
np.savez(f"{folder}/branches{os.environ.get('RANK', 'alone')}.npz", losses=np.array(losses), **trainer.state)
"""

WORKER_THAT_LISTS_ITS_THREADS = """
import atexit, json, os, sys
from pathlib import Path

folder, options, found = sys.argv[1], json.loads(sys.argv[2]), {}

def threads():
    return sorted(p.read_text().strip() for p in Path("/proc/self/task").glob("*/comm"))

@atexit.register  # before onward's, so it runs after it
def write():
    Path(f"{folder}/threads{os.environ['RANK']}.json").write_text(json.dumps({**found, "after": threads()}))

import onward
trainer = onward.Trainer(folder + "/model.onnx", backend="torch", threads=1, **options)
trainer.fit(folder + "/data.npz", epochs=1, batch_size=24, progress="none")
found["before"] = threads()
"""

WORKER_WITH_FULLY_SHARD = """
import os, sys
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
import onward

folder, world = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
module, _ = onward.to_torch(folder + "/model.onnx")
rank = 0
if world > 1:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    fully_shard(module, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (world,)))
optimizer = torch.optim.Adam(module.parameters(), 1e-2)
generator = torch.Generator().manual_seed(0)
losses = []
for _ in range(10):
    x, t = torch.randn(8, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)
    own = slice(rank * 8 // world, (rank + 1) * 8 // world)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(module(x[own]), t[own])
    loss.backward()
    optimizer.step()
    total = loss.detach() / world
    if world > 1:
        dist.all_reduce(total)
    losses.append(float(total))
held = sum(p.to_local().numel() if hasattr(p, "to_local") else p.numel() for p in module.parameters())
np.savez(f"{folder}/fully_{world}_{rank}.npz", losses=np.array(losses), held=np.array(held))
if world > 1:
    dist.destroy_process_group()
    os._exit(0)  # fully_shard keeps the group: its threads would run while Python exits, and may abort the process
"""


def torchrun(*arguments: str, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
               f"--max-restarts={restarts}", *arguments]  # fmt: skip
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and 128 samples: with batches of 24 the last one has 8."""
    folder = tmp_path_factory.mktemp("run")
    model = onward.make_trainable(perceptron(), loss="cross_entropy", optimizer=onward.Adam(1e-2))
    onward.save(model, folder / "model.onnx")
    parts = [batch(seed=i) for i in range(8)]
    np.savez(folder / "data.npz", **{k: np.concatenate([p[k] for p in parts]) for k in parts[0]})
    return folder


@pytest.fixture(scope="module")
def alone(files: Path) -> onward.Trainer:
    """The same run in one process."""
    trainer = onward.Trainer(files / "model.onnx", backend="torch", threads=1)
    trainer.fit(files / "data.npz", epochs=2, batch_size=24, progress="none")
    return trainer


def weights(path: Path) -> dict[str, np.ndarray]:
    model = onward.load(path)
    return {n: v.const_value.numpy() for n, v in {**model.parameters, **model.state}.items()}


def assert_same(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert set(actual) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("kept", sample(["whole", "shard"], ["shard"]))
def test_two_processes_follow_the_trajectory_of_one(
    kept: str, files: Path, alone: onward.Trainer, tmp_path: Path
) -> None:
    more = ["--shard", "--checkpoint", str(tmp_path / "run"), "--checkpoint-every", "4"] if kept == "shard" else []

    done = torchrun(
        "-m", "--", "onward", "train", str(files / "model.onnx"), "--data", str(files / "data.npz"), "--epochs", "2",
        "--batch-size", "24", "--backend", "torch", "--threads", "1", "--log", str(tmp_path / "log.jsonl"),
        "-o", str(tmp_path / "two.onnx"), *more,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    losses = [entry["loss"] for entry in lines if "loss" in entry and "seconds" not in entry]
    expected = [loss for _, loss in alone.history.step_losses]
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    assert_same(weights(tmp_path / "two.onnx"), alone.state)
    if more:  # the shares were gathered, so one process can resume
        resumed = onward.Trainer.resume(tmp_path / "run", allow_changes=True, shard=False)
        assert_same(resumed.state, alone.state)


def alone_too(script: Path, *arguments: str) -> None:
    """Run a worker's script without torchrun: here, which saves a process that imports PyTorch."""
    threads, given = torch.get_num_threads(), sys.argv
    sys.argv = [str(script), *arguments]
    try:
        runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = given
        torch.set_num_threads(threads)


def test_each_process_reads_its_part_and_all_know_the_metrics(files: Path, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER_THAT_COUNTS_WHAT_IT_READS)

    done = torchrun(str(script), str(files))
    alone_too(script, str(files))

    assert done.returncode == 0, done.stderr
    first, second, alone = (json.loads((files / f"counted{who}.json").read_text()) for who in ("0", "1", "alone"))
    assert (first["engine"], alone["engine"]) == ("DistributedDataParallel", "Forward")
    assert alone["rows"] == {"x": 256, "labels": 256}
    assert first["rows"] == second["rows"] == {"x": 128, "labels": 128}
    np.testing.assert_allclose(first["losses"], alone["losses"], rtol=1e-6)
    assert first["accuracy"] == second["accuracy"] == alone["accuracy"]


def test_a_branch_that_is_not_taken_follows_the_trajectory_of_one_process(tmp_path: Path) -> None:
    from backends.test_torch_autograd import two_branches

    onward.save(two_branches(), tmp_path / "branches.onnx")
    script = tmp_path / "worker.py"
    script.write_text(WORKER_WITH_BRANCHES)

    done = torchrun(str(script), str(tmp_path))
    alone_too(script, str(tmp_path))

    assert done.returncode == 0, done.stderr
    first, alone = (dict(np.load(tmp_path / f"branches{who}.npz")) for who in ("0", "alone"))
    assert_same(first, alone)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists the threads of a process there")
@pytest.mark.parametrize("options", OPTIONS if WHOLE else OPTIONS[-1:], ids=str)
def test_no_thread_of_the_connection_outlives_python(options: dict[str, object], files: Path, tmp_path: Path) -> None:
    """A thread that is still there while Python exits aborted a process now and then."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER_THAT_LISTS_ITS_THREADS)

    done = torchrun(str(script), str(files), json.dumps(options))

    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        found = json.loads((files / f"threads{rank}.json").read_text())
        assert any("gloo" in name for name in found["before"])
        assert [name for name in found["after"] if "gloo" in name or name.startswith("pt_")] == []


def test_a_killed_worker_loses_nothing(files: Path, alone: onward.Trainer, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER_THAT_DIES_ONCE)

    done = torchrun(
        str(script), str(files / "model.onnx"), str(files / "data.npz"), str(tmp_path / "checkpoints"), restarts=1
    )

    assert done.returncode == 0, done.stderr
    assert_same(weights(files / "model.onnx.trained.onnx"), alone.state)


def test_shards_of_one_process_are_refused(files: Path) -> None:
    with pytest.raises(ArgumentError, match="`shard` is for several processes"):
        onward.Trainer(files / "model.onnx", backend="torch", shard=True)


def test_another_backend_is_refused(files: Path) -> None:
    done = torchrun("-m", "--", "onward", "train", str(files / "model.onnx"), "--data", str(files / "data.npz"))

    assert done.returncode != 0
    assert "several processes train together on the torch backend only" in done.stderr


@pytest.mark.parametrize("kept", sample(["whole", "shard"], ["shard"]))
def test_statistics_and_dropout_follow_the_trajectory_of_one_process(kept: str, tmp_path: Path) -> None:
    from backends.test_torch_module import convolutional

    onward.save(convolutional(), tmp_path / "net.onnx")
    script = tmp_path / "worker.py"
    script.write_text(WORKER_WITH_STATISTICS_AND_DROPOUT)

    done = torchrun(str(script), str(tmp_path), kept)

    assert done.returncode == 0, done.stderr
    first, second = (dict(np.load(tmp_path / f"rank{r}.npz")) for r in (0, 1))
    alone_too(script, str(tmp_path), "whole")
    alone = dict(np.load(tmp_path / "rank0.npz"))
    np.testing.assert_allclose(first["losses"], alone["losses"], rtol=1e-6)
    if kept == "shard":
        assert max(first.pop("held"), second.pop("held")) < 0.75 * alone.pop("held")
    assert_same(first, alone)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def test_pytorchs_fully_shard_takes_the_module(files: Path, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER_WITH_FULLY_SHARD)

    done = torchrun(str(script), str(files), "2")
    alone_too(script, str(files), "1")

    assert done.returncode == 0, done.stderr
    two, one = np.load(files / "fully_2_0.npz"), np.load(files / "fully_1_0.npz")
    np.testing.assert_allclose(two["losses"], one["losses"], rtol=1e-6)
    assert two["held"] < 0.6 * one["held"]
