"""Feed mutated model files to Onward and count what happens: `make fuzz`.

    python tests/hostile/fuzz.py --bytes 50000 --structural 10000

Every mutant is loaded, written again, checked and summed up, and every fourth drawn or upgraded, in worker processes
with a memory limit. What Onward refuses, it must refuse with an error of its own. The exit code is 1 if anything else
was raised, if a worker died, or if a mutant took longer than the time limit; each such mutant is named, and
`--only bytes:123` runs it alone.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from typing import IO, Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

HANG_SECONDS = 10.0  # of processor time
PATIENCE = 30  # how many times as long may pass on the clock: on a busy machine a worker waits for its turn
MEMORY_BYTES = 4 * 2**30


def run_one(data: bytes, path: pathlib.Path) -> str:
    """Return what became of one mutant; raises whatever is not an error of ours."""
    from onward.check import check
    from onward.errors import OnwardError
    from onward.model import serde
    from onward.show import render_page, summarize
    from onward.upgrade import upgrade

    path.write_bytes(data)
    try:
        report = check(path)
        checked = "check ok" if report.ok else "check finds"
    except OnwardError as error:
        checked = f"check refuses {error.code}"
    try:
        model = serde.load(path)
    except OnwardError as error:
        return f"refused {error.code}; {checked}"
    repr(model)
    sum(v.const_value.numpy().size for v in model.initializers().values() if v.const_value is not None)
    again = serde.from_proto(serde.to_proto(model))
    assert len(again.graph) == len(model.graph)
    json.dumps(summarize(model), allow_nan=False)
    if len(data) % 4 == 0:
        render_page(model)
    elif len(data) % 4 == 1:
        try:
            upgrade(model, 21)
        except OnwardError as error:
            return f"loaded; {checked}; upgrade refuses {error.code}"
    return f"loaded; {checked}"


def worker(kind: str, start: int, step: int, stop: int) -> None:
    """Run every `step`-th mutant and say on stdout what became of each."""
    from hostile.mutate import byte_mutant, corpus, structural_mutant

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    make = byte_mutant if kind == "bytes" else structural_mutant
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        files = corpus(folder)
        print(json.dumps({"ready": True}), flush=True)
        for index in range(start, stop, step):
            data = make(index, files)
            began = time.process_time()
            answer: dict[str, Any] = {"index": index}
            try:
                answer["outcome"] = run_one(data, folder / "m.onnx")
            except Exception as error:  # noqa: BLE001  # finding these is the purpose
                answer["outcome"] = f"RAISED {type(error).__name__}"
                answer["trace"] = traceback.format_exc(limit=-6)
            answer["seconds"] = time.process_time() - began
            print(json.dumps(answer), flush=True)


class Supervised:
    """One worker process, restarted behind a mutant that kills or stops it."""

    def __init__(self, kind: str, start: int, step: int, stop: int, scratch: str) -> None:
        self.kind, self.next, self.step, self.stop, self.scratch = kind, start, step, stop, scratch
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        here = [sys.executable, "-W", "ignore", __file__, "--worker", self.kind]
        command = [*here, str(self.next), str(self.step), str(self.stop)]
        environment = {**os.environ, "TMPDIR": self.scratch}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.since, self.cpu, self.ready, self.rest = time.monotonic(), 0.0, False, ""

    def poll(self) -> list[dict[str, Any]]:
        """Return what the worker reported since; a hang or a crash is reported for it."""
        if self.process is None:
            self.start()
        assert self.process is not None
        assert self.process.stdout is not None
        ended = self.process.poll() is not None
        answers = self._read(self.process.stdout)
        if answers:
            self.since, self.cpu = time.monotonic(), self._cpu()
            self.next = answers[-1]["index"] + self.step
        if self.next >= self.stop:
            self._end()
            return answers
        waited, used = time.monotonic() - self.since, self._cpu() - self.cpu
        limit = HANG_SECONDS if self.ready else 6 * HANG_SECONDS  # starting takes its time
        if ended:
            answers.append({"index": self.next, "outcome": f"CRASHED with {self.process.returncode}", "seconds": 0.0})
        elif used > limit or waited > PATIENCE * limit:
            answers.append({"index": self.next, "outcome": "HANG", "seconds": waited})
        if answers and answers[-1]["index"] == self.next:
            self.next += self.step
            self._end()
        return answers

    def _cpu(self) -> float:
        """Return the processor time of the worker: on a busy machine the clock alone would blame the mutant."""
        assert self.process is not None
        try:
            fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _end(self) -> None:
        assert self.process is not None
        self.process.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.wait()
        self.process = None

    def _read(self, stream: IO[str]) -> list[dict[str, Any]]:
        chunk = ""
        while True:
            part = stream.read(65536)
            if not part:
                break
            chunk += part
        lines = (self.rest + chunk).split("\n")
        self.rest = lines.pop()
        answers = [json.loads(line) for line in lines if line]
        if any("ready" in a for a in answers):
            self.ready, self.since, self.cpu = True, time.monotonic(), self._cpu()
        return [a for a in answers if "index" in a]

    @property
    def done(self) -> bool:
        return self.next >= self.stop


def fuzz(
    kind: str, count: int, jobs: int = 2, start: int = 0
) -> tuple[collections.Counter[str], list[dict[str, Any]], float]:
    """Return the outcomes of `count` mutants, those that must not be, and the longest time one took."""
    outcomes: collections.Counter[str] = collections.Counter()
    bad: list[dict[str, Any]] = []
    slowest = 0.0
    scratch = tempfile.TemporaryDirectory()
    workers = [Supervised(kind, start + j, jobs, start + count, scratch.name) for j in range(jobs)]
    shown = time.monotonic()
    while any(not w.done for w in workers):
        for each in workers:
            if each.done:
                continue
            for answer in each.poll():
                outcomes[answer["outcome"]] += 1
                slowest = max(slowest, answer["seconds"])
                if answer["outcome"].split()[0] in ("RAISED", "CRASHED", "HANG") or answer["seconds"] > HANG_SECONDS:
                    bad.append({**answer, "kind": kind})
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            print(f"  {kind}: {sum(outcomes.values()):,} of {count:,}, {len(bad)} bad", file=sys.stderr, flush=True)
        time.sleep(0.02)
    scratch.cleanup()
    return outcomes, bad, slowest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=50_000, help="how many mutants of the bytes")
    parser.add_argument("--structural", type=int, default=10_000, help="how many mutants of the messages")
    parser.add_argument("--start", type=int, default=0, help="the number of the first mutant")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("--only", help="run one mutant here, e.g. structural:123")
    parser.add_argument("--worker", nargs=4, metavar=("KIND", "START", "STEP", "STOP"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        kind, *numbers = options.worker
        worker(kind, *(int(n) for n in numbers))
        return 0
    if options.only:
        from hostile.mutate import byte_mutant, corpus, structural_mutant

        kind, _, index = options.only.partition(":")
        with tempfile.TemporaryDirectory() as name:
            make = byte_mutant if kind == "bytes" else structural_mutant
            data = make(int(index), corpus(pathlib.Path(name)))
            print(run_one(data, pathlib.Path(name) / "m.onnx"))
        return 0
    bad: list[dict[str, Any]] = []
    for kind, count in (("bytes", options.bytes), ("structural", options.structural)):
        if not count:
            continue
        began = time.monotonic()
        outcomes, found, slowest = fuzz(kind, count, options.jobs, options.start)
        bad += found
        total = sum(outcomes.values())
        print(f"\n{total:,} {kind} mutants in {time.monotonic() - began:.0f} s, the slowest {slowest:.2f} s")
        for outcome, number in outcomes.most_common(25):
            print(f"  {number:>7,}  {outcome}")
        if total != count:
            print(f"only {total:,} of {count:,} were counted")
            return 1
    for each in bad[:20]:
        print(f"\n{each['kind']}:{each['index']}  {each['outcome']}\n{each.get('trace', '')}")
    print(f"\n{'FAILED: ' + str(len(bad)) + ' mutants' if bad else 'ok: 0 foreign exceptions, 0 crashes, 0 hangs'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
