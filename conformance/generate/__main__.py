"""Write the suite: `python -m generate --output conformance/data`."""

from __future__ import annotations

import argparse
import pathlib
import shutil
import sys
import time

from generate import gradient
from generate.writer import Suite, write_manifest


def main() -> int:
    parser = argparse.ArgumentParser(prog="generate", description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path(__file__).parents[1] / "data")
    parser.add_argument("--only", default="", help="only table entries with this text in their name")
    chosen = parser.parse_args()
    shutil.rmtree(chosen.output, ignore_errors=True)
    suite = Suite(chosen.output)
    started, problems, seen = time.perf_counter(), [], set()
    for case in gradient.base_cases():
        if chosen.only not in str(case):
            continue
        first = case.op not in seen and case.kind == "ordinary"
        seen |= {case.op} if first else set()
        problems += list(gradient.add_base_case(suite, case, first))
    write_manifest(chosen.output, suite.entries)
    for problem in problems:
        print("no case:", problem)
    print(f"{len(suite.entries)} cases in {time.perf_counter() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
