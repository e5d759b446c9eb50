"""PyTorch quietly, on one thread, with its exporter's table of operators built once."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def quick_exporter() -> Iterator[None]:
    """The exporter builds its table of a thousand operators anew for each model, which is most of its time."""
    from torch.onnx._internal._lazy_import import onnxscript_apis

    original = onnxscript_apis.get_torchlib_ops
    onnxscript_apis.get_torchlib_ops = functools.lru_cache(maxsize=1)(original)
    yield
    onnxscript_apis.get_torchlib_ops = original


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_debug_logs() -> None:
    """pytest captures every level; torch's exporter writes megabytes at DEBUG."""
    for name in ("torch", "torch.__trace", "torch.fx", "onnxscript", "onnx_ir"):
        logging.getLogger(name).setLevel(logging.WARNING)
