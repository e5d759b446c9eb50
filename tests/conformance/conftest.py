"""A small part of the conformance suite, generated for the tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "conformance" / "src"), str(ROOT / "conformance"), str(ROOT / "examples")]

# Operators whose cases the planted defects need, and what is cheap.
OPERATORS = ["Sub", "Max", "Gemm"]


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a sample: some operators, networks, all optimizers, some training and some invalid files."""
    from generate import build, invalid, networks, optimizer, scenario, training, training_custom
    from generate.writer import Suite, write_manifest

    folder = tmp_path_factory.mktemp("suite")
    sample = Suite(folder)
    for operator in OPERATORS:
        assert list(build.add_operator(sample, operator)) == []
    list(networks.add_all(sample))
    list(optimizer.add_all(sample))
    list(invalid.add_all(sample))
    for one in [*training.scenarios(), *training_custom.custom_scenarios()]:
        scenario.write(sample, one, one.dtypes[0], "static")
    write_manifest(folder, sample.entries)
    return folder
