"""`make bench`: Onward beside its peers, each in a process of its own, timed in turn in one run.

    python benchmarks/run.py [--quick] [--workload mlp-64,lenet-64] [--peer onward,"torch eager"] [--docs]
    python benchmarks/run.py --workload mlp:batch=128,width=1024 --peer onward,"torch fused"

Prints a table for each workload and writes bench.json, bench.svg and bench.png into benchmarks/results. `--docs` also
writes the tables into docs/benchmarks.md and the plot to docs/benchmarks.svg. `--quick` is three small workloads and
the peers of this environment, for a look in a minute. The results of a workload are written as soon as it is done; a
run that was interrupted goes on with `--continue` and the same options, and the page says so.

A process that waits for its turn is stopped (SIGSTOP), so that its threads do not spin beside those of another peer.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import report
from peers import MEMORY_LIMIT, PEERS, THREADS
from rich.console import Console
from workloads import WORKLOADS, find

HERE = Path(__file__).parent
ROUNDS = 5
DISTURBED = 0.1  # of the cores, used by others during a turn
REPEATS = 3  # times that a disturbed turn is repeated
TURN = 0.4  # seconds
SPEND = 8.0  # seconds of timed steps after which a peer sits out the other turns of a workload
WARM = 1  # steps at the beginning of each turn that are not counted: caches are cold after a pause
TURN_LIMIT = 60.0  # seconds until a process is ended
QUICK_WORKLOADS = ("mlp-64", "lenet-64", "embedding-256")
QUICK_PEERS = ("onward", "onward plain", "torch eager", "torch fused")
SAME_LOSS = 1e-3


class Worker:
    """One peer on one workload, in its own process; `error` says why it is not running."""

    def __init__(self, peer: str, workload: str, folder: Path) -> None:
        self.peer = peer
        self.times: list[float] = []
        self.losses: list[float] = []
        self.first: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.disturbed = 0  # turns that others disturbed, however often they were repeated
        self.repeated = 0
        self.rounds = 0
        self.error = ""
        self._process: subprocess.Popen[str] | None = None
        if not PEERS[peer].python.exists():
            self.error = "not installed: make bench-peers"
            return
        self._cache = tempfile.TemporaryDirectory()  # of torch.compile: the time to the first step is a cold one
        self._errors = Path(self._cache.name, "stderr")
        command = [str(PEERS[peer].python), "-W", "ignore", str(HERE / "worker.py"), peer, workload, str(folder)]
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                start_new_session=True,  # so that what it starts is stopped and ended with it
                env={**environment(), "TORCHINDUCTOR_CACHE_DIR": self._cache.name, "ONWARD_CACHE": self._cache.name},
            )  # fmt: skip
        self.first = self._read(PEERS[peer].start)
        self._pause()

    def run(self, steps: int) -> float:
        """Train for some steps; return the share of the cores that other processes used meanwhile."""
        assert self._process is not None
        assert self._process.stdin is not None
        began, busy = time.perf_counter(), machine_seconds()
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):  # it ended meanwhile: reading finds out why
            self._process.stdin.write(f"{steps}\n")
            self._process.stdin.flush()
        self.last = self._read(TURN_LIMIT) or self.last
        now, seconds = machine_seconds(), time.perf_counter() - began
        self._pause()
        if busy is None or now is None or self.error:
            return 0.0
        return (now - busy - self.last["processor"]) / seconds / (os.cpu_count() or 1)

    def turn(self, seconds: float) -> None:
        """Train for about that long and keep the times, unless enough was spent; a disturbed turn is repeated."""
        if self.error or sum(self.times) > SPEND:
            return
        typical = statistics.median(self.times or self.last["times"])
        steps = max(2, min(200, round(seconds / typical)))
        for attempt in range(1 + REPEATS):
            others = self.run(WARM + steps)
            if others <= DISTURBED or attempt == REPEATS:
                break
            self.repeated += 1
        if not self.error:
            self.disturbed += others > DISTURBED
            self.times += self.last["times"][WARM:]
            self.rounds += 1

    def result(self, reference: list[float]) -> dict[str, Any]:
        """Return what was measured; `reference` are the losses that the first steps should have had."""
        if self.error:
            return {"error": self.error}
        off = [abs(ours / theirs - 1) for ours, theirs in zip(self.losses, reference, strict=False)]
        if off and not off[0] < SAME_LOSS:
            return {"error": f"another first loss: {self.losses[0]:.5f} instead of {reference[0]:.5f}"}
        low, median, high = statistics.quantiles(self.times, n=4, method="inclusive")
        return {
            "median_ms": median * 1e3,
            "low_ms": low * 1e3,
            "high_ms": high * 1e3,
            "best_ms": min(self.times) * 1e3,
            "disturbed": self.disturbed,
            "repeated": self.repeated,
            "rounds": self.rounds,
            "steps": len(self.times),
            "first_step_s": self.first["first"],
            "peak_mib": self.last["peak"] / 2**20,
            "loss_off": max(off, default=None),
        }

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _pause(self) -> None:
        """Stop the process until its next turn: threads that wait would spin for a while."""
        self._signal(signal.SIGSTOP)

    def close(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):  # it ended, and nothing that it started is left
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._cache.cleanup()

    def _read(self, limit: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        late = threading.Event()
        timer = threading.Timer(limit, lambda: (late.set(), self._signal(signal.SIGKILL)))
        timer.start()
        try:
            for line in self._process.stdout:
                if line.startswith("{"):
                    found: dict[str, Any] = json.loads(line)
                    self.losses = (self.losses + found["losses"])[:3]
                    return found
        finally:
            timer.cancel()
        self._process.wait()
        status = self._process.returncode
        ending = f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
        self.error = f"no answer in {limit:.0f} s" if late.is_set() else reason(self._errors.read_text()) or ending
        return {}


def machine_seconds() -> float | None:
    """Return for how many seconds the cores were busy, or taken by another machine; None where that is unknown."""
    table = Path("/proc/stat")
    if not table.exists():
        return None
    user, nice, system, _idle, _waiting, *rest = map(int, table.read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + sum(rest[:3])) / os.sysconf("SC_CLK_TCK")


def reason(errors: str) -> str:
    """Return the line of a process's error output that says what went wrong, without paths.

    >>> reason("Traceback ...\\n  File ...\\nops.NoRuleError: no rule for 'LSTM' (node '/a/b'); there are ['Add']\\n")
    "NoRuleError: no rule for 'LSTM' (node 'b')"
    """
    if re.search("bad_alloc|MemoryError|[Ff]ailed to allocate memory|Cannot allocate memory", errors):
        return f"needs more than {MEMORY_LIMIT // 2**30} GiB of memory"
    lines = [line for line in errors.splitlines() if line and not re.match(r"\s|\d{4}-\d\d-\d\d|\[", line)]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Fail|Exit)\w*:", line)]
    line = (named or lines or [""])[-1].split("; ")[0]
    line = re.sub(r"^[\w.]+\.(?=\w+:)", "", line)
    return re.sub(r"(/[\w.-]+)*/(?=[\w.-])", "", line)[:160]


def environment() -> dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"))
    return {**os.environ, **{name: str(THREADS) for name in threads}}


def ask(*command: str, limit: float | None = None) -> dict[str, Any]:
    """Return the JSON that one of our scripts prints as its last line; after `limit` seconds it is ended."""
    script, *rest = command
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / script), *rest], capture_output=True, text=True, env=environment(),
        timeout=limit,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def take_turns(workload: str, peers: Iterable[str], folder: Path, rounds: int, turn: float) -> list[Worker]:
    """Return one worker for each peer, with its times; the steps to warm up are not among them."""
    workers: list[Worker] = []
    try:
        for peer in peers:
            workers.append(Worker(peer, workload, folder))
        for worker in workers:
            if not worker.error:
                worker.run(PEERS[worker.peer].warm)
        for k in range(rounds):
            for worker in workers[:: 1 if k % 2 == 0 else -1]:  # nobody always follows the same peer
                worker.turn(turn)
    finally:
        for worker in workers:
            worker.close()
    return workers


def measure(workload: str, peers: list[str], folder: Path, rounds: int, turn: float) -> dict[str, Any]:
    """Return the results of every peer on one workload, timed in turn."""
    operations = ask("prepare.py", str(folder), workload)[workload]
    gemm = ask("worker.py", "--gemm")["gflops"]
    before = os.getloadavg()[0]
    workers = take_turns(workload, peers, folder, rounds, turn)
    reference = next((w.losses for w in workers if w.peer == "torch eager"), [])
    return {
        "flops": operations,
        "gemm_gflops": gemm,
        "load_before": before,
        "load_after": os.getloadavg()[0],
        "versions": {worker.peer: worker.first["versions"] for worker in workers if worker.first},
        "peers": {worker.peer: worker.result(reference) for worker in workers},
    }


def split(texts: list[str]) -> list[str]:
    """Return the names in comma-separated lists; a comma before a parameter belongs to the name.

    >>> split(["mlp-64,mlp:batch=128,width=1024,lenet-64", "gru-32"])
    ['mlp-64', 'mlp:batch=128,width=1024', 'lenet-64', 'gru-32']
    """
    return [name for text in texts for name in re.split(r",(?!\w+=)", text)]


def chosen_workloads(texts: list[str], fast: bool) -> list[str]:
    chosen = split(texts) or list(QUICK_WORKLOADS if fast else WORKLOADS)
    try:
        for name in chosen:
            find(name)
    except ValueError as error:
        raise SystemExit(str(error)) from error
    return chosen


def chosen_peers(texts: list[str], fast: bool) -> list[str]:
    chosen = split(texts) or list(QUICK_PEERS if fast else PEERS)
    if unknown := [name for name in chosen if name not in PEERS]:
        raise SystemExit(f"unknown: {', '.join(unknown)}; known: {', '.join(PEERS)}")
    return chosen


def commit() -> str:
    """Return the commit that is measured, and whether its code was changed; nothing outside a repository of git."""
    if shutil.which("git") is None:
        return ""
    asked = (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--", ".", "../src"))
    head, changed = (
        subprocess.run(["git", *each], cwd=HERE, capture_output=True, text=True, check=False).stdout.strip()
        for each in asked
    )
    return head + " with changes" * bool(changed)


def begin(arguments: argparse.Namespace, workloads: list[str], peers: list[str], rounds: int) -> dict[str, Any]:
    """Return a run without results; with `--continue`, the one that was interrupted."""
    asked = {"workloads": workloads, "peers": peers, "rounds": rounds, "turn_s": arguments.turn}
    about = {"machine": report.machine(), "commit": commit(), "asked": asked}
    fresh = {**about, "date": time.strftime("%-d %B %Y"), "rounds": rounds, "turn_s": arguments.turn, "minutes": 0.0,
             "interrupted": 0, "workloads": {}}  # fmt: skip
    stored = arguments.output / "bench.json"
    if not stored.exists():
        return fresh
    last: dict[str, Any] = json.loads(stored.read_text())
    if arguments.resume:
        if changed := [key for key, value in about.items() if last.get(key) != value]:
            raise SystemExit(f"--continue: the run in {stored} differs in {', '.join(changed)}; start a new one")
        last["interrupted"] += 1
        return last
    if arguments.keep:
        return {**fresh, "workloads": last["workloads"]}
    return last if arguments.render else fresh


def keep(run: dict[str, Any], stored: Path) -> None:
    """Write what was measured until now; whatever happens meanwhile, the file is whole."""
    part = stored.with_suffix(".part")
    part.write_text(json.dumps(run, indent=2) + "\n")
    os.replace(part, stored)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", "--workloads", action="append", default=[], metavar="NAME,...",
                        help="a name of the table, or FAMILY:PARAMETER=VALUE,...; may be repeated")  # fmt: skip
    parser.add_argument("--peer", "--peers", action="append", default=[], metavar="NAME,...", help="may be repeated")
    parser.add_argument("--rounds", type=int, help=f"turns of each peer ({ROUNDS}; 2 with --quick)")
    parser.add_argument("--turn", type=float, default=TURN, help="seconds of a turn")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keep", action="store_true", help="keep the last results of workloads that are not named")
    parser.add_argument("--continue", action="store_true", dest="resume", help="go on with a run that was interrupted")
    parser.add_argument("--render", action="store_true", help="measure nothing: show and write the last results again")
    parser.add_argument("--docs", action="store_true", help="write the results into docs/")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    if arguments.docs and arguments.keep:
        raise SystemExit("--docs writes the page of one run, and --keep puts several together: leave one of them out")
    workloads = chosen_workloads(arguments.workload, arguments.quick)
    peers = chosen_peers(arguments.peer, arguments.quick)
    missing = [peer for peer in peers if not PEERS[peer].python.exists()]
    if arguments.docs and missing and not arguments.render:
        raise SystemExit(f"not installed: {', '.join(missing)}; run `make bench-peers`, or choose others with --peer")
    rounds = arguments.rounds or (2 if arguments.quick else ROUNDS)
    # As pip does with what it installs: an editable installation may compile its sources anew in every process.
    compileall.compile_dir(HERE.parent / "src", quiet=2)
    output: Path = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    console = Console()
    console.width = max(console.width, 120)  # a file is no reason for narrow columns
    stored = output / "bench.json"
    run = begin(arguments, workloads, peers, rounds)
    for workload in run["workloads"] if arguments.render else workloads:
        if not arguments.render and not (arguments.resume and workload in run["workloads"]):
            began = time.perf_counter()
            with tempfile.TemporaryDirectory() as folder:
                run["workloads"][workload] = measure(workload, peers, Path(folder), rounds, arguments.turn)
            run["minutes"] += (time.perf_counter() - began) / 60
            keep(run, stored)
        console.print(report.table(workload, run))
    report.plot(run, output / "bench.svg")
    report.plot(run, output / "bench.png")
    if arguments.docs:
        docs = HERE.parent / "docs"
        report.plot(run, docs / "benchmarks.svg")
        report.write_section(docs / "benchmarks.md", "results", report.markdown(run))
    console.print(f"written: bench.json, bench.svg and bench.png in {output}")


if __name__ == "__main__":
    main()
