"""`onward compile` writes a whole program, or nothing."""

from __future__ import annotations

import errno

import pytest

import onward
from onward.errors import ModelError
from onward.storage import atomic


@pytest.fixture
def program():
    return onward.compile(onward.samples.build("linear"))


def fail_at(monkeypatch, number, error=None):
    """Let the disk be full at the operation of that number; return the list of operations."""
    seen = []

    def boundary(operation, path):
        seen.append(operation)
        if len(seen) == number:
            raise error or OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic, "boundary", boundary)
    return seen


def test_a_full_disk_leaves_nothing_behind(program, tmp_path, monkeypatch):
    operations = fail_at(monkeypatch, 0)
    program.save(tmp_path / "whole")
    count = len(operations)
    assert count > 20

    for number in range(1, count):
        fail_at(monkeypatch, number)
        with pytest.raises(ModelError, match="No space left on device"):
            program.save(tmp_path / "program")
        assert not (tmp_path / "program").exists(), f"operation {number}"


def test_a_full_disk_leaves_the_old_program(program, tmp_path, monkeypatch):
    program.save(tmp_path / "program")
    before = {p.name: p.read_bytes() for p in (tmp_path / "program").iterdir()}
    other = onward.compile(onward.samples.build("linear"), seed=7)

    fail_at(monkeypatch, 6)
    with pytest.raises(ModelError, match="No space left on device"):
        other.save(tmp_path / "program")

    assert {p.name: p.read_bytes() for p in (tmp_path / "program").iterdir()} == before
    onward.Program.load(tmp_path / "program")


def test_an_empty_directory_stays_empty(program, tmp_path, monkeypatch):
    (tmp_path / "program").mkdir()

    fail_at(monkeypatch, 6, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        program.save(tmp_path / "program")

    assert list((tmp_path / "program").iterdir()) == []
