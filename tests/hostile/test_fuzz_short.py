"""A short run of `make fuzz`, and the proof that it would notice."""

from __future__ import annotations

import pytest

from hostile import fuzz
from hostile.mutate import byte_mutant, corpus, structural_mutant


@pytest.mark.parametrize(("kind", "count"), [("bytes", 250), ("structural", 80)])
def test_mutants_are_refused_with_errors_of_ours(kind, count):
    outcomes, bad, _ = fuzz.fuzz(kind, count, jobs=1, start=10_000_000)

    assert bad == []
    assert sum(outcomes.values()) == count
    assert any(o.startswith("refused") for o in outcomes)
    assert any(o.startswith("loaded") for o in outcomes)


def test_the_same_number_is_the_same_mutant(tmp_path):
    files = corpus(tmp_path)

    assert structural_mutant(7, files) == structural_mutant(7, files)
    assert byte_mutant(7, files) == byte_mutant(7, files)
    assert len({structural_mutant(i, files) for i in range(30)}) > 25


def test_a_crash_and_a_hang_are_noticed(monkeypatch, tmp_path):
    """Workers that die or stop at one mutant are reported for it, and the rest still runs."""
    script = tmp_path / "worker.py"
    script.write_text(
        "import json, os, sys, time\n"
        "kind, start, step, stop = sys.argv[2], *map(int, sys.argv[3:6])\n"
        "print(json.dumps({'ready': True}), flush=True)\n"
        "for i in range(start, stop, step):\n"
        "    if i == 3: os.abort()\n"
        "    if i == 5: time.sleep(60)\n"
        "    outcome = 'RAISED KeyError' if i == 7 else 'loaded'\n"
        "    print(json.dumps({'index': i, 'outcome': outcome, 'seconds': 0}), flush=True)\n"
    )
    monkeypatch.setattr(fuzz, "__file__", str(script))
    monkeypatch.setattr(fuzz, "HANG_SECONDS", 0.5)

    outcomes, bad, _ = fuzz.fuzz("bytes", 10, jobs=2)

    assert sum(outcomes.values()) == 10
    assert sorted((b["index"], b["outcome"].split()[0]) for b in bad) == [(3, "CRASHED"), (5, "HANG"), (7, "RAISED")]
