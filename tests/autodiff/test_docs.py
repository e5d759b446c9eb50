"""The page of coverage is up to date."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_the_coverage_page_and_its_measurements_have_every_operator_with_cases() -> None:
    """`python docs/generate.py` writes both; run it after adding a rule."""
    from cases import all_cases
    from onward.compiler.coverage import coverage, measurements

    page = (DOCS / "coverage.md").read_text()

    assert {c.op for c in all_cases() if c.domain == ""} == set(measurements())
    assert not [o.name for o in coverage() if f"| {o.name} " not in page]
