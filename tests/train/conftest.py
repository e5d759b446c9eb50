"""What the tests of runs with photos and worker processes share."""

from __future__ import annotations

from pathlib import Path

import pytest

from train import photos


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photos.write_photos(tmp_path_factory.mktemp("photos") / "all")


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let worker processes import `train.photos`, as they import a user's module."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
