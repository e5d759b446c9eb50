"""The examples in the documentation run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["authoring", "losses", "optimizers", "samples"])
def test_the_examples_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}

    for block in blocks:
        exec(compile(block, f"docs/{page}.md", "exec"), scope)

    assert blocks
