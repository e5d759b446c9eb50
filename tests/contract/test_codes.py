"""Every diagnostic code is raised by a test: by its name, or by its message, as codes_by_message.toml says."""

from __future__ import annotations

import re
from pathlib import Path

import tomllib

import onward
from onward.errors import catalogue

TESTS = Path(__file__).parent.parent
TABLE = tomllib.loads((Path(__file__).parent / "codes_by_message.toml").read_text())
TEXTS = {path: path.read_text() for path in TESTS.rglob("*.py") if path != Path(__file__)}
WORDS = {word for text in TEXTS.values() for word in re.findall(r"\w+", text)}


def all_codes() -> set[str]:
    """Return every code of the catalogue."""
    return set(catalogue())


def named(code: str) -> bool:
    return code in WORDS


def test_every_code_is_raised_by_a_test_or_says_why_not() -> None:
    silent = {code for code in all_codes() if not named(code)}

    assert silent - set(TABLE["raised"]) - set(TABLE["untested"]) == set()


def test_the_tests_that_raise_a_code_by_its_message_exist() -> None:
    gone = []
    for code, place in TABLE["raised"].items():
        file, _, function = place.partition("::")
        if f"def {function}(" not in TEXTS.get(TESTS.parent / file, ""):
            gone.append((code, place))

    assert not gone


def test_no_line_of_the_table_is_out_of_date() -> None:
    listed = {*TABLE["raised"], *TABLE["untested"]}

    assert listed <= all_codes()
    assert not [code for code in TABLE["untested"] if named(code)]
    assert all(TABLE["untested"].values())  # a reason each


def test_every_code_of_the_source_is_explained_and_the_other_way_round() -> None:
    source = "".join(path.read_text() for path in Path(onward.__file__).parent.rglob("*.py"))
    used = set(re.findall(r'^([A-Z]\d{3}) = "\1"$', source, re.MULTILINE))

    assert used == all_codes()
    assert all(entry.title and entry.why and entry.fix for entry in catalogue().values())
