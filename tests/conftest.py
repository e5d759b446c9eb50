"""What holds for all tests."""

from __future__ import annotations

import copy
import functools
import gc
import importlib.util
import os
import re
import signal
import sys
from pathlib import Path

import pytest

if sys.version_info < (3, 11):
    import tomli  # which pytest brings there

    sys.modules["tomllib"] = tomli

_TORCH = importlib.util.find_spec("torch") is not None
_NEEDS_TORCH = re.compile(r"torch|^ *(from|import) cases", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Without torch (`nox -s core`), leave out what needs it: files, by themselves or through `cases`, and folders."""
    if _TORCH or collection_path == Path(__file__).parent:
        return None
    file = collection_path / "conftest.py" if collection_path.is_dir() else collection_path
    needs = file.suffix == ".py" and file.exists() and _NEEDS_TORCH.search(file.read_text()) is not None
    return True if needs else None


def pytest_collection_finish() -> None:
    """Keep what is there before the first test out of the collection of garbage: it stays, and is a million objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _no_width_of_a_terminal() -> None:
    """What commands print into a pipe is as wide as its content; under pytest-xdist COLUMNS is set, to 80."""
    os.environ.pop("COLUMNS", None)


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c_interrupts() -> None:
    """A shell starts what runs in its background with SIGINT ignored, as `nohup make test &`; tests send it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _every_pass_is_checked() -> None:
    """After every pass, what was established must still hold."""
    from onward.passes import base

    base.CHECKED = True


@pytest.fixture(autouse=True, scope="session")
def _exporter_reads_its_operators_once() -> None:
    """PyTorch's exporter parses the source of its 500 operators for every export, which is half of the time it takes.

    Each export gets a table of its own, so what one registers does not reach the next. Subprocesses read anew.
    """
    if not _TORCH:
        return
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    read = functools.cache(ONNXRegistry.from_torchlib)

    def from_torchlib(*args: int, **options: int) -> ONNXRegistry:
        registry = copy.copy(read(*args, **options))
        registry.functions = {target: list(found) for target, found in registry.functions.items()}
        return registry

    ONNXRegistry.from_torchlib = staticmethod(from_torchlib)
