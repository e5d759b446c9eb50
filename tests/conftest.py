"""What holds for all tests."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def _no_width_of_a_terminal() -> None:
    """What commands print into a pipe is as wide as its content; under pytest-xdist COLUMNS is set, to 80."""
    os.environ.pop("COLUMNS", None)
