"""Workers in processes of their own, timed in turn, and where their results go: for attention.py and recompute.py.

A worker is the script itself with `--worker`: it answers (`worker.answer`) when it is ready, and then for each number
of steps that it reads.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from report import write_section

HERE = Path(__file__).parent


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a worker."""
    command = [sys.executable, script, "--worker", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(worker: subprocess.Popen[str], steps: int | None = None) -> Any:
    """Return the next answer of a worker, after so many steps if a number is given."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    if steps is not None:
        worker.stdin.write(f"{steps}\n")
        worker.stdin.flush()
    line = worker.stdout.readline()
    if not line:
        raise SystemExit("a process ended before it answered; its message is above")
    return json.loads(line)


def publish(name: str, results: object, table: str, page: str | None) -> None:
    """Print the table; write the results into benchmarks/results, and the table into the page of docs/, if any."""
    print(table)
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(results, indent=1))
    if page is not None:
        write_section(HERE.parent / "docs" / page, name, table)
