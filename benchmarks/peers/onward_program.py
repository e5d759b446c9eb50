"""Onward: the ONNX training file on stock ONNX Runtime, or another backend, with no framework in the process."""

from __future__ import annotations

from typing import Any

from workloads import Workload

import onward
from onward.backends import open_session
from peers import THREADS, Batches, Files, Step


def build(
    workload: Workload, batches: Batches, files: Files, *, backend: str = "onnxruntime", profile: str | None = None,
    **options: Any,
) -> Step:  # fmt: skip
    """Return a training step; `options` are those of the backend (`fused=False` keeps the update in the graph)."""
    program = onward.compile(files.training, **({"profile": profile} if profile else {}))
    session = open_session(program, backend, threads=THREADS, **options)
    feeds = [dict(zip(program.input_names, batch, strict=True)) for batch in batches]
    return lambda k: float(session.step(feeds[k % len(feeds)])["loss"])
