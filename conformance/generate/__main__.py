"""Write the suite: `python -m generate` (with `conformance`, `tests` and `src` of the checkout on the path)."""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import time

from generate.build import generate

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"


def main() -> int:
    """Run the command; return 0."""
    parser = argparse.ArgumentParser(prog="generate", description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, default=DATA)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument(
        "--only", nargs="*", default=[], help="operators, optimizer, training, forward, invalid, networks"
    )
    parser.add_argument("--verbose", action="store_true", help="say which cases have no oracle, and why")
    chosen = parser.parse_args()
    started = time.perf_counter()
    entries, problems = generate(chosen.output, chosen.only, chosen.jobs)
    for problem in problems if chosen.verbose else ():
        print("no case:", problem)
    print(f"{len(entries)} cases in {time.perf_counter() - started:.0f} s; {len(problems)} without an oracle")
    return 0


if __name__ == "__main__":
    sys.exit(main())
