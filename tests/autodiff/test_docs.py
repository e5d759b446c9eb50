"""The examples of the documentation run as they stand."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from onward.autodiff import registry
from onward.autodiff import rules as rules  # registered before the page adds its own

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.mark.parametrize("page", ["adding_a_rule.md", "how_it_works.md"])
def test_page_runs(page: str) -> None:
    text = re.sub(r"^```.*$", "", (DOCS / page).read_text(), flags=re.MULTILINE)
    before = dict(registry._RULES)
    test = doctest.DocTestParser().get_doctest(text, {}, page, page, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    output: list[str] = []

    try:
        result = runner.run(test, out=output.append)
    finally:
        registry._RULES.clear()
        registry._RULES.update(before)

    assert result.attempted > 5
    assert not result.failed, "".join(output)


def test_the_coverage_page_and_its_measurements_have_every_operator_with_cases() -> None:
    """`python docs/generate.py` writes both; run it after adding a rule."""
    from cases import all_cases
    from onward.autodiff.coverage import coverage, measurements

    page = (DOCS / "coverage.md").read_text()

    assert {c.op for c in all_cases() if c.domain == ""} == set(measurements())
    assert not [o.name for o in coverage() if f"| {o.name} " not in page]
