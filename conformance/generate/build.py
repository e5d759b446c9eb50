"""Write all parts of the suite, in several processes."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

from generate import features, forward, gradient, invalid, networks, optimizer, training
from generate.writer import Suite, write_manifest

WHOLE = {"forward": forward, "training": training, "optimizer": optimizer, "invalid": invalid, "networks": networks}


def generate(
    folder: pathlib.Path, only: list[str] | None = None, jobs: int = 1
) -> tuple[list[dict[str, Any]], list[str]]:
    """Write the suite to `folder`; return the entries of its manifest and what had no oracle."""
    shutil.rmtree(folder, ignore_errors=True)
    operators = sorted({c.op for c in gradient.base_cases()})
    parts = [p for p in [*WHOLE, *operators] if not only or p in only]
    if jobs == 1:
        results = [work(folder, part) for part in parts]
    else:
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
            results = list(pool.map(work, [folder] * len(parts), parts))
    entries = [entry for found, _ in results for entry in found]
    names = [e["name"] for e in entries]
    twice = {n for n in names if names.count(n) > 1} if len(set(names)) < len(names) else set()
    if twice:
        raise ValueError(f"two cases have one name: {sorted(twice)}")
    write_manifest(folder, entries)
    return entries, [problem for _, found in results for problem in found]


def work(folder: pathlib.Path, part: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Write one part of the suite: a kind, or the gradients of one operator."""
    import torch

    torch.set_num_threads(1)
    suite = Suite(folder)
    problems = list(WHOLE[part].add_all(suite) if part in WHOLE else add_operator(suite, part))
    return suite.entries, problems


def add_operator(suite: Suite, operator: str) -> Iterator[str]:
    """Write all gradient cases of one operator."""
    first = True
    expanded = 0
    for case in (c for c in gradient.base_cases() if c.op == operator):
        is_first = first and case.kind == "ordinary"
        before = len(suite.entries)
        yield from gradient.add_base_case(suite, case, is_first)
        written = len(suite.entries) > before
        if is_first and written:
            first = False
            yield from features.add_features(suite, case)
        if written and case.kind == "ordinary" and case.expected is None and expanded < 3:
            expanded += 1
            yield from networks.add_expanded(suite, case)
